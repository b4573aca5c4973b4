"""The names a conversation turns on: paths, ids, hashes, addresses, long numbers, names in code.

They are what a summary loses first and an agent needs again verbatim. Read off by rule, from the values of
a call's arguments and not from their JSON, where escapes make up names that nobody used.
"""

import re
from collections.abc import Iterator

from holdfast.core.conversation.json_values import Json, parsed

_PATTERN = (
    r"(?P<mail>[\w.+-]+@[\w-]+\.[\w.-]+\w)"
    r"|(?P<path>(?:~?/|\.{1,2}/|[\w@.-]+/)[\w@.+-]+(?:/[\w@.+-]+)*)"
    r"|(?P<file>\b[\w-]+\.[A-Za-z]{1,5}\b)"
    r"|(?P<hash>\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b)"
    r"|(?P<name>\b(?:[a-z]+[a-z0-9]*(?:[A-Z][a-z0-9]*)+|(?:[A-Z][a-z0-9]+){2,}|[A-Za-z]+(?:_[A-Za-z0-9]+)+)\b)"
    r"|(?P<id>\b(?=[A-Za-z]*\d)[A-Z0-9]{5,}\b)"
    r"|(?P<number>\b\d{4,}\b)"
)
MIN_CHARS, MAX_CHARS = 4, 200


def identifiers(text: str) -> Iterator[str]:
    """Yield the identifiers of a text, in order and as often as they stand there."""
    for match in re.finditer(_PATTERN, text):
        found = match.group().rstrip(".-,")
        if MIN_CHARS <= len(found) <= MAX_CHARS:
            yield found


def argument_text(arguments: str) -> str:
    """Return the values of a call's arguments as text; the JSON itself where it cannot be read."""
    try:
        return "\n".join(_strings(parsed(arguments or "{}")))
    except ValueError:
        return arguments


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
