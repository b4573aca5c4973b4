"""A session beside the list of messages that pydantic-ai keeps of the same conversation.

pydantic-ai hands over the whole list before every request. Nearly always it is the list of the last time with
something behind it, the same objects, so only the new ones are written down. Where it is not, the session finds out
by content what has changed. What goes out untouched is the object that came in.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequestPart
from pydantic_ai.models import ModelRequestContext

from holdfast.adapters.pydantic_ai.carrying import carrying, in_plain_words, is_load, records_of
from holdfast.adapters.pydantic_ai.natives import FORMAT, elements, joined, system_text, validated
from holdfast.adapters.pydantic_ai.recalling import without_recall
from holdfast.core.conversation.handles import RECALL
from holdfast.core.history.events import MAIN, Usage
from holdfast.core.planning.rules.deep import FoldDeep
from holdfast.core.planning.situation import Budget
from holdfast.errors import PendingToolCallsError
from holdfast.models.base import Prefix
from holdfast.models.pydantic_ai import AgentWriter, Call
from holdfast.session.child import Child
from holdfast.session.request import PreparedRequest
from holdfast.session.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a request is to be made of besides messages."""

    budget: int | Budget | None
    model: str | None
    system: str | None
    tools: Sequence[Mapping[str, object]]
    recall_tool: Mapping[str, object] | None = None
    """What tells of the recall tool, where the agent has it."""
    has_recall: bool = False
    """Whether this request does."""


