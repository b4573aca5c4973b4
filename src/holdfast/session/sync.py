"""Compare a list that a client sends again with the recorded messages, by fingerprints of their content.

Frameworks and clients keep the conversation themselves and send the full list every time. The list is either as
recorded, or as last sent to the model, with summaries in place of compacted messages. `sync_diff` finds the common
prefix. The rest of the list is new, and recorded messages after the common prefix must be rewound.

A format may store more with a message than is sent (times, usage, run ids). Fingerprints leave that out, because a
client that rebuilds its list from what it displayed cannot know it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.events import MAIN
from holdfast.core.history.history import History
from holdfast.core.history.read_notes import CompactedReads
from holdfast.errors import NotInMemoryError
from holdfast.session.log.event_log import SessionLog
from holdfast.session.request import message_hash
from holdfast.wire.formats import CANONICAL, canonical_message

READ_CALL_LOOKBACK = 64
"""How many messages before a result are searched for its call."""


class RecordedMessage(NamedTuple):
    """A recorded message in force: its position and the hash of its content."""

    position: int
    content_hash: str


def message_fingerprint(native: Mapping[str, object], format_name: str) -> str:
    """Return the fingerprint of a message."""
    return message_hash(canonical_message(format_name, native))


def recorded_fingerprints(history: History, session_log: SessionLog) -> list[RecordedMessage]:
    """Return the main agent's messages with their fingerprints, including compacted ones.

    Leaves out notes from memory and attachments, which no client's list contains.
    """
    context, format_name = history.context(), history.format or ""
    known = session_log.fingerprints.setdefault(format_name, {})
    own = [
        position
        for position in range(context.state.cleared_at, context.length)
        if history.message_scopes[position] == MAIN
        and not context.version.is_hidden(position)
        and position not in context.attachments
    ]
    new = [position for position in own if position not in known]
    history.entries.require(new)
    for position in new:
        # No client sends a note from memory again.
        is_note = history.entries[position].message.is_from_memory
        sent = None if format_name in CANONICAL else session_log.message_hashes.get(position)
        known[position] = "" if is_note else sent or message_fingerprint(history.entries.native(position), format_name)
    return [RecordedMessage(position, fingerprint) for position in own if (fingerprint := known[position])]


def last_sent_fingerprints(session_log: SessionLog, format_name: str) -> list[tuple[str, int | None]]:
    """Return the fingerprints of the last request's messages, with their recorded positions."""
    is_canonical = format_name in CANONICAL
    return [
        (message_fingerprint(native, format_name) if is_canonical else digest, position)
        for native, digest, position in session_log.last_sent
    ]


def with_read_notes(
    history: History, events: Sequence[log.MessageAppended], messages: Sequence[Message]
) -> list[log.MessageAppended]:
    """Return new messages of one scope, with notes on results that only repeat compacted content."""
    compacted = history.compacted_reads(events[0].scope) if events else CompactedReads()
    if not compacted.reads or not any(message.outline.result_ids for message in messages):
        return list(events)
    try:
        near = [
            history.entries[position] for position in range(max(0, len(history) - READ_CALL_LOOKBACK), len(history))
        ]
    except NotInMemoryError:
        return list(events)
    notes = compacted.notes_for(messages, (call for entry in near for call in entry.message.calls))
    return [replace(event, notes=added) for event, added in zip(events, notes, strict=True)]


class SyncDiff(NamedTuple):
    """How a client's list differs from the recorded messages."""

    rewind_to: int | None
    """The first recorded position that the list does not contain; None if it contains all."""
    first_new: int
    """The index in the list of the first new message."""


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
        start = next((number for number, one in enumerate(recorded) if one.position > last), len(recorded))
        more = _common_prefix_length(given[by_view:], [one.content_hash for one in recorded[start:]])
        matched, used = start + more, by_view + more
    if matched == len(recorded):
        return SyncDiff(None, used)
    return SyncDiff(recorded[matched].position if matched < len(recorded) else length, used)


def _common_prefix_length(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
