"""A TOML file as its author sees it: statements in lines, which the parser's tables do not tell.

The parser itself says where a statement ends: lines are added until it accepts them. So whatever TOML allows, such as
strings and arrays over many lines, is told apart as the parser would.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from holdfast.errors import SettingsError

Table: TypeAlias = Mapping[str, object]
Key: TypeAlias = tuple[str, ...]
MARK = "\ufeff"
_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")


@dataclass(frozen=True, slots=True)
class Statement:
    """A key with its value, or the head of a table; lines are counted from 0, and `stop` is the line behind it."""

    keys: tuple[Key, ...]
    """Every key it sets, from the root of the document, the outermost first."""
    start: int
    stop: int
    is_head: bool = False
    is_top: bool = True
    """Whether it stands before the first table."""


def parsed(text: str, file: str) -> Table:
    """Return what a document says; an error names the file and the line."""
    try:
        return tomllib.loads(text.removeprefix(MARK).replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        said = str(error)
        place = _PLACE.search(said)
        line = int(place[1]) if place and place[1] else text.rstrip().count("\n") + 1
        problem = f"is not TOML that can be read: {_PLACE.sub('', said)}; mend this line"
        raise SettingsError("the file", problem, where=f"{file}:{line}") from error


def statements(text: str) -> list[Statement]:
    """Return the statements of a document that can be parsed, in order."""
    lines = text.removeprefix(MARK).replace("\r\n", "\n").split("\n")
    found: list[Statement] = []
    at, head, is_top = 0, (), True
    while at < len(lines):
        bare = lines[at].strip()
        if not bare or bare.startswith("#"):
            at += 1
            continue
        stop, table = _end_of(lines, at)
        keys = tuple(_keys_in(table))
        if bare.startswith("["):
            head, is_top = keys[-1] if keys else (), False
            found.append(Statement(keys, at, stop, is_head=True, is_top=False))
        else:
            found.append(Statement(tuple((*head, *key) for key in keys), at, stop, is_top=is_top))
        at = stop
    return found


def lines_of(text: str) -> dict[Key, int]:
    """Return in which line, counted from 1, each key of a document is first named."""
    lines: dict[Key, int] = {}
    for statement in statements(text):
        for key in statement.keys:
            lines.setdefault(key, statement.start + 1)
    return lines


def _end_of(lines: list[str], start: int) -> tuple[int, Table]:
    for stop in range(start + 1, len(lines) + 1):
        try:
            return stop, tomllib.loads("\n".join(lines[start:stop]))
        except tomllib.TOMLDecodeError:
            continue
    return len(lines), {}


def _keys_in(value: object, before: Key = ()) -> Iterator[Key]:
    if isinstance(value, list) and value:  # the head of a table in an array of them
        yield from _keys_in(cast("list[object]", value)[-1], before)
    if not isinstance(value, dict):
        return
    for name, inner in cast("dict[str, object]", value).items():
        yield (*before, name)
        yield from _keys_in(inner, (*before, name))
