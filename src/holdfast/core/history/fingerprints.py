"""The name of a message and of a request: a hash of what they say, whatever the order of their keys.

A request's hash is made of its messages' hashes, so that naming the next one costs what is new in it.

What is new in a list that somebody sends again.

Frameworks and clients keep the conversation themselves and send all of it every time: as it was recorded, or as
it was last sent to the model, with a summary in the place of what was folded. What both sides have in common
is found by content; the rest of the list is new, and what was recorded beyond it does not stand any more.
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
    """Return the hash of a request, from the hashes of its messages and what travels beside them."""
    beside = json.dumps([system, tools], sort_keys=True, separators=(",", ":"), default=str)
    whole = hashlib.sha256(beside.encode())
    for one in message_hashes:
        whole.update(bytes.fromhex(one))
    return whole.hexdigest()


class SyncDiff(NamedTuple):
    """How a list differs from what was recorded."""

    rewind_to: int | None
    """The first recorded position that the list does not have; None where it has all of them."""
    first_new: int
    """The index in the list from which on everything is new."""


class RecordedMessage(NamedTuple):
    """A message that stands, by its position and the hash of its content."""

    position: int
    content_hash: str


def sync_diff(
    given: Sequence[str], recorded: Sequence[RecordedMessage], sent: Sequence[tuple[str, int | None]], length: int
) -> SyncDiff:
    """Return what to do so that the recorded messages are the given ones.

    `given` are hashes; `sent` are the hashes of what was last sent, each with the position it came from;
    `length` is the position of the next message.
    """
    plain = _common_prefix_length(given, [one.content_hash for one in recorded])
    by_view = _common_prefix_length(given, [digest for digest, _ in sent])
    matched, used = plain, plain
    if by_view == len(sent) and by_view > plain:
        # The client goes on from what the model saw: behind it stands what was recorded since.
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
