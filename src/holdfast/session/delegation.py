"""Delegation: another agent works in the same log, in its own scope.

A delegate sees the messages chosen for it and its own, and nothing of any other delegation. The log records how it
ends: an answer, an error, a cancellation, or a timeout. Calls that it left open are never answered. Many delegates may
work at once, and each may delegate in turn.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import get_args

from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.messages import Entry, assistant, user
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.history.scopes import (
    DelegateFinding,
    MainVisibility,
    abandoned_delegation_events,
    parse_findings,
)
from holdfast.core.history.visibility import SEES_EVERYTHING, Visibility, choose_visible
from holdfast.core.ledger.identifiers import argument_text
from holdfast.core.ledger.names import is_name_in
from holdfast.core.recall.references import parse_references
from holdfast.core.schema import short_repr
from holdfast.counters.vocabularies import counter_for
from holdfast.dataclass import dataclass
from holdfast.errors import DelegationEndedError, HoldfastError, MalformedInputError, SettingsError, UnknownScopeError
from holdfast.session.arguments import check_text
from holdfast.session.conversation import Conversation, SessionEngine
from holdfast.session.heavy_work import are_long
from holdfast.session.log.event_log import SessionLog, locked, retried
from holdfast.session.log.leases import HELD_HERE, has_owner_exited, new_owner_id
from holdfast.text import lazy_pattern

MAX_FAILURE_CHARS = 500
MAX_TIMEOUT_SECONDS = 1_000_000_000
"""Thirty years; clocks of event loops refuse much larger numbers."""
_POSITION_SOURCE = lazy_pattern(r"#\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationSpec:
    """The caller's options for a delegation."""

    agent: str
    task: str
    sees: Visibility
    parent: str
    main_sees: MainVisibility | None
    timeout_seconds: float | None
    adds_task_message: bool
    """Whether the task is recorded as the delegate's first message."""
    key: str = ""

    def __post_init__(self) -> None:
        if not check_text("agent", self.agent).strip():
            raise SettingsError("agent", "must be the name of the agent")
        if not isinstance(self.sees, Visibility):
            raise SettingsError("sees", f"must be a Visibility, not {short_repr(self.sees)}")
        if self.main_sees is not None and self.main_sees not in get_args(MainVisibility):
            problem = f"must be one of {', '.join(get_args(MainVisibility))}, not {short_repr(self.main_sees)}"
            raise SettingsError("main_sees", problem)
        seconds: object = self.timeout_seconds
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and 0 < seconds <= MAX_TIMEOUT_SECONDS):
            limits = f"above 0 and at most {MAX_TIMEOUT_SECONDS:,}, or None for no limit"
            raise SettingsError("timeout_seconds", f"must be a number {limits}, not {short_repr(seconds)}")
        check_text("task", self.task)
        check_text("key", self.key)


@dataclass(frozen=True, slots=True)
class DelegateAnswer:
    """A delegate's answer and its sources."""

    text: str
    sources: tuple[str, ...]
    """`#12` for a message, or any other source that the delegate named, such as a path or an address."""
    agent: str
    scope: str
    findings: tuple[DelegateFinding, ...] = ()
    """Its separate claims, if there are any, with checked sources."""

    def __str__(self) -> str:
        paragraphs = [neutralize(self.text)]
        if self.sources:
            paragraphs.append(neutralize(f"Sources: {', '.join(self.sources)}", "item"))
        unverified = [neutralize(str(finding), "item") for finding in self.findings if finding.unverified]
        if unverified:
            lines = ["These claims name sources that the agent has not seen:", *map(neutralize, unverified)]
            paragraphs.append("\n".join(lines))
        return "\n\n".join(paragraphs)


