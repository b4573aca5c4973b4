"""The floor under a view: entries that were already chosen and shortened, made valid and made to fit.

The floor works on lists of provider messages and numbers them by their place. Here are the entries of a view
in that form, and the way back to where they stand in the history.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.pairing import Repair
from holdfast.core.conversation.transcript import FormatReader, MessageMeasures, Transcript
from holdfast.core.conversation.view import Entry
from holdfast.core.conversation.weight import MESSAGE_OVERHEAD_BYTES, message_bytes
from holdfast.core.planning.account import view_reasons
from holdfast.core.planning.compose import ComposedView
from holdfast.core.planning.floor import ViewFitter
from holdfast.core.planning.policy import FitSettings
from holdfast.core.planning.situation import Situation
from holdfast.errors import CannotFitError


@dataclass(frozen=True, slots=True)
class FittedEntries:
    """Entries that can be sent, and what it took."""

    entries: list[Entry]
    tokens: int
    repairs: tuple[Repair, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _EntryReader:
    """Reads entries as if they were provider messages."""

    reader: FormatReader

    def measure(self, natives: Sequence[object], start: int) -> MessageMeasures:
        entries = [cast("Entry", native) for native in natives]
        weights = [MESSAGE_OVERHEAD_BYTES + message_bytes(entry.message) for entry in entries]
        roles = [entry.message.role for entry in entries]
        prompts = [
            index
            for index, entry in enumerate(entries, start)
            if entry.message.role == "user" and entry.position is not None
        ]
        return MessageMeasures(weights, prompts, [index for index, role in enumerate(roles, start) if role == "system"])

    def decode(self, native: object, index: int) -> Message:
        del index
        return cast("Entry", native).message

    def json_bytes(self, message: Message) -> int:
        return self.reader.json_bytes(message)


def _fit_transcript(
    transcript: Transcript, settings: FitSettings, situation: Situation, positions: Sequence[int | None]
) -> ComposedView:
    """Return the view that fits; what stands for folded messages goes last of all, as a digest of it says nothing."""
    pins = frozenset(index for index, position in enumerate(positions) if position in situation.pins)
    made = frozenset(index for index, position in enumerate(positions) if position is None)
    if made:
        with suppress(CannotFitError):
            return ViewFitter(transcript, settings, replace(situation, pins=pins | made)).fit().view
    return ViewFitter(transcript, settings, replace(situation, pins=pins)).fit().view


def fit_entries(
    entries: Sequence[Entry], reader: FormatReader, settings: FitSettings, situation: Situation
) -> FittedEntries:
    """Return the entries as they can be sent; raises where nothing can shrink any more."""
    positions = [entry.position for entry in entries]
    transcript = Transcript(entries, _EntryReader(reader), situation.counter, positions)
    view = _fit_transcript(transcript, settings, situation, positions)

    def position(index: int | None) -> int | None:
        return None if index is None else positions[index]

    repairs = tuple(Repair(position(repair.position), repair.description) for repair in view.repaired.repairs)
    back = [
        entries[entry.position]
        if entry.position is not None and entry.message is entries[entry.position].message
        else Entry(entry.message, position(entry.position))
        for entry in view.entries
    ]
    told = tuple(f"floor: {reason}" for reason in view_reasons(situation, view, settings.max_media))
    mended = (f"floor: mended {len(repairs):,} places so that a provider accepts them",) if repairs else ()
    return FittedEntries(back, view.text_tokens + view.media_tokens, repairs, (*told, *mended))
