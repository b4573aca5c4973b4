"""Find identifiers in text: paths, ids, hashes, addresses, tickets, versions, long numbers, names in code.

A summary loses identifiers first, and an agent needs them again verbatim. In a call, the values of the arguments are
searched and not their JSON, where escapes produce names that were never used. No identifier contains a space, so a
text is split into runs first, and the results for recent runs are cached: nine of ten runs in a tool's output have
occurred before.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from holdfast.core.conversation.json_values import Json, parse_json
from holdfast.redaction import redact_keys
from holdfast.text import lazy_pattern

# Characters of scripts without spaces end a run: 请看src/a.py contains src/a.py.
_RUN = lazy_pattern(r"[A-Za-z0-9_@.+~/\-\u00aa-\u2e7f]{4,}")
_SPACED = bytes(byte if chr(byte).isalnum() or chr(byte) in "_@.+~/-" else ord(" ") for byte in range(128)).ljust(256)
"""Translates a text in ASCII into one that has white space between runs."""
# Dotted names are common in code, so a host must have a known ending; none of these is a file extension.
_TLD = (
    r"com|org|net|io|dev|ai|app|cloud|co|info|biz|gov|edu|mil|int|local|internal|lan|test|example|invalid|localhost"
    r"|eu|us|uk|de|fr|es|it|nl|be|ch|at|se|no|dk|fi|pl|cz|pt|ie|ca|au|nz|jp|cn|in|br|mx|za|kr|ru|tr|me|tv"
)
_PATTERN = (
    r"(?P<mail>[\w.+-]+@[\w-]+\.[\w.-]+\w)"
    r"|(?P<path>(?:~?/|\.{1,2}/|[\w@.-]+/)[\w@.+-]+(?:/[\w@.+-]+)*)"
    r"|(?P<uuid>\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b)"
    r"|(?P<version>\b(?:v\d+(?:\.\d+){1,3}|\d+(?:\.\d+){2,3})(?:[-+](?:[A-Za-z]+[.-]?\d*|\d+)[\w.]*)?\b)"
    rf"|(?P<host>\b(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+(?:{_TLD})\b(?![\w-]|\.\w))"
    r"|(?P<ticket>\b(?!UTF-|SHA-|AES-|ISO-|GPT-)[A-Z][A-Z0-9]{1,9}(?:-\d{1,7}){1,2}\b(?!-\d))"
    r"|(?P<file>\b[\w-]+\.[A-Za-z]{1,5}\b)"
    r"|(?P<hash>\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b)"
    r"|(?P<name>\b(?:[a-z]+[a-z0-9]*(?:[A-Z][a-z0-9]*)+|(?:[A-Z][a-z0-9]+){2,}|[A-Za-z]+(?:_[A-Za-z0-9]+)+)\b)"
    r"|(?P<id>\b(?=[A-Za-z]*\d)[A-Z0-9]{5,}\b)"
    r"|(?P<number>\b\d{4,}\b)"
)
_HASH = lazy_pattern(r"(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,64}")
"""Contains no key: the prefix of every key has another letter or a separator."""
IDENTIFIER_MIN_CHARS, IDENTIFIER_MAX_CHARS = 4, 200
MIN_KEY_CHARS = 11
"""Shorter runs contain no secret key."""
MAX_RUN_CHARS = 200
"""Longer runs are encoded or minified data, and the pattern would take quadratic time on them."""
KNOWN_RUNS = 1 << 13


def identifiers(text: str) -> Iterator[str]:
    """Yield the identifiers of a text in order, with repetitions."""
    for run in _RUN.findall(text):
        if len(run) <= MAX_RUN_CHARS:
            yield from _identifiers_in_run(run)


def distinct_identifiers(text: str) -> set[str]:
    """Return the identifiers of a text, each once."""
    # To split a text in ASCII by white space takes a fraction of the time that a pattern takes.
    runs: set[str] = {*(text.encode().translate(_SPACED).decode().split() if text.isascii() else _RUN.findall(text))}
    return set[str]().union(
        *map(_identifiers_in_run, [run for run in runs if IDENTIFIER_MIN_CHARS <= len(run) <= MAX_RUN_CHARS])
    )


@lru_cache(maxsize=KNOWN_RUNS)
def _identifiers_in_run(run: str) -> tuple[str, ...]:
    if run.isascii() and run.isalpha() and (run[1:].islower() or run.isupper()):
        return ()  # a word in prose
    if _HASH.fullmatch(run):
        return (run,)
    # Later requests carry the identifiers, so they must not contain secret keys.
    shown = redact_keys(run) if len(run) >= MIN_KEY_CHARS else run
    found = [match.group().rstrip(".-,") for match in re.finditer(_PATTERN, shown)]
    return tuple([name for name in found if IDENTIFIER_MIN_CHARS <= len(name) <= IDENTIFIER_MAX_CHARS])


def argument_text(arguments: str) -> str:
    """Return the values of a call's arguments as text; the arguments unchanged if they are not valid JSON."""
    return json_strings_text(argument_value(arguments))


def argument_value(arguments: str) -> Json:
    """Return a call's arguments as a JSON value; their text if it is not valid JSON."""
    try:
        return parse_json(arguments or "{}")
    except ValueError:
        return arguments


def json_strings_text(value: Json) -> str:
    """Return the strings and numbers of a value, one per line."""
    return "\n".join(_strings(value))


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
