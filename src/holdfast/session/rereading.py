"""Reads messages of the past for somebody who may see them, and leaves memory as it is.

Each comes with its time and the tool it is about: a result does not say which tool it is from, so the call is
looked for before it. A message whose content is gone from the store is told of, and the others are read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from holdfast.core.conversation.messages import Message, ToolCall
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.history.identifiers import argument_text
from holdfast.core.history.recall.packing import Found
from holdfast.core.history.scope import labelled
from holdfast.errors import MalformedInputError, MissingBlobError
from holdfast.session.blobs import said_in, whole_record
from holdfast.session.keeping import Keeper
from holdfast.session.moments import time_told
from holdfast.stores.base import StoredRecord
from holdfast.wire.formats import format_named

LOOK_BACK = (2, 6, 24)
"""How far before a result its call is looked for, one distance after the other."""


class Rereader:
    """Reads for one agent; what was read once is not read again."""

    def __init__(self, keeper: Keeper, context: Context) -> None:
        self.context = context
        self.notes: list[str] = []
        self._keeper = keeper
        self._known: dict[int, Found | None] = {}

    async def read(self, positions: Sequence[int]) -> list[Found]:
        """Return the messages at some positions that may be recalled, in that order."""
        await self._load(positions)
        return list(self._at(positions))

    async def named(self, found: Sequence[Found]) -> list[Found]:
        """Return messages with the tools that they are from, and what those were asked."""
        positions = [one.position for one in found]
        for before, after in zip((0, *LOOK_BACK), LOOK_BACK, strict=False):
            nameless = [one for one in self._at(positions) if one.message.outline.result_ids and not one.tool]
            if not nameless:
                break
            await self._load(near for one in nameless for near in range(one.position - after, one.position - before))
            for one in nameless:
                calls = self._calls_of(one, after)
                names = dict.fromkeys(call.name for call in calls)
                about = "\n".join(argument_text(call.arguments) for call in calls)
                self._known[one.position] = replace(one, tool=", ".join(names), about=about)
        return list(self._at(positions))

    async def time_of(self, position: int) -> int:
        """Return when a message was recorded."""
        records = await self._keeper.pick([position])
        return records[0][1].time_ms if records else 0

    def calls_of(self, one: Found) -> list[ToolCall]:
        """Return the calls whose results a message holds, once it was named."""
        return self._calls_of(one, LOOK_BACK[-1])

    def _at(self, positions: Sequence[int]) -> Iterator[Found]:
        return (one for position in positions if (one := self._known.get(position)) is not None)

    def _calls_of(self, one: Found, distance: int) -> list[ToolCall]:
        """Return the calls whose results a message holds, as far as they were read."""
        wanted = set(one.message.outline.result_ids)
        near = range(max(0, one.position - distance), one.position)
        before = [found for position in near if (found := self._known.get(position))]
        return [call for found in before for call in found.message.calls if call.id in wanted]

    async def _load(self, positions: Iterable[int]) -> None:
        wanted = [position for position in dict.fromkeys(positions) if position >= 0 and position not in self._known]
        wanted = [position for position in wanted if self.context.recalls(position)]
        self._known |= dict.fromkeys(wanted)
        for position, stored in await self._keeper.pick(wanted):
            try:
                message = await self._message(position, stored)
            except (MissingBlobError, MalformedInputError):
                self.notes.append(f"the content of #{position} is gone from the store or cannot be read")
                continue
            names = dict.fromkeys(call.name for call in message.calls)
            told = time_told(stored.time_ms)
            self._known[position] = Found(position, message, stored.time_ms, told, ", ".join(names))

    async def _message(self, position: int, stored: StoredRecord) -> Message:
        self._keeper.check_there([position])
        entry = self.context.entries.held(position)
        if entry is not None:
            return entry.message
        spoken, native = said_in(await whole_record(self._keeper.store, stored.record))
        message = self._keeper.history.answers.marked(format_named(spoken).decode(native, position), position)
        data = cast("Mapping[str, object]", stored.record.get("data") or {})
        return labelled(message, data.get("scope", log.MAIN), data.get("trust"))
