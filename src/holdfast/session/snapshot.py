"""A shortcut to a session's history: a cache beside the log, to be thrown away at any time.

Holds how everything stands and where each message is, and none of the messages. Whatever is wrong with one (another
Holdfast wrote it, a byte is not what it was) makes it no shortcut, and the log is read from its beginning.
"""

from dataclasses import dataclass
from hashlib import sha256

from holdfast.core.history.plain import as_json, from_json
from holdfast.core.history.records import SCHEMA
from holdfast.core.history.state import State
from holdfast.session.request import engine_version

MAKE = 8
"""Changes whenever a snapshot of before would be read wrongly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortcut:
    """What a session needs to go on."""

    state: State
    places: str
    """Where in the log each message is, packed."""
    asked_ms: int | None
    began_ms: int | None
    damage: tuple[str, ...]
    newest_schema: int


def packed_shortcut(shortcut: Shortcut) -> bytes:
    """Return a shortcut as it is kept."""
    body = as_json(shortcut).encode()
    return _seal(body) + body


def opened_shortcut(data: bytes) -> Shortcut | None:
    """Return the shortcut that was kept, or None where it is none."""
    seal, body = data[:32], data[32:]
    if seal != _seal(body):
        return None
    try:
        return from_json(Shortcut, body)
    except ValueError:
        return None


def _seal(body: bytes) -> bytes:
    return sha256(f"{engine_version()} {SCHEMA} {MAKE} ".encode() + body).digest()