class DelegatingConversation(Conversation):
    """A conversation whose agent can delegate: that of the main agent, and those of delegates."""

    def delegate(
        self,
        agent: str,
        *,
        task: str = "",
        sees: Visibility = SEES_EVERYTHING,
        main_sees: MainVisibility | None = None,
        timeout_seconds: float | None = None,
        adds_task_message: bool = True,
        key: str = "",
    ) -> "DelegateContext":
        """Delegate to another agent: `async with session.delegate("reviewer", task="…") as child`.

        The delegate works in its own scope. `sees` selects what it sees of this conversation, at most what this agent
        sees. `main_sees` selects what the main conversation sees of the delegate's work; the default is the policy's.
        With `adds_task_message=False` the task is not recorded as a message: start the delegate with
        `child.opening_prompt`. `key` is a name of your own for `resume_delegate`.
        """
        self._check_running()
        spec = DelegationSpec(
            agent=agent,
            task=task,
            sees=sees,
            parent=self.scope,
            main_sees=main_sees,
            timeout_seconds=timeout_seconds,
            adds_task_message=adds_task_message,
            key=key,
        )
        return DelegateContext(self._engine, spec)

    def resume_delegate(self, key: str) -> "DelegateContext":
        """Go on with the last delegation of a key: `async with session.resume_delegate("build") as child`.

        It may have ended, or another process may have run it: from now on it runs in this one. Its messages are as
        they were, so it has no `task` and no `opening_prompt` again. Raises `UnknownScopeError` if there is none.
        """
        self._check_running()
        return DelegateContext(self._engine, check_text("key", key))


class Delegate(DelegatingConversation):
    """A delegate's conversation, until it answers or ends without an answer."""

    def __init__(self, engine: SessionEngine, started: log.DelegationStarted) -> None:
        super().__init__(engine, started.scope, started.agent)
        self._owner = started.owner
        self._finished: log.DelegationFinished | None = None
        self.agent = started.agent
        self.parent = started.parent
        """The scope of the agent that delegated to it."""
        self.task = started.task
        self.opening_prompt = _opening_prompt(started)
        """The first message of the delegate: a briefing, then the task."""
        self.result: DelegateAnswer | None = None
        """The answer, once there is one."""

    @property
    def is_running_here(self) -> bool:
        """Whether it has not ended, and nobody else runs it, as far as is known here."""
        return self.history.session_state.running_delegates.get(self.scope) == self._owner

    @property
    def state(self) -> str:
        """Whether the delegation is running, or how it ended."""
        return self._finished.state if self._finished else "running"

    async def answer(
        self, text: str, *, sources: Sequence[str] = (), findings: Sequence[DelegateFinding] | None = None
    ) -> DelegateAnswer:
        """End the delegation with an answer and its sources; records both, and no message can follow.

        Without `findings`, findings that the text holds as JSON are used.
        """
        self._check_running()
        text = check_text("answer", text)
        checked = await self._check_findings(parse_findings(text) if findings is None else findings)
        found_sources = dict.fromkeys(source for finding in checked for source in finding.sources)
        names = await self._check_sources(sources or tuple(found_sources))
        if not self._is_last_message(text):
            native = self.history.message_format.encode(assistant(text))
            await self.record([native])
        recorded = tuple(finding.to_json() for finding in checked)
        await self.end(log.DelegationFinished(scope=self.scope, answer=text, sources=names, findings=recorded))
        self.result = DelegateAnswer(text, names, self.agent, self.scope, checked)
        return self.result

    async def end(self, finished: log.DelegationFinished) -> None:
        """Record how the delegation ended; a second call changes nothing."""
        if self._finished is None:
            try:
                await self._record_end(finished)
            finally:
                # Not before, or another session of this process would take the delegation for an abandoned one.
                HELD_HERE.discard(self._owner)
            self._finished = finished

    @locked
    async def _record_end(self, finished: log.DelegationFinished) -> None:
        if not self.is_running_here:
            return  # another process has resumed or ended it
        interrupted = [] if finished.state == "answered" else [log.TurnInterrupted(scope=finished.scope)]
        await self._log.append(*interrupted, finished)
        self._builder.forget_scope(finished.scope)

    def _check_running(self) -> None:
        if self._finished is not None:
            raise DelegationEndedError(self.scope, self._finished.state)

    def _is_last_message(self, text: str) -> bool:
        history = self.history
        own = (at for at in range(len(history) - 1, -1, -1) if history.message_scopes[at] == self.scope)
        last = next(own, None)
        return last is not None and history.entries[last].message.text == text

    @retried
    async def _check_sources(self, sources: Sequence[str]) -> tuple[str, ...]:
        """Return the sources; raises if one refers to a message that the delegate cannot see."""
        if isinstance(sources, str) or not all(isinstance(source, str) for source in sources):
            raise MalformedInputError("answer.sources", "must be a list of texts, such as '#12' or a path")
        context = self.history.context(self.scope)
        for source in sources:
            if _POSITION_SOURCE.match(source) and not _is_source_visible(source, context):
                raise MalformedInputError("answer.sources", f"{source:.60} is no message that {self.scope!r} can see")
        return tuple(sources)

    @retried
    async def _check_findings(self, findings: Sequence[DelegateFinding]) -> tuple[DelegateFinding, ...]:
        """Return findings whose sources were looked up in what the delegate saw and received."""
        if isinstance(findings, str) or not all(isinstance(finding, DelegateFinding) for finding in findings):
            raise MalformedInputError(
                "answer.findings", "must be a list of DelegateFinding(claim=…, sources=…, status=…)"
            )
        names = {source for finding in findings for source in finding.sources}
        if not names:
            return tuple(findings)
        context = self.history.context(self.scope)
        own = [position for position in range(context.length) if context.message_scopes[position] == self.scope]
        context.entries.require(own)
        texts = [text for position in own for text in _received_texts(context.entries[position])]
        known = {
            source
            for source in names
            if (
                _is_source_visible(source, context)
                if _POSITION_SOURCE.match(source)
                else any(is_name_in(source, text) for text in texts)
            )
        }
        return tuple(finding.check_sources(known) for finding in findings)


