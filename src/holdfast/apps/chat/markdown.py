"""Renders styled text, Markdown and tables for a terminal, with rich. Loaded at the first output.

An answer is rendered while it streams. Text that later text cannot change is returned once, as finished lines; the rest
is rendered again with each piece, so that a line looks the same before and after it is finished.
"""

import io
import re
from collections.abc import Iterable
from itertools import accumulate
from typing import ClassVar

from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.syntax import Syntax
from rich.table import Table as Columns
from rich.text import Text
from rich.theme import Theme

from holdfast.apps.chat.events import CommandTable
from holdfast.apps.chat.plain_screen import replace_control_characters

STYLES = Theme(
    {
        "markdown.code": "bold cyan",
        "markdown.code_block": "cyan",
        "markdown.block_quote": "italic",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
        "markdown.hr": "dim",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold underline",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.h5": "italic",
        "markdown.h6": "italic",
    }
)
"""Without backgrounds, and only in the colors that a terminal's theme chooses: readable on dark and on light."""
CODE_THEMES = {"dark": "ansi_dark", "light": "ansi_light"}


class _Code(CodeBlock):
    """A block of code, indented by one column, without empty lines around it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console, options
        yield Syntax(str(self.text).rstrip(), self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 1))


class _Heading(Heading):
    """A heading at the left edge."""

    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {**Heading.LEVEL_ALIGN, "h1": "left"}


class _Table(TableElement):
    """A table without empty lines around it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if isinstance(table, Columns):
                table.show_edge = False
            yield table


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "fence": _Code,
        "code_block": _Code,
        "heading_open": _Heading,
        "table_open": _Table,
    }


def _clean_tokens(tokens: Iterable[Token]) -> None:
    """Replace control characters in parsed text, and keep line breaks.

    An entity such as `&#x202e;` is a control character only after it is decoded.
    """
    for token in tokens:
        token.content = replace_control_characters(token.content)
        token.attrs = {
            name: replace_control_characters(value) if isinstance(value, str) else value
            for name, value in token.attrs.items()
        }
        if token.type == "softbreak":
            token.type = "hardbreak"
        _clean_tokens(token.children or ())


DIFF_STYLES = {"+": "green", "-": "red", "…": "dim"}
_STYLE_CODE = re.compile(r"\x1b\[[0-9;]*m")
_LINE_MARKS = "─▌"
"""Rules, and the mark before each line of a quotation."""


def _trim(line: str) -> str:
    """Return a line without the spaces that fill it: a terminal that becomes narrower would break it."""
    codes = ""
    while (
        line.endswith("m") and (start := line.rfind("\x1b[")) >= 0 and line[start + 2 : -1].replace(";", "").isdigit()
    ):
        line, codes = line[:start].rstrip(" "), line[start:] + codes
    return line.rstrip(" ") + codes


class MarkdownRenderer:
    """Renders for one terminal; each method returns text with the terminal's codes for styles."""

    def __init__(self, *, has_color: bool, background: str = "dark") -> None:
        self._has_color = has_color
        self._code_theme = CODE_THEMES[background]

    def text(self, text: str, style: str, width: int) -> str:
        """Return text in one style."""
        return self._render(Text(replace_control_characters(text), style=style), width)

    def markdown(self, text: str, width: int) -> str:
        """Return Markdown; links show the address that they open."""
        parsed = _Markdown(replace_control_characters(text), hyperlinks=False, code_theme=self._code_theme)
        _clean_tokens(parsed.parsed)
        return self._render(parsed, width)

    def diff(self, diff: str, width: int) -> str:
        """Return the lines of a diff, each in the color of its sign."""
        lines = replace_control_characters(diff).split("\n")
        return self._render(Text("\n").join(Text(line, DIFF_STYLES.get(line[:1], "")) for line in lines), width)

    def table(self, table: CommandTable, width: int) -> str:
        """Return a table."""
        columns = Columns(
            *table.columns, title=table.title or None, box=None, header_style="bold", title_justify="left"
        )
        for row in table.rows:
            columns.add_row(*(Text(replace_control_characters(cell)) for cell in row))
        return self._render(columns, width)

    def _render(self, what: RenderableType, width: int) -> str:
        target = io.StringIO()
        console = Console(
            file=target,
            width=max(1, width),
            force_terminal=True,
            no_color=not self._has_color,
            color_system="standard",
            highlight=False,
            theme=STYLES,
            legacy_windows=False,
        )
        console.print(what)
        return "".join(f"{_trim(line)}\n" for line in target.getvalue().removesuffix("\n").split("\n"))


