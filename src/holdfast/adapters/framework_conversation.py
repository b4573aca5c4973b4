"""A framework's conversation in a session: record its list of messages, and return the request to send instead.

Frameworks keep the conversation themselves and pass the whole list before every model call. Nearly always that is the
previous list with new messages at the end: then only the new ones are converted and recorded. The list is recognized by
what its messages say, because frameworks copy messages and edit them in place. If it differs, the session compares the
lists by content. A message that the request leaves unchanged is sent as the framework's own object, so nothing is lost
that the log's format does not know.

An agent that another agent calls as a tool works in a delegation of the same session: `SubAgentCall` is such a call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast

from holdfast.core.conversation.json_values import copied_json
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.history.events import Usage
from holdfast.core.history.visibility import SEES_NOTHING
from holdfast.core.planning.situation import Budget
from holdfast.core.recall.query import RECALL_DESCRIPTION, RECALL_PARAMETERS
from holdfast.errors import (
    CannotFitError,
    ConcurrentWriteError,
    EmptyConversationError,
    HoldfastError,
    ModelOverflowError,
    PendingToolCallsError,
)
from holdfast.session.delegation import Delegate, DelegateContext
from holdfast.session.request import common_length, request_with
from holdfast.session.session import Session
from holdfast.wire.formats import format_named
from holdfast.wire.request import Request

MIN_RECALL_BUDGET = 4_000
"""The smallest budget with a recall tool: its definition would take more than a twentieth of a smaller one."""
RECALL_JSON = {"name": RECALL_TOOL, "description": RECALL_DESCRIPTION, "parameters": RECALL_PARAMETERS}
"""The recall tool, as requests count it."""
MessageT = TypeVar("MessageT")
WrittenT = TypeVar("WrittenT")


class MessageCodec(Protocol[MessageT]):
    """Converts between a framework's messages and JSON of one format."""

    format: str

    def contents(self, messages: Sequence[MessageT]) -> list[Any]:
        """Return what `encode` reads of the messages, one after the other: plain values, lists and dicts.

        Two lists of messages say the same if their contents are equal. This runs over the whole list before every
        model call: it converts nothing and makes no object for a message, which the garbage collector would visit.
        """
        ...

    def encode(self, message: MessageT) -> Mapping[str, Any]:
        """Return a message as JSON, which changes no more when the framework edits the message."""
        ...

    def decode(self, native: Mapping[str, Any], original: MessageT | None = None) -> MessageT:
        """Return a message that Holdfast has made or shortened as an object of the framework.

        `original` is the object of a message that was shortened, if it is known: fields of it that the JSON does not
        hold stay as they are.
        """
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
    endpoint: str | None = None
    """The address that serves the model, if it is known."""
    can_recall: bool = False
    """Whether the agent has the recall tool."""
    always_has_recall: bool = False
    """Whether every request offers it; otherwise requests do once messages have left the view."""
    recalls_earlier: bool = False
    """Whether it also searches earlier sessions, so that every request offers it that has room for it."""


