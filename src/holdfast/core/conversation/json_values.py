"""What JSON can carry, and what has to be mended before it is sent.

Python holds values that no provider accepts: halves of surrogate pairs, NaN, infinity, circular lists,
sets. The first three have a plain mend; the rest is refused by whoever knows the place.
"""

import json
import math
from collections.abc import Mapping
from typing import TypeAlias, cast

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

MAX_DEPTH = 100
MAX_INTEGER_BITS = 4_000
MAX_PATH = 60


class NotJsonError(ValueError):
    """A value that JSON cannot express; `path` leads to it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(problem)
        self.path = path if len(path) <= MAX_PATH else f"{path[:MAX_PATH]}…"
        self.problem = problem


def is_clean(value: object, path: str = "", depth: int = 0) -> bool:
    """Return whether a value can be sent as it is; raise NotJsonError if it cannot be sent at all."""
    if isinstance(value, str):
        return value.isascii() or is_utf8(value)
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int):
        if value.bit_length() > MAX_INTEGER_BITS:
            raise NotJsonError(path, "is a number too long to be sent")
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if depth >= MAX_DEPTH:
        raise NotJsonError(path, f"is nested deeper than {MAX_DEPTH} levels; flatten it")
    if isinstance(value, dict | Mapping):
        return _is_clean_object(cast("Mapping[object, object]", value), path, depth)
    if isinstance(value, list | tuple):
        items = cast("list[object]", value)
        # Not lazily: what cannot be sent at all has to be found behind what can be mended.
        flaws = [item for number, item in enumerate(items) if not is_clean(item, f"{path}[{number}]", depth + 1)]
        return not flaws
    raise NotJsonError(path, f"is a {type(value).__name__}, which JSON cannot express")


def _is_clean_object(value: Mapping[object, object], path: str, depth: int) -> bool:
    clean = True
    for key, item in value.items():
        if not isinstance(key, str):
            raise NotJsonError(path, f"has a key that is a {type(key).__name__}; keys are strings")
        inner = is_clean(item, f"{path}.{key}", depth + 1)
        clean = clean and inner and (key.isascii() or is_utf8(key))
    return clean


def is_utf8(text: str) -> bool:
    """Return whether a text holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def cleaned_text(text: str) -> str:
    """Return a text that can be sent; two halves of one character become that character again."""
    if text.isascii() or is_utf8(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def cleaned(value: object) -> Json:
    """Return a value that can be sent: surrogates replaced, NaN and infinity as null."""
    if isinstance(value, str):
        return cleaned_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        return {cleaned_text(key): cleaned(item) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in cast("list[object]", value)]
    return cast("Json", value)


def parsed(text: str) -> Json:
    """Return the value of a JSON text, mended; raise ValueError if it is none or nested too deeply."""
    try:
        value = json.loads(text)
        is_clean(value)
        return cleaned(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def written(value: object) -> str:
    """Return a value as JSON text, as clients write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
