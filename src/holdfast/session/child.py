"""A delegate: another agent at work in the same log, in a scope of its own.

It is shown what was chosen for it and what it does itself, and nothing of any other delegation. However it ends (an
answer, an error, a stop, a time that ran out) the log says so, and calls it left open are known never to be answered.
Many may be at work at once, and each may send out others.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, TypeAlias, TypeVar

from holdfast.core.conversation.messages import assistant
from holdfast.core.conversation.view import Entry
from holdfast.core.history import events as log
from holdfast.core.history.delegated import Delegation
from holdfast.core.history.findings import Finding, findings_in
from holdfast.core.history.history import History
from holdfast.core.history.recall.asking import DEFAULT_TOKENS
from holdfast.core.history.scope import MainSees
from holdfast.core.history.sees import EVERYTHING, NOTHING, Sees
from holdfast.core.planning.situation import Budget
from holdfast.errors import DelegationOverError, HoldfastError
from holdfast.session.delegating import Errand, errand_of, opening_of
from holdfast.session.given import words
from holdfast.session.owners import LIVE
from holdfast.session.recall import Recall, Recalled
from holdfast.session.request import PreparedRequest
from holdfast.session.tools import ModelTool
from holdfast.wire.formats import format_named

__all__ = ["EVERYTHING", "NOTHING", "Answer", "Child", "Delegating", "Delegation", "Sees"]

T = TypeVar("T")
Doing: TypeAlias = Coroutine[object, object, T]
MOST_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True)
class Answer:
    """What a delegate said in the end, and what that rests on."""

    text: str
    sources: tuple[str, ...]
    """`#12` for a message, or whatever else the delegate named: a path, an address."""
    agent: str
    scope: str
    findings: tuple[Finding, ...] = ()
    """What it found, claim by claim, where it said so; the sources of each were checked."""

    def __str__(self) -> str:
        missed = [str(finding) for finding in self.findings if finding.unverified]
        told = [f"Sources: {', '.join(self.sources)}"] if self.sources else []
        told += ["\n".join(["These claims name sources that the agent has not seen:", *missed])] if missed else []
        return "\n\n".join([self.text, *told])


class Speaker(Protocol):
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
    ) -> Doing[range]:
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
    ) -> Doing[PreparedRequest]:
        """Return the next request."""
        ...

    def retry(self, error: object, *, status: int | None = ..., scope: str = ...) -> Doing[PreparedRequest]:
        """Return the last request made smaller."""
        ...

    def compact(
        self, *, focus: str = ..., trigger: log.Trigger = ..., budget: int | Budget | None = ..., scope: str = ...
    ) -> Doing[log.CompactionCompleted]:
        """Fold what the policy would fold, now."""
        ...

    def compact_tool(self, *, scope: str = ...) -> ModelTool:
        """Return the tool by which a model asks for a compaction itself."""
        ...

    def recall_for(self, asking: Recall | str, *, scope: str = ...) -> Doing[Recalled]:
        """Return what is asked for of everything that an agent may see."""
        ...

    def recall_tool(self, *, scope: str = ..., max_tokens: int = ...) -> ModelTool:
        """Return the tool by which a model itself recalls."""
        ...

    def shown(self, scope: str = ...) -> Doing[list[Entry]]:
        """Return what stands of the conversation for an agent."""
        ...

    def begin_delegation(self, errand: Errand) -> Doing[log.DelegationStarted]:
        """Record that an agent is sent out."""
        ...

    def end_delegation(self, ended: log.DelegationFinished) -> Doing[None]:
        """Record that a delegate has answered, or will not."""
        ...

    def check_sources(self, scope: str, sources: Sequence[str]) -> Doing[tuple[str, ...]]:
        """Return sources, each of which the delegate can have seen."""
        ...

    def check_findings(self, scope: str, findings: Sequence[Finding]) -> Doing[tuple[Finding, ...]]:
        """Return findings, with the sources apart that the delegate cannot have had."""
        ...


class Child:
    """A delegate at work: a session's face, in its own scope."""

    def __init__(self, session: Speaker, begun: log.DelegationStarted) -> None:
        self._session = session
        self._begun = begun
        self._ended: log.DelegationFinished | None = None
        self.result: Answer | None = None
        """What it has answered, as soon as it has."""

    @property
    def scope(self) -> str:
        """Its name in the log."""
        return self._begun.scope

    @property
    def agent(self) -> str:
        """Who it is."""
        return self._begun.agent

    @property
    def parent(self) -> str:
        """The scope of the one who sent it."""
        return self._begun.parent

    @property
    def task(self) -> str:
        """What it is to do."""
        return self._begun.task

    @property
    def opening(self) -> str:
        """What it is told first: what it has to know of the rest, then its task."""
        return opening_of(self._begun)

    @property
    def state(self) -> str:
        """Whether it is running, or how it ended."""
        return self._ended.state if self._ended else "running"

    async def record(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        format: str | None = None,  # noqa: A002 - the word users say
        usage: Mapping[str, int] | None = None,
        duration_ms: int | None = None,
    ) -> range:
        """Record what was said in its scope, and return the positions."""
        self._check()
        spoken = format or self._session.history.spoken
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
    ) -> PreparedRequest:
        """Return its next request: what it may see, within its budget, and recorded."""
        self._check()
        return await self._session.prepare(
            budget, model=model, system=system, tools=tools, scope=self.scope, has_recall=has_recall
        )

    async def retry(self, error: object, *, status: int | None = None) -> PreparedRequest:
        """Return its last request made smaller, after the provider refused it as too long."""
        self._check()
        return await self._session.retry(error, status=status, scope=self.scope)

    async def compact(self, *, focus: str = "", trigger: log.Trigger = "manual") -> log.CompactionCompleted:
        """Fold what the policy would fold of what it sees, now."""
        self._check()
        return await self._session.compact(focus=focus, trigger=trigger, scope=self.scope)

    def compact_tool(self) -> ModelTool:
        """Return the tool by which its model asks for a compaction itself."""
        return self._session.compact_tool(scope=self.scope)

    async def recall_for(self, asking: Recall | str) -> Recalled:
        """Return what is asked for of everything that it may see, and nothing else."""
        return await self._session.recall_for(asking, scope=self.scope)

    def recall_tool(self, *, max_tokens: int = DEFAULT_TOKENS) -> ModelTool:
        """Return the tool by which its model recalls."""
        return self._session.recall_tool(scope=self.scope, max_tokens=max_tokens)

    async def shown(self) -> list[Entry]:
        """Return what stands of the conversation for it."""
        return await self._session.shown(self.scope)

    def delegate(
        self,
        agent: str,
        *,
        task: str = "",
        sees: Sees = EVERYTHING,
        main_sees: MainSees | None = None,
        timeout_seconds: float | None = None,
        tells: bool = True,
    ) -> "Delegating":
        """Send out another agent, which sees at most what this one does."""
        self._check()
        errand = errand_of(agent, task, sees, main_sees, timeout_seconds, parent=self.scope, tells=tells)
        return Delegating(self._session, errand)

    async def answer(
        self, text: str, *, sources: Sequence[str] = (), findings: Sequence[Finding] | None = None
    ) -> Answer:
        """End with an answer and what it rests on; both are recorded, and nothing more can be said here.

        Findings are read off the text where it holds some as JSON and none are given.
        """
        self._check()
        said = words("answer", text)
        claims = findings_in(said) if findings is None else findings
        found = await self._session.check_findings(self.scope, claims)
        of_all = dict.fromkeys(source for finding in found for source in finding.sources)
        named = await self._session.check_sources(self.scope, sources or tuple(of_all))
        if not self._has_said(said):
            wire = format_named(self._session.history.spoken)
            await self.record([wire.encode(assistant(said))], format=wire.name)
        told = tuple(finding.told() for finding in found)
        await self.end(log.DelegationFinished(scope=self.scope, answer=said, sources=named, findings=told))
        self.result = Answer(said, named, self.agent, self.scope, found)
        return self.result

    async def end(self, ended: log.DelegationFinished) -> None:
        """Record how it ended; what comes second changes nothing."""
        if self._ended is None:
            LIVE.discard(self._begun.owner)
            await self._session.end_delegation(ended)
            self._ended = ended

    def _has_said(self, text: str) -> bool:
        """Return whether the last thing it said is this."""
        history = self._session.history
        own = (at for at in range(len(history) - 1, -1, -1) if history.said_in[at] == self.scope)
        last = next(own, None)
        return last is not None and history.entries[last].message.text == text

    def _check(self) -> None:
        if self._ended is not None:
            raise DelegationOverError(self.scope, self._ended.state)


