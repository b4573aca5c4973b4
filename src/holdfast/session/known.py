"""What is known of messages that somebody sends again: each goes by a name made of what it says.

Where a format keeps more beside a message than what is sent of it (times, bills, ids of runs), that is left out of
the name: who rebuilds a history from what people were shown cannot know it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.behind import Behind
from holdfast.core.history.events import MAIN
from holdfast.core.history.history import History
from holdfast.core.history.payload import message_hash
from holdfast.core.history.sync import Recorded
from holdfast.errors import NotInMemoryError
from holdfast.session.keeping import Keeper
from holdfast.wire.formats import KEEPING_MORE, essence_of


def name_of(native: Mapping[str, object], spoken: str) -> str:
    """Return the name of a message of a format."""
    return message_hash(essence_of(spoken, native))


def recorded(history: History, keeper: Keeper) -> list[Recorded]:
    """Return the messages of the main agent that stand, folded ones too, by their names; no delegate's, no note's."""
    context, spoken = history.context(), history.format or ""
    known = keeper.names.setdefault(spoken, {})
    wanted = [
        position
        for position in range(context.standing.cleared_at, context.length)
        if history.said_in[position] == MAIN and not context.version.is_hidden(position)
    ]
    history.entries.need(position for position in wanted if position not in known)
    for position in wanted:
        if position not in known:
            known[position] = _named(history, keeper, position, spoken)
    return [Recorded(position, name) for position in wanted if (name := known[position])]


def _named(history: History, keeper: Keeper, position: int, spoken: str) -> str:
    """Return the name of what was said at a position; nothing where it is a note and comes back from nobody."""
    if history.entries[position].message.is_from_memory:
        return ""
    sent = None if spoken in KEEPING_MORE else keeper.hashes.get(position)
    return sent or name_of(history.entries.native(position), spoken)


def last_sent(keeper: Keeper, spoken: str) -> list[tuple[str, int | None]]:
    """Return what was last sent, by the names it would come back under, with the positions it came from."""
    is_named = spoken in KEEPING_MORE
    return [(name_of(native, spoken) if is_named else digest, position) for native, digest, position in keeper.sent]


def noted(
    history: History, events: Sequence[log.MessageAppended], messages: Sequence[Message]
) -> list[log.MessageAppended]:
    """Return new messages of one scope, with what is to be said beside results that only repeat what was folded."""
    behind = history.behind(events[0].scope) if events else Behind()
    if not behind.reads or not any(message.outline.result_ids for message in messages):
        return list(events)
    try:
        near = [history.entries[position] for position in range(max(0, len(history) - LOOK_BACK), len(history))]
    except NotInMemoryError:
        return list(events)
    notes = behind.notes(messages, (call for entry in near for call in entry.message.calls))
    return [replace(event, notes=told) for event, told in zip(events, notes, strict=True)]


LOOK_BACK = 64
"""How far before a result its call is looked for."""
