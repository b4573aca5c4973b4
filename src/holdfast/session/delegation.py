"""A delegate: another agent at work in the same log, in a scope of its own.

It is shown what was chosen for it and what it does itself, and nothing of any other delegation. However it ends (an
answer, an error, a stop, a time that ran out) the log says so, and calls it left open are known never to be answered.
Many may be at work at once, and each may send out others.

Delegations in the log: another agent is sent out, with what it is shown, and comes back, or does not.
"""

import asyncio
import re
import secrets
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, TypeAlias, TypeVar, get_args

from holdfast.core.conversation.messages import Entry, assistant, user
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.history.history import History
from holdfast.core.history.scopes import (
    DelegateFinding,
    DelegationRecord,
    MainVisibility,
    delegation_records,
    parse_findings,
)
from holdfast.core.history.visibility import SEES_EVERYTHING, SEES_NOTHING, Visibility, choose_visible
from holdfast.core.ledger.identifiers import argument_text
from holdfast.core.ledger.names import is_name_in
from holdfast.core.planning.situation import Budget
from holdfast.core.recall.query import DEFAULT_RECALL_TOKENS
from holdfast.core.recall.references import parse_references
from holdfast.core.schema import short_repr
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import DelegationEndedError, HoldfastError, MalformedInputError, SettingsError
from holdfast.session.conversation import Archivist, RecallAnswer, RecallQuery
from holdfast.session.inputs import check_scope, check_text
from holdfast.session.log.event_log import retry_when_not_loaded
from holdfast.session.log.leases import HELD_HERE, has_owner_exited, new_owner_id
from holdfast.session.request import Request
from holdfast.session.tools import ModelTool
from holdfast.wire.formats import format_named