class FrameworkConversation(Generic[MessageT]):
    """The conversation of one agent in a session, and the messages that are already recorded."""

    keeps_messages = False
    """Whether the objects stay here after a response, for a framework that passes the same ones again."""

    def __init__(self, session: Session, codec: MessageCodec[MessageT], delegate: Delegate | None = None) -> None:
        self.session = session
        self._main = session.sharing_messages()
        if delegate is not None:
            delegate.shares_messages = True
        self.agent: Session | Delegate = delegate or self._main
        """The conversation of the agent: that of the session, or one of its delegates. Messages are not copied."""
        self.active_runs = 0
        """How many runs use it: its session is not closed meanwhile."""
        self._last_request: Request | None = None
        self._is_last_request_copied = False
        self.last_text = ""
        """The text of the last response."""
        self.failure: Exception | None = None
        """The error with which the last model call ended, until another one gets a response."""
        self.decision_lock = asyncio.Lock()
        """Held by an adapter from a decision about what is known until it is carried out."""
        self._codec = codec
        self._lock = asyncio.Lock()
        self._asked: Sequence[MessageT] | None = None
        """The list of the last request, until its response is recorded."""
        self.known: list[MessageT] = []
        """The framework's list as it was recorded; unless `keeps_messages`, until the response to it is."""
        self._known_contents: list[Any] = []
        """What these messages said then; nobody else can change it."""
        self._known_state: object = None
        """The state of the session at that time."""
        self._natives: list[Mapping[str, Any] | None] = []
        """For each of these messages, its JSON as the session has it; None if the session has another in its place."""
        self._positions: list[int | None] = []
        """For each of these messages, where it was recorded."""
        self._indices: dict[int, int] = {}
        """By position, the index of a message in these lists."""
        self._sent: list[Mapping[str, Any]] = []
        """The messages of the last request, as JSON."""
        self._sent_indices: list[int] = []
        """For each of them, the index of the known message that it is; any if Holdfast has made or shortened it."""
        self._sent_positions: tuple[int | None, ...] = ()
        """For each of them, where it was recorded."""
        self._in_order = 0
        """How many of them, from the first one on, are the known messages with the same indices."""
        self._made: dict[int, MessageT] = {}
        """The messages of the last request that Holdfast has made or shortened, by their places in it."""

    @property
    def has_recall(self) -> bool:
        """Whether the last request offered the recall tool."""
        return self.agent.scope in self.session.history.session_state.recall_scopes

    @property
    def is_in_use(self) -> bool:
        """Whether a run needs its session open, or something is being read from it or written to it."""
        return self.active_runs > 0 or self._lock.locked()

    @property
    def is_asked(self) -> bool:
        """Whether the last request has no response yet."""
        return self._asked is not None

    @property
    def last_request(self) -> Request | None:
        """The newest request, with messages that its reader may edit."""
        if self._last_request is not None and not self._is_last_request_copied:
            self._last_request = request_with(self._last_request, copied_json(self._last_request.messages))
            self._is_last_request_copied = True
        return self._last_request

    def is_continued_by(self, messages: Sequence[MessageT], *, is_edited: bool = False) -> bool:
        """Return whether a list begins with the known messages, or with the first of them if the others are edited."""
        length = len(self._natives)
        if not length or len(messages) < length:
            return False
        first = self._codec.contents(messages[: 1 if is_edited else length])
        return first == self._known_contents[: len(first) if is_edited else None]

    async def prepare(self, messages: Sequence[MessageT], options: FrameworkRequest) -> list[MessageT]:
        """Record the new messages of a list, and return the messages to send instead of it.

        A list that says nothing, such as an empty prompt, is sent as it is: its provider may answer the system text.
        """
        async with self._lock:
            self._asked = messages
            try:
                return self._outgoing(await self._record_and_prepare(messages, options))
            except EmptyConversationError:
                self._asked = None
                return list(messages)
            except BaseException:
                self._asked = None
                raise

    async def load(self) -> list[MessageT]:
        """Return the messages of the session, compacted ones included, as the framework's list of them."""
        async with self._lock:
            return await self._load()

    async def add(self, choose_new: Callable[[list[MessageT]], Awaitable[Sequence[MessageT]]]) -> None:
        """Record messages at the end: `choose_new` gets those of the session; nobody adds others meanwhile."""
        async with self._lock:
            await self._record(await choose_new(await self._load()))

    async def record_response(
        self, messages: Sequence[MessageT], usage: object, asked: Sequence[MessageT] | None = None
    ) -> None:
        """Record the model's response to the last request; `asked` is the list that was passed to `prepare` for it."""
        async with self._lock:
            if asked is not None and asked is not self._asked:
                # Another agent has used the same conversation meanwhile.
                await self._sync(asked)
            await self._record(messages, usage=usage)
            self._asked, self.failure = None, None
            if not self.keeps_messages:
                self.known = []
            self.last_text = "\n".join(text for message in messages if (text := self._codec.text(message)))

    def give_up(self, asked: Sequence[MessageT]) -> None:
        """Note that a request gets no response."""
        if asked is self._asked:
            self._asked = None

    async def answer(self, text: str) -> None:
        """End a delegate's conversation with its answer."""
        await cast("Delegate", self.agent).answer(text)

    async def take_last(self) -> MessageT | None:
        """Take the newest message of the session back, and return it; None if there is none."""
        async with self._lock:
            messages = await self._load()
            if not messages:
                return None
            await self.session.rewind(to=self._recorded_positions()[-1])
            self._forget()
            return messages[-1]

    async def clear(self) -> None:
        """Start the conversation over."""
        async with self._lock:
            await self.session.clear()
            self._forget()

    async def retry(self, error: Exception, refusal: object = None) -> list[MessageT]:
        """Return a smaller version of the last request; raises the error if it is no overflow, or if nothing helps.

        `refusal` is what the provider said, if the error does not tell.
        """
        async with self._lock:
            try:
                return self._outgoing(await self.agent.retry(refusal or error))
            except Exception as problem:
                self.failure = problem if refusal else error
                if isinstance(problem, CannotFitError | ModelOverflowError):
                    error.add_note(f"Holdfast could not make the request small enough: {problem}")
                if isinstance(problem, HoldfastError):
                    raise error from None
                raise

    async def _load(self) -> list[MessageT]:
        await self.session.refresh()
        if not self.known or self._known_state != self._recorded_state():
            natives = await self.agent.messages()
            positions = self._recorded_positions()
            indices = [self._index_of(*one) if self.known else None for one in zip(natives, positions, strict=True)]
            made = iter(self._decode([native for native, index in zip(natives, indices, strict=True) if index is None]))
            messages = [next(made) if index is None else self.known[index] for index in indices]
            self._forget()
            self._remember(messages, natives, positions)
        return list(self.known)

    async def _record_and_prepare(self, messages: Sequence[MessageT], options: FrameworkRequest) -> Request:
        """Return a request that is written together with the messages that are recorded before it."""

        async def record_and_prepare() -> Request:
            await self._sync(messages)
            return await self._prepare_with_recall(options)

        return await self._in_one_write(record_and_prepare)

    async def _in_one_write(self, write: Callable[[], Awaitable[WrittenT]]) -> WrittenT:
        """Return the result of what is written together. If another writer was faster, all of it is done again."""
        while True:
            # The list of a delegate is not compared with the session, so what is known of it must be written at once.
            is_main = self.agent is self._main
            try:
                async with self.agent.one_write() if is_main else nullcontext():
                    return await write()
            except BaseException as error:
                self._known_state = None
                if not is_main or not isinstance(error, ConcurrentWriteError):
                    raise

    def _decode(self, natives: Sequence[Mapping[str, Any]]) -> list[MessageT]:
        return [self._codec.decode(native) for native in natives]

    async def _prepare_with_recall(self, options: FrameworkRequest) -> Request:
        """Return the next request. It offers the recall tool once a request has left something out."""
        has_recall = options.can_recall and (options.always_has_recall or self.has_recall)
        request = await self._prepare(options, has_recall=has_recall)
        if not options.can_recall or options.always_has_recall:
            return request
        needs_recall = request.receipt.budget.tokens >= MIN_RECALL_BUDGET and (
            has_recall or options.recalls_earlier or self._has_omissions(request)
        )
        return request if needs_recall == has_recall else await self._prepare(options, has_recall=needs_recall)

    def _has_omissions(self, request: Request) -> bool:
        """Return whether a request omits or shortens messages: only then is recall of use to a model."""
        receipt = request.receipt
        if receipt.is_unchanged or receipt.compacted or receipt.clipped or receipt.elided:
            return not receipt.is_unchanged
        sent = set(request.positions)
        entries = self.session.history.context(self.agent.scope).visible_entries()
        return any(entry.position not in sent for entry in entries)

    async def _prepare(self, options: FrameworkRequest, *, has_recall: bool) -> Request:
        tools = [*options.tools, *([RECALL_JSON] if has_recall else [])]
        if self.agent is self._main:
            self._set_session_model(options)

        async def prepare() -> Request:
            return await self.agent.prepare(
                options.budget,
                model=options.model,
                endpoint=options.endpoint,
                system=options.system,
                tools=tools or None,
                has_recall=has_recall,
            )

        try:
            return await prepare()
        except PendingToolCallsError:
            # A framework that asks the model again has no tool running.
            await self.agent.interrupt()
            return await prepare()

    def _set_session_model(self, options: FrameworkRequest) -> None:
        """Set the model whose tokens are counted when messages are recorded."""
        self.session.model = options.model

    async def _sync(self, messages: Sequence[MessageT]) -> None:
        known = list(messages[: len(self._natives)])
        if self._is_known(known) and (self._known_state == self._recorded_state() or self.agent is not self._main):
            self.known = known
            await self._record(messages[len(known) :])
        elif self.agent is self._main:
            await self._resync(messages)
        else:
            await self._record_unknown(messages)

    def _is_known(self, messages: Sequence[MessageT]) -> bool:
        try:
            return len(messages) == len(self._natives) and self._codec.contents(messages) == self._known_contents
        except Exception:  # noqa: BLE001 - an object that a tool returned may raise anything when it is compared
            return False

    async def _record(self, messages: Sequence[MessageT], usage: object = None) -> None:
        """Record messages that follow the known ones."""
        if messages:
            natives = [self._codec.encode(message) for message in messages]
            scope = self.agent.scope
            before = self.session.history.message_counts.get(scope, 0)
            positions = await self.agent.record(natives, format=self._codec.format, usage=usage)
            self._remember(messages, natives, positions)
            if self.session.history.message_counts.get(scope, 0) - before != len(messages):
                self._known_state = None  # another writer was faster, so the next list is compared

    async def _record_unknown(self, messages: Sequence[MessageT]) -> None:
        """Record the messages of a sub-agent that are not known yet: its list only grows."""
        places = list(zip(self._natives, self._positions, strict=True))
        self._forget()
        for message in messages:
            native = self._codec.encode(message)
            found = next((index for index, place in enumerate(places) if place[0] == native), None)
            if found is None:
                await self._record([message])
            else:
                _, position = places.pop(found)
                self._remember([message], [native], [position])

    async def _resync(self, messages: Sequence[MessageT]) -> None:
        """Compare the list with the session by content, and match recorded messages with objects again."""
        natives: list[Mapping[str, Any] | None] = [self._codec.encode(message) for message in messages]
        summary = self._codec.own_summary(messages) if len(messages) <= len(self.session) else None
        self._known_state = None
        await self._main.sync(natives, format=self._codec.format, compacted=summary)
        numbered = await self.session.numbered_messages()
        positions: list[int | None] = [None] * len(messages)
        pairs = zip(range(len(messages) - 1, -1, -1), reversed(numbered), strict=False)
        is_matched = True
        for index, (position, native) in pairs:
            is_matched = is_matched and (len(numbered) == len(messages) or native == natives[index])
            # The recorded message may lack what providers refuse, as an empty text: then that one is sent.
            has_own = native == natives[index] or self._has_no_empty_text(natives[index])
            natives[index] = native if is_matched and has_own else None
            positions[index] = position if is_matched else None
        self._forget()
        self._remember(messages, natives, positions)

    def _has_no_empty_text(self, native: Mapping[str, Any] | None) -> bool:
        return native is not None and format_named(self._codec.format).decode(native, 0).outline.has_no_empty_text

    def _recorded_positions(self) -> list[int]:
        """Return the positions of the messages that `messages` of the agent returns."""
        entries, context = self.session.history.entries, self.session.history.context(self.agent.scope)
        return [position for position in context.own_positions() if not entries[position].message.is_from_memory]

    def _recorded_state(self) -> object:
        """Return a value that changes whenever a writer changes the messages of the agent."""
        history, scope = self.session.history, self.agent.scope
        return history.message_counts.get(scope, 0), history.version.hidden, history.version.state_of(scope).cleared_at

    def _forget(self) -> None:
        self.known, self._known_contents, self._natives, self._positions = [], [], [], []
        self._indices, self._sent, self._sent_indices, self._made = {}, [], [], {}
        self._sent_positions, self._in_order = (), 0

    def _remember(
        self,
        messages: Sequence[MessageT],
        natives: Sequence[Mapping[str, Any] | None],
        positions: Sequence[int | None],
    ) -> None:
        """Remember messages that follow the known ones, with their JSON and where they were recorded."""
        start = len(self._natives)
        self.known += messages
        self._known_contents += copied_json(self._codec.contents(messages))
        self._natives += natives
        self._positions += positions
        self._indices |= {place: index for index, place in enumerate(positions, start) if place is not None}
        self._known_state = self._recorded_state()

    def _outgoing(self, request: Request) -> list[MessageT]:
        """Return the messages of a request; unchanged ones are the objects that the framework passed in."""
        self._last_request, self._is_last_request_copied = request, False
        return self._messages_of(request.messages, request.positions)

    def _messages_of(self, natives: list[Mapping[str, Any]], positions: tuple[int | None, ...]) -> list[MessageT]:
        """Return recorded messages as objects; the next call reuses those of messages that it begins with."""
        same, made = len(self._sent), self._made
        if positions[:same] != self._sent_positions or natives[:same] != self._sent:
            same = common_length(natives, self._sent)
        del self._sent_indices[same:]
        self._in_order = min(self._in_order, same)
        for at in [place for place in made if place >= same]:
            del made[at]
        for at in range(same, len(natives)):
            index = self._index_of(natives[at], positions[at])
            if index is None:
                made[at] = self._codec.decode(natives[at], self._original(positions[at]))
            elif index == at == self._in_order:
                self._in_order += 1
            self._sent_indices.append(index or 0)
        self._sent, self._sent_positions = natives, positions
        messages = self.known[: self._in_order]
        messages += map(self.known.__getitem__, self._sent_indices[self._in_order :])
        for at, message in made.items():
            messages[at] = message
        return messages

    def _original(self, position: int | None) -> MessageT | None:
        """Return the object of the message that is recorded at a position; None if none is known."""
        index = None if position is None else self._indices.get(position)
        return None if index is None else self.known[index]

    def _index_of(self, native: Mapping[str, Any], position: int | None) -> int | None:
        """Return the index of the known message that is recorded at a position; None if a request has changed it."""
        index = None if position is None else self._indices.get(position)
        if index is None or self._natives[index] is native or self._natives[index] == native:
            return index
        return None


