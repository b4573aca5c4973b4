"""Reads recorded messages that an agent may see, without caching them in the history.

Each message comes with its time and its tool name. A result does not name its tool, so the reader searches earlier
messages for the call. A note reports a message whose content is lost; the other messages are still read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from holdfast.core.conversation.messages import Message, ToolCall
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.history.scopes import label_trust
from holdfast.core.ledger.identifiers import argument_text
from holdfast.core.recall.passages import FoundMessage
from holdfast.errors import MalformedInputError, MissingBlobError
from holdfast.session.log.event_log import SessionLog
from holdfast.session.log.records import inline_blob, message_in_record
from holdfast.session.log.timestamps import format_time_utc
from holdfast.stores.base import StoredRecord
from holdfast.wire.formats import format_named

CALL_LOOKBACK_STEPS = (2, 6, 24)
"""How many messages before a result are searched for its call, in successive steps."""


class MessageReader:
    """Reads messages for one agent, each message once."""

    def __init__(self, session_log: SessionLog, context: Context) -> None:
        self.log = session_log
        self.context = context
        self.notes: list[str] = []
        self._loaded: dict[int, FoundMessage | None] = {}

    async def read(self, positions: Sequence[int], *, with_tools: bool = False) -> list[FoundMessage]:
        """Return the messages at some positions that the agent may recall, in that order."""
        await self._load(positions)
        found = self._loaded_at(positions)
        return await self.with_tool_names(found) if with_tools else found

    async def with_tool_names(self, found: Sequence[FoundMessage]) -> list[FoundMessage]:
        """Return messages with the names and the arguments of their tool calls."""
        positions = [one.position for one in found]
        for before, after in zip((0, *CALL_LOOKBACK_STEPS), CALL_LOOKBACK_STEPS, strict=False):
            nameless = [one for one in self._loaded_at(positions) if one.message.outline.result_ids and not one.tool]
            if not nameless:
                break
            await self._load(near for one in nameless for near in range(one.position - after, one.position - before))
            for one in nameless:
                calls = self._loaded_calls(one, after)
                names = dict.fromkeys(call.name for call in calls)
                arguments = "\n".join(argument_text(call.arguments) for call in calls)
                self._loaded[one.position] = replace(one, tool=", ".join(names), call_arguments=arguments)
        return self._loaded_at(positions)

    async def recorded_time(self, position: int) -> int:
        """Return when a message was recorded."""
        records = await self.log.message_records([position])
        return records[0][1].time_ms if records else 0

    def answered_calls(self, one: FoundMessage) -> list[ToolCall]:
        """Return the calls whose results a message holds, after `with_tool_names`."""
        return self._loaded_calls(one, CALL_LOOKBACK_STEPS[-1])

    def _loaded_at(self, positions: Iterable[int]) -> list[FoundMessage]:
        return [one for position in positions if (one := self._loaded.get(position)) is not None]

    def _loaded_calls(self, one: FoundMessage, distance: int) -> list[ToolCall]:
        ids = set(one.message.outline.result_ids)
        before = self._loaded_at(range(max(0, one.position - distance), one.position))
        return [call for found in before for call in found.message.calls if call.id in ids]

    async def _load(self, positions: Iterable[int]) -> None:
        new = [
            position
            for position in dict.fromkeys(positions)
            if position >= 0 and position not in self._loaded and self.context.is_recallable(position)
        ]
        self._loaded |= dict.fromkeys(new)
        for position, stored in await self.log.message_records(new):
            try:
                message = await self._read_message(position, stored)
            except (MissingBlobError, MalformedInputError):
                self.notes.append(f"the content of #{position} is gone from the store or cannot be read")
                continue
            names = dict.fromkeys(call.name for call in message.calls)
            time = format_time_utc(stored.time_ms)
            self._loaded[position] = FoundMessage(position, message, stored.time_ms, time, ", ".join(names))

    async def _read_message(self, position: int, stored: StoredRecord) -> Message:
        self.log.require_content([position])
        entry = self.context.entries.get(position)
        if entry is not None:
            return entry.message
        name, native = message_in_record(await inline_blob(self.log.store, stored.record))
        message = self.log.history.recall_marks.mark(format_named(name).decode(native, position), position)
        data = cast("Mapping[str, object]", stored.record.get("data") or {})
        return label_trust(message, data.get("scope", log.MAIN), data.get("trust"))
