"""The next request: planned, its steps carried out, planned again, drawn up and told.

Where a policy waits for a summary, the wait is outside of the session's turn: what is said meanwhile is recorded at
once, and the request that is made afterwards has it.

The circumstances of a session's next request: what its history knows, and what the tables know of its model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.core.conversation.batching import ONE_RESULT_PER_MESSAGE
from holdfast.core.conversation.json_values import dump_json
from holdfast.core.conversation.tokens import Calibration, Counter
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.history.session_state import RequestExtras
from holdfast.core.planning.changes import compaction_completed_event, step_event
from holdfast.core.planning.plan import Plan, plan_input_of, plan_rounds, usage_measured_event
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Budget, Situation
from holdfast.core.planning.steps import AwaitSummary, CompactSpan, OffloadOutputs, PlanInput, ReduceTurnsToText, Step
from holdfast.counters.models import budget_for, find_model, prices_of
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import ConcurrentWriteError, SettingsError
from holdfast.models.base import CachedPrefix
from holdfast.session.calibration import UsageCalibrator
from holdfast.session.compaction.compactor import Compactor
from holdfast.session.compaction.summarizer import SentRequest
from holdfast.session.inputs import extras_json
from holdfast.session.log.event_log import SessionLog
from holdfast.session.request import PreparedRequest, build_request, request_prepared_event
from holdfast.wire.formats import MessageFormat, format_named


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What the caller says of a request."""

    budget: int | Budget | None = None
    model: str | None = None
    system: object = None
    """The system text, or a provider's own form of it."""
    tools: Sequence[Mapping[str, object]] | None = None
    scope: str = log.MAIN
    refusals: int = 0
    """How often the provider has refused it as too long."""
    without_summarizer: bool = False
    """Whether it is to be made as if there were nobody to write summaries."""
    idle_seconds: float = 0.0
    """Since the last request."""
    has_recall: bool | None = None
    """Whether the model has the recall tool; None for as it was last said."""


class ExtrasCounter:
    """Counts what travels outside the messages: once, for as long as it stays as it is."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, str], tuple[RequestExtras, int, int]] = {}

    def tokens(self, scope: str, extras: RequestExtras, counter: Counter) -> tuple[int, int]:
        """Return what an agent's system text costs, and what its tools cost."""
        known = self._counted.get((scope, counter.name))
        if known is None or known[0].system is not extras.system or known[0].tools is not extras.tools:
            system = counter.count(extras.system) if extras.system else 0
            tools = counter.count(dump_json([dict(tool) for tool in extras.tools])) if extras.tools else 0
            known = self._counted[scope, counter.name] = extras, system, tools
        return known[1:]

    def forget(self, scope: str) -> None:
        """Let go of what was counted for an agent that will make no more requests."""
        for key in [key for key in self._counted if key[0] == scope]:
            del self._counted[key]


def situation_of(
    history: History, message_format: MessageFormat | None, options: RequestOptions, extras_counter: ExtrasCounter
) -> Situation:
    """Return the situation of a request; `wire` is None where nothing was said yet."""
    counter, known, facts = counter_for(options.model), find_model(options.model), history.session_state
    system_tokens, tools_tokens = extras_counter.tokens(options.scope, facts.extras_for(options.scope), counter)
    budget = budget_for(options.model, options.budget)
    table_window = known.max_input_tokens if known else None
    return Situation(
        budget=budget,
        counter=counter,
        calibration=Calibration(),
        system_tokens=system_tokens,
        tools_tokens=tools_tokens,
        pins=facts.pins,
        batching=message_format.batching if message_format else ONE_RESULT_PER_MESSAGE,
        max_text_chars=message_format.max_text_chars if message_format else None,
        max_images=message_format.max_images if message_format else None,
        scope=options.scope,
        # Who names a budget, a person or a provider, means that as the window that is to be filled.
        window=budget.tokens if budget.source in {"user", "provider"} else table_window,
        prices=prices_of(known) if known else None,
        idle_seconds=options.idle_seconds,
        has_recall=options.scope in facts.recall_scopes,
        refusals=options.refusals,
    )


def extras_changed_events(history: History, options: RequestOptions) -> list[log.SystemChanged | log.ToolsChanged]:
    """Return what has changed of what travels outside the messages."""
    events: list[log.SystemChanged | log.ToolsChanged] = []
    system, scope, known = options.system, options.scope, history.session_state.extras_for(options.scope)
    text = system if isinstance(system, str) else "" if system is None else extras_json("system", system)
    if text != known.system:
        events.append(log.SystemChanged(text=text, scope=scope))
    listed = tuple(dict(tool) for tool in options.tools or ())
    if listed != tuple(dict(tool) for tool in known.tools):
        extras_json("tools", list(listed))
        events.append(log.ToolsChanged(tools=listed, scope=scope))
    return events


