"""A session beside the list of messages that pydantic-ai keeps of the same conversation.

pydantic-ai hands over the whole list before every request. Nearly always it is the list of the last time with
something behind it, the same objects, so only the new ones are written down. Where it is not, the session finds out
by content what has changed. What goes out untouched is the object that came in.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import ModelMessage

from holdfast.adapters.pydantic_ai.natives import FORMAT, elements, joined, validated
from holdfast.core.history.events import MAIN, Usage
from holdfast.core.planning.situation import Budget
from holdfast.errors import PendingToolCallsError
from holdfast.session.request import PreparedRequest
from holdfast.session.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a request is to be made of besides messages."""

    budget: int | Budget | None
    model: str | None
    system: str | None
    tools: Sequence[Mapping[str, object]]


class Conversation:
    """One session, and the messages it was told."""

    def __init__(self, session: Session) -> None:
        self.session = session
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

    async def past(self) -> list[ModelMessage]:
        """Return what stands of the conversation."""
        async with self._turn:
            await self.session.catch_up()
            if self._told and self._standing == self._stands():
                return list(self._told)
            natives = await self.session.messages()
            unknown = [native for native in natives if self._object(native) is None]
            for native, message in zip(unknown, validated(unknown), strict=True):
                self._objects[id(native)] = native, message
            self._take(joined(message for native in natives if (message := self._object(native)) is not None))
            return list(self._told)

    async def follow(self, messages: Sequence[ModelMessage]) -> None:
        """Record what is new in a list, so that the session holds exactly this one."""
        async with self._turn:
            await self._follow(messages)

    async def prepare(self, messages: Sequence[ModelMessage], wanted: Wanted) -> PreparedRequest:
        """Record what is new in a list, and return the next request."""
        async with self._turn:
            await self._follow(messages)
            try:
                return await self._prepared(wanted)
            except PendingToolCallsError:
                # Whoever asks the model again has no tool running.
                await self.session.interrupt()
                return await self._prepared(wanted)

    async def answer(self, response: ModelMessage, usage: Usage | None) -> None:
        """Record what the model said to the last request."""
        billed = None if usage is None else {name: getattr(usage, name) for name in BILLED}
        async with self._turn:
            await self.session.record(self._written([response]), format=FORMAT, usage=billed)
            self._take([*self._told, response])

    def outgoing(self, request: PreparedRequest) -> list[ModelMessage]:
        """Return the messages of a request; what nobody touched are the objects that came in."""
        made = [native for native in request.messages if self._object(native) is None]
        objects = dict(zip(map(id, made), validated(made), strict=True))
        return [self._object(native) or objects[id(native)] for native in request.messages]

    async def _follow(self, messages: Sequence[ModelMessage]) -> None:
        known = len(self._told)
        is_longer = known <= len(messages) and all(map(_is_same, messages, self._told))
        if not is_longer or self._standing != self._stands() or self._tail != _parts(messages[known - 1 : known]):
            await self._catch_up_with(messages)
        elif fresh := self._written(messages[known:]):
            await self.session.record(fresh, format=FORMAT)
        self._take(messages)

    async def _catch_up_with(self, messages: Sequence[ModelMessage]) -> None:
        """Let the session find out what has changed, and learn under which of its own records each message goes."""
        pairs = elements(messages)
        await self.session.sync([native for native, _ in pairs], format=FORMAT)
        natives = await self.session.messages()
        if len(natives) == len(pairs):
            self._objects = {id(one): (one, message) for one, (_, message) in zip(natives, pairs, strict=True)}

    async def _prepared(self, wanted: Wanted) -> PreparedRequest:
        return await self.session.prepare(
            wanted.budget, model=wanted.model, system=wanted.system, tools=wanted.tools or None
        )

    def _written(self, messages: Sequence[ModelMessage]) -> list[Mapping[str, Any]]:
        """Return messages as the session records them, and remember which is which."""
        pairs = elements(messages)
        self._objects |= {id(native): (native, message) for native, message in pairs}
        return [native for native, _ in pairs]

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
        return len(history), history.version.hidden, history.version.of(MAIN).cleared_at


BILLED = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def _is_same(one: ModelMessage, other: ModelMessage) -> bool:
    return one is other


def _parts(last: Sequence[ModelMessage]) -> tuple[int, ...]:
    return tuple(id(part) for message in last for part in message.parts)
