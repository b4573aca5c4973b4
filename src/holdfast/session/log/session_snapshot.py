"""A snapshot of a session's history: a cache that can be deleted at any time.

It holds the state and the place of each message in the log, but no messages. A snapshot that is damaged, or that
another version wrote, is ignored, and the log is read from its beginning.
"""

from hashlib import sha256

from holdfast import __version__
from holdfast.core.history.codec import RECORD_SCHEMA
from holdfast.core.history.snapshot import HistorySnapshot, from_snapshot_json, to_snapshot_json
from holdfast.dataclass import dataclass

SNAPSHOT_VERSION = 14
"""Increased whenever an older snapshot would be read wrongly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSnapshot:
    """What a session needs to continue."""

    state: HistorySnapshot
    log_positions: str
    """The place of each message in the log, packed."""
    last_request_ms: int | None
    compaction_started_ms: int | None
    damage: tuple[str, ...]
    newest_schema: int


def encode_snapshot(snapshot: SessionSnapshot) -> bytes:
    """Return a snapshot as bytes, with a checksum."""
    body = to_snapshot_json(snapshot).encode()
    return _checksum(body) + body


def decode_snapshot(data: bytes) -> SessionSnapshot | None:
    """Return the snapshot in some bytes, or None if they are damaged or from another version."""
    checksum, body = data[:32], data[32:]
    if checksum != _checksum(body):
        return None
    try:
        return from_snapshot_json(SessionSnapshot, body)
    except ValueError:
        return None


def _checksum(body: bytes) -> bytes:
    return sha256(f"{__version__} {RECORD_SCHEMA} {SNAPSHOT_VERSION} ".encode() + body).digest()