def recall_offered_events(history: History, options: RequestOptions) -> list[log.RecallOffered]:
    """Return that an agent has the recall tool now, or has it no more, where that is new."""
    has_it = options.scope in history.session_state.recall_scopes
    if options.has_recall is None or options.has_recall is has_it:
        return []
    return [log.RecallOffered(is_offered=options.has_recall, scope=options.scope)]


def check_usage(usage: Mapping[str, int] | None) -> log.Usage | None:
    """Return what a provider billed, from the fields that a caller knows."""
    if usage is None:
        return None
    if not isinstance(usage, Mapping):
        raise SettingsError("usage", f"must be an object with counts of tokens, not {usage!r:.60}")
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    wrong = [name for name, value in usage.items() if isinstance(value, bool) or not isinstance(value, int)]
    if wrong:
        raise SettingsError(f"usage.{wrong[0]}", f"must be a whole number, not {usage[wrong[0]]!r}")
    return log.Usage(**{name: usage[name] for name in names if name in usage})


MAX_SUMMARY_WAITS = 2
"""How often one request waits for a summary."""


@dataclass(frozen=True, slots=True)
class _MustWait:
    """The request has to wait for a summary."""


MUST_WAIT = _MustWait()


class RequestBuilder:
    """Makes the requests of one session."""

    def __init__(self, session_log: SessionLog, compactor: Compactor, calibrator: UsageCalibrator) -> None:
        self._log = session_log
        self._compactor = compactor
        self._calibrator = calibrator
        self._last_requests: dict[str, SentRequest] = {}
        """By scope, the last request."""
        self._budgets: dict[tuple[str, str | None], Budget] = {}
        """By scope and model, the last one's budget."""
        self._extras_counter = ExtrasCounter()

    @property
    def _policy(self) -> Policy:
        return self._compactor.policy

    async def prepare(self, options: RequestOptions) -> PreparedRequest:
        """Return the next request, recorded."""
        reasons: list[str] = []
        waits = 0
        while True:
            try:
                async with self._log.lock:
                    await self._log.refresh()
                    outcome = await self._attempt(options, reasons, may_wait=waits < MAX_SUMMARY_WAITS)
            except ConcurrentWriteError:
                continue
            if isinstance(outcome, PreparedRequest):
                return outcome
            waits += 1
            await self._compactor.wait()
            if self._log.history.session_state.ready_summary is None:
                # It came to nothing: this request is made as if there were nobody to write summaries.
                options = replace(options, without_summarizer=True)

    @property
    def message_count(self) -> int:
        """How much has been said so far."""
        return len(self._log.history)

    def last_request(self, scope: str) -> SentRequest | None:
        """Return the last request of an agent, if there was one since the session was opened."""
        return self._last_requests.get(scope)

    def forget_scope(self, scope: str) -> None:
        """Let go of the last request of an agent that will make no more."""
        self._last_requests.pop(scope, None)
        self._extras_counter.forget(scope)
        for key in [key for key in self._budgets if key[0] == scope]:
            del self._budgets[key]

    def with_last_budget(self, options: RequestOptions) -> RequestOptions:
        """Return what is wanted, with the budget of the last request to the same model where none is named."""
        budget = self._budgets.get((options.scope, options.model))
        return replace(options, budget=budget) if options.budget is None and budget else options

    def situation(self, options: RequestOptions) -> Situation:
        """Return the circumstances of a request."""
        history, asked_ms = self._log.history, self._log.last_request_ms
        wire = format_named(history.format) if history.format else None
        idle = 0.0 if asked_ms is None else max(0, self._log.clock() - asked_ms) / 1000
        situation = situation_of(history, wire, replace(options, idle_seconds=idle), self._extras_counter)
        written, run = history.session_state.ready_summary, history.session_state.running_compaction
        return replace(
            situation,
            prices=self._compactor.options.prices or situation.prices,
            has_summarizer=self._compactor.has_summarizer and not options.without_summarizer,
            has_ready_summary=written is not None
            and run is not None
            and run.basis == history.change_count
            and run.scope == situation.scope,
        )

    def plan_input(self, options: RequestOptions) -> PlanInput:
        """Return what the rules would look at."""
        return plan_input_of(self._log.history, self._policy, self.situation(options))

    async def _attempt(
        self, options: RequestOptions, reasons: list[str], *, may_wait: bool
    ) -> PreparedRequest | _MustWait:
        history = self._log.history
        if changes := [*extras_changed_events(history, options), *recall_offered_events(history, options)]:
            await self._log.append(*changes)
        await self._compactor.end_stale_run()
        calibration = await self._calibrator.calibration(options.model)
        if not may_wait:
            options = replace(options, without_summarizer=True)

        def situation() -> Situation:
            return replace(self.situation(options), calibration=calibration)

        if self._policy.apply == "inline" and situation().has_ready_summary:
            await self._compactor.commit(situation())
        plan = await self._run_plan(situation, reasons, may_wait=may_wait)
        if plan is None:
            return MUST_WAIT
        plan = replace(plan, reasons=tuple(dict.fromkeys([*reasons, *plan.reasons])))
        request = self._build(plan, options, situation())
        if plan.later:
            await self._compactor.shelve_ready_summary(except_scope=options.scope)
        for step in plan.later:
            if isinstance(step, CompactSpan) and self._compactor.may_start(situation()):
                await self._compactor.start(step, situation(), last_request=self.last_request(options.scope))
        await self._record_request(request, plan, options.model, situation())
        return request

    async def _run_plan(self, situation: Callable[[], Situation], reasons: list[str], *, may_wait: bool) -> Plan | None:
        """Return the plan to send, after the steps of those before it were carried out; None where one has to wait."""
        plan = None
        for plan in plan_rounds(self._log.history, self._policy, situation):
            reasons += plan.reasons
            for step in plan.now:
                if await self._apply_step(step, situation(), "; ".join(plan.reasons), may_wait=may_wait):
                    return None
        return plan

    async def _apply_step(self, step: Step, situation: Situation, reason: str, *, may_wait: bool) -> bool:
        """Carry out a step, or return that there is a summary to be waited for first."""
        if isinstance(step, OffloadOutputs | ReduceTurnsToText):
            outlook = plan_input_of(self._log.history, self._policy, situation)
            await self._log.append(step_event(step, outlook, reason))
        elif isinstance(step, AwaitSummary):
            if not situation.has_ready_summary:
                return may_wait and self._compactor.is_running
            await self._compactor.commit(situation)
        elif step.by == "summary" and situation.has_summarizer:
            if self._log.history.session_state.running_compaction is None:
                await self._compactor.start(step, situation, last_request=self.last_request(situation.scope))
            return may_wait
        else:
            await self._compact_by_rule(step, situation, reason)
        return False

    async def _compact_by_rule(self, step: CompactSpan, situation: Situation, reason: str) -> None:
        rule = self._policy.fold or self._policy.emergency
        if rule is not None:
            outlook = plan_input_of(self._log.history, self._policy, situation)
            await self._compactor.record_completed(
                replace(compaction_completed_event(step, rule, outlook), reason=reason)
            )

    def _build(self, plan: Plan, options: RequestOptions, situation: Situation) -> PreparedRequest:
        """Return the request of a plan, as it will go out, and remember it."""
        history, system, tools = self._log.history, options.system, options.tools
        wire = format_named(history.message_format)
        request = replace(
            build_request(plan, history, situation, wire, self._log.message_hashes), system=system, tools=tools
        )
        self._budgets[situation.scope, options.model] = situation.budget
        self._last_requests[situation.scope] = SentRequest(
            prefix=CachedPrefix(
                format=wire.name,
                messages=request.messages,
                system=system,
                tools=tools,
                positions=request.positions,
                scope=situation.scope,
            ),
            model=options.model,
            tokens=request.tokens.total,
            window=situation.window or self._policy.unknown_window,
            whole_positions=frozenset(request.receipt.kept),
            change_count=history.change_count,
        )
        return request

    async def _record_request(
        self, request: PreparedRequest, plan: Plan, model: str | None, situation: Situation
    ) -> None:
        """Record a request."""
        keeper, history = self._log, self._log.history
        events: list[log.Event] = [usage_measured_event(plan, situation)]
        if plan.view.truncated is not None:
            events.append(plan.view.truncated)
        events.append(request_prepared_event(request, plan, history, self._policy, situation))
        await keeper.append(*events)
        if plan.view.is_emergency:
            self._compactor.observers.start_memory_update()
        if situation.scope == log.MAIN:
            # A client that sends its list again was answered by the main agent.
            keeper.last_sent = list(zip(request.messages, request.hashes, request.positions, strict=True))
        self._calibrator.record_request(model, request.tokens.counted)
