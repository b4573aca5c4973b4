"""Read a TOML file with the line of each key, for error messages."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, cast

from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import Item, Key

TomlTable: TypeAlias = Mapping[str, object]
TomlKey: TypeAlias = tuple[str, ...]
TomlEntry: TypeAlias = "tuple[Key | None, Item]"
"""A statement or a table with its key; the key of a comment or a blank line is None."""
TomlBody: TypeAlias = "Sequence[TomlEntry]"
BYTE_ORDER_MARK = "\ufeff"
MAX_DEPTH = 32
"""How many tables and lists may lie within each other. Code that walks through them calls itself for each."""
_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")


def parse_toml(text: str, file: str) -> TomlTable:
    """Return the tables of a document; an error names the file and the line."""
    try:
        table = tomllib.loads(_normalized(text))
    except (ValueError, RecursionError) as error:
        reason = str(error)
        place = _PLACE.search(reason)
        line = int(place[1]) if place and place[1] else text.rstrip().count("\n") + 1
        problem = f"cannot be read as TOML: {_PLACE.sub('', reason)}; correct this line"
        raise SettingsError("the file", problem, where=f"{file}:{line}") from error
    if _depth(table) > MAX_DEPTH:
        problem = f"has more than {MAX_DEPTH} tables or lists within each other; no setting needs more than a few"
        raise SettingsError("the file", problem, where=file)
    return table


def _depth(table: TomlTable) -> int:
    """Return how deep tables and lists are nested; dotted keys nest them without any limit of the parser."""
    depth, level = 0, list[object]([table])
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [inner for outer in level for inner in _contents(outer) if _is_nested(inner)]
    return depth


def _contents(value: object) -> Iterable[object]:
    return cast("TomlTable", value).values() if isinstance(value, dict) else cast("list[object]", value)


def _is_nested(value: object) -> bool:
    return isinstance(value, dict | list)


def parse_document(text: str) -> "TOMLDocument":
    """Return a document with comments and layout, without a byte order mark and carriage returns."""
    import tomlkit  # noqa: PLC0415 - needed only if there is a settings file

    try:
        return tomlkit.parse(_normalized(text))
    except (ValueError, RecursionError) as error:  # tomlkit allows less nesting than tomllib
        raise SettingsError("the file", f"cannot be changed: {error}; correct it first") from error


def key_lines(text: str) -> dict[TomlKey, int]:
    """Return the first line of each key of a document, counted from 1; {} if the document cannot be parsed."""
    lines: dict[TomlKey, int] = {}
    with suppress(SettingsError):
        _add_lines(parse_document(text).body, (), 1, lines)
    return lines


def _normalized(text: str) -> str:
    return text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n")


def _add_lines(body: TomlBody, before: TomlKey, line: int, lines: dict[TomlKey, int]) -> int:
    """Add the lines of the keys in a body that starts at a line; return the line after it."""
    from tomlkit.items import AoT, Table  # noqa: PLC0415 - as above

    for key, item in body:
        if key is None:
            line += item.as_string().count("\n")
            continue
        path = (*before, key.key)
        lines.setdefault(path, line)
        if not isinstance(item, AoT | Table):
            for inner in _nested_keys(item.unwrap(), path):
                lines.setdefault(inner, line)
            line += (item.as_string() + item.trivia.trail).count("\n")
            continue
        for table in item.body if isinstance(item, AoT) else [item]:
            # `[a.b]` alone makes a table `a` that has no line of its own.
            head = 0 if table.is_super_table() else table.trivia.trail.count("\n")
            line = _add_lines(table.value.body, path, line + head, lines)
    return line


def _nested_keys(value: object, before: TomlKey) -> Iterator[TomlKey]:
    """Yield the keys of an inline table, or of the last one in an array."""
    if isinstance(value, list) and value:
        yield from _nested_keys(cast("list[object]", value)[-1], before)
    if isinstance(value, dict):
        for name, inner in cast("dict[str, object]", value).items():
            yield (*before, name)
            yield from _nested_keys(inner, (*before, name))
