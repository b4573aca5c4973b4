"""Content hashes of messages and requests, and the comparison of message lists by hash.

A hash does not depend on the order of JSON keys. The hash of a request combines the hashes of its messages, so hashing
the next request costs only its new messages.

Frameworks and clients keep the conversation themselves and send the full list every time. The list is either as
recorded, or as last sent to the model, with summaries in place of compacted messages. `sync_diff` finds the common
prefix by content. The rest of the list is new, and recorded messages after the common prefix must be rewound.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


def message_hash(native: Mapping[str, object]) -> str:
    """Return the hash of a message in our canonical encoding: sorted keys, no spaces, ASCII."""
    text = json.dumps(native, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def payload_hash(message_hashes: Iterable[str], *, system: object = None, tools: object = None) -> str:
    """Return the hash of a request from its message hashes, its system text and its tools."""
    beside = json.dumps([system, tools], sort_keys=True, separators=(",", ":"), default=str)
    whole = hashlib.sha256(beside.encode())
    for one in message_hashes:
        whole.update(bytes.fromhex(one))
    return whole.hexdigest()


class SyncDiff(NamedTuple):
    """How a client's list differs from the recorded messages."""

    rewind_to: int | None
    """The first recorded position that the list does not contain; None if it contains all."""
    first_new: int
    """The index in the list of the first new message."""


class RecordedMessage(NamedTuple):
    """A recorded message in force: its position and the hash of its content."""

    position: int
    content_hash: str


def sync_diff(
    given: Sequence[str], recorded: Sequence[RecordedMessage], sent: Sequence[tuple[str, int | None]], length: int
) -> SyncDiff:
    """Return the rewind and the append that make the recorded messages equal to the client's list.

    `given` holds the hashes of the client's list. `sent` holds the hashes of the last request, each with the position
    of its message. `length` is the position of the next message.
    """
    plain = _common_prefix_length(given, [one.content_hash for one in recorded])
    by_view = _common_prefix_length(given, [digest for digest, _ in sent])
    matched, used = plain, plain
    if by_view == len(sent) and by_view > plain:
        # The client continues from the last request, which is followed by the messages recorded since.
        last = max((position for _, position in sent if position is not None), default=-1)
        behind = [number for number, one in enumerate(recorded) if one.position > last]
        start = behind[0] if behind else len(recorded)
        more = _common_prefix_length(given[by_view:], [one.content_hash for one in recorded[start:]])
        matched, used = start + more, by_view + more
    if matched == len(recorded):
        return SyncDiff(None, used)
    return SyncDiff(recorded[matched].position if matched < len(recorded) else length, used)


def _common_prefix_length(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
