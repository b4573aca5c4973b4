"""A session beside the list of messages that pydantic-ai keeps of the same conversation.

pydantic-ai hands over the whole list before every request. Nearly always it is the list of the last time with
something behind it, the same objects, so only the new ones are written down. Where it is not, the session finds out
by content what has changed. What goes out untouched is the object that came in.

The conversations that runs take part in, each opened once.

An agent serves many conversations, so those that nobody has taken part in for longest are closed again. What was said
is in the store; only a store in memory, which nobody else can read, forgets them with that.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequestPart
from pydantic_ai.models import ModelRequestContext

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
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.history.events import MAIN, Usage
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.rules.default import DefaultCompaction
from holdfast.core.planning.situation import Budget
from holdfast.errors import PendingToolCallsError, SettingsError
from holdfast.models.base import CachedPrefix, Summarizer
from holdfast.models.pydantic_ai import AgentRequest, PydanticAiSummarizer
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.delegation import Delegate
from holdfast.session.request import Request
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequestOptions:
    """What a request is to be made of besides messages."""

    budget: int | Budget | None
    model: str | None
    system: str | None
    tools: Sequence[Mapping[str, object]]
    recall_tool: Mapping[str, object] | None = None
    """What tells of the recall tool, where the agent has it."""
    has_recall: bool = False
    """Whether this request does."""


class AgentConversation:
    """One session, and the messages it was told."""

    def __init__(self, session: Session, delegate: Delegate | None = None) -> None:
        self.session = session
        self.scope = delegate.scope if delegate else MAIN
        self.delegator: Session | Delegate = delegate or session
        """Who sends out others from here."""
        self._agent = delegate.agent if delegate else None
        self.active_runs = 0
        """How many runs are at it."""
        self._lock = asyncio.Lock()
        self._known_messages: list[ModelMessage] = []
        self._known_tail_parts: tuple[int, ...] = ()
        """The parts of the last message that was told: pydantic-ai may still add to them."""
        self._known_state: object = None
        """How the session stood then."""
        self._objects: dict[int, tuple[Mapping[str, Any], ModelMessage]] = {}
        """By the identity of what was recorded, the messages."""
        self._state_parts: dict[int, list[ModelRequestPart]] = {}
        """By position, what messages say of what is in force from there on."""
        self._changed_system_texts: list[str] = []
        """System text that was made anew since it was recorded: it goes out in the place of what was."""
        self.request_context: ModelRequestContext | None = None
        """How the newest request is made, besides its messages."""

    @property
    def has_recall(self) -> bool:
        """Whether the model was last told of the recall tool."""
        return self.scope in self.session.history.session_state.recall_scopes

    async def past_messages(self) -> list[ModelMessage]:
        """Return what stands of the conversation."""
        async with self._lock:
            await self.session.refresh()
            if self._known_messages and self._known_state == self._session_state():
                return list(self._known_messages)
            natives = await self.session.messages(scope=self.scope)
            unknown = [native for native in natives if self._message_of(native) is None]
            for native, message in zip(unknown, validate_messages(unknown), strict=True):
                self._objects[id(native)] = native, message
            messages = [message for native in natives if (message := self._message_of(native)) is not None]
            self._state_parts = {}
            await self._apply_state_parts(self._recorded_positions(), messages)
            self._remember_messages(join_system_text(messages))
            return list(self._known_messages)

    async def sync(self, messages: Sequence[ModelMessage]) -> None:
        """Record what is new in a list, so that the session holds exactly this one."""
        async with self._lock:
            await self._sync(messages)

    async def prepare(self, request_context: ModelRequestContext, options: AgentRequestOptions) -> Request:
        """Record what is new in the messages of a request, and return what to send of them."""
        async with self._lock:
            await self._sync(request_context.messages)
            self.request_context = request_context
            for writer in self.session.summarizers if self.scope == MAIN else ():
                if isinstance(writer, PydanticAiSummarizer):
                    writer.request_lookup = self._agent_request
            try:
                return await self._prepare(options)
            except PendingToolCallsError:
                # Whoever asks the model again has no tool running.
                await self.session.interrupt(scope=self.scope)
                return await self._prepare(options)

    async def record_response(
        self, messages: Sequence[ModelMessage], response: ModelMessage, usage: Usage | None
    ) -> None:
        """Record what the model said to a request."""
        billed = None if usage is None else {name: getattr(usage, name) for name in USAGE_FIELDS}
        async with self._lock:
            # Another run of the same conversation may have spoken meanwhile.
            await self._sync(messages)
            await self._record([response], billed)
            self._remember_messages([*messages, response])

    def outgoing_messages(self, request: Request | CachedPrefix) -> list[ModelMessage]:
        """Return the messages of a request; what nobody touched are the objects that came in."""
        made = [native for native in request.messages if self._message_of(native) is None]
        new = validate_messages(made)
        if not isinstance(self.session.policy.fold, DefaultCompaction):
            new = summaries_as_prompts(new)
        objects = dict(zip(map(id, made), new, strict=True))
        shown, context = set(request.positions), self.session.history.context(self.scope)
        left_out = [
            records
            for position, records in self._state_parts.items()
            if position not in shown and position >= context.state.cleared_at and context.is_visible(position)
        ]
        messages = [self._message_of(native) or objects[id(native)] for native in request.messages]
        return carry_state_parts(messages, (part for records in left_out for part in records))

    def _agent_request(self, prefix: CachedPrefix) -> AgentRequest | None:
        """Return a request of this conversation as it is sent, so that a question can be asked behind it.

        A session's writers know the main agent's alone: a sub-agent's model, tools and settings are other ones.
        """
        made = self.request_context
        if made is None or prefix.scope != self.scope or len(prefix.positions) != len(prefix.messages):
            return None
        parameters, settings = made.model_request_parameters, made.model_settings or {}
        if not any(tool.get("name") == RECALL_TOOL for tool in prefix.tools or ()):
            # The run has it from the beginning; a request tells of it from the first marker on.
            parameters = replace(parameters, function_tools=without_recall(parameters.function_tools))
        return AgentRequest(made.model, self.outgoing_messages(prefix), settings, parameters)

    async def _sync(self, messages: Sequence[ModelMessage]) -> None:
        known = len(self._known_messages)
        is_longer = known <= len(messages) and all(map(_is_same, messages, self._known_messages))
        if (
            not is_longer
            or self._known_state != self._session_state()
            or self._known_tail_parts != _part_ids(messages[known - 1 : known])
        ):
            await self._resync(messages)
        elif known < len(messages):
            await self._record(messages[known:])
        self._remember_messages(messages)

    async def _record(self, messages: Sequence[ModelMessage], usage: Mapping[str, int] | None = None) -> None:
        pairs = session_elements(messages)
        natives = [native for native, _ in pairs]
        self._objects |= {id(native): (native, message) for native, message in pairs}
        positions = await self.session.record(
            natives, format=SESSION_FORMAT, usage=usage, scope=self.scope, agent=self._agent
        )
        await self._apply_state_parts(positions, [message for _, message in pairs])

    async def _apply_state_parts(self, positions: Sequence[int], messages: Sequence[ModelMessage]) -> None:
        """Remember what messages say of what is in force, and keep those that nothing can stand for."""
        for position, message in zip(positions, messages, strict=True):
            if records := state_parts_of(message):
                self._state_parts[position] = records
            if loads_capability(message) and position not in self.session.history.session_state.pins:
                await self.session.pin(position)

    def _recorded_positions(self) -> list[int]:
        """Return where the messages that stand were recorded."""
        context = self.session.history.context(self.scope)
        own = range(context.state.cleared_at, context.length)
        standing = [at for at in own if context.message_scopes[at] == self.scope and context.is_visible(at)]
        entries = self.session.history.entries
        return [at for at in standing if not entries[at].message.is_from_memory]

    async def _resync(self, messages: Sequence[ModelMessage]) -> None:
        """Let the session find out what has changed, and learn under which of its own records each message goes."""
        if self.scope != MAIN:
            # A delegate's list only grows: what is not known yet is new.
            await self._record(
                [message for message in messages if not any(message is known for known in self._known_messages)]
            )
            return
        pairs = session_elements(messages)
        await self.session.sync([native for native, _ in pairs], format=SESSION_FORMAT)
        natives = await self.session.messages()
        self._changed_system_texts = []
        if len(natives) == len(pairs):
            self._objects = {id(one): (one, message) for one, (_, message) in zip(natives, pairs, strict=True)}
            self._state_parts = {}
            await self._apply_state_parts(self._recorded_positions(), [message for _, message in pairs])
            self._changed_system_texts = [
                text
                for recorded, (given, _) in zip(natives, pairs, strict=True)
                if (text := native_system_text(given)) and text != native_system_text(recorded)
            ]

    async def _prepare(self, options: AgentRequestOptions) -> Request:
        tools = [*options.tools, *([options.recall_tool] if options.recall_tool and options.has_recall else [])]
        system = "\n\n".join(filter(None, [options.system, *self._changed_system_texts]))
        return await self.session.prepare(
            options.budget,
            model=options.model,
            system=system or None,
            tools=tools or None,
            has_recall=options.has_recall,
            scope=self.scope,
        )

    def _message_of(self, native: Mapping[str, Any]) -> ModelMessage | None:
        known = self._objects.get(id(native))
        return known[1] if known is not None and known[0] is native else None

    def _remember_messages(self, messages: Sequence[ModelMessage]) -> None:
        self._known_messages = list(messages)
        self._known_tail_parts = _part_ids(messages[-1:])
        self._known_state = self._session_state()

    def _session_state(self) -> object:
        """Return what a change by somebody else would change."""
        history = self.session.history
        return (
            history.message_counts.get(self.scope, 0),
            history.version.hidden,
            history.version.state_of(self.scope).cleared_at,
        )


USAGE_FIELDS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def _is_same(one: ModelMessage, other: ModelMessage) -> bool:
    return one is other


def _part_ids(last: Sequence[ModelMessage]) -> tuple[int, ...]:
    return tuple(id(part) for message in last for part in message.parts)


MAX_OPEN_SESSIONS = 256
"""How many conversations stay open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How sessions are opened, as `Session.open` takes it."""

    store: str | Store | None = None
    policy: str | Policy | None = None
    summarizer: str | Summarizer | None = None
    compaction: CompactionOptions | None = None


class SessionPool:
    """Conversations by the ids of their sessions."""

    def __init__(self, options: SessionOptions, session: Session | None = None) -> None:
        for setting in fields(options):
            if session is not None and getattr(options, setting.name) is not None:
                raise SettingsError(setting.name, "is the open session's own; give it where you open that")
        self._options = options
        self._fixed = AgentConversation(_check_session_format(session)) if session is not None else None
        self._store: Store | None = None
        self._conversations: OrderedDict[str, AgentConversation] = OrderedDict()
        self._open_lock = asyncio.Lock()

    @property
    def sessions(self) -> Mapping[str, Session]:
        """All sessions that are open, by id."""
        everybody = [*([self._fixed] if self._fixed else []), *self._conversations.values()]
        return {one.session.id: one.session for one in everybody}

    @property
    def busy_ids(self) -> list[str]:
        """The ids of sessions that a run takes part in."""
        everybody = [*([self._fixed] if self._fixed else []), *self._conversations.values()]
        return [one.session.id for one in everybody if one.active_runs]

    async def conversation(self, session_id: str) -> AgentConversation:
        """Return a conversation, opened now or before."""
        if self._fixed is not None and session_id == self._fixed.session.id:
            return self._fixed
        async with self._open_lock:
            known = self._conversations.get(session_id)
            if known is None:
                known = self._conversations[session_id] = AgentConversation(
                    _check_session_format(await self._open_session(session_id))
                )
                await self._close_idle()
            self._conversations.move_to_end(session_id)
            return known

    async def close(self) -> None:
        """Close what was opened here; what was given stays open."""
        async with self._open_lock:
            while self._conversations:
                _, conversation = self._conversations.popitem(last=False)
                await conversation.session.close()
            if self._store is not None and isinstance(self._options.store, str | None):
                await self._store.close()
                self._store = None

    async def _open_session(self, session_id: str) -> Session:
        if self._fixed is not None:
            return await self._fixed.session.open_sibling(session_id)
        how = self._options
        if self._store is None:
            self._store = open_store(how.store or "memory://")
        return await Session.open(
            session_id,
            store=self._store,
            policy=how.policy or "default",
            summarizer=how.summarizer,
            compaction=how.compaction,
        )

    async def _close_idle(self) -> None:
        idle = [session_id for session_id, one in self._conversations.items() if not one.active_runs]
        for session_id in idle[: max(0, len(self._conversations) - MAX_OPEN_SESSIONS)]:
            await self._conversations.pop(session_id).session.close()
            if isinstance(self._store, MemoryStore) and not isinstance(self._options.store, MemoryStore):
                await self._store.delete(session_id)


def _check_session_format(session: Session) -> Session:
    """Return a session if its messages are pydantic-ai's."""
    spoken = session.history.format or SESSION_FORMAT
    if spoken != SESSION_FORMAT:
        raise SettingsError(
            "format", f"session {session.id!r} speaks {spoken}; bring it into another one with convert()"
        )
    return session
