"""Check and repair values before they are sent as JSON, and encode them.

Python values can hold content that no provider accepts: lone surrogates, NaN, infinity, circular lists, sets.
The first three have a replacement. The others raise `NotJsonError`; callers add the place.

Stored bytes and hashes are those of Python's own encoder. orjson writes the same bytes in a twentieth of the time, so
it encodes every value for which that is certain.
"""

import json
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import NoneType
from typing import TypeAlias, TypeVar, cast

T = TypeVar("T")
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_SIMPLE_TYPES = frozenset({str, int, bool, NoneType})
MAX_JSON_DEPTH = 100
MAX_INTEGER_BITS = 4_000
MAX_PATH = 60


class NotJsonError(ValueError):
    """Raised when JSON cannot express a value."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.steps: list[str] = []
        """The keys and indices that lead to the value, innermost first."""

    @property
    def path(self) -> str:
        """The path from the checked value to the one that JSON cannot express, clipped to `MAX_PATH`."""
        path = replace_surrogates("".join(reversed(self.steps)))
        return path if len(path) <= MAX_PATH else f"{path[:MAX_PATH]}…"


def is_sendable_json(value: object, depth: int = 0) -> bool:
    """Return whether a value can be sent unchanged; raise NotJsonError if no repair can make it sendable."""
    if isinstance(value, str):
        return value.isascii() or is_utf8(value)
    if isinstance(value, dict):
        return _is_sendable_object(cast("Mapping[object, object]", value), depth)
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, list | tuple):
        return _is_sendable_list(cast("list[object]", value), depth)
    if isinstance(value, int):
        if value.bit_length() > MAX_INTEGER_BITS:
            raise NotJsonError("is a number too long to be sent")
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return _is_sendable_object(cast("Mapping[object, object]", value), depth)
    raise NotJsonError(f"is a {type(value).__name__}, which JSON cannot express")


def _is_sendable_object(value: Mapping[object, object], depth: int) -> bool:
    if depth >= MAX_JSON_DEPTH:
        raise NotJsonError(f"is nested deeper than {MAX_JSON_DEPTH} levels; flatten it")
    clean = True
    key: object = ""
    try:
        # Check every item: a value that cannot be sent may follow one that can be repaired.
        for key, item in value.items():
            if type(key) is str and key.isascii() and (item is None or (type(item) is str and item.isascii())):
                continue
            if not isinstance(key, str):
                raise NotJsonError(f"is a key of type {type(key).__name__}; keys are strings")  # noqa: TRY301
            is_clean_key = key.isascii() or is_utf8(key)
            if not is_sendable_json(item, depth + 1) or not is_clean_key:
                clean = False
    except NotJsonError as error:
        error.steps.append(f".{key}")
        raise
    return clean


def _is_sendable_list(value: list[object], depth: int) -> bool:
    if depth >= MAX_JSON_DEPTH:
        raise NotJsonError(f"is nested deeper than {MAX_JSON_DEPTH} levels; flatten it")
    clean = True
    for number, item in enumerate(value):
        try:
            if not is_sendable_json(item, depth + 1):
                clean = False
        except NotJsonError as error:
            error.steps.append(f"[{number}]")
            raise
    return clean


def copied_json(value: T, depth: int = 0) -> T:
    """Return a copy of lists and dicts; texts and numbers never change. What is nested too deep stays as it is.

    Other mappings become dicts, which is all that encoders of JSON take.
    """
    if depth > MAX_JSON_DEPTH:
        return value
    copied: object = value
    if isinstance(value, dict):
        fields: dict[object, object] = dict(value)  # pyright: ignore[reportUnknownArgumentType] - as below
        copied = fields
        for name, inner in fields.items():
            if type(inner) not in _SIMPLE_TYPES:
                fields[name] = copied_json(inner, depth + 1)  # no new name, so the loop goes on
    elif isinstance(value, list):
        copied = [
            inner if type(inner) in _SIMPLE_TYPES else copied_json(inner, depth + 1)
            for inner in cast("list[object]", value)
        ]
    elif isinstance(value, tuple):
        copied = tuple(copied_json(inner, depth + 1) for inner in cast("tuple[object, ...]", value))
    elif type(value) not in _SIMPLE_TYPES and isinstance(value, Mapping):
        copied = copied_json(dict(cast("Mapping[object, object]", value)), depth)
    return copied  # pyright: ignore[reportReturnType] - `cast` is a call, and every message is copied


def is_utf8(text: str) -> bool:
    """Return whether a text holds no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(text: str) -> str:
    """Return a sendable text: surrogate pairs become characters, and lone surrogates are replaced."""
    if text.isascii() or is_utf8(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def sendable_json(value: object) -> Json:
    """Return a sendable value: surrogates are replaced, and NaN and infinity become null."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        return {replace_surrogates(key): sendable_json(item) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [sendable_json(item) for item in cast("list[object]", value)]
    return cast("Json", value)


def finite_json(value: object, depth: int = 0) -> object:
    """Return a value with null for NaN and infinity, which JSON has not; the value itself if it holds neither.

    What is nested too deep stays as it is.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth > MAX_JSON_DEPTH:
        return value
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        finite = {name: finite_json(inner, depth + 1) for name, inner in fields.items()}
        return fields if all(finite[name] is inner for name, inner in fields.items()) else finite
    if isinstance(value, list):
        items = cast("list[object]", value)
        copied = [finite_json(inner, depth + 1) for inner in items]
        return items if all(new is old for new, old in zip(copied, items, strict=True)) else copied
    return value


def parse_json(text: str) -> Json:
    """Return the repaired value of a JSON text; raise ValueError if it is invalid or nested too deeply."""
    try:
        value = json.loads(text)
        is_sendable_json(value)
        return sendable_json(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def dump_json(value: object) -> str:
    """Return a value as compact JSON text, with non-ASCII characters unescaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_CONTAINERS = dict, list
MIN_PLAIN_FLOAT, MAX_PLAIN_FLOAT = 1e-4, 1e16
"""Python writes numbers between the two, and 0, without an exponent; exponents are where encoders differ."""
MAX_GROWTH = 6
"""How many bytes Python's encoder writes at most for one of orjson's: it escapes all but printable ASCII."""
MAX_CHAR_BYTES = 12
"""How many bytes Python's encoder writes at most for a character, and for the marks of an object or of one pair."""
MAX_CONTAINERS = 100_000
"""A value with more lists and objects is left to Python's encoder; a value that contains itself has no end of them."""
_encode_ascii = json.JSONEncoder(separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str).encode


def encode_json(value: object) -> bytes:
    """Return a value as compact JSON in UTF-8; lone surrogates are escaped, so that they come back unchanged."""
    encoded = _encode_alike(value, _orjson()[0])
    if encoded is not None:
        # A copy, because orjson leaves several kilobytes behind what it has written, for as long as it is kept.
        return memoryview(encoded).tobytes()
    try:
        return dump_json(value).encode()
    except UnicodeEncodeError:
        return _encode_ascii(value).encode()


def encode_canonical_json(value: object) -> bytes:
    """Return a value in the encoding that is hashed: sorted keys, no spaces, ASCII."""
    encoded = _encode_alike(value, _orjson()[1])
    # orjson escapes only what is ASCII. Python's encoder escapes the rest faster than what orjson wrote can be escaped.
    if encoded is None or not encoded.isascii():
        return _encode_sorted(value).encode()
    return encoded.replace(b"\x7f", b"\\u007f")


def is_certainly_shorter(value: object, size: int) -> bool:
    """Return whether `json.dumps` writes a value in less than `size` bytes; False if only `json.dumps` can tell."""
    if isinstance(value, dict):
        chars = 1
        for name, inner in cast("dict[object, object]", value).items():
            if type(inner) is not str or type(name) is not str:
                break
            chars += len(name) + len(inner) + 1
        else:  # a message of texts, as most are, need not be written to know that it is short
            if MAX_CHAR_BYTES * chars < size:
                return True
    encoded = _encode_alike(cast("object", value), _orjson()[0])
    return encoded is not None and MAX_GROWTH * len(encoded) < size


@cache
def _orjson() -> tuple[Callable[[object], bytes], Callable[[object], bytes]]:
    """Return the encoders of orjson, as a value comes and with sorted keys."""
    import orjson  # noqa: PLC0415 - not needed to import the package

    return orjson.dumps, partial(orjson.dumps, option=orjson.OPT_SORT_KEYS)


def _encode_alike(given: object, dump: Callable[[object], bytes]) -> bytes | None:
    """Return a value as orjson writes it; None if Python's encoder may write it differently.

    orjson reads UTF-8, which a text keeps for as long as it exists, beside its characters. So it gets copies of texts
    that are not ASCII.
    """
    value: Json = given  # pyright: ignore[reportAssignmentType] - `cast` is a call, and a turn encodes six values
    is_ascii = True
    pending: list[list[Json] | dict[str, Json]] = [value if isinstance(value, dict) else [value]]
    for some in pending:
        for one in some.values() if isinstance(some, dict) else some:
            if type(one) is str:
                if is_ascii and not one.isascii():
                    is_ascii = False
            elif type(one) in _SIMPLE_TYPES:
                continue
            elif isinstance(one, _CONTAINERS):
                pending.append(one)
                if len(pending) > MAX_CONTAINERS:
                    return None
            elif not isinstance(one, float) or not (MIN_PLAIN_FLOAT <= abs(one) < MAX_PLAIN_FLOAT or not one):
                return None
    try:
        return dump(value if is_ascii else _with_copied_texts(value))
    except TypeError:
        return None


def _with_copied_texts(value: Json) -> Json:
    """Return a value with copies of the texts that are not ASCII."""
    if isinstance(value, str):
        return value if value.isascii() else f"{value} "[:-1]
    if isinstance(value, dict):
        return {name: _with_copied_texts(inner) for name, inner in value.items()}
    return [_with_copied_texts(inner) for inner in value] if isinstance(value, list) else value