def delegation_of_call(parent: FrameworkConversation[MessageT], name: str, task: str) -> DelegateContext:
    """Return the delegation of an agent that runs inside a tool call: its answer is the result of the call."""
    return parent.agent.delegate(
        name,
        task=task,
        sees=SEES_NOTHING,
        main_sees=parent.session.policy.main_sees_sub_agents,
        adds_task_message=False,
    )


class SubAgentCall(Generic[MessageT]):
    """A tool call of an agent. An agent inside it works in a delegation, which starts with its first request.

    Several agents may work inside one call, at once or one after the other: each has a delegation of its own.
    """

    def __init__(
        self,
        find_parent: Callable[[], Awaitable[FrameworkConversation[MessageT]]],
        codec: MessageCodec[MessageT],
        name: str,
    ) -> None:
        """`find_parent` returns the conversation of the agent that calls; `name` is that of the agent it calls."""
        self._find_parent = find_parent
        self._codec = codec
        self._name = name
        self._parent: FrameworkConversation[MessageT] | None = None
        self._children: dict[Hashable, tuple[DelegateContext, FrameworkConversation[MessageT]]] = {}

    @property
    def is_delegated(self) -> bool:
        """Whether an agent works inside the call, so that it has an end."""
        return bool(self._children)

    def key_of(self, messages: Sequence[MessageT], *, is_request: bool) -> Hashable:
        """Return the key of the agent inside the call whose list this is; a new one for a list that continues none.

        A request that says the same as one without a response is that of another agent, unless the first has failed.
        """
        keys = [key for key, (_, child) in self._children.items() if not (is_request and child.is_asked)]
        for is_edited in (False, True):
            for key in keys:
                if self._children[key][1].is_continued_by(messages, is_edited=is_edited):
                    return key
        return object()

    async def conversation(
        self, key: Hashable, task: str = "", name: str | None = None
    ) -> FrameworkConversation[MessageT]:
        """Return the conversation of an agent inside the call; its first request starts it with a task.

        `name` is that of an agent to which the one that was called has handed its work over.
        """
        if key not in self._children:
            if self._parent is None:
                self._parent = await self._find_parent()
                self._parent.active_runs += 1
            context = delegation_of_call(self._parent, name or self._name, task)
            delegate = await context.__aenter__()
            self._children[key] = context, FrameworkConversation(self._parent.session, self._codec, delegate)
        return self._children[key][1]

    async def recall(self, arguments: Mapping[str, object]) -> str:
        """Answer the recall tool for the agent that makes this call."""
        return await (await self._find_parent()).agent.recall_tool().call(arguments)

    async def end(self, error: BaseException | None = None) -> None:
        """End the delegations: each with its last response as its answer, or with an error.

        An agent whose model has failed has no answer, even if somebody else has handled the error for its caller.
        """
        async with AsyncExitStack() as endings:  # each of them ends, also where the answer of another cannot be stored
            endings.callback(self._release_parent)
            for context, child in self._children.values():
                endings.push_async_callback(_end_delegation, context, child, error or child.failure)
            self._children = {}

    def _release_parent(self) -> None:
        if self._parent is not None:
            self._parent.active_runs -= 1
            self._parent = None


async def _end_delegation(
    context: DelegateContext, child: FrameworkConversation[Any], failure: BaseException | None
) -> None:
    """End a delegation with its last response as its answer, or with an error."""
    try:
        if failure is None:
            await child.answer(child.last_text)
    except BaseException as problem:
        failure = problem
        raise
    finally:
        await context.__aexit__(type(failure) if failure is not None else None, failure, None)


CURRENT_CALL: ContextVar[SubAgentCall[Any] | None] = ContextVar("holdfast_current_call", default=None)
"""The tool call inside which this code runs, if it is one of an agent with Holdfast."""


def without_cached(usage: Usage) -> Usage:
    """Return usage whose input includes cached tokens in our terms: input without them."""
    cached = usage.cache_read_tokens + usage.cache_write_tokens
    return replace(usage, input_tokens=max(0, usage.input_tokens - cached))
