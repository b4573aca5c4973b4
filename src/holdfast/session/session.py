"""A conversation that is kept: recorded before anything is sent, prepared for each request, and taken back at will.

A session owns the history of one log. Everything it does to it becomes an event that is durable before it
counts; when another process has written meanwhile, the session takes that in and does its own part after it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TypeAlias

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.history.payload import message_hash
from holdfast.core.history.sync import difference
from holdfast.core.planning.completion import completed, told
from holdfast.core.planning.plan import outlook_of, rounds, usage_of
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.presets import policy_of
from holdfast.core.planning.reference import digest_of
from holdfast.core.planning.situation import Budget, Situation
from holdfast.core.planning.steps import FoldSpan, OffloadOutputs, ReduceToText, Step, Summary
from holdfast.errors import MalformedInputError, NothingToCompactError, SequenceConflictError, SettingsError
from holdfast.session.circumstances import Wanted, billed_usage, changes_beside, situation_of
from holdfast.session.log import Log, events_before, indexed
from holdfast.session.meter import Meter
from holdfast.session.request import PreparedRequest, drawn_up, recorded, told_of
from holdfast.session.retention import prune
from holdfast.stores.base import Indexed, Store
from holdfast.stores.open import open_store
from holdfast.wire.formats import Format, format_named

Clock: TypeAlias = Callable[[], int]
MAX_CONFLICTS = 1_000
"""How often a writer lets others go first before it gives up."""
Change: TypeAlias = Callable[[], tuple[Sequence[log.Event], Sequence[Indexed]]]


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return int(time.time() * 1000)


class Session:
    """One conversation in a store."""

    def __init__(
        self, session_id: str, *, store: str | Store, policy: str | Policy, model: str | None, clock: Clock
    ) -> None:
        if not session_id or not isinstance(session_id, str):
            raise SettingsError("session", f"needs a name, not {session_id!r}")
        self.id = session_id
        self.policy = policy_of(policy)
        self.model = model
        self.history = History(format_named)
        self.store = open_store(store)
        self.damage: list[str] = []
        """What of the log could not be taken in, and why."""
        self._owns_store = isinstance(store, str)
        self._log = Log(self.store, session_id)
        self.clock = clock
        self._turn = asyncio.Lock()
        self._meter = Meter(self.store)
        self._asked_ms: int | None = None
        """When the last request was prepared."""
        self._sent: list[tuple[str, int | None]] = []
        """The hashes of what was last sent, and the positions it came from."""
        self._hashes: dict[int, str] = {}
        """Of recorded messages, by position."""

    @classmethod
    def open(
        cls,
        session_id: str,
        *,
        store: str | Store = "memory://",
        policy: str | Policy = "default",
        model: str | None = None,
        clock: Clock = now_ms,
    ) -> "Opening":
        """Open a session, or begin one; use it with `async with` or `await`."""
        return Opening(cls(session_id, store=store, policy=policy, model=model, clock=clock))

    def __len__(self) -> int:
        return len(self.history)

    async def close(self) -> None:
        """Give back what the session holds open; everything is already durable."""
        if self._owns_store:
            await self.store.close()

    async def catch_up(self) -> int:
        """Take in what others have written since, and return how many events that were."""
        async with self._turn:
            return await self._take_in()

    # What was said.

    async def record(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        format: str = "openai-chat",  # noqa: A002 - the word users say
        usage: Mapping[str, int] | None = None,
        duration_ms: int | None = None,
        scope: str = log.MAIN,
        agent: str | None = None,
    ) -> range:
        """Record what was said, and return the positions; durable when this returns.

        `usage` is what the provider billed for the last of them; it corrects the counting of tokens.
        """
        wire = self._format(format)
        natives = [native if isinstance(native, Mapping) else _refuse(index) for index, native in enumerate(messages)]
        decoded = [wire.decode(native, index) for index, native in enumerate(natives)]
        billed = billed_usage(usage)
        events = [
            log.MessageAppended(
                format=wire.name,
                native=native,
                scope=scope,
                agent=agent,
                usage=billed if number == len(natives) - 1 else None,
                duration_ms=duration_ms if number == len(natives) - 1 else None,
            )
            for number, native in enumerate(natives)
        ]
        async with self._turn:
            if billed is not None:
                await self._meter.billed(billed)
            return await self._say(events, decoded)

    async def sync(self, messages: Sequence[Mapping[str, object]], *, format: str = "openai-chat") -> range:  # noqa: A002
        """Take in a whole list that somebody sends again: record what is new in it, and return its positions.

        The same list changes nothing; where it differs from what was recorded, that part does not stand any more.
        """
        wire = self._format(format)
        natives = list(messages)
        decoded = [wire.decode(native, index) for index, native in enumerate(natives)]
        async with self._turn:
            await self._take_in()
            given = [message_hash(native) for native in natives]
            found = difference(given, recorded(self.history, self._hashes), self._sent, len(self.history))
            if found.rewind_to is not None:
                await self._change(log.Rewound(to=found.rewind_to))
            events = [log.MessageAppended(format=wire.name, native=native) for native in natives[found.new :]]
            return await self._say(events, decoded[found.new :])

    # What is sent.

    async def prepare(
        self,
        budget: int | Budget | None = None,
        *,
        model: str | None = None,
        system: object = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        scope: str = log.MAIN,
        refusals: int = 0,
    ) -> PreparedRequest:
        """Return the next request: valid for its provider, within its budget, and recorded."""
        async with self._turn:
            await self._take_in()
            if beside := changes_beside(self.history, system, tools):
                await self._change(*beside)
            named = model or self.model
            wanted = Wanted(budget=budget, model=named, scope=scope, refusals=refusals)
            situation = replace(self._situation(wanted), calibration=await self._meter.calibration(named))
            reasons: list[str] = []
            plan = None
            for plan in rounds(self.history, self.policy, lambda: situation):
                reasons += plan.reasons
                for step in plan.now:
                    await self._carry_out(step, situation)
            if plan is None:  # pragma: no cover - there is always a first round
                raise AssertionError
            wire = self._format(self.history.origins[-1].format)
            drawn = replace(plan, reasons=tuple(dict.fromkeys([*reasons, *plan.reasons])))
            request = replace(drawn_up(drawn, self.history, situation, wire, self._hashes), system=system, tools=tools)
            events: list[log.Event] = [usage_of(plan, situation)]
            if plan.view.truncated is not None:
                events.append(plan.view.truncated)
            events.append(told_of(request, plan, self.history, self.policy, situation))
            await self._change(*events)
            positions = [entry.position for entry in plan.view.entries]
            self._sent = list(zip(request.hashes, positions, strict=True))
            self._meter.sent(named, request.tokens.counted)
            return request

    # What becomes of it.

    async def clear(self) -> None:
        """Let the conversation begin anew; nothing is deleted."""
        await self._changed(log.ContextCleared())

    async def rewind(self, *, to: int) -> None:
        """Go on from before the message at a position; what followed it does not stand any more."""
        await self._changed(log.Rewound(to=to))

    async def undo(self) -> bool:
        """Take back the last change of context, and say whether there was one."""
        async with self._turn:
            await self._take_in()
            if not self.history.can_undo:
                return False
            await self._change(log.ChangeUndone())
            return True

    async def redo(self) -> bool:
        """Let a change that was taken back stand again, and say whether there was one."""
        async with self._turn:
            await self._take_in()
            if not self.history.can_redo:
                return False
            await self._change(log.ChangeRedone())
            return True

    async def pin(self, position: int) -> None:
        """Keep a message whole, whatever happens."""
        await self._changed(log.Pinned(position=position))

    async def unpin(self, position: int) -> None:
        """Let a message go when it has to."""
        await self._changed(log.Unpinned(position=position))

    async def interrupt(self) -> None:
        """Say that the turn was stopped: calls without a result will never have one."""
        await self._changed(log.TurnInterrupted())

    async def compact(self, *, budget: int | Budget | None = None, scope: str = log.MAIN) -> log.CompactionCompleted:
        """Fold what the policy would fold, now, with a digest; raises where there is nothing to fold."""
        async with self._turn:
            await self._take_in()
            situation = self._situation(Wanted(budget=budget, model=self.model, scope=scope))
            rule = self.policy.fold
            outlook = outlook_of(self.history, self.policy, situation)
            step = rule.manual(outlook) if rule else None
            if rule is None or step is None:
                raise NothingToCompactError(len(self.history))
            # Until a model writes it, the digest is the summary that a rule asks for.
            summary = Summary(digest_of(outlook, step)) if step.by == "summary" else None
            event = completed(step, rule, outlook, summary)
            await self._change(event)
            return event

    async def rename(self, name: str) -> None:
        """Give the session a name for people."""
        await self.store.rename(self.id, name)

    async def fork(self, session_id: str | None = None, *, at: int | None = None) -> "Session":
        """Return a new session that has this one's past, up to a message if `at` says so, and a future of its own."""
        async with self._turn:
            await self._take_in()
            other = Session(
                session_id or f"{self.id}-fork-{self.clock():x}",
                store=self.store,
                policy=self.policy,
                model=self.model,
                clock=self.clock,
            )
            if await self.store.length(other.id):
                raise SettingsError("session", f"{other.id!r} is already there; choose another name")
            stop = len(self.history) if at is None else at
            if not 0 <= stop <= len(self.history):
                raise MalformedInputError(log.Forked.KIND, f"there is no message {at}")
            past = events_before(self.history.events, stop)
        words = indexed((entry.position or 0, entry.message) for entry in self.history.entries[:stop])
        async with other._turn:
            await other._write(lambda: ([*past, log.Forked(parent=self.id, at=stop)], words))
        return other

    async def recall(self, start: int, stop: int | None = None) -> list[Mapping[str, object]]:
        """Return messages as they were recorded, byte for byte, whatever has become of them in view.

        Never what stands before a clear: that is forgotten.
        """
        async with self._turn:
            await self._take_in()
        last = start + 1 if stop is None else stop
        cleared = self.history.version.of(log.MAIN).cleared_at
        if not cleared <= start < last <= len(self.history):
            raise MalformedInputError("recall", f"there are messages {cleared} to {len(self.history) - 1}")
        return [origin.native for origin in self.history.origins[start:last]]

    # How it is done.

    async def _changed(self, event: log.Event) -> None:
        async with self._turn:
            await self._take_in()
            await self._change(event)

    async def _change(self, *events: log.Event) -> None:
        for event in events:
            self.history.check(event)
        await self._write(lambda: (events, ()))

    async def _say(self, events: Sequence[log.MessageAppended], messages: Sequence[Message]) -> range:
        start = 0

        def change() -> tuple[Sequence[log.Event], Sequence[Indexed]]:
            nonlocal start
            start = len(self.history)
            return events, indexed(enumerate(messages, start))

        if events:
            await self._write(change)
        else:
            start = len(self.history)
        return range(start, start + len(events))

    async def _write(self, change: Change) -> None:
        """Make a change durable and then true; when others were faster, take in theirs and try again."""
        for _ in range(MAX_CONFLICTS):
            events, words = change()
            try:
                time_ms = self.clock()
                await self._log.append(events, time_ms, words)
            except SequenceConflictError:
                await self._take_in()
                for event in events:
                    self.history.check(event)
                continue
            for event in events:
                self._learn(event, time_ms)
            return
        raise SequenceConflictError(self.id, expected=self._log.length, actual=await self.store.length(self.id))

    async def _take_in(self) -> int:
        news = await self._log.news()
        if len(self.history.events) and any(isinstance(event, log.SessionScrubbed) for _, event in news):
            # What was taken out of the log must not live on here.
            self.history, self._log = History(format_named), Log(self.store, self.id)
            self._sent, self._hashes, self.damage = [], {}, []
            return await self._take_in()
        for time_ms, event in news:
            try:
                self._learn(event, time_ms)
            except MalformedInputError as error:
                self.damage.append(str(error))
        return len(news)

    def _learn(self, event: log.Event, time_ms: int) -> None:
        self.history.append(event)
        if isinstance(event, log.RequestPrepared):
            self._asked_ms = time_ms

    async def _carry_out(self, step: Step, situation: Situation) -> None:
        if isinstance(step, OffloadOutputs | ReduceToText):
            await self._change(told(step, situation.scope))
        elif isinstance(step, FoldSpan):
            rule = self.policy.fold or self.policy.emergency
            if rule is not None:
                await self._change(completed(step, rule, outlook_of(self.history, self.policy, situation)))

    def _situation(self, wanted: Wanted) -> Situation:
        wire = self._format(self.history.origins[-1].format) if self.history.origins else None
        idle = 0.0 if self._asked_ms is None else max(0, self.clock() - self._asked_ms) / 1000
        return situation_of(self.history, wire, replace(wanted, idle_seconds=idle))

    def _format(self, name: str) -> Format:
        wire = format_named(name)
        spoken = self.history.origins[0].format if self.history.origins else wire.name
        if wire.name != spoken:
            problem = f"this session speaks {spoken}; use convert() to bring {wire.name} messages into it first"
            raise SettingsError("format", problem)
        return wire


class Opening:
    """A session about to be opened."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def _open(self) -> Session:
        opened = self._session
        await opened.catch_up()
        await prune(opened.store, days=opened.policy.retention_days, now_ms=opened.clock(), keep=opened.id)
        return opened

    def __await__(self):  # noqa: ANN204 - a generator that only the event loop sees
        return self._open().__await__()

    async def __aenter__(self) -> Session:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()


def _refuse(index: int) -> Mapping[str, object]:
    raise MalformedInputError(f"messages[{index}]", "must be an object")
