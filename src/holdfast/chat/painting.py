"""What is printed above the line, by rich: styled text, Markdown, tables. Loaded when there is something to print."""

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table as Columns
from rich.text import Text

from holdfast.chat.happenings import Table
from holdfast.chat.plain import safe


class Painter:
    """Prints where prompt_toolkit leaves room for it."""

    def __init__(self, *, has_colour: bool) -> None:
        self._console = Console(no_color=not has_colour, highlight=False)

    def text(self, text: str, style: str) -> None:
        """Print text in one style."""
        self._console.print(Text(safe(text), style=style))

    def markdown(self, text: str) -> None:
        """Print Markdown."""
        self._console.print(Markdown(safe(text)))

    def table(self, table: Table) -> None:
        """Print a table."""
        columns = Columns(*table.columns, title=table.title or None, box=None, header_style="bold")
        for row in table.rows:
            columns.add_row(*(Text(safe(cell)) for cell in row))
        self._console.print(columns)

    def wrapped(self, text: str, width: int) -> list[str]:
        """Return text in lines of a width."""
        whole = Text(safe(text).strip("\n"))
        return [line.plain.rstrip() for line in whole.wrap(self._console, width)] if whole.plain else []
