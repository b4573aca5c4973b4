"""The next request: planned, its steps carried out, planned again, drawn up and told.

Where a policy waits for a summary, the wait is outside of the session's turn: what is said meanwhile is recorded at
once, and the request that is made afterwards has it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.core.history import events as log
from holdfast.core.planning.completion import completed, told
from holdfast.core.planning.plan import Plan, outlook_of, rounds, usage_of
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Budget, Situation
from holdfast.core.planning.steps import AwaitSummary, FoldSpan, OffloadOutputs, Outlook, ReduceToText, Step
from holdfast.errors import OvertakenError
from holdfast.models.base import Prefix
from holdfast.session.circumstances import Outside, Wanted, changes_beside, recall_changed, situation_of
from holdfast.session.compactor import Compactor
from holdfast.session.keeping import Keeper
from holdfast.session.meter import Meter
from holdfast.session.prefix import Sent
from holdfast.session.request import PreparedRequest, drawn_up, told_of
from holdfast.wire.formats import format_named

MAX_WAITS = 2
"""How often one request waits for a summary."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The request has to wait for a summary."""


WAITING = _Waiting()


class Preparer:
    """Makes the requests of one session."""

    def __init__(self, keeper: Keeper, compactor: Compactor, meter: Meter, policy: Policy) -> None:
        self._keeper = keeper
        self._compactor = compactor
        self._meter = meter
        self._policy = policy
        self._last: dict[str, Sent] = {}
        """By scope, the last request."""
        self._budgets: dict[tuple[str, str | None], Budget] = {}
        """By scope and model, the last one's budget."""
        self._outside = Outside()

    def follow(self, policy: Policy) -> None:
        """Go by another policy from now on."""
        self._policy = policy

    async def prepare(self, wanted: Wanted) -> PreparedRequest:
        """Return the next request, recorded."""
        reasons: list[str] = []
        waits = 0
        while True:
            try:
                async with self._keeper.turn:
                    await self._keeper.take_in()
                    outcome = await self._attempt(wanted, reasons, may_wait=waits < MAX_WAITS)
            except OvertakenError:
                continue
            if isinstance(outcome, PreparedRequest):
                return outcome
            waits += 1
            await self._compactor.wait()
            if self._keeper.history.facts.written is None:
                # It came to nothing: this request is made as if there were nobody to write summaries.
                wanted = replace(wanted, is_alone=True)

    @property
    def said(self) -> int:
        """How much has been said so far."""
        return len(self._keeper.history)

    def last(self, scope: str) -> Sent | None:
        """Return the last request of an agent, if there was one since the session was opened."""
        return self._last.get(scope)

    def forget(self, scope: str) -> None:
        """Let go of the last request of an agent that will make no more."""
        self._last.pop(scope, None)
        self._outside.forget(scope)
        for key in [key for key in self._budgets if key[0] == scope]:
            del self._budgets[key]

    def as_last(self, wanted: Wanted) -> Wanted:
        """Return what is wanted, with the budget of the last request to the same model where none is named."""
        budget = self._budgets.get((wanted.scope, wanted.model))
        return replace(wanted, budget=budget) if wanted.budget is None and budget else wanted

    def situation(self, wanted: Wanted) -> Situation:
        """Return the circumstances of a request."""
        history, asked_ms = self._keeper.history, self._keeper.asked_ms
        wire = format_named(history.format) if history.format else None
        idle = 0.0 if asked_ms is None else max(0, self._keeper.clock() - asked_ms) / 1000
        situation = situation_of(history, wire, replace(wanted, idle_seconds=idle), self._outside)
        written, run = history.facts.written, history.facts.running
        return replace(
            situation,
            prices=self._compactor.how.prices or situation.prices,
            has_summariser=self._compactor.can_write and not wanted.is_alone,
            has_ready_summary=written is not None
            and run is not None
            and run.basis == history.changes
            and run.scope == situation.scope,
        )

    def outlook(self, wanted: Wanted) -> Outlook:
        """Return what the rules would look at."""
        return outlook_of(self._keeper.history, self._policy, self.situation(wanted))

    async def _attempt(self, wanted: Wanted, reasons: list[str], *, may_wait: bool) -> PreparedRequest | _Waiting:
        history = self._keeper.history
        if changes := [*changes_beside(history, wanted), *recall_changed(history, wanted)]:
            await self._keeper.change(*changes)
        await self._compactor.tidy()
        calibration = await self._meter.calibration(wanted.model)
        if not may_wait:
            wanted = replace(wanted, is_alone=True)

        def situation() -> Situation:
            return replace(self.situation(wanted), calibration=calibration)

        if self._policy.apply == "inline" and situation().has_ready_summary:
            await self._compactor.commit(situation())
        plan = await self._planned(situation, reasons, may_wait=may_wait)
        if plan is None:
            return WAITING
        plan = replace(plan, reasons=tuple(dict.fromkeys([*reasons, *plan.reasons])))
        request = self._drawn(plan, wanted, situation())
        if plan.later:
            await self._compactor.set_aside(other_than=wanted.scope)
        for step in plan.later:
            if isinstance(step, FoldSpan) and self._compactor.may_begin(situation()):
                await self._compactor.begin(step, situation(), sent=self.last(wanted.scope))
        await self._tell(request, plan, wanted.model, situation())
        return request

    async def _planned(self, situation: Callable[[], Situation], reasons: list[str], *, may_wait: bool) -> Plan | None:
        """Return the plan to send, after the steps of those before it were carried out; None where one has to wait."""
        plan = None
        for plan in rounds(self._keeper.history, self._policy, situation):
            reasons += plan.reasons
            for step in plan.now:
                if await self._must_wait(step, situation(), "; ".join(plan.reasons), may_wait=may_wait):
                    return None
        return plan

    async def _must_wait(self, step: Step, situation: Situation, why: str, *, may_wait: bool) -> bool:
        """Carry out a step, or return that there is a summary to be waited for first."""
        if isinstance(step, OffloadOutputs | ReduceToText):
            outlook = outlook_of(self._keeper.history, self._policy, situation)
            await self._keeper.change(told(step, outlook, why))
        elif isinstance(step, AwaitSummary):
            if not situation.has_ready_summary:
                return may_wait and self._compactor.is_running
            await self._compactor.commit(situation)
        elif step.by == "summary" and situation.has_summariser:
            if self._keeper.history.facts.running is None:
                await self._compactor.begin(step, situation, sent=self.last(situation.scope))
            return may_wait
        else:
            await self._fold(step, situation, why)
        return False

    async def _fold(self, step: FoldSpan, situation: Situation, why: str) -> None:
        rule = self._policy.fold or self._policy.emergency
        if rule is not None:
            outlook = outlook_of(self._keeper.history, self._policy, situation)
            await self._compactor.record(replace(completed(step, rule, outlook), reason=why))

    def _drawn(self, plan: Plan, wanted: Wanted, situation: Situation) -> PreparedRequest:
        """Return the request of a plan, as it will go out, and remember it."""
        history, system, tools = self._keeper.history, wanted.system, wanted.tools
        wire = format_named(history.spoken)
        request = replace(drawn_up(plan, history, situation, wire, self._keeper.hashes), system=system, tools=tools)
        self._budgets[situation.scope, wanted.model] = situation.budget
        self._last[situation.scope] = Sent(
            prefix=Prefix(
                format=wire.name,
                messages=request.messages,
                system=system,
                tools=tools,
                positions=request.positions,
                scope=situation.scope,
            ),
            model=wanted.model,
            tokens=request.tokens.total,
            window=situation.window or self._policy.unknown_window,
            whole=frozenset(request.receipt.kept),
            changes=history.changes,
        )
        return request

    async def _tell(self, request: PreparedRequest, plan: Plan, model: str | None, situation: Situation) -> None:
        """Record a request."""
        keeper, history = self._keeper, self._keeper.history
        events: list[log.Event] = [usage_of(plan, situation)]
        if plan.view.truncated is not None:
            events.append(plan.view.truncated)
        events.append(told_of(request, plan, history, self._policy, situation))
        await keeper.change(*events)
        if plan.view.is_rescued:
            self._compactor.companions.remember()
        if situation.scope == log.MAIN:
            # A client that sends its list again was answered by the main agent.
            keeper.sent = list(zip(request.messages, request.hashes, request.positions, strict=True))
        self._meter.sent(model, request.tokens.counted)