class DelegateContext:
    """A delegation about to start: `async with session.delegate(…) as child`."""

    def __init__(self, engine: SessionEngine, spec: DelegationSpec | str) -> None:
        self._engine = engine
        self._log = engine.log
        self._spec = spec
        """The options of a new delegation; the key of one that goes on."""
        self._timeout: asyncio.Timeout | None = None
        self._delegate: Delegate | None = None

    async def __aenter__(self) -> Delegate:
        spec = self._spec
        started = await (self._resume(spec) if isinstance(spec, str) else self._start(spec))
        self._delegate = Delegate(self._engine, started)
        self._timeout = asyncio.timeout(None if isinstance(spec, str) else spec.timeout_seconds)
        await self._timeout.__aenter__()
        return self._delegate

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        child, timeout = self._delegate, self._timeout
        if child is None or timeout is None:  # pragma: no cover - `__aenter__` has set both
            return
        out_of_time: TimeoutError | None = None
        try:
            await timeout.__aexit__(kind, error, trace)
        except TimeoutError as expired:
            out_of_time = expired
        try:
            finished = _end_without_answer(child.scope, error, is_late=out_of_time is not None)
            await _run_to_completion(child.end(finished))
        except HoldfastError as problem:
            raised = out_of_time or error
            if raised is None:
                raise
            raised.add_note(f"Holdfast could not record how the delegation ended: {problem}")
        if out_of_time is not None:
            raise out_of_time

    @locked
    async def _resume(self, key: str) -> log.DelegationStarted:
        """Record that a delegation goes on in this process."""
        scopes = self._log.history.scopes
        scope = scopes.keys.get(key)
        if scope is None:
            raise UnknownScopeError(key, sorted(scopes.keys), is_key=True)
        owner = new_owner_id()
        HELD_HERE.add(owner)
        try:
            await self._log.append(log.DelegationResumed(scope=scope, owner=owner))
        except BaseException:
            HELD_HERE.discard(owner)
            raise
        agent, parent = scope.rpartition(":")[0], scopes.parents[scope]
        return log.DelegationStarted(scope=scope, agent=agent, parent=parent, owner=owner, key=key)

    @locked
    async def _start(self, spec: DelegationSpec) -> log.DelegationStarted:
        """Record the start of the delegation, and what the delegate sees."""
        from secrets import token_hex  # noqa: PLC0415 - most sessions delegate nothing

        engine, history = self._engine, self._log.history
        await end_abandoned_delegations(self._log)
        chosen = choose_visible(history, spec.parent, spec.sees, counter_for(engine.model))
        started = log.DelegationStarted(
            scope=f"{spec.agent}:{token_hex(4)}",
            agent=spec.agent,
            parent=spec.parent,
            task=spec.task,
            visibility=spec.sees.to_json(),
            visible_spans=chosen.spans,
            briefing=chosen.briefing,
            visible_tokens=chosen.tokens,
            main_visibility=spec.main_sees or engine.compactor.policy.main_sees,
            owner=new_owner_id(),
            is_attributed=True,
            key=spec.key or None,
        )
        HELD_HERE.add(started.owner)
        try:
            await self._log.append(started)
            if spec.adds_task_message and (prompt := _opening_prompt(started)):
                message_format = self._log.history.message_format
                native = message_format.encode(user(prompt))
                event = log.MessageAppended(
                    format=message_format.name, native=native, scope=started.scope, agent=started.agent
                )
                decoded = message_format.decode(native, len(self._log.history))
                await self._log.append_messages([event], [decoded], is_long=are_long([native]))
        except BaseException:
            # The store may have the start nevertheless; without a live owner it counts as abandoned.
            HELD_HERE.discard(started.owner)
            raise
        return started


