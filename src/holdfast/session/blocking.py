"""Sessions for synchronous code: each method waits until the method of the same name of an async session has returned.

All of them run on one background loop, so any number of threads may use a session at once.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from holdfast.core.history.events import Event
from holdfast.core.planning.policy import Policy
from holdfast.session.background_loop import BACKGROUND_LOOP
from holdfast.session.conversation import Conversation
from holdfast.session.delegation import Delegate, DelegateContext, DelegatingConversation
from holdfast.session.session import EventT, Session, SessionOpener
from holdfast.session.subscription import EventSubscription
from holdfast.session.tools import ModelTool

P = ParamSpec("P")
T = TypeVar("T")
ConvertedT = TypeVar("ConvertedT")
AgentT = TypeVar("AgentT", bound=DelegatingConversation)
ConversationT = TypeVar("ConversationT", bound=Conversation)


class _HasConversation(Protocol):
    @property
    def wrapped(self) -> DelegatingConversation: ...


class _Method(Generic[P, T]):
    """A method of a blocking conversation; `function` gets the async conversation as its first argument."""

    def __init__(self, function: Callable[..., T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: _HasConversation, kind: type) -> Callable[P, T]: ...
    def __get__(self, owner: _HasConversation | None, kind: type) -> "Self | Callable[P, T]":
        if owner is None:
            return self
        wrapped = owner.wrapped

        @wraps(self._function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return self._function(wrapped, *args, **kwargs)

        return call


def _waiting(method: Callable[Concatenate[ConversationT, P], Coroutine[object, object, T]]) -> _Method[P, T]:
    """Return a method that waits for a coroutine method."""
    return _waiting_for(method, lambda result: result)


def _waiting_for(
    method: Callable[Concatenate[ConversationT, P], Coroutine[object, object, T]], convert: Callable[[T], ConvertedT]
) -> _Method[P, ConvertedT]:
    """Return a method that waits for a coroutine method and converts its result."""

    @wraps(method)
    def call(wrapped: ConversationT, *args: P.args, **kwargs: P.kwargs) -> ConvertedT:
        return convert(BACKGROUND_LOOP.run(method(wrapped, *args, **kwargs)))

    return _Method[P, ConvertedT](call)


def _converting(
    method: Callable[Concatenate[ConversationT, P], T], convert: Callable[[T], ConvertedT]
) -> _Method[P, ConvertedT]:
    """Return a method that calls a synchronous method and converts its result."""

    @wraps(method)
    def call(wrapped: ConversationT, *args: P.args, **kwargs: P.kwargs) -> ConvertedT:
        return convert(method(wrapped, *args, **kwargs))

    return _Method[P, ConvertedT](call)


@dataclass(frozen=True, slots=True)
class BlockingTool:
    """A tool that a session offers to the model, for synchronous code."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """JSON schema of the arguments."""
    call: Callable[[Mapping[str, object]], str]
    """Returns the answer as text; never raises, whatever arguments a model passes."""

    @classmethod
    def from_tool(cls, tool: ModelTool) -> Self:
        """Return an async tool for synchronous code."""

        async def answer(arguments: Mapping[str, object]) -> str:
            return await tool.call(arguments)

        return cls(tool.name, tool.description, tool.parameters, lambda values: BACKGROUND_LOOP.run(answer(values)))


class BlockingDelegation:
    """A delegation about to start: `with session.delegate(…) as child`."""

    def __init__(self, context: DelegateContext) -> None:
        self._context = context
        self._child: concurrent.futures.Future[Delegate] = concurrent.futures.Future()
        self._left: concurrent.futures.Future[None] = concurrent.futures.Future()
        """How the caller left its `with` block: with or without an error."""
        self._ended: concurrent.futures.Future[None] | None = None

    def __enter__(self) -> "BlockingDelegate":
        self._ended = BACKGROUND_LOOP.start(self._delegate())
        return BlockingDelegate(self._child.result())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._left.set_result(None)
        else:
            self._left.set_exception(error)
        if self._ended is not None:
            try:
                self._ended.result()
            except BaseException as raised:
                if raised is not error:
                    raise

    async def _delegate(self) -> None:
        """Hold the delegation open in one task, where its timeout can end it."""
        async with AsyncExitStack() as stack:
            try:
                self._child.set_result(await stack.enter_async_context(self._context))
            except BaseException as error:
                self._child.set_exception(error)
                raise
            await asyncio.shield(asyncio.wrap_future(self._left))


class BlockingSubscription(Iterator[Event]):
    """Returns events in the order of the log; ends when the session is closed, or by `close`.

    Use it with `with` to end it together with a loop.
    """

    def __init__(self, wrapped: EventSubscription) -> None:
        self._wrapped = wrapped

    def close(self) -> None:
        """End the iterator after the events that it has not returned yet."""
        BACKGROUND_LOOP.run(self._close())

    def __next__(self) -> Event:
        event = BACKGROUND_LOOP.run(self._next())
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _next(self) -> Event | None:
        return await anext(self._wrapped, None)

    async def _close(self) -> None:
        self._wrapped.close()


class _BlockingConversation(Generic[AgentT]):
    """What a session and a delegate have in common."""

    def __init__(self, wrapped: AgentT) -> None:
        self.wrapped = wrapped
        """The async conversation; use it only on the background loop."""

    record = _waiting(DelegatingConversation.record)
    prepare = _waiting(DelegatingConversation.prepare)
    retry = _waiting(DelegatingConversation.retry)
    interrupt = _waiting(DelegatingConversation.interrupt)
    compact = _waiting(DelegatingConversation.compact)
    compact_ahead = _waiting(DelegatingConversation.compact_ahead)
    preview = _waiting(DelegatingConversation.preview)
    apply_preview = _waiting(DelegatingConversation.apply_preview)
    compact_with = _waiting(DelegatingConversation.compact_with)
    visible_messages = _waiting(DelegatingConversation.visible_messages)
    messages = _waiting(DelegatingConversation.messages)
    numbered_messages = _waiting(DelegatingConversation.numbered_messages)
    recall = _waiting(DelegatingConversation.recall)
    artifacts = _waiting(DelegatingConversation.artifacts)
    artifact = _waiting(DelegatingConversation.artifact)
    recall_tool = _converting(DelegatingConversation.recall_tool, BlockingTool.from_tool)
    compact_tool = _converting(DelegatingConversation.compact_tool, BlockingTool.from_tool)
    delegate = _converting(DelegatingConversation.delegate, BlockingDelegation)
    resume_delegate = _converting(DelegatingConversation.resume_delegate, BlockingDelegation)

    @property
    def scope(self) -> str:
        """The name of this conversation in the log."""
        return self.wrapped.scope

    @property
    def model(self) -> str | None:
        """The model that answers requests that name no other."""
        return self.wrapped.model


class BlockingDelegate(_BlockingConversation[Delegate]):
    """A delegate's conversation, until it answers or ends without an answer."""

    answer = _waiting(Delegate.answer)

    @property
    def opening_prompt(self) -> str:
        """The first message of the delegate: a briefing, then the task."""
        return self.wrapped.opening_prompt

    @property
    def state(self) -> str:
        """Whether the delegation is running, or how it ended."""
        return self.wrapped.state


