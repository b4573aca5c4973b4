"""A framework's conversation in a session: record its list of messages, and return the request to send instead.

Frameworks keep the conversation themselves and pass the whole list before every model call. Nearly always that is the
previous list with new messages at the end, and only the new ones are recorded. Otherwise the session compares the lists
by content. A message that the request leaves unchanged is sent as the framework's own object, so nothing is lost that
the log's format does not know.

An agent that another agent calls as a tool works in a delegation of the same session: `SubAgentCall` is such a call.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.history.events import Usage
from holdfast.core.history.visibility import SEES_NOTHING
from holdfast.core.planning.situation import Budget
from holdfast.errors import PendingToolCallsError
from holdfast.session.delegation import Delegate, DelegateContext
from holdfast.session.session import Session
from holdfast.wire.request import Request

MIN_RECALL_BUDGET = 4_000
"""The smallest budget with a recall tool: its definition would take more than a twentieth of a smaller one."""
MessageT = TypeVar("MessageT")


class MessageCodec(Protocol[MessageT]):
    """Converts between a framework's messages and JSON of one format."""

    format: str

    def encode(self, message: MessageT) -> Mapping[str, Any]:
        """Return a message as JSON."""
        ...

    def decode(self, native: Mapping[str, Any]) -> MessageT:
        """Return a message that Holdfast has made or shortened as an object of the framework."""
        ...

    def text(self, message: MessageT) -> str:
        """Return the text of a message."""
        ...

    def own_summary(self, messages: Sequence[MessageT]) -> str | None:
        """Return the summary that the framework itself has put into the list instead of messages; None if none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRequest:
    """The parts of a request other than its messages."""

    budget: int | Budget | None
    model: str | None
    system: str | None
    tools: Sequence[Mapping[str, object]]
    """The definitions of the tools, without recall."""
    recall_tool: Mapping[str, object] | None = None
    """The definition of the recall tool, if the agent has it."""
    always_has_recall: bool = False
    """Whether every request offers it; otherwise requests do once messages have left the view."""


def has_omissions(session: Session, scope: str, request: Request) -> bool:
    """Return whether a request omits or shortens messages: only then is recall of use to a model."""
    if request.receipt.compacted or request.receipt.clipped or request.receipt.elided:
        return True
    sent = set(request.positions)
    entries = session.history.context(scope).visible_entries()
    return any(entry.position not in sent for entry in entries)


def recorded_positions(session: Session, scope: str) -> list[int]:
    """Return the positions of the messages that `messages` of an agent returns."""
    entries, context = session.history.entries, session.history.context(scope)
    return [
        position
        for position in range(context.state.cleared_at, context.length)
        if context.message_scopes[position] == scope
        and context.is_in_view(position)
        and not entries[position].message.is_from_memory
    ]


class FrameworkConversation(Generic[MessageT]):
    """The conversation of one agent in a session, and the messages that are already recorded."""

    def __init__(self, session: Session, codec: MessageCodec[MessageT], delegate: Delegate | None = None) -> None:
        self.session = session
        self.agent: Session | Delegate = delegate or session
        self.active_runs = 0
        self.last_request: Request | None = None
        self.last_text = ""
        """The text of the last response."""
        self._codec = codec
        self._lock = asyncio.Lock()
        self.known: list[MessageT] = []
        """The framework's list as it was recorded, with the responses since."""
        self._known_state: object = None
        """The state of the session at that time."""
        self._recorded: dict[int, tuple[Mapping[str, Any], MessageT]] = {}
        """The messages by position, as JSON and as the framework's object."""

    @property
    def has_recall(self) -> bool:
        """Whether the last request offered the recall tool."""
        return self.agent.scope in self.session.history.session_state.recall_scopes

    async def prepare(self, messages: Sequence[MessageT], options: FrameworkRequest) -> list[MessageT]:
        """Record the new messages of a list, and return the messages to send instead of it."""
        async with self._lock:
            await self._sync(messages)
            has_recall = options.recall_tool is not None and (options.always_has_recall or self.has_recall)
            request = await self._prepare(options, has_recall=has_recall)
            needs_recall = request.receipt.budget.tokens >= MIN_RECALL_BUDGET and (
                has_recall or has_omissions(self.session, self.agent.scope, request)
            )
            if options.recall_tool is not None and needs_recall != has_recall and not options.always_has_recall:
                request = await self._prepare(options, has_recall=needs_recall)
            return self._outgoing(request)

    async def load(self) -> list[MessageT]:
        """Return the messages of the session, compacted ones included, as the framework's list of them."""
        async with self._lock:
            await self.session.refresh()
            if not self.known or self._known_state != self._session_state():
                natives = await self.agent.messages()
                self.known = [self._codec.decode(native) for native in natives]
                positions = recorded_positions(self.session, self.agent.scope)
                self._recorded = dict(zip(positions, zip(natives, self.known, strict=True), strict=True))
                self._known_state = self._session_state()
            return list(self.known)

    async def sync(self, messages: Sequence[MessageT]) -> None:
        """Record the new messages of a list."""
        async with self._lock:
            await self._sync(messages)

    async def record_response(self, messages: Sequence[MessageT], usage: object) -> None:
        """Record the model's response to the last request."""
        async with self._lock:
            await self._record(messages, usage)
            self.known += messages
            self._known_state = self._session_state()
            self.last_text = "\n".join(text for message in messages if (text := self._codec.text(message)))

    async def answer(self, text: str) -> None:
        """End a delegate's conversation with its answer."""
        if isinstance(self.agent, Delegate):
            await self.agent.answer(text)

    async def rewind_last(self) -> None:
        """Take the newest message of the session back."""
        async with self._lock:
            await self.session.rewind(to=recorded_positions(self.session, self.agent.scope)[-1])
            self.known.pop()
            self._known_state = self._session_state()

    async def retry(self, error: object) -> list[MessageT]:
        """Return a smaller version of the last request; raises as `Session.retry` does."""
        async with self._lock:
            return self._outgoing(await self.agent.retry(error))

    async def _prepare(self, options: FrameworkRequest, *, has_recall: bool) -> Request:
        tools = [*options.tools, *([options.recall_tool] if options.recall_tool and has_recall else [])]
        for attempt in range(2):
            try:
                return await self.agent.prepare(
                    options.budget,
                    model=options.model,
                    system=options.system,
                    tools=tools or None,
                    has_recall=has_recall,
                )
            except PendingToolCallsError:
                # A framework that asks the model again has no tool running.
                if attempt:
                    raise
                await self.agent.interrupt()
        raise AssertionError  # pragma: no cover - the second attempt returns or raises

    async def _sync(self, messages: Sequence[MessageT]) -> None:
        known = len(self.known)
        extends = known <= len(messages) and list(messages[:known]) == self.known
        if self.agent is not self.session:
            # The list of a sub-agent only grows, so every message that is not known yet is new.
            await self._record([one for one in messages[known if extends else 0 :] if extends or one not in self.known])
        elif extends and self._known_state == self._session_state():
            await self._record(messages[known:])
        else:
            await self._resync(messages)
        self.known, self._known_state = list(messages), self._session_state()

    async def _record(self, messages: Sequence[MessageT], usage: object = None) -> None:
        if not messages:
            return
        natives = [self._codec.encode(message) for message in messages]
        positions = await self.agent.record(natives, format=self._codec.format, usage=usage)
        self._recorded |= dict(zip(positions, zip(natives, messages, strict=True), strict=False))

    async def _resync(self, messages: Sequence[MessageT]) -> None:
        """Compare the list with the session by content, and match recorded messages with objects again."""
        natives = [self._codec.encode(message) for message in messages]
        summary = self._codec.own_summary(messages) if len(messages) <= len(self.session) else None
        await self.session.sync(natives, format=self._codec.format, compacted=summary)
        recorded, positions = await self.session.messages(), recorded_positions(self.session, self.agent.scope)
        self._recorded = {}
        pairs = zip(reversed(positions), reversed(recorded), reversed(natives), reversed(messages), strict=False)
        for position, native, own, message in pairs:
            if len(positions) != len(natives) and native != own:
                break
            self._recorded[position] = native, message

    def _outgoing(self, request: Request) -> list[MessageT]:
        """Return the messages of a request; unchanged ones are the objects that the framework passed in."""
        self.last_request = request
        positions = request.positions or (None,) * len(request.messages)
        return [self._object(native, at) for native, at in zip(request.messages, positions, strict=True)]

    def _object(self, native: Mapping[str, Any], position: int | None) -> MessageT:
        known = None if position is None else self._recorded.get(position)
        if known is not None and (known[0] is native or known[0] == native):
            return known[1]
        return self._codec.decode(native)

    def _session_state(self) -> object:
        """Return a value that changes whenever another writer changes the session."""
        history, scope = self.session.history, self.agent.scope
        return history.message_counts.get(scope, 0), history.version.hidden, history.version.state_of(scope).cleared_at


