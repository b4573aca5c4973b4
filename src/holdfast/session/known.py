"""What is known of messages that somebody sends again: each goes by a name made of what it says.

Where a format keeps more beside a message than what is sent of it (times, bills, ids of runs), that is left out of
the name: who rebuilds a history from what people were shown cannot know it.
"""

from collections.abc import Mapping

from holdfast.core.history.events import MAIN
from holdfast.core.history.history import History
from holdfast.core.history.payload import message_hash
from holdfast.core.history.sync import Recorded
from holdfast.session.keeping import Keeper
from holdfast.wire.formats import KEEPING_MORE, essence_of


def name_of(native: Mapping[str, object], spoken: str) -> str:
    """Return the name of a message of a format."""
    return message_hash(essence_of(spoken, native))


def recorded(history: History, keeper: Keeper) -> list[Recorded]:
    """Return the messages of the main agent that stand, folded ones too, by their names; no delegate's, no note's."""
    context, spoken = history.context(), history.format or ""
    names = keeper.names if spoken in KEEPING_MORE else keeper.hashes
    found: list[Recorded] = []
    for entry in context.between(context.standing.cleared_at, context.length):
        if entry.message.is_from_memory:
            continue
        position = entry.position or 0
        if history.said_in[position] != MAIN:
            continue
        if position not in names:
            names[position] = name_of(history.entries.native(position), spoken)
        found.append(Recorded(position, names[position]))
    return found
