"""A shortcut to a session's history: a cache beside the log, to be thrown away at any time.

Holds how everything stands and where each message is, and none of the messages. Whatever is wrong with one (another
Holdfast wrote it, a byte is not what it was) makes it no shortcut, and the log is read from its beginning.
"""

from dataclasses import dataclass
from hashlib import sha256

from holdfast.core.history.codec import RECORD_SCHEMA
from holdfast.core.history.snapshot import HistorySnapshot, from_snapshot_json, to_snapshot_json
from holdfast.session.log.records import engine_version

SNAPSHOT_VERSION = 9
"""Changes whenever a snapshot of before would be read wrongly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSnapshot:
    """What a session needs to go on."""

    state: HistorySnapshot
    log_positions: str
    """Where in the log each message is, packed."""
    last_request_ms: int | None
    compaction_started_ms: int | None
    damage: tuple[str, ...]
    newest_schema: int


def encode_snapshot(snapshot: SessionSnapshot) -> bytes:
    """Return a shortcut as it is kept."""
    body = to_snapshot_json(snapshot).encode()
    return _checksum(body) + body


def decode_snapshot(data: bytes) -> SessionSnapshot | None:
    """Return the shortcut that was kept, or None where it is none."""
    seal, body = data[:32], data[32:]
    if seal != _checksum(body):
        return None
    try:
        return from_snapshot_json(SessionSnapshot, body)
    except ValueError:
        return None


def _checksum(body: bytes) -> bytes:
    return sha256(f"{engine_version()} {RECORD_SCHEMA} {SNAPSHOT_VERSION} ".encode() + body).digest()