def _opening(make: Callable[P, SessionOpener]) -> "Callable[P, BlockingSession]":
    """Return a function that opens a session."""

    @wraps(make)
    def opened(*args: P.args, **kwargs: P.kwargs) -> "BlockingSession":
        return BlockingSession(BACKGROUND_LOOP.run(_open(lambda: make(*args, **kwargs))))

    return opened


class BlockingSession(_BlockingConversation[Session]):
    """One conversation in a store, for synchronous code: `with Session.open("chat") as session`."""

    open = staticmethod(_opening(Session.open))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BlockingSession id={self.id!r} messages={len(self)}>"

    def __len__(self) -> int:
        return len(self.wrapped)

    def __bool__(self) -> bool:
        """Return True: a session without messages is a session too."""
        return True

    @property
    def id(self) -> str:
        """The id of the session."""
        return self.wrapped.id

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.wrapped.policy

    @property
    def damage(self) -> list[str]:
        """Which records of the log could not be applied, and why."""
        return list(self.wrapped.damage)

    @property
    def events_read(self) -> int:
        """How many events were read from the store so far; it grows whenever others are known to have recorded some."""
        return self.wrapped.events_read

    close = _waiting(Session.close)
    refresh = _waiting(Session.refresh)
    add_memory_note = _waiting(Session.add_memory_note)
    attach = _waiting(Session.attach)
    attachment = _waiting(Session.attachment)
    sync = _waiting(Session.sync)
    record_side_call = _waiting(Session.record_side_call)
    record_state = _waiting(Session.record_state)
    transfer = _waiting(Session.transfer)
    clear = _waiting(Session.clear)
    rewind = _waiting(Session.rewind)
    undo = _waiting(Session.undo)
    redo = _waiting(Session.redo)
    pin = _waiting(Session.pin)
    unpin = _waiting(Session.unpin)
    recompact = _waiting(Session.recompact)
    restore_messages = _waiting(Session.restore_messages)
    compact_if_memory_above = _waiting(Session.compact_if_memory_above)
    run_compaction = _waiting(Session.run_compaction)
    cancel_compaction = _waiting(Session.cancel_compaction)
    set_policy = _waiting(Session.set_policy)
    switch_model = _waiting(Session.switch_model)
    rename = _waiting(Session.rename)
    events = _waiting(Session.events)
    receipts = _waiting(Session.receipts)
    thinking_prefixes = _waiting(Session.thinking_prefixes)
    delegations = _waiting(Session.delegations)
    messages_at = _waiting(Session.messages_at)
    context_breakdown = _waiting(Session.context_breakdown)

    def fork(self, session_id: str | None = None, *, at: int | None = None) -> "BlockingSession":
        """Return a new session with a copy of this log, up to the message at a position if there is one."""
        return BlockingSession(BACKGROUND_LOOP.run(self.wrapped.fork(session_id, at=at)))

    def open_sibling(self, session_id: str) -> "BlockingSession":
        """Open another session in the same store, with the same settings."""
        return BlockingSession(BACKGROUND_LOOP.run(_open(lambda: self.wrapped.open_sibling(session_id))))

    on = _converting(Session.on, lambda end: end)

    def subscribe(self, *names: str) -> BlockingSubscription:
        """Return an iterator over the events from now on; it waits for the next one, until the session is closed."""
        return BlockingSubscription(BACKGROUND_LOOP.run(self._subscribe(names)))

    async def _subscribe(self, names: Sequence[str]) -> EventSubscription:
        return self.wrapped.subscribe(*names)

    def watch(self, stream: Iterable[EventT]) -> Iterator[EventT]:
        """Yield the events of a provider's stream unchanged, and record its signals that it compacts by itself."""
        recorded: set[str] = set()
        for event in stream:
            BACKGROUND_LOOP.run(self.wrapped.record_stream_signals(event, recorded))
            yield event


async def _open(make: Callable[[], SessionOpener]) -> Session:
    """Open a session on the running loop, to which it then belongs."""
    return await make()
