"""Compare a list that a client sends again with the recorded messages, by fingerprints of their content.

Frameworks and clients keep the conversation themselves and send the full list every time. The list is either as
recorded, or as last sent to the model, with summaries in place of compacted messages. `sync_diff` finds the common
prefix. The rest of the list is new, and recorded messages after the common prefix must be rewound.

Clients write the same message differently from request to request, and a format may store more with a message than is
sent (times, usage, run ids). Fingerprints leave that out.

A client may also compact its list by itself. The list then shares only its beginning with the records and holds the
summary that the client had written. That is a compaction and no rewind: recall still reaches what was before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.events import MAIN
from holdfast.core.history.history import History
from holdfast.core.history.read_notes import NO_READS
from holdfast.errors import NotInMemoryError
from holdfast.session.log.event_log import SessionLog
from holdfast.session.request import message_hash
from holdfast.wire.formats import canonical_message

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
    """Return the messages of the client's list with their fingerprints: all of the main agent, compacted ones included.

    Leaves out notes from memory, attachments, and messages that the client has compacted by itself.
    """
    context, format_name = history.context(), history.format or ""
    known = session_log.fingerprints.setdefault(format_name, {})
    own = [
        position
        for position in range(context.state.cleared_at, context.length)
        if history.message_scopes[position] == MAIN
        and not context.version.is_hidden(position)
        and position not in context.attachments
        and not context.state.is_left_out(position)
    ]
    new = [position for position in own if position not in known]
    history.entries.require(new)
    for position in new:
        # No client sends a note from memory again.
        is_note = history.entries[position].message.is_from_memory
        known[position] = "" if is_note else message_fingerprint(history.entries.native(position), format_name)
    return [RecordedMessage(position, fingerprint) for position in own if (fingerprint := known[position])]


def last_sent_fingerprints(session_log: SessionLog, format_name: str) -> list[tuple[str, int | None]]:
    """Return the fingerprints of the last request's messages, with their recorded positions.

    There are none if a rewind or a clear has taken one of these messages back: no client continues from them.
    """
    version, (_, _, positions) = session_log.history.version, session_log.last_sent
    cleared_at = version.state_of(MAIN).cleared_at
    if any(at is not None and (at < cleared_at or version.is_hidden(at)) for at in positions):
        return []
    known, unchanged = session_log.fingerprints.get(format_name, {}), session_log.message_hashes
    return [
        (
            (known.get(position) if position is not None and unchanged.get(position) == digest else None)
            or message_fingerprint(native, format_name),
            position,
        )
        for native, digest, position in zip(*session_log.last_sent, strict=True)
    ]


def with_read_notes(
    history: History, events: Sequence[log.MessageAppended], messages: Sequence[Message]
) -> list[log.MessageAppended]:
    """Return new messages of one scope, with notes on results that only repeat compacted content."""
    compacted = history.compacted_reads(events[0].scope) if events else NO_READS
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
    given: Sequence[str],
    recorded: Sequence[RecordedMessage],
    sent: Sequence[tuple[str, int | None]],
    length: int,
    sent_length: int,
) -> SyncDiff:
    """Return the rewind and the append that make the recorded messages equal to the client's list.

    `given` holds the hashes of the client's list. `sent` holds the hashes of the last request, each with the position
    of its message. `length` is the position of the next message, `sent_length` what it was when that request was made.
    """
    plain = _common_prefix_length(given, [one.content_hash for one in recorded])
    by_view = _common_prefix_length(given, [digest for digest, _ in sent])
    matched, used = plain, plain
    if by_view == len(sent) and by_view > plain:
        # The client continues from the last request, which is followed by the messages recorded since.
        # One message of a request may hold several recorded ones, such as the results of parallel calls.
        start = next((number for number, one in enumerate(recorded) if one.position >= sent_length), len(recorded))
        more = _common_prefix_length(given[by_view:], [one.content_hash for one in recorded[start:]])
        matched, used = start + more, by_view + more
    if matched == len(recorded):
        return SyncDiff(None, used)
    return SyncDiff(recorded[matched].position if matched < len(recorded) else length, used)


def _common_prefix_length(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class ClientCompaction(NamedTuple):
    """A compaction that a client made by itself."""

    event: log.CompactionCompleted
    first_new: int
    """The index in the list of the first message to record."""


def find_client_compaction(
    history: History, diff: SyncDiff, messages: Sequence[Message], recorded: Sequence[RecordedMessage], text: str | None
) -> ClientCompaction | None:
    """Return the client's own compaction if its list follows one, else None.

    `text` is the client's summary, if the caller knows that it has compacted. Otherwise the new part of the list must
    hold a summary that the client had written in a recorded side call.
    """
    if diff.rewind_to is None:
        return None
    if text is None:
        new = "".join(message.text for message in messages[diff.first_new :])
        text = client_summary_in(new, history.session_state.client_summaries)
        if text is None:
            return None
    compactions = history.version.state_of(MAIN).compactions
    start = min((one.span.start for one in compactions if diff.rewind_to in one.span.positions), default=diff.rewind_to)
    replaced = [one for one in recorded if one.position >= start]
    event = log.CompactionCompleted(
        success=True,
        trigger="client",
        span=Span(start=start, stop=len(history), count=len(replaced)),
        summary=log.Summary(text, by_model="the client"),
        read_to=len(history),
        reason="the client has compacted its list by itself",
        ends_run=False,
    )
    return ClientCompaction(event, min(diff.first_new, len(recorded) - len(replaced)))


def client_summary_in(text: str, summaries: Sequence[str]) -> str | None:
    """Return the newest of a client's summaries that a text contains, whatever its white space, or None."""
    words = _without_spaces(text)
    return next((one for one in reversed(summaries) if any(own in words for own in _summary_words(one))), None)


def _summary_words(answer: str) -> list[str]:
    """Return the texts of a summary call's answer that a client may put into its list, without white space."""
    _, _, marked = answer.partition("<summary>")
    inner, mark, _ = marked.partition("</summary>")
    return [words for words in map(_without_spaces, (answer, inner if mark else "")) if words]


def _without_spaces(text: str) -> str:
    return "".join(text.split())
