"""Synchronize sessions with pydantic-ai's message lists of the same conversations.

pydantic-ai passes the whole list before every request. Nearly always that is the previous list, the same objects, with
new messages at the end: then only the new ones are converted and recorded. If there are other objects, or if a message
was edited in place, the session compares the lists by content. An unchanged message is sent as the same object that
pydantic-ai passed in.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from pydantic_ai.messages import ModelMessage, ModelRequestPart
from pydantic_ai.models import ModelRequestContext

from holdfast.adapters.framework_conversation import in_one_write, recorded_positions, recorded_state
from holdfast.adapters.pydantic_ai.messages import (
    SESSION_FORMAT,
    carry_state_parts,
    join_system_text,
    loads_capability,
    native_system_text,
    session_elements,
    state_parts_of,
    summaries_as_prompts,
    validate_messages,
)
from holdfast.adapters.pydantic_ai.tools import without_recall
from holdfast.core.conversation.json_values import copied_json
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.history.events import Usage
from holdfast.core.planning.situation import Budget
from holdfast.errors import PendingToolCallsError
from holdfast.models.base import CachedPrefix
from holdfast.models.pydantic_ai import AgentRequest, PydanticAiSummarizer
from holdfast.session.delegation import Delegate
from holdfast.session.request import common_length
from holdfast.session.session import Session
from holdfast.wire.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequestOptions:
    """The parts of a request other than its messages."""

    budget: int | Budget | None
    model: str | None
    endpoint: str | None
    """The address that serves the model, if it is known."""
    system: str | None
    tools: Sequence[Mapping[str, object]]
    recall_tool: Mapping[str, object] | None = None
    """The definition of the recall tool, if the agent has it."""
    has_recall: bool = False
    """Whether this request offers it."""


class LastOutgoing(NamedTuple):
    """The messages of the last request, as JSON and as objects; the next request reuses those it begins with."""

    natives: Sequence[Mapping[str, Any]] = ()
    messages: Sequence[ModelMessage] = ()
    has_prompts: bool = False
    """Whether summaries are user prompts."""


class AgentConversation:
    """The conversation of one agent in a session, and the messages that are already recorded."""

    def __init__(self, session: Session, delegate: Delegate | None = None) -> None:
        self.session = session
        self._main = session.sharing_messages()
        if delegate is not None:
            delegate.shares_messages = True
        self.agent: Session | Delegate = delegate or self._main
        """The conversation of the agent whose runs these are: that of the session, or one of its delegates. Messages
        are not copied."""
        self.active_runs = 0
        self._lock = asyncio.Lock()
        self._known_messages: list[ModelMessage] = []
        self._known_parts: tuple[list[int], list[dict[str, Any]]] = [], []
        """What these messages said then, as `_parts_of` returns it; nobody else can change it."""
        self._known_state: object = None
        """The state of the session at that time."""
        self._objects: dict[int, tuple[Mapping[str, Any], ModelMessage]] = {}
        """The messages by the identity of their recorded JSON."""
        self._sent = LastOutgoing()
        self._state_parts: dict[int, list[ModelRequestPart]] = {}
        """The state parts of messages, by position."""
        self._changed_system_texts: list[str] = []
        """System text that has changed since it was recorded: it is sent instead of the recorded one."""
        self.request_context: ModelRequestContext | None = None
        """The model, the settings and the tools of the newest request."""

    @property
    def has_recall(self) -> bool:
        """Whether the last request offered the recall tool."""
        return self.agent.scope in self.session.history.session_state.recall_scopes

    async def past_messages(self) -> list[ModelMessage]:
        """Return the messages of the conversation, including compacted ones."""
        async with self._lock:
            await self.session.refresh()
            if self._known_messages and self._known_state == recorded_state(self.session, self.agent.scope):
                return list(self._known_messages)
            natives = await self.agent.messages()
            unknown = [native for native in natives if self._message_of(native) is None]
            for native, message in zip(unknown, validate_messages(unknown), strict=True):
                self._objects[id(native)] = native, message
            messages = [message for native in natives if (message := self._message_of(native)) is not None]
            self._state_parts, self._sent = {}, LastOutgoing()
            await self._apply_state_parts(recorded_positions(self.session, self.agent.scope), messages)
            self._remember_messages(join_system_text(messages))
            return list(self._known_messages)

    async def sync(self, messages: Sequence[ModelMessage]) -> None:
        """Record the changes of a list, so that the session holds exactly this list."""
        async with self._lock:
            await self._sync(messages)

    async def prepare(self, request_context: ModelRequestContext, options: AgentRequestOptions) -> Request:
        """Record the new messages of a request, and return the request to send."""
        async with self._lock:

            async def record_and_prepare() -> Request:
                await self._sync(request_context.messages)
                self.request_context = request_context
                for summarizer in self.session.summarizers if self.agent is self._main else ():
                    if isinstance(summarizer, PydanticAiSummarizer):
                        summarizer.request_lookup = self._agent_request
                try:
                    return await self._prepare(options)
                except PendingToolCallsError:
                    # A caller that asks the model again has no tool running.
                    await self.agent.interrupt()
                    return await self._prepare(options)

            return await in_one_write(self.agent, record_and_prepare, self._compare_next_time)

    async def record_response(
        self, messages: Sequence[ModelMessage], response: ModelMessage, usage: Usage | None
    ) -> None:
        """Record the response to a request."""
        async with self._lock:
            is_known = len(messages) == len(self._known_messages) == common_length(messages, self._known_messages)
            if not is_known or self._known_state != recorded_state(self.session, self.agent.scope):
                # Another run of the same conversation has recorded messages meanwhile.
                await self._sync(messages)
            await self._record([response], usage)
            self._remember_messages([*messages, response], len(messages))

    def outgoing_messages(self, request: Request | CachedPrefix) -> list[ModelMessage]:
        """Return the messages of a request; unchanged ones are the objects that pydantic-ai passed in."""
        natives: Sequence[Mapping[str, Any]] = request.messages
        rule = self.session.policy.compaction
        has_prompts = rule is None or rule.is_summary_prompt
        same = common_length(natives, self._sent.natives) if has_prompts is self._sent.has_prompts else 0
        messages = [*self._sent.messages[:same], *self._messages_of(natives[same:], has_prompts=has_prompts)]
        self._sent = LastOutgoing(natives, messages, has_prompts)
        if not self._state_parts:
            return list(messages)
        sent, context = set(request.positions), self.session.history.context(self.agent.scope)
        omitted = [
            part
            for position, parts in self._state_parts.items()
            if position not in sent and position >= context.state.cleared_at and context.is_visible(position)
            for part in parts
        ]
        return carry_state_parts(messages, omitted)

    def _messages_of(self, natives: Sequence[Mapping[str, Any]], *, has_prompts: bool) -> list[ModelMessage]:
        """Return recorded JSON as the objects of pydantic-ai; what Holdfast has made or shortened is converted."""
        made = [native for native in natives if self._message_of(native) is None]
        new = validate_messages(made) if made else []
        objects = dict(zip(map(id, made), summaries_as_prompts(new) if has_prompts else new, strict=True))
        return [self._message_of(native) or objects[id(native)] for native in natives]

    def _agent_request(self, prefix: CachedPrefix) -> AgentRequest | None:
        """Return a request of this conversation as it is sent, so that a summarizer can reuse its cached prefix.

        Summarizers reuse only requests of the main agent: a sub-agent has another model, tools and settings.
        """
        context = self.request_context
        if context is None or prefix.scope != self.agent.scope or len(prefix.positions) != len(prefix.messages):
            return None
        parameters, settings = context.model_request_parameters, context.model_settings or {}
        if not any(tool.get("name") == RECALL_TOOL for tool in prefix.tools or ()):
            # The run has the recall tool from the beginning; requests offer it from the first marker on.
            parameters = replace(parameters, function_tools=without_recall(parameters.function_tools))
        return AgentRequest(context.model, self.outgoing_messages(prefix), settings, parameters)

    async def _sync(self, messages: Sequence[ModelMessage]) -> None:
        known = len(self._known_messages)
        if not (
            common_length(messages, self._known_messages) == known
            and self._known_state == recorded_state(self.session, self.agent.scope)
            and _are_equal(_parts_of(messages[:known]), self._known_parts)
        ):
            self._sent = LastOutgoing()
            await self._resync(messages)
            self._remember_messages(messages)
        elif known < len(messages):
            await self._record(messages[known:])
            self._remember_messages(messages, known)

    async def _record(self, messages: Sequence[ModelMessage], usage: Usage | None = None) -> None:
        pairs = session_elements(messages)
        natives = [native for native, _ in pairs]
        self._objects |= {id(native): (native, message) for native, message in pairs}
        positions = await self.agent.record(natives, format=SESSION_FORMAT, usage=usage)
        await self._apply_state_parts(positions, [message for _, message in pairs])

    async def _apply_state_parts(self, positions: Sequence[int], messages: Sequence[ModelMessage]) -> None:
        """Remember the state parts of messages, and pin the messages that load a capability."""
        for position, message in zip(positions, messages, strict=True):
            if parts := state_parts_of(message):
                self._state_parts[position] = parts
            if loads_capability(message) and position not in self.session.history.session_state.pins:
                await self.session.pin(position)

    async def _resync(self, messages: Sequence[ModelMessage]) -> None:
        """Compare the list with the session by content, and match recorded messages with objects again."""
        if self.agent is not self._main:
            # A delegate's list only grows, so every message that is not known yet is new.
            await self._record(
                [message for message in messages if not any(message is known for known in self._known_messages)]
            )
            return
        pairs = session_elements(messages)
        await self._main.sync([native for native, _ in pairs], format=SESSION_FORMAT)
        natives = await self._main.messages()
        self._changed_system_texts = []
        if len(natives) == len(pairs):
            self._objects = {id(one): (one, message) for one, (_, message) in zip(natives, pairs, strict=True)}
            self._state_parts = {}
            await self._apply_state_parts(
                recorded_positions(self.session, self.agent.scope), [message for _, message in pairs]
            )
            self._changed_system_texts = [
                text
                for recorded, (current, _) in zip(natives, pairs, strict=True)
                if (text := native_system_text(current)) and text != native_system_text(recorded)
            ]

    async def _prepare(self, options: AgentRequestOptions) -> Request:
        tools = [*options.tools, *([options.recall_tool] if options.recall_tool and options.has_recall else [])]
        system = "\n\n".join(filter(None, [options.system, *self._changed_system_texts]))
        if self.agent is self._main and options.endpoint is not None:
            self.session.endpoint = options.endpoint
        return await self.agent.prepare(
            options.budget,
            model=options.model,
            endpoint=options.endpoint,
            system=system or None,
            tools=tools or None,
            has_recall=options.has_recall,
        )

    def _message_of(self, native: Mapping[str, Any]) -> ModelMessage | None:
        known = self._objects.get(id(native))
        return known[1] if known is not None and known[0] is native else None

    def _remember_messages(self, messages: Sequence[ModelMessage], start: int = 0) -> None:
        """Remember a list; the messages before `start` are known."""
        self._known_messages = list(messages)
        counts, parts = _parts_of(messages[start:])
        known_counts, known_parts = self._known_parts
        del known_parts[sum(known_counts[:start]) :], known_counts[start:]
        known_counts += counts
        known_parts += copied_json(parts)
        self._known_state = recorded_state(self.session, self.agent.scope)

    def _compare_next_time(self) -> None:
        self._known_state = None


def _parts_of(messages: Sequence[ModelMessage]) -> tuple[list[int], list[dict[str, Any]]]:
    """Return what messages say: how many parts each has, and the fields of all parts."""
    parts = list(map(attrgetter("parts"), messages))
    return list(map(len, parts)), list(map(attrgetter("__dict__"), chain.from_iterable(parts)))


def _are_equal(one: object, other: object) -> bool:
    try:
        return one == other
    except Exception:  # noqa: BLE001 - an object that a tool returned may raise anything when it is compared
        return False