HANDOVER_TEXT = "[The conversation was handed over to {agent}, with this message from the agent before:]\n{message}"
_POSITION_SOURCE = re.compile(r"#\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationSpec:
    """What somebody is sent out with."""

    agent: str
    task: str
    sees: Visibility
    parent: str
    main_sees: MainVisibility | None
    timeout_seconds: float | None
    adds_task_message: bool
    """Whether the task is recorded as the first thing that is said to the delegate."""


def delegation_spec(
    agent: str,
    task: str,
    sees: Visibility,
    main_sees: MainVisibility | None,
    timeout_seconds: float | None,
    *,
    parent: str = log.MAIN,
    adds_task_message: bool = True,
) -> DelegationSpec:
    """Return what somebody is sent out with, checked."""
    name = check_text("agent", agent)
    if not name.strip():
        raise SettingsError("agent", "must be the name of who is asked")
    if not isinstance(sees, Visibility):
        raise SettingsError("sees", f"must be a Sees, not {short_repr(sees)}")
    if main_sees is not None and main_sees not in get_args(MainVisibility):
        raise SettingsError(
            "main_sees", f"must be one of {', '.join(get_args(MainVisibility))}, not {short_repr(main_sees)}"
        )
    limit: object = timeout_seconds
    is_number = isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 0
    if limit is not None and not is_number:
        raise SettingsError("timeout_seconds", f"must be a number above 0, not {short_repr(timeout_seconds)}")
    return DelegationSpec(
        agent=name,
        task=check_text("task", task),
        sees=sees,
        parent=check_scope(parent),
        main_sees=main_sees,
        timeout_seconds=timeout_seconds,
        adds_task_message=adds_task_message,
    )


class Delegator(Archivist):
    """A session as far as its agents send out others."""

    async def delegations(self) -> list[DelegationRecord]:
        """Return every delegation, the oldest first: who was asked what, what that one saw, and how it ended."""
        self._log.lock.check_open()
        return delegation_records(await self._log.stored.timed_events())

    async def transfer(self, agent: str, *, message: str = "") -> None:
        """Hand the conversation over to another agent; `message` is what that one has to know. No name ends it.

        The message is part of the history: the model finds it there, as reference that is nobody's word.
        """
        name, summary, keeper = check_text("agent", agent), check_text("message", message), self._log
        async with keeper.lock:
            await keeper.refresh()
            known = self.history.session_state.agent
            await keeper.append(log.AgentChanged(name=name, summary=summary, previous=known.name if known else ""))
            if summary:
                wire = format_named(self.history.message_format)
                native = wire.encode(user(HANDOVER_TEXT.format(agent=name or "the main agent", message=summary)))
                said = log.MessageAppended(format=wire.name, native=native, trust="memory")
                await keeper.append_messages([said], [wire.decode(native, len(self.history))])

    @retry_when_not_loaded
    async def begin_delegation(self, spec: DelegationSpec) -> log.DelegationStarted:
        """Record that an agent is sent out, with what it is shown."""
        keeper = self._log
        async with keeper.lock:
            await keeper.refresh()
            await self.end_abandoned_delegations()
            chosen = choose_visible(self.history, spec.parent, spec.sees, counter_for(self.model))
            begun = log.DelegationStarted(
                scope=f"{spec.agent}:{secrets.token_hex(4)}",
                agent=spec.agent,
                parent=spec.parent,
                task=spec.task,
                sees=spec.sees.to_json(),
                shown=chosen.spans,
                briefing=chosen.briefing,
                shown_tokens=chosen.tokens,
                main_sees=spec.main_sees or self.policy.main_sees,
                owner=new_owner_id(),
                is_attributed=True,
            )
            HELD_HERE.add(begun.owner)
            try:
                await self._record_start(begun, adds_task_message=spec.adds_task_message)
            except BaseException:
                # Whatever arrived of it: nobody is at work.
                HELD_HERE.discard(begun.owner)
                raise
            return begun

    async def _record_start(self, started: log.DelegationStarted, *, adds_task_message: bool) -> None:
        """Record that an agent is sent out, and what it is told; by who holds the turn."""
        await self._log.append(started)
        if adds_task_message and (text := delegate_prompt(started)):
            wire = format_named(self.history.message_format)
            native = wire.encode(user(text))
            said = log.MessageAppended(format=wire.name, native=native, scope=started.scope, agent=started.agent)
            await self._log.append_messages([said], [wire.decode(native, len(self.history))])

    @retry_when_not_loaded
    async def end_delegation(self, finished: log.DelegationFinished) -> None:
        """Record that a delegate has answered, or will not; calls it left open are then never answered."""
        async with self._log.lock:
            await self._log.refresh()
            events: list[log.Event] = (
                [] if finished.state == "answered" else [log.TurnInterrupted(scope=finished.scope)]
            )
            await self._log.append(*events, finished)
            self._builder.forget_scope(finished.scope)

    async def end_abandoned_delegations(self) -> None:
        """Record that delegates whose process is gone will not answer; by who holds the turn."""
        gone = [
            scope for scope, owner in self.history.session_state.running_delegates.items() if has_owner_exited(owner)
        ]
        ended = [
            log.DelegationFinished(scope=scope, state="abandoned", error="nobody is at it any more") for scope in gone
        ]
        if ended:
            await self._log.append(*(log.TurnInterrupted(scope=scope) for scope in gone), *ended)

    @retry_when_not_loaded
    async def check_sources(self, scope: str, sources: Sequence[str]) -> tuple[str, ...]:
        """Return sources, or say which of them refers to a message that the delegate cannot have seen."""
        if isinstance(sources, str) or not all(isinstance(source, str) for source in sources):
            raise MalformedInputError("answer.sources", "must be a list of texts, such as '#12' or a path")
        context = self.history.context(scope)
        for source in sources:
            if _POSITION_SOURCE.match(source) and not _is_source_visible(source, context):
                raise MalformedInputError("answer.sources", f"{source:.60} is no message that {scope!r} can see")
        return tuple(sources)

    @retry_when_not_loaded
    async def check_findings(self, scope: str, findings: Sequence[DelegateFinding]) -> tuple[DelegateFinding, ...]:
        """Return findings whose sources were looked up in what the delegate could see, was told and was given back."""
        if isinstance(findings, str) or not all(isinstance(finding, DelegateFinding) for finding in findings):
            raise MalformedInputError("answer.findings", "must be a list of Finding(claim=…, sources=…, status=…)")
        named = {source for finding in findings for source in finding.sources}
        if not named:
            return tuple(findings)
        context = self.history.context(scope)
        own = [position for position in range(context.length) if context.message_scopes[position] == scope]
        context.entries.require(own)
        texts = [text for position in own for text in _received_texts(context.entries[position])]
        seen = {
            source
            for source in named
            if (
                _is_source_visible(source, context)
                if _POSITION_SOURCE.match(source)
                else any(is_name_in(source, one) for one in texts)
            )
        }
        return tuple(finding.check_sources(seen) for finding in findings)


def _received_texts(entry: Entry) -> Iterator[str]:
    """Yield what an agent was told, asked its tools for and was given back: not its own words."""
    message = entry.message
    if message.role != "assistant":
        yield message.text
    yield from (result.text for result in message.results)
    yield from (argument_text(call.arguments) for call in message.calls)


def _is_source_visible(source: str, context: Context) -> bool:
    """Return whether an agent sees every message that a source refers to."""
    try:
        places = parse_references(source)
    except MalformedInputError:
        return False
    return all(
        place.is_position
        and place.last < context.length
        and all(map(context.is_visible, range(place.first, place.last + 1)))
        for place in places
    )


def delegate_prompt(started: log.DelegationStarted) -> str:
    """Return what a delegate is told first: what it has to know of the rest, then its task."""
    return "\n\n".join(text for text in (started.briefing, started.task) if text)


__all__ = [
    "SEES_EVERYTHING",
    "SEES_NOTHING",
    "Delegate",
    "DelegateAnswer",
    "DelegateContext",
    "DelegationRecord",
    "Visibility",
]

T = TypeVar("T")
AsyncResult: TypeAlias = Coroutine[object, object, T]
MAX_FAILURE_CHARS = 500


@dataclass(frozen=True, slots=True)
class DelegateAnswer:
    """What a delegate said in the end, and what that rests on."""

    text: str
    sources: tuple[str, ...]
    """`#12` for a message, or whatever else the delegate named: a path, an address."""
    agent: str
    scope: str
    findings: tuple[DelegateFinding, ...] = ()
    """What it found, claim by claim, where it said so; the sources of each were checked."""

    def __str__(self) -> str:
        missed = [str(finding) for finding in self.findings if finding.unverified]
        told = [f"Sources: {', '.join(self.sources)}"] if self.sources else []
        told += ["\n".join(["These claims name sources that the agent has not seen:", *missed])] if missed else []
        return "\n\n".join([self.text, *told])


class SessionLike(Protocol):
    """A session as its delegates use it."""

    @property
    def history(self) -> History:
        """How everything stands."""
        ...

    def record(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        format: str = ...,  # noqa: A002 - the word users say
        usage: Mapping[str, int] | None = ...,
        duration_ms: int | None = ...,
        scope: str = ...,
        agent: str | None = ...,
    ) -> AsyncResult[range]:
        """Record what was said."""
        ...

    def prepare(
        self,
        budget: int | Budget | None = ...,
        *,
        model: str | None = ...,
        system: object = ...,
        tools: Sequence[Mapping[str, object]] | None = ...,
        scope: str = ...,
        has_recall: bool | None = ...,
    ) -> AsyncResult[Request]:
        """Return the next request."""
        ...

    def retry(self, error: object, *, status: int | None = ..., scope: str = ...) -> AsyncResult[Request]:
        """Return the last request made smaller."""
        ...

    def compact(
        self,
        *,
        focus: str = ...,
        trigger: log.CompactionTrigger = ...,
        budget: int | Budget | None = ...,
        scope: str = ...,
    ) -> AsyncResult[log.CompactionCompleted]:
        """Fold what the policy would fold, now."""
        ...

    def compact_tool(self, *, scope: str = ...) -> ModelTool:
        """Return the tool by which a model asks for a compaction itself."""
        ...

    def recall(self, query: RecallQuery | str, *, scope: str = ...) -> AsyncResult[RecallAnswer]:
        """Return what is asked for of everything that an agent may see."""
        ...

    def recall_tool(self, *, scope: str = ..., max_tokens: int = ...) -> ModelTool:
        """Return the tool by which a model itself recalls."""
        ...

    def visible_messages(self, scope: str = ...) -> AsyncResult[list[Entry]]:
        """Return what stands of the conversation for an agent."""
        ...

    def begin_delegation(self, spec: DelegationSpec) -> AsyncResult[log.DelegationStarted]:
        """Record that an agent is sent out."""
        ...

    def end_delegation(self, finished: log.DelegationFinished) -> AsyncResult[None]:
        """Record that a delegate has answered, or will not."""
        ...

    def check_sources(self, scope: str, sources: Sequence[str]) -> AsyncResult[tuple[str, ...]]:
        """Return sources, each of which the delegate can have seen."""
        ...

    def check_findings(
        self, scope: str, findings: Sequence[DelegateFinding]
    ) -> AsyncResult[tuple[DelegateFinding, ...]]:
        """Return findings, with the sources apart that the delegate cannot have had."""
        ...


class Delegate:
    """A delegate at work: a session's face, in its own scope."""

    def __init__(self, session: SessionLike, started: log.DelegationStarted) -> None:
        self._session = session
        self._started = started
        self._finished: log.DelegationFinished | None = None
        self.result: DelegateAnswer | None = None
        """What it has answered, as soon as it has."""

    @property
    def scope(self) -> str:
        """Its name in the log."""
        return self._started.scope

    @property
    def agent(self) -> str:
        """Who it is."""
        return self._started.agent

    @property
    def parent(self) -> str:
        """The scope of the one who sent it."""
        return self._started.parent

    @property
    def task(self) -> str:
        """What it is to do."""
        return self._started.task

    @property
    def opening_prompt(self) -> str:
        """What it is told first: what it has to know of the rest, then its task."""
        return delegate_prompt(self._started)

    @property
    def state(self) -> str:
        """Whether it is running, or how it ended."""
        return self._finished.state if self._finished else "running"

    async def record(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        format: str | None = None,  # noqa: A002 - the word users say
        usage: Mapping[str, int] | None = None,
        duration_ms: int | None = None,
    ) -> range:
        """Record what was said in its scope, and return the positions."""
        self._check_running()
        spoken = format or self._session.history.message_format
        return await self._session.record(
            messages, format=spoken, usage=usage, duration_ms=duration_ms, scope=self.scope, agent=self.agent
        )

    async def prepare(
        self,
        budget: int | Budget | None = None,
        *,
        model: str | None = None,
        system: object = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        has_recall: bool | None = None,
    ) -> Request:
        """Return its next request: what it may see, within its budget, and recorded."""
        self._check_running()
        return await self._session.prepare(
            budget, model=model, system=system, tools=tools, scope=self.scope, has_recall=has_recall
        )

    async def retry(self, error: object, *, status: int | None = None) -> Request:
        """Return its last request made smaller, after the provider refused it as too long."""
        self._check_running()
        return await self._session.retry(error, status=status, scope=self.scope)

    async def compact(self, *, focus: str = "", trigger: log.CompactionTrigger = "manual") -> log.CompactionCompleted:
        """Fold what the policy would fold of what it sees, now."""
        self._check_running()
        return await self._session.compact(focus=focus, trigger=trigger, scope=self.scope)

    def compact_tool(self) -> ModelTool:
        """Return the tool by which its model asks for a compaction itself."""
        return self._session.compact_tool(scope=self.scope)

    async def recall(self, query: RecallQuery | str) -> RecallAnswer:
        """Return what is asked for of everything that it may see, and nothing else."""
        return await self._session.recall(query, scope=self.scope)

    def recall_tool(self, *, max_tokens: int = DEFAULT_RECALL_TOKENS) -> ModelTool:
        """Return the tool by which its model recalls."""
        return self._session.recall_tool(scope=self.scope, max_tokens=max_tokens)

    async def visible_messages(self) -> list[Entry]:
        """Return what stands of the conversation for it."""
        return await self._session.visible_messages(self.scope)

    def delegate(
        self,
        agent: str,
        *,
        task: str = "",
        sees: Visibility = SEES_EVERYTHING,
        main_sees: MainVisibility | None = None,
        timeout_seconds: float | None = None,
        adds_task_message: bool = True,
    ) -> "DelegateContext":
        """Send out another agent, which sees at most what this one does."""
        self._check_running()
        errand = delegation_spec(
            agent, task, sees, main_sees, timeout_seconds, parent=self.scope, adds_task_message=adds_task_message
        )
        return DelegateContext(self._session, errand)

    async def answer(
        self, text: str, *, sources: Sequence[str] = (), findings: Sequence[DelegateFinding] | None = None
    ) -> DelegateAnswer:
        """End with an answer and what it rests on; both are recorded, and nothing more can be said here.

        Findings are read off the text where it holds some as JSON and none are given.
        """
        self._check_running()
        said = check_text("answer", text)
        claims = parse_findings(said) if findings is None else findings
        found = await self._session.check_findings(self.scope, claims)
        of_all = dict.fromkeys(source for finding in found for source in finding.sources)
        named = await self._session.check_sources(self.scope, sources or tuple(of_all))
        if not self._is_last_message(said):
            wire = format_named(self._session.history.message_format)
            await self.record([wire.encode(assistant(said))], format=wire.name)
        told = tuple(finding.to_json() for finding in found)
        await self.end(log.DelegationFinished(scope=self.scope, answer=said, sources=named, findings=told))
        self.result = DelegateAnswer(said, named, self.agent, self.scope, found)
        return self.result

    async def end(self, finished: log.DelegationFinished) -> None:
        """Record how it ended; what comes second changes nothing."""
        if self._finished is None:
            HELD_HERE.discard(self._started.owner)
            await self._session.end_delegation(finished)
            self._finished = finished

    def _is_last_message(self, text: str) -> bool:
        """Return whether the last thing it said is this."""
        history = self._session.history
        own = (at for at in range(len(history) - 1, -1, -1) if history.message_scopes[at] == self.scope)
        last = next(own, None)
        return last is not None and history.entries[last].message.text == text

    def _check_running(self) -> None:
        if self._finished is not None:
            raise DelegationEndedError(self.scope, self._finished.state)


class DelegateContext:
    """A delegate about to be sent out: `async with session.delegate(…) as child`."""

    def __init__(self, session: SessionLike, spec: DelegationSpec) -> None:
        self._session = session
        self._spec = spec
        self._timeout: asyncio.Timeout | None = None
        self._delegate: Delegate | None = None

    async def __aenter__(self) -> Delegate:
        begun = await self._session.begin_delegation(self._spec)
        self._delegate = Delegate(self._session, begun)
        self._timeout = asyncio.timeout(self._spec.timeout_seconds)
        await self._timeout.__aenter__()
        return self._delegate

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        child, timeout = self._delegate, self._timeout
        if child is None or timeout is None:  # pragma: no cover - nobody leaves what he has not entered
            return
        out_of_time: TimeoutError | None = None
        try:
            await timeout.__aexit__(kind, error, trace)
        except TimeoutError as expired:
            out_of_time = expired
        try:
            await _run_to_completion(
                child.end(self._finished_event(child.scope, error, is_late=out_of_time is not None))
            )
        except HoldfastError as problem:
            raised = out_of_time or error
            if raised is None:
                raise
            raised.add_note(f"Holdfast could not record how the delegation ended: {problem}")
        if out_of_time is not None:
            raise out_of_time

    @staticmethod
    def _finished_event(scope: str, error: BaseException | None, *, is_late: bool) -> log.DelegationFinished:
        """Return the event that tells how it ended without an answer."""
        ended = log.DelegationFinished(scope=scope, state="silent", error="it has not answered")
        if is_late:
            return replace(ended, state="timed_out", error="its time ran out")
        if isinstance(error, asyncio.CancelledError):
            return replace(ended, state="cancelled", error="it was stopped")
        if error is not None:
            return replace(ended, state="failed", error=f"{type(error).__name__}: {error}"[:MAX_FAILURE_CHARS])
        return ended


async def _run_to_completion(work: AsyncResult[None]) -> None:
    """Do what must not be left half done, however often this task is told to stop meanwhile."""
    task = asyncio.ensure_future(work)
    stopped: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as again:
            stopped = again
        except HoldfastError:
            break
    task.result()
    if stopped is not None:
        raise stopped
