"""A TOML file as its author sees it: statements in lines, which the parser's tables do not tell.

A statement ends with its line, unless a string or a bracket is still open there.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from holdfast.errors import SettingsError

TomlTable: TypeAlias = Mapping[str, object]
TomlKey: TypeAlias = tuple[str, ...]
BYTE_ORDER_MARK = "\ufeff"
_TOKEN = re.compile(
    r"""
    \"{3}(?:\\.|[^\\])*?(?:\"{3,5}|\\?\Z) | '{3}.*?(?:'{3,5}|\Z)  # strings over many lines, open ones to the end
    | "(?:\\.|[^"\\\n])*+"? | '[^'\n]*+'? | \#[^\n]*              # strings and comments
    | [\[\]{}\n]
    """,
    re.DOTALL | re.VERBOSE,
)
_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")


@dataclass(frozen=True, slots=True)
class TomlStatement:
    """A key with its value, or the head of a table; lines are counted from 0, and `stop` is the line behind it."""

    keys: tuple[TomlKey, ...]
    """Every key it sets, from the root of the document, the outermost first."""
    start: int
    stop: int
    is_head: bool = False
    is_top: bool = True
    """Whether it stands before the first table."""


def parse_toml(text: str, file: str) -> TomlTable:
    """Return what a document says; an error names the file and the line."""
    try:
        return tomllib.loads(text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:
        said = str(error)
        place = _PLACE.search(said)
        line = int(place[1]) if place and place[1] else text.rstrip().count("\n") + 1
        problem = f"is not TOML that can be read: {_PLACE.sub('', said)}; mend this line"
        raise SettingsError("the file", problem, where=f"{file}:{line}") from error


def parse_statements(text: str) -> list[TomlStatement]:
    """Return the statements of a document that can be parsed, in order."""
    lines = text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n").split("\n")
    found: list[TomlStatement] = []
    head: TomlKey = ()
    start = 0
    for stop in _statement_ends("\n".join(lines)):
        bare = lines[start].strip()
        if bare and not bare.startswith("#"):
            keys = tuple(_nested_keys(tomllib.loads("\n".join(lines[start:stop]))))
            is_head = bare.startswith("[")
            if is_head:
                head = keys[-1]
            named = keys if is_head else tuple((*head, *key) for key in keys)
            found.append(TomlStatement(named, start, stop, is_head=is_head, is_top=not head))
        start = stop
    return found


def _statement_ends(text: str) -> Iterator[int]:
    """Yield each line, counted from 1, with which a statement or an empty line ends."""
    line, depth = 0, 0
    for token in _TOKEN.finditer(text):
        line += token[0].count("\n")
        depth += (token[0] in {"[", "{"}) - (token[0] in {"]", "}"})
        if token[0] == "\n" and depth == 0:
            yield line
    yield line + 1


def key_lines(text: str) -> dict[TomlKey, int]:
    """Return in which line, counted from 1, each key of a document is first named."""
    lines: dict[TomlKey, int] = {}
    for statement in parse_statements(text):
        for key in statement.keys:
            lines.setdefault(key, statement.start + 1)
    return lines


def _nested_keys(value: object, before: TomlKey = ()) -> Iterator[TomlKey]:
    if isinstance(value, list) and value:  # the head of a table in an array of them
        yield from _nested_keys(cast("list[object]", value)[-1], before)
    if not isinstance(value, dict):
        return
    for name, inner in cast("dict[str, object]", value).items():
        yield (*before, name)
        yield from _nested_keys(inner, (*before, name))