class SubAgentCall(Generic[MessageT]):
    """A tool call of an agent. An agent inside it works in a delegation, which starts with its first request."""

    def __init__(self, conversation: FrameworkConversation[MessageT], codec: MessageCodec[MessageT], name: str) -> None:
        """`name` is that of the agent that is called."""
        self._parent = conversation
        self._codec = codec
        self._name = name
        self._context: DelegateContext | None = None
        self._child: FrameworkConversation[MessageT] | None = None

    async def conversation(self, task: str) -> FrameworkConversation[MessageT]:
        """Return the conversation of the agent inside the call; the first request starts it with a task."""
        if self._child is None:
            self._context = self._parent.agent.delegate(
                self._name, task=task, sees=SEES_NOTHING, adds_task_message=False
            )
            delegate = await self._context.__aenter__()
            self._child = FrameworkConversation(self._parent.session, self._codec, delegate)
        return self._child

    async def recall(self, arguments: Mapping[str, object]) -> str:
        """Answer the recall tool for the agent that makes this call."""
        return await self._parent.agent.recall_tool().call(arguments)

    async def end(self, error: BaseException | None = None) -> None:
        """End the delegation, if there is one: with the last response as its answer, or with an error."""
        if self._child is None or self._context is None:
            return
        if error is None:
            await self._child.answer(self._child.last_text)
        kind = type(error) if error is not None else None
        await self._context.__aexit__(kind, error, None)


CURRENT_CALL: ContextVar[SubAgentCall[Any] | None] = ContextVar("holdfast_current_call", default=None)
"""The tool call inside which this code runs, if it is one of an agent with Holdfast."""


def recall_definition(description: str, parameters: Mapping[str, object]) -> Mapping[str, object]:
    """Return the definition of the recall tool."""
    return {"name": RECALL_TOOL, "description": description, "parameters": parameters}


def without_cached(usage: Usage) -> Usage:
    """Return usage whose input includes cached tokens in our terms: input without them."""
    cached = usage.cache_read_tokens + usage.cache_write_tokens
    return replace(usage, input_tokens=max(0, usage.input_tokens - cached))