class Conversation:
    """One session, and the messages it was told."""

    def __init__(self, session: Session, child: Child | None = None) -> None:
        self.session = session
        self.scope = child.scope if child else MAIN
        self.sender: Session | Child = child or session
        """Who sends out others from here."""
        self._agent = child.agent if child else None
        self.runs = 0
        """How many runs are at it."""
        self._turn = asyncio.Lock()
        self._told: list[ModelMessage] = []
        self._tail: tuple[int, ...] = ()
        """The parts of the last message that was told: pydantic-ai may still add to them."""
        self._standing: object = None
        """How the session stood then."""
        self._objects: dict[int, tuple[Mapping[str, Any], ModelMessage]] = {}
        """By the identity of what was recorded, the messages."""
        self._records: dict[int, list[ModelRequestPart]] = {}
        """By position, what messages say of what is in force from there on."""
        self._changed: list[str] = []
        """System text that was made anew since it was recorded: it goes out in the place of what was."""
        self.made: ModelRequestContext | None = None
        """How the newest request is made, besides its messages."""

    @property
    def has_recall(self) -> bool:
        """Whether the model was last told of the recall tool."""
        return self.scope in self.session.history.facts.recallers

    async def past(self) -> list[ModelMessage]:
        """Return what stands of the conversation."""
        async with self._turn:
            await self.session.catch_up()
            if self._told and self._standing == self._stands():
                return list(self._told)
            natives = await self.session.messages(scope=self.scope)
            unknown = [native for native in natives if self._object(native) is None]
            for native, message in zip(unknown, validated(unknown), strict=True):
                self._objects[id(native)] = native, message
            messages = [message for native in natives if (message := self._object(native)) is not None]
            self._records = {}
            await self._heed(self._positions(), messages)
            self._take(joined(messages))
            return list(self._told)

    async def follow(self, messages: Sequence[ModelMessage]) -> None:
        """Record what is new in a list, so that the session holds exactly this one."""
        async with self._turn:
            await self._follow(messages)

    async def prepare(self, made: ModelRequestContext, wanted: Wanted) -> PreparedRequest:
        """Record what is new in the messages of a request, and return what to send of them."""
        async with self._turn:
            await self._follow(made.messages)
            self.made = made
            for writer in self.session.writers if self.scope == MAIN else ():
                if isinstance(writer, AgentWriter):
                    writer.conversation = self._recalled
            try:
                return await self._prepared(wanted)
            except PendingToolCallsError:
                # Whoever asks the model again has no tool running.
                await self.session.interrupt(scope=self.scope)
                return await self._prepared(wanted)

    async def answer(self, asked: Sequence[ModelMessage], response: ModelMessage, usage: Usage | None) -> None:
        """Record what the model said to a request."""
        billed = None if usage is None else {name: getattr(usage, name) for name in BILLED}
        async with self._turn:
            # Another run of the same conversation may have spoken meanwhile.
            await self._follow(asked)
            await self._record([response], billed)
            self._take([*asked, response])

    def outgoing(self, request: PreparedRequest | Prefix) -> list[ModelMessage]:
        """Return the messages of a request; what nobody touched are the objects that came in."""
        made = [native for native in request.messages if self._object(native) is None]
        new = validated(made)
        if not isinstance(self.session.policy.fold, FoldDeep):
            new = in_plain_words(new)
        objects = dict(zip(map(id, made), new, strict=True))
        shown, context = set(request.positions), self.session.history.context(self.scope)
        left_out = [
            records
            for position, records in self._records.items()
            if position not in shown and position >= context.standing.cleared_at and context.stands(position)
        ]
        messages = [self._object(native) or objects[id(native)] for native in request.messages]
        return carrying(messages, (part for records in left_out for part in records))

    def _recalled(self, prefix: Prefix) -> Call | None:
        """Return a request of this conversation as it is sent, so that a question can be asked behind it.

        A session's writers know the main agent's alone: a sub-agent's model, tools and settings are other ones.
        """
        made = self.made
        if made is None or prefix.scope != self.scope or len(prefix.positions) != len(prefix.messages):
            return None
        parameters, settings = made.model_request_parameters, made.model_settings or {}
        if not any(tool.get("name") == RECALL for tool in prefix.tools or ()):
            # The run has it from the beginning; a request tells of it from the first marker on.
            parameters = replace(parameters, function_tools=without_recall(parameters.function_tools))
        return Call(made.model, self.outgoing(prefix), settings, parameters)

    async def _follow(self, messages: Sequence[ModelMessage]) -> None:
        known = len(self._told)
        is_longer = known <= len(messages) and all(map(_is_same, messages, self._told))
        if not is_longer or self._standing != self._stands() or self._tail != _parts(messages[known - 1 : known]):
            await self._catch_up_with(messages)
        elif known < len(messages):
            await self._record(messages[known:])
        self._take(messages)

    async def _record(self, messages: Sequence[ModelMessage], usage: Mapping[str, int] | None = None) -> None:
        pairs = elements(messages)
        natives = [native for native, _ in pairs]
        self._objects |= {id(native): (native, message) for native, message in pairs}
        positions = await self.session.record(natives, format=FORMAT, usage=usage, scope=self.scope, agent=self._agent)
        await self._heed(positions, [message for _, message in pairs])

    async def _heed(self, positions: Sequence[int], messages: Sequence[ModelMessage]) -> None:
        """Remember what messages say of what is in force, and keep those that nothing can stand for."""
        for position, message in zip(positions, messages, strict=True):
            if records := records_of(message):
                self._records[position] = records
            if is_load(message) and position not in self.session.history.facts.pins:
                await self.session.pin(position)

    def _positions(self) -> list[int]:
        """Return where the messages that stand were recorded."""
        context = self.session.history.context(self.scope)
        own = range(context.standing.cleared_at, context.length)
        standing = [at for at in own if context.said_in[at] == self.scope and context.stands(at)]
        entries = self.session.history.entries
        return [at for at in standing if not entries[at].message.is_from_memory]

    async def _catch_up_with(self, messages: Sequence[ModelMessage]) -> None:
        """Let the session find out what has changed, and learn under which of its own records each message goes."""
        if self.scope != MAIN:
            # A delegate's list only grows: what is not known yet is new.
            await self._record([message for message in messages if not any(message is known for known in self._told)])
            return
        pairs = elements(messages)
        await self.session.sync([native for native, _ in pairs], format=FORMAT)
        natives = await self.session.messages()
        self._changed = []
        if len(natives) == len(pairs):
            self._objects = {id(one): (one, message) for one, (_, message) in zip(natives, pairs, strict=True)}
            self._records = {}
            await self._heed(self._positions(), [message for _, message in pairs])
            self._changed = [
                text
                for recorded, (given, _) in zip(natives, pairs, strict=True)
                if (text := system_text(given)) and text != system_text(recorded)
            ]

    async def _prepared(self, wanted: Wanted) -> PreparedRequest:
        tools = [*wanted.tools, *([wanted.recall_tool] if wanted.recall_tool and wanted.has_recall else [])]
        system = "\n\n".join(filter(None, [wanted.system, *self._changed]))
        return await self.session.prepare(
            wanted.budget,
            model=wanted.model,
            system=system or None,
            tools=tools or None,
            has_recall=wanted.has_recall,
            scope=self.scope,
        )

    def _object(self, native: Mapping[str, Any]) -> ModelMessage | None:
        known = self._objects.get(id(native))
        return known[1] if known is not None and known[0] is native else None

    def _take(self, messages: Sequence[ModelMessage]) -> None:
        self._told = list(messages)
        self._tail = _parts(messages[-1:])
        self._standing = self._stands()

    def _stands(self) -> object:
        """Return what a change by somebody else would change."""
        history = self.session.history
        return history.counts.get(self.scope, 0), history.version.hidden, history.version.of(self.scope).cleared_at


BILLED = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def _is_same(one: ModelMessage, other: ModelMessage) -> bool:
    return one is other


def _parts(last: Sequence[ModelMessage]) -> tuple[int, ...]:
    return tuple(id(part) for message in last for part in message.parts)