class Delegating:
    """A delegate about to be sent out: `async with session.delegate(…) as child`."""

    def __init__(self, session: Speaker, errand: Errand) -> None:
        self._session = session
        self._errand = errand
        self._timeout: asyncio.Timeout | None = None
        self._child: Child | None = None

    async def __aenter__(self) -> Child:
        begun = await self._session.begin_delegation(self._errand)
        self._child = Child(self._session, begun)
        self._timeout = asyncio.timeout(self._errand.timeout_seconds)
        await self._timeout.__aenter__()
        return self._child

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        child, timeout = self._child, self._timeout
        if child is None or timeout is None:  # pragma: no cover - nobody leaves what he has not entered
            return
        out_of_time: TimeoutError | None = None
        try:
            await timeout.__aexit__(kind, error, trace)
        except TimeoutError as expired:
            out_of_time = expired
        try:
            await _to_its_end(child.end(self._ending(child.scope, error, is_late=out_of_time is not None)))
        except HoldfastError as problem:
            raised = out_of_time or error
            if raised is None:
                raise
            raised.add_note(f"Holdfast could not record how the delegation ended: {problem}")
        if out_of_time is not None:
            raise out_of_time

    @staticmethod
    def _ending(scope: str, error: BaseException | None, *, is_late: bool) -> log.DelegationFinished:
        """Return the event that tells how it ended without an answer."""
        ended = log.DelegationFinished(scope=scope, state="silent", error="it has not answered")
        if is_late:
            return replace(ended, state="timed_out", error="its time ran out")
        if isinstance(error, asyncio.CancelledError):
            return replace(ended, state="cancelled", error="it was stopped")
        if error is not None:
            return replace(ended, state="failed", error=f"{type(error).__name__}: {error}"[:MOST_ERROR_CHARS])
        return ended


async def _to_its_end(doing: Doing[None]) -> None:
    """Do what must not be left half done, however often this task is told to stop meanwhile."""
    task = asyncio.ensure_future(doing)
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
