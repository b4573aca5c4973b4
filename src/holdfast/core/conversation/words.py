"""A turn as words alone: what was asked, and what was answered in the end."""

from collections.abc import Sequence

from holdfast.core.conversation.groups import turn_ranges
from holdfast.core.conversation.messages import Part, Text
from holdfast.core.conversation.view import Entry


def turn_as_text(turn: Sequence[Entry]) -> list[Entry]:
    """Return a turn's first user text and the assistant's last reply; what was done in between is left out."""
    replies = [entry for entry in turn if entry.message.role == "assistant" and entry.message.text.strip()]
    return [_text_parts_only(entry) for entry in (turn[0], *replies[-1:])]


def turns_as_text(entries: Sequence[Entry], *, keep_last: int) -> list[Entry]:
    """Return the entries with each turn reduced to words, the newest ones and what precedes the first excepted."""
    spans = turn_ranges(entries)
    if not spans:
        return list(entries)
    kept = list(entries[: spans[0].start])
    whole = len(spans) - keep_last
    for number, span in enumerate(spans):
        turn = [entries[index] for index in span]
        kept += turn_as_text(turn) if number < whole else turn
    return kept


def _text_parts_only(entry: Entry) -> Entry:
    parts: tuple[Part, ...] = tuple(part for part in entry.message.parts if isinstance(part, Text))
    return entry if parts == entry.message.parts else entry.with_message(entry.message.with_parts(parts))