_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_LIST_LINE = re.compile(r"^\s*([-*+]|\d{1,9}[.)])\s|^\s+\S")
"""A line of a list, or one that is indented and may belong to one."""
MAX_BLOCK_CHARS = 1_500
"""A longer block is finished in parts: rendering it with each new piece would take ever longer."""


def split_finished_blocks(text: str) -> tuple[str, str]:
    """Return the part that can be printed permanently, and the rest.

    A block ends at an empty line outside a code fence. Later text does not change how it is rendered, except for lists,
    which continue over empty lines. A block that is too long is split at the end of a line; if it is code, the rest
    begins with the line that opened it.
    """
    end, fence, opening, is_list, offset = 0, "", "", False, 0
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        marked = _FENCE.match(line)
        if fence:
            fence = "" if marked and marked[1].startswith(fence) and not line.strip(" `~\n") else fence
        elif marked:
            fence, opening = marked[1], line
        elif not line.strip():
            following = lines[number + 1] if number + 1 < len(lines) else ""
            if following.strip() and following.endswith("\n") and not (is_list and _LIST_LINE.match(following)):
                end = offset + len(line)
                is_list = False
        elif _LIST_LINE.match(line):
            is_list = True
        offset += len(line)
        if offset - end > MAX_BLOCK_CHARS and line.endswith("\n"):
            end, is_list = offset, False
            if fence:
                return text[:end] + f"{fence}\n", opening + text[end:]
    return text[:end], text[end:]


class StreamedMarkdown:
    """An answer while it streams: finished lines are taken once, and the rest can be looked at."""

    def __init__(self, renderer: MarkdownRenderer) -> None:
        self._renderer = renderer
        self._text = ""
        """The text of the blocks that are not finished."""
        self._taken = 0
        """How many lines of the first of them were taken already, at `_width`."""
        self._width: int = 0
        self._has_gap = False
        """Whether the next block is preceded by an empty line."""
        self._live: list[str] = []

    def feed(self, text: str) -> None:
        """Add a piece of the answer."""
        self._text += text

    @property
    def live_lines(self) -> list[str]:
        """The lines that may still change, as of the last `take_finished`."""
        return self._live

    def take_finished(self, width: int, max_live: int) -> str:
        """Return the lines that are finished, and those above the last `max_live` ones."""
        self._change_width(width)
        finished, self._text = split_finished_blocks(self._text)
        taken = self._take(finished, width) if finished.strip() else ""
        self._live = self._lines(self._text, width)
        # The columns of a table may become wider, so a table is shown when it is whole.
        excess = 0 if self._text.lstrip().startswith("|") else len(self._live) - max_live
        if excess > self._taken:
            taken += "".join(self._live[self._taken : excess])
            self._taken = excess
        self._live = self._live[self._taken :][-max_live:]
        return taken

    def take_rest(self, width: int) -> str:
        """Return all lines that were not taken; what follows is a new answer."""
        self._change_width(width)
        rest, self._text, self._live = self._text, "", []
        taken = self._take(rest, width) if rest.strip() else ""
        self._has_gap = False
        return taken

    def _change_width(self, width: int) -> None:
        """Count the taken lines again for a window of another width, so that none of the text is left out.

        A line that was taken in part counts as not taken: a few words twice are better than a few words less.
        """
        if self._taken and width != self._width:
            taken = sum(map(_count_drawn_chars, self._lines(self._text, self._width)[: self._taken]))
            drawn = accumulate(map(_count_drawn_chars, self._lines(self._text, width)))
            self._taken = sum(1 for chars in drawn if chars <= taken)
        self._width = width

    def _take(self, text: str, width: int) -> str:
        taken, self._taken = "".join(self._lines(text, width)[self._taken :]), 0
        # A block that was split goes on without an empty line.
        self._has_gap = text.endswith("\n\n")
        return taken

    def _lines(self, text: str, width: int) -> list[str]:
        if not text.strip():
            return []
        gap = ["\n"] if self._has_gap else []
        lines = self._renderer.markdown(text, width).split("\n")
        # rich puts empty lines around some blocks.
        seen = [number for number, line in enumerate(lines) if _STYLE_CODE.sub("", line).strip()]
        return gap + [f"{line}\n" for line in lines[seen[0] : seen[-1] + 1]] if seen else []


def _count_drawn_chars(line: str) -> int:
    """Return how many characters of a rendered line belong to the text at any width."""
    return sum(1 for char in _STYLE_CODE.sub("", line) if not char.isspace() and char not in _LINE_MARKS)
