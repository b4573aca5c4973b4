"""What is known of messages that somebody sends again: each goes by a name made of what it says.

Where a format keeps more beside a message than what is sent of it (times, bills, ids of runs), that is left out of
the name: who rebuilds a history from what people were shown cannot know it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.events import MAIN
from holdfast.core.history.fingerprints import RecordedMessage, message_hash
from holdfast.core.history.history import History
from holdfast.core.history.read_notes import CompactedReads
from holdfast.errors import NotInMemoryError
from holdfast.session.log.event_log import SessionLog
from holdfast.wire.formats import CANONICAL, canonical_message


def message_fingerprint(native: Mapping[str, object], format_name: str) -> str:
    """Return the name of a message of a format."""
    return message_hash(canonical_message(format_name, native))


def recorded_fingerprints(history: History, session_log: SessionLog) -> list[RecordedMessage]:
    """Return the messages of the main agent that stand, folded ones too, by their names; no delegate's, no note's."""
    context, spoken = history.context(), history.format or ""
    known = session_log.fingerprints.setdefault(spoken, {})
    wanted = [
        position
        for position in range(context.state.cleared_at, context.length)
        if history.message_scopes[position] == MAIN and not context.version.is_hidden(position)
    ]
    history.entries.require(position for position in wanted if position not in known)
    for position in wanted:
        if position not in known:
            known[position] = _fingerprint_at(history, session_log, position, spoken)
    return [RecordedMessage(position, name) for position in wanted if (name := known[position])]


def _fingerprint_at(history: History, session_log: SessionLog, position: int, format_name: str) -> str:
    """Return the name of what was said at a position; nothing where it is a note and comes back from nobody."""
    if history.entries[position].message.is_from_memory:
        return ""
    sent = None if format_name in CANONICAL else session_log.message_hashes.get(position)
    return sent or message_fingerprint(history.entries.native(position), format_name)


def last_sent_fingerprints(session_log: SessionLog, format_name: str) -> list[tuple[str, int | None]]:
    """Return what was last sent, by the names it would come back under, with the positions it came from."""
    is_named = format_name in CANONICAL
    return [
        (message_fingerprint(native, format_name) if is_named else digest, position)
        for native, digest, position in session_log.last_sent
    ]


def with_read_notes(
    history: History, events: Sequence[log.MessageAppended], messages: Sequence[Message]
) -> list[log.MessageAppended]:
    """Return new messages of one scope, with what is to be said beside results that only repeat what was folded."""
    behind = history.compacted_reads(events[0].scope) if events else CompactedReads()
    if not behind.reads or not any(message.outline.result_ids for message in messages):
        return list(events)
    try:
        near = [
            history.entries[position] for position in range(max(0, len(history) - READ_CALL_LOOKBACK), len(history))
        ]
    except NotInMemoryError:
        return list(events)
    notes = behind.notes_for(messages, (call for entry in near for call in entry.message.calls))
    return [replace(event, notes=told) for event, told in zip(events, notes, strict=True)]


READ_CALL_LOOKBACK = 64
"""How far before a result its call is looked for."""