async def end_abandoned_delegations(session_log: SessionLog) -> None:
    """Record that delegates whose process has exited will not answer. Caller must hold the lock."""
    running = session_log.history.session_state.running_delegates
    abandoned = [scope for scope, owner in running.items() if has_owner_exited(owner)]
    if abandoned:
        await session_log.append(*abandoned_delegation_events(abandoned, "its process has exited"))


def _opening_prompt(started: log.DelegationStarted) -> str:
    task = neutralize(started.task, beside_sections=bool(started.briefing))
    return "\n\n".join(text for text in (started.briefing, task) if text)


def _received_texts(entry: Entry) -> Iterator[str]:
    """Yield the texts that an agent received and the arguments of its calls, but not its own prose."""
    message = entry.message
    if message.role != "assistant":
        yield message.text
    yield from (result.text for result in message.results)
    yield from (argument_text(call.arguments) for call in message.calls)


def _is_source_visible(source: str, context: Context) -> bool:
    """Return whether an agent sees every message that a source refers to."""
    try:
        references = parse_references(source)
    except MalformedInputError:
        return False
    return all(
        reference.is_position
        and reference.last < context.length
        and all(map(context.is_visible, range(reference.first, reference.last + 1)))
        for reference in references
    )


def _end_without_answer(scope: str, error: BaseException | None, *, is_late: bool) -> log.DelegationFinished:
    """Return the event for a delegation that ends without an answer."""
    ended = log.DelegationFinished(scope=scope, state="silent", error="it did not answer")
    if is_late:
        return replace(ended, state="timed_out", error="its time ran out")
    if isinstance(error, asyncio.CancelledError):
        return replace(ended, state="cancelled", error="it was stopped")
    if error is not None:
        return replace(ended, state="failed", error=f"{type(error).__name__}: {error}"[:MAX_FAILURE_CHARS])
    return ended


async def _run_to_completion(work: Coroutine[object, object, None]) -> None:
    """Finish work that must not be left incomplete, however often this task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as again:
            cancelled = again
        except HoldfastError:
            break
    task.result()
    if cancelled is not None:
        raise cancelled
