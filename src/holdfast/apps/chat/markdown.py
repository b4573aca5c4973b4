"""Prints styled text, Markdown and tables above the input line, with rich. Loaded at the first output."""

from collections.abc import Iterable

from markdown_it.token import Token
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table as Columns
from rich.text import Text

from holdfast.apps.chat.events import CommandTable
from holdfast.apps.chat.plain_screen import replace_control_characters


def _clean_tokens(tokens: Iterable[Token]) -> None:
    """Replace control characters in parsed text: an entity such as `&#x202e;` is one only after it is decoded."""
    for token in tokens:
        token.content = replace_control_characters(token.content)
        token.attrs = {
            name: replace_control_characters(value) if isinstance(value, str) else value
            for name, value in token.attrs.items()
        }
        _clean_tokens(token.children or ())


class MarkdownPrinter:
    """Prints above prompt_toolkit's input line."""

    def __init__(self, *, has_color: bool) -> None:
        self._console = Console(no_color=not has_color, highlight=False)

    def print_text(self, text: str, style: str) -> None:
        """Print text in one style."""
        self._console.print(Text(replace_control_characters(text), style=style))

    def print_markdown(self, text: str) -> None:
        """Print Markdown; links show the address that they open."""
        parsed = Markdown(replace_control_characters(text), hyperlinks=False)
        _clean_tokens(parsed.parsed)
        self._console.print(parsed)

    def print_table(self, table: CommandTable) -> None:
        """Print a table."""
        columns = Columns(*table.columns, title=table.title or None, box=None, header_style="bold")
        for row in table.rows:
            columns.add_row(*(Text(replace_control_characters(cell)) for cell in row))
        self._console.print(columns)

    def wrap(self, text: str, width: int) -> list[str]:
        """Return text in lines of a width."""
        whole = Text(replace_control_characters(text).strip("\n"))
        return [line.plain.rstrip() for line in whole.wrap(self._console, width)] if whole.plain else []
