"""Makes the next request: plan, carry out the steps, plan again, fit, build, record.

If a policy waits for a summary, it waits without the session's lock. Messages that arrive meanwhile are recorded at
once, and the request includes them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from typing import NamedTuple, TypeAlias, cast

from holdfast.core.conversation.cuts import uncuttable_span
from holdfast.core.conversation.json_values import copied_json, dump_json
from holdfast.core.conversation.tokens import Calibration, Counter
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.history.projection import Projection
from holdfast.core.history.session_state import RequestExtras
from holdfast.core.planning.changes import compaction_completed_event, step_event
from holdfast.core.planning.plan import (
    MAX_PLAN_ROUNDS,
    after_open_round,
    has_open_round,
    make_plan,
    plan_ahead,
    plan_input_of,
    usage_measured_event,
    view_of,
)
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.receipt import View
from holdfast.core.planning.request_stages import NO_PROCESSORS, RequestProcessors
from holdfast.core.planning.situation import Budget, Situation
from holdfast.core.planning.steps import (
    AwaitSummary,
    CompactSpan,
    OffloadOutputs,
    Plan,
    PlanInput,
    ReduceTurnsToText,
    Step,
)
from holdfast.counters.models import binds_thinking, budget_for, find_model, prices_of_model
from holdfast.counters.vocabularies import counter_for
from holdfast.dataclass import dataclass
from holdfast.errors import ConcurrentWriteError, HoldfastError, NotInMemoryError, SettingsError, StoreError
from holdfast.models.base import CachedPrefix
from holdfast.session.arguments import extras_json
from holdfast.session.calibration import ServedModel, UsageCalibrator
from holdfast.session.compaction.compactor import Compactor
from holdfast.session.compaction.summarizer import SentRequest
from holdfast.session.heavy_work import (
    MAX_INLINE_CHARS,
    MAX_INLINE_MESSAGES,
    MAX_INLINE_TOKENS,
    are_long,
    count_in_thread,
    count_messages,
    plan_in_thread,
    record_in_thread,
)
from holdfast.session.log.event_log import SessionLog
from holdfast.session.log.sent_body import BodyPiece
from holdfast.session.request import (
    EncodedView,
    ViewPieces,
    common_length,
    encode_extras,
    encode_view,
    request_of,
    request_prepared_event,
)
from holdfast.session.thinking import bind_thinking
from holdfast.wire.request import Request

EncodeBody: TypeAlias = Callable[[Request], bytes]


@dataclass(slots=True, kw_only=True)
class RequestOptions:
    """The caller's options for a request. Nobody changes them."""

    budget: int | Budget | None = None
    model: str | None = None
    endpoint: str | None = None
    """The address that serves the model; None if the caller did not name it."""
    system: object = None
    """The system text, or a provider's own form of it."""
    tools: Sequence[Mapping[str, object]] | None = None
    scope: str = log.MAIN
    refusals: int = 0
    """How often the provider has rejected it as too long."""
    lowered_limits: int = 0
    """How many of these rejections named a lower limit than those before."""
    without_summarizer: bool = False
    """Whether to plan as if no model could write summaries."""
    is_requested: bool = False
    """Whether the user or the agent asks for a compaction, for which another model may write the summary."""
    has_recall: bool | None = None
    """Whether the model has the recall tool; None keeps the last value."""
    encode_body: EncodeBody | None = None
    """Returns the bytes that will be sent for a request, which are recorded with it."""
    compacts: bool = True
    """Whether the context may be shortened for it."""
    shares_messages: bool = False
    """Whether its messages are those of the log and not copies: the caller edits none."""
    extras: RequestExtras | None = None
    """The system text and the tools to count, if they are not those of the last request."""
    served_model: ServedModel = field(init=False)
    """The model at its endpoint."""

    def __post_init__(self) -> None:
        self.served_model = ServedModel(self.model, self.endpoint)

    @property
    def has_users_budget(self) -> bool:
        """Whether the user named the budget, which then wins over what is learned about the model."""
        budget = self.budget
        return budget is not None and (not isinstance(budget, Budget) or budget.source == "user")


class ExtrasCounter:
    """Counts the tokens of system text and tools, and encodes them; caches both until they change."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, str], tuple[RequestExtras, int, int]] = {}
        self._encoded: dict[str, tuple[RequestExtras, bytes]] = {}

    def tokens(self, scope: str, extras: RequestExtras, counter: Counter) -> tuple[int, int]:
        """Return the token counts of an agent's system text and of its tools."""
        known = self._counted.get((scope, counter.name))
        if known is None or known[0].system != extras.system or known[0].tools != extras.tools:
            system = counter.count(extras.system) if extras.system else 0
            tools = counter.count(dump_json([dict(tool) for tool in extras.tools])) if extras.tools else 0
            known = self._counted[scope, counter.name] = extras, system, tools
        return known[1:]

    def encoded(self, scope: str, extras: RequestExtras) -> bytes:
        """Return an agent's system text and tools as the payload's hash begins with them."""
        known = self._encoded.get(scope)
        if known is None or known[0].system is not extras.system or known[0].tools is not extras.tools:
            known = self._encoded[scope] = extras, encode_extras(extras)
        return known[1]

    def forget(self, scope: str) -> None:
        """Discard what is known of an agent that will make no more requests."""
        self._encoded.pop(scope, None)
        self._counted = {key: known for key, known in self._counted.items() if key[0] != scope}


def _changed_options(history: History, options: RequestOptions) -> list[log.Event]:
    """Return events for changes of the system text, of the tools, and of the offer of the recall tool."""
    events: list[log.Event] = []
    system, scope, known = options.system, options.scope, history.session_state.extras_for(options.scope)
    text = system if isinstance(system, str) else "" if system is None else extras_json("system", system)
    if text != known.system:
        events.append(log.SystemChanged(text=text, scope=scope))
    if tuple(options.tools or ()) != known.tools:  # mostly they are the same, which a copy of each need not tell
        tools = tuple(map(dict, options.tools or ()))
        if tools != tuple(map(dict, known.tools)):
            extras_json("tools", list(tools))
            events.append(log.ToolsChanged(tools=copied_json(tools), scope=scope))
    has_recall = scope in history.session_state.recall_scopes
    if options.has_recall is not None and options.has_recall is not has_recall:
        events.append(log.RecallOffered(is_offered=options.has_recall, scope=scope))
    return events


LEDGER_SHARE, LEDGER_TAIL_SHARE = 0.5, 0.1
"""The ledger is extended once a request fills the first share of the window, except by the newest messages.

These are as many as fill the second share.
"""
MAX_LEDGER_CHARS = 8_000
"""About how much of the messages the ledger reads at a time, which takes a few milliseconds.

It does so with each recorded message, or in `read_ahead`.
"""
UNLIMITED_TOKENS = 10**9
NO_BODY: tuple[tuple[BodyPiece, ...], str | None] = (), None
MAX_SUMMARY_WAITS = 2
"""How often one request waits for a summary."""


class LastPrepared(NamedTuple):
    """A request, and the options it was made from."""

    options: RequestOptions
    request: Request
    message_count: int
    """How many messages had been recorded by then."""


class RequestBuilder:
    """Makes the requests of one session."""

    def __init__(
        self,
        session_log: SessionLog,
        compactor: Compactor,
        calibrator: UsageCalibrator,
        processors: RequestProcessors = NO_PROCESSORS,
    ) -> None:
        self._log = session_log
        self._compactor = compactor
        self._calibrator = calibrator
        self.processors = processors
        """The user's own stages of each request."""
        self._last_requests: dict[str, SentRequest] = {}
        self._restarts = 0
        """The `restarts` of the log when these were sent."""
        self._encoded: dict[str, EncodedView] = {}
        """By scope, the entries of the last request as they were sent."""
        self._copies: dict[str, tuple[list[object], list[object]]] = {}
        """By scope, the messages of the last request, and the copies that its caller got."""
        self._pieces: dict[str, ViewPieces] = {}
        self.last_prepared: dict[str, LastPrepared] = {}
        """By scope, the last request that no rejection made smaller, until the provider answers it."""
        self._budgets: dict[tuple[str, str | None], Budget] = {}
        """By scope and model, the budget of the last request that no rejection made smaller."""
        self.prompt_limits: dict[str | None, int] = {}
        """By model, the largest prompt that the provider accepts, if the caller has named it."""
        self._are_new_long = False
        """Whether many or long messages were not in the last request, so that a thread prepares this one."""
        self._extras_counter = ExtrasCounter()
        self._resolved_budget: tuple[tuple[object, ...], Budget] | None = None
        """The budget of the last request, with what it was resolved from."""

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._compactor.policy

    async def prepare(self, options: RequestOptions) -> Request:
        """Return the next request, recorded, and within the limit that the provider has reported before."""
        original = options
        reasons: list[str] = []
        if not options.refusals and (limit := await self._calibrator.provider_limit(options.served_model)) is not None:
            options = _limited_options(options, self._budget(options), limit, reasons)
        waits = 0
        while True:
            request = await self._attempt_until_current(options, reasons, may_wait=waits < MAX_SUMMARY_WAITS)
            if request is not None:
                if not options.refusals:
                    self.last_prepared[options.scope] = LastPrepared(original, request, len(self._log.history))
                return request
            waits += 1
            await self._compactor.wait()
            if self._log.history.session_state.ready_summary is None:
                # There is no summary, so plan this request as if no model could write one.
                options = replace(options, without_summarizer=True)

    async def _attempt_until_current(
        self, options: RequestOptions, reasons: list[str], *, may_wait: bool
    ) -> Request | None:
        """Return the result of an attempt on a history that no other writer has changed meanwhile.

        The first attempt does not ask the store for news, because what it records fails if there are any. If it raises
        an error, the decision is made again on a refreshed history.
        """
        is_refreshed, known_reasons = False, len(reasons)
        while True:
            try:
                async with self._log.lock:
                    if is_refreshed or not self._log.is_loaded:
                        await self._log.refresh()
                    if self._compactor.is_policy_by_model:
                        self._compactor.use_model(options.model)
                    await self._read_new_messages(options)
                    return await self._attempt(options, reasons, may_wait=may_wait)
            except (StoreError, NotInMemoryError):
                raise
            except HoldfastError as error:
                if self._log.must_begin_again or (is_refreshed and not isinstance(error, ConcurrentWriteError)):
                    raise
                is_refreshed = True
                del reasons[known_reasons:]

    async def _read_new_messages(self, options: RequestOptions) -> None:
        """Count new messages, and put them into the projection if they are many or long. Caller must hold the lock."""
        history, counter, pieces = self._log.history, counter_for(options.model), self._pieces.get(options.scope)
        projection, known = pieces.projection if pieces else None, 0
        # After a change of the context, or for another model, a projection is made anew.
        if projection is not None and projection.counter is counter and projection.context.version is history.version:
            known = projection.context.length
        self._are_new_long = history.entries.length - known > MAX_INLINE_MESSAGES or self._log.long_until > known
        if self._are_new_long:
            uncounted = await plan_in_thread(partial(history.uncounted_messages, counter, options.scope))
        else:
            uncounted = history.uncounted_messages(counter, options.scope)
        if uncounted:
            await count_messages(uncounted, counter, is_long=self._are_new_long)
        if self._are_new_long:
            await plan_in_thread(partial(history.projection, counter, options.scope))
        if not known:  # the first request, or one for another model
            await self._count_extras(options)

    async def _count_extras(self, options: RequestOptions) -> None:
        """Count system text and tools, in a thread if they are long."""
        counter, scope = counter_for(options.model), options.scope
        extras = options.extras or self._log.history.session_state.extras_for(scope)
        if are_long([extras.system, *extras.tools]):
            await count_in_thread(partial(self._extras_counter.tokens, scope, extras, counter))

    @property
    def last_requests(self) -> dict[str, SentRequest]:
        """By scope, the last request since the session was opened; none that may hold a scrubbed secret."""
        if self._restarts != self._log.restarts:
            self._restarts = self._log.restarts
            for scope in [*self._last_requests]:
                self.forget_scope(scope)
        return self._last_requests

    def forget_scope(self, scope: str) -> None:
        """Forget the last request of an agent that will make no more."""
        self._last_requests.pop(scope, None)
        self._encoded.pop(scope, None)
        self._copies.pop(scope, None)
        self._pieces.pop(scope, None)
        self._log.sent_bodies.forget(scope)
        self._extras_counter.forget(scope)
        self._budgets = {key: budget for key, budget in self._budgets.items() if key[0] != scope}

    def with_last_budget(self, options: RequestOptions) -> RequestOptions:
        """Return the options; if they name no budget, with the budget of the last request to the same model."""
        budget = self._budgets.get((options.scope, options.model))
        return replace(options, budget=budget) if options.budget is None and budget else options

    def situation(self, options: RequestOptions, calibration: Calibration | None = None) -> Situation:
        """Return the situation of a request, from the history, from the model table and from what bills have taught."""
        history, model = self._log.history, find_model(options.model)
        state, message_format = history.session_state, history.message_format
        counter = counter_for(options.model)
        extras = options.extras or state.extras_for(options.scope)
        system_tokens, tools_tokens = self._extras_counter.tokens(options.scope, extras, counter)
        budget = self._budget(options)
        asked_ms, run = self._log.last_request_ms, state.running_compaction
        return Situation(
            budget=budget,
            counter=counter,
            calibration=calibration or self._calibrator.known_calibration(options.served_model),
            system_tokens=system_tokens,
            tools_tokens=tools_tokens,
            pins=state.pins,
            batching=message_format.batching,
            max_text_chars=message_format.max_text_chars,
            max_images=message_format.max_images,
            binds_thinking=binds_thinking(options.model, message_format.name),
            scope=options.scope,
            window=budget.window(model.max_input_tokens if model else None),
            prices=self._compactor.options.prices or prices_of_model(options.model),
            idle_seconds=0.0 if asked_ms is None else max(0, self._log.clock() - asked_ms) / 1000,
            has_summarizer=not options.without_summarizer
            and (self._compactor.has_summarizer if options.is_requested else self._compactor.has_automatic_summarizer),
            has_ready_summary=state.ready_summary is not None
            and run is not None
            and run.basis == history.change_count
            and run.scope == options.scope,
            has_recall=options.scope in state.recall_scopes,
            refusals=options.refusals,
            lowered_limits=options.lowered_limits,
        )

    async def read_calibration(self, options: RequestOptions) -> None:
        """Read what earlier sessions have learned about a model, so that `situation` knows it."""
        await self._calibrator.calibration(options.served_model)

    def set_prompt_limit(self, model: str | None, max_prompt_tokens: int | None) -> None:
        """Keep the requests to a model within the largest prompt that its provider accepts; None changes nothing."""
        if max_prompt_tokens is not None:
            # A limit that no budget can have is refused before it is kept: it would fail every later request.
            self.prompt_limits[model] = Budget.resolve(max_prompt_tokens=max_prompt_tokens).tokens

    def _budget(self, options: RequestOptions) -> Budget:
        model, given, limit = options.model, options.budget, self.prompt_limits.get(options.model)
        key = model, given, type(given), limit, self._compactor.policy.unknown_window
        if self._resolved_budget is None or self._resolved_budget[0] != key:
            budget = budget_for(model, given, max_prompt_tokens=limit, unknown_window=key[-1])
            self._resolved_budget = key, budget
        return self._resolved_budget[1]

    def plan_input(self, options: RequestOptions, calibration: Calibration | None = None) -> PlanInput:
        """Return the input of the planning rules."""
        return plan_input_of(self._log.history, self._compactor.policy, self.situation(options, calibration))

    async def current_plan_input(self, options: RequestOptions, calibration: Calibration | None = None) -> PlanInput:
        """Return the input of the planning rules for what would be sent next. Caller must hold the lock."""
        await self._read_new_messages(options)
        return self.plan_input(options, calibration)

    async def measure_usage(self, options: RequestOptions) -> log.UsageMeasured:
        """Return how full the context is with the request that would be sent next. Caller must hold the lock."""
        plan_input = await self.current_plan_input(options)
        make_view = partial(view_of, plan_input, self._compactor.policy, self.processors)
        view = await plan_in_thread(make_view) if self._is_planned_in_thread(plan_input) else make_view()
        return usage_measured_event(view, view.token_count(plan_input.situation), plan_input.situation)

    async def _attempt(self, options: RequestOptions, reasons: list[str], *, may_wait: bool) -> Request | None:
        """Return the request, or None if it must first wait for a summary. Caller must hold the lock."""
        policy = self._compactor.policy
        if changes := _changed_options(self._log.history, options):
            await self._log.append(*changes)
            await self._count_extras(options)
        if self._log.history.session_state.running_compaction is not None:
            await self._compactor.end_stale_run()
        calibration = await self._calibrator.calibration(options.served_model)
        options = options if may_wait else replace(options, without_summarizer=True)
        plan_input = self.plan_input(options, calibration)
        if not options.compacts:
            return await self._finish_as_it_is(plan_input, options)
        if policy.apply == "inline" and plan_input.situation.has_ready_summary:
            await self._compactor.commit(plan_input.situation)
            plan_input = self.plan_input(options, calibration)
        rounds, before = 0, None
        while True:
            # Make a view before the steps too: if none is possible, this raises before anything is recorded.
            plan, view = await self._plan(plan_input)
            before = before or view
            if plan.now and has_open_round(view, plan_input, policy):
                plan = after_open_round(plan)
            reasons += plan.reasons
            rounds += 1
            if not plan.now or rounds == MAX_PLAN_ROUNDS:
                break
            for step in plan.now:
                reason = "; ".join(dict.fromkeys((*plan.reasons, *view.reasons)))
                if await self._apply_step(step, plan_input, reason, may_wait=may_wait):
                    return None
                plan_input = self.plan_input(options, calibration)
        view = view if view is before else view.after_steps(before)
        return await self._finish(plan, view, plan_input, options, tuple(dict.fromkeys((*reasons, *view.reasons))))

    async def _finish_as_it_is(self, plan_input: PlanInput, options: RequestOptions) -> Request:
        """Return a request that shortens nothing, with the reasons why the policy would do so now."""
        plan = make_plan(plan_input, self._compactor.policy)
        is_due = bool(plan.now or plan.later)
        situation = replace(plan_input.situation, budget=Budget(UNLIMITED_TOKENS, source="user"), policy_limit=None)
        view = view_of(replace(plan_input, situation=situation), self._compactor.policy.without_rules())
        due = "; ".join(plan.reasons) or "the threshold of the policy is reached" if is_due else ""
        return replace(await self._finish(Plan(), view, plan_input, options, view.reasons), compaction_due=due)

    async def _plan(self, plan_input: PlanInput) -> tuple[Plan, View]:
        """Return the plan and the view of a request; if the view has to be fitted, both are made in a thread."""
        policy, processors = self._compactor.policy, self.processors
        if not self._is_planned_in_thread(plan_input):
            return make_plan(plan_input, policy), view_of(plan_input, policy, processors)
        return await plan_in_thread(lambda: (make_plan(plan_input, policy), view_of(plan_input, policy, processors)))

    def _is_planned_in_thread(self, plan_input: PlanInput) -> bool:
        """Return whether a view takes long; the user's functions run where the user calls us, however long it takes."""
        is_long = self._are_new_long or (
            plan_input.tokens > plan_input.situation.limit and _is_long_to_plan(plan_input)
        )
        return is_long and self.processors == NO_PROCESSORS

    def is_half_full(self, scope: str) -> bool:
        """Return whether the last request filled so much of the window that a compaction comes near."""
        last = self.last_requests.get(scope)
        return last is not None and last.tokens >= LEDGER_SHARE * last.window

    async def extend_ledger(self, scope: str) -> None:
        """Read some messages for the ledger of the next compaction, so that it need not read them all at once.

        Caller must hold the lock, and there must have been a request.
        """
        last, history = self.last_requests[scope], self._log.history
        counter = counter_for(last.model)
        rule = self._compactor.policy.compaction
        if rule is None or not rule.has_ledger or history.uncounted_messages(counter, scope):
            return
        projection = history.projection(counter, scope)
        last_exchange = uncuttable_span(projection, len(projection) - 1)[0] if len(projection) else 0
        stop = projection.position_at(min(last_exchange, projection.tail_start(int(LEDGER_TAIL_SHARE * last.window))))
        with suppress(NotInMemoryError):
            stop, chars = history.next_ledger_part(scope, stop, MAX_LEDGER_CHARS)
            if chars > MAX_INLINE_CHARS:
                await record_in_thread(lambda: history.ledger(scope, stop))
            elif chars:
                history.ledger(scope, stop)

    async def compact_ahead(self, scope: str, endpoint: str | None) -> bool:
        """Compact now if the next request would have to, and return whether that was done.

        Caller must hold the lock. Raises `ConcurrentWriteError` if another writer was first: then it is too late.
        """
        last, policy = self.last_requests.get(scope), self._compactor.policy
        rule = policy.compaction
        if last is None or rule is None or not rule.compacts_ahead:
            return False
        options = self.with_last_budget(RequestOptions(model=last.model, endpoint=endpoint, scope=scope))
        calibration = await self._calibrator.calibration(options.served_model)
        plan_input = await self.current_plan_input(options, calibration)
        if (planned := plan_ahead(plan_input, policy)) is None:
            return False
        ahead, step, reason = planned
        made = partial(compaction_completed_event, step, rule, ahead)
        event = await plan_in_thread(made) if _is_long_to_plan(ahead) else made()
        if event.success:
            await self._compactor.observers.record_completed(replace(event, reason=reason))
        return event.success

    async def _apply_step(self, step: Step, plan_input: PlanInput, reason: str, *, may_wait: bool) -> bool:
        """Carry out a step, and return whether the request must first wait for a summary."""
        situation, rule = plan_input.situation, self._compactor.policy.compaction or self._compactor.policy.emergency
        if isinstance(step, OffloadOutputs | ReduceTurnsToText):
            await self._log.append(step_event(step, plan_input, reason))
        elif isinstance(step, AwaitSummary):
            if not situation.has_ready_summary:
                return may_wait and self._compactor.is_running
            await self._compactor.commit(situation)
        elif step.by == "summary" and situation.has_summarizer:
            if self._log.history.session_state.running_compaction is None:
                await self._compactor.start(step, plan_input, last_request=self.last_requests.get(situation.scope))
            return may_wait
        elif rule is not None:
            made = partial(compaction_completed_event, step, rule, plan_input)
            event = await plan_in_thread(made) if _is_long_to_plan(plan_input) else made()
            await self._compactor.observers.record_completed(replace(event, reason=reason), with_next=True)
        return False

    async def _finish(
        self, plan: Plan, view: View, plan_input: PlanInput, options: RequestOptions, reasons: tuple[str, ...]
    ) -> Request:
        """Return the recorded request of a view; starts the steps that the plan leaves to the background."""
        situation, scope = plan_input.situation, options.scope
        prefix: dict[str, str] = {}
        if situation.binds_thinking:
            extras = {"system": options.system, "tools": options.tools}
            bind = partial(bind_thinking, view, plan_input, self._log.prefix_hashes, **extras)
            view, prefix_hash, extras_hash = await plan_in_thread(bind) if self._are_new_long else bind()
            prefix = {"prefix_hash": prefix_hash, "extras_hash": extras_hash}
            reasons = tuple(dict.fromkeys((*reasons, *view.reasons)))
        # Then the view is the projection, which only grows, so that only what is new is encoded and described.
        is_whole = view.entries is plan_input.entries and self._compactor.policy.outputs is None
        projection, source = plan_input.projection, plan_input.projection if is_whole else None
        request = (
            await plan_in_thread(self._request_of, view, source, plan_input, options, reasons)
            if self._are_new_long
            else self._request_of(view, source, plan_input, options, reasons)
        )
        messages = request.messages[:]  # at the end, the caller gets copies of them
        last = self.last_requests.get(scope)
        system, tools = _copied_extras(last, options)
        if not options.refusals:
            self._budgets[scope, options.model] = situation.budget
        sent = SentRequest(
            prefix=CachedPrefix(
                format=self._log.history.message_format.name,
                messages=messages,
                system=system,
                tools=tools,
                positions=request.positions,
                scope=scope,
            ),
            model=options.model,
            tokens=request.receipt.tokens.total,
            window=plan_input.window,
            whole_positions=request.receipt.kept,
            change_count=self._log.history.change_count,
        )
        prefix_break = None if last is None else self._prefix_break(last, sent, request.receipt.reasons)
        if plan.later:
            await self._compactor.shelve_ready_summary(except_scope=scope)
        for step in plan.later:
            if isinstance(step, CompactSpan) and self._compactor.may_start(plan_input):
                await self._compactor.start(step, plan_input, last_request=sent)
        pieces = self._pieces.get(scope)
        if pieces is None or pieces.projection is not projection:
            pieces = self._pieces[scope] = ViewPieces(projection)
        event = request_prepared_event(
            request,
            view,
            plan_input,
            self._compactor.policy_hash,
            pieces.all_visible(view) if is_whole else pieces.extend(view, messages),
            body=NO_BODY
            if options.encode_body is None
            else await self._body_pieces(request, options.encode_body, scope),
            prefix_break=prefix_break,
            **prefix,
        )
        measured = usage_measured_event(view, request.receipt.tokens, situation)
        events = (measured, event) if view.truncated is None else (measured, view.truncated, event)
        await self._log.append(*events)
        self.last_requests[scope] = sent
        if view.is_emergency:
            self._compactor.observers.start_memory_update()
        if scope == log.MAIN:
            # `sync` compares a client's list with the last request of the main agent, the only one that clients see.
            self._log.last_sent = messages, request.hashes, request.positions
            self._log.last_sent_length = projection.context.length
        self._calibrator.record_request(options.served_model, request.receipt.tokens.counted, scope)
        if not options.shares_messages:
            request.messages[:] = (
                await plan_in_thread(self._copied_messages, scope, messages)
                if self._are_new_long
                else self._copied_messages(scope, messages)
            )
        return request

    def _request_of(
        self,
        view: View,
        source: Projection | None,
        plan_input: PlanInput,
        options: RequestOptions,
        reasons: tuple[str, ...],
    ) -> Request:
        """Return the request of a view, which has a list of its own; `source` is that of `encode_view`."""
        scope, history, hashes = options.scope, self._log.history, self._log.message_hashes
        encoded = encode_view(view.entries, source, history, hashes, self._encoded.get(scope))
        self._encoded[scope] = encoded
        return request_of(
            view,
            encoded,
            plan_input,
            reasons=reasons,
            encoded_extras=self._extras_counter.encoded(scope, history.session_state.extras_for(scope)),
            system=options.system,
            tools=options.tools,
        )

    def _copied_messages(self, scope: str, messages: list[object]) -> list[object]:
        """Return the messages of a request as its caller may edit them, such as to mark a cache.

        An edit reaches neither the log nor a later request. A copy that nobody has edited is used again.
        """
        known, copies = self._copies.get(scope, ([], []))
        same = common_length(messages, known)
        del copies[same:]
        if copies != messages[:same]:
            for index, message in enumerate(messages[:same]):
                if copies[index] != message:
                    copies[index] = copied_json(message)
        copies += map(copied_json, messages[same:])
        self._copies[scope] = messages, copies
        return copies

    async def _body_pieces(
        self, request: Request, encode_body: EncodeBody, scope: str
    ) -> tuple[tuple[BodyPiece, ...], str | None]:
        """Return the bytes that will be sent for a request, in pieces, and their hash."""
        native_at = self._log.history.entries.native
        body = cast("object", encode_body(request) if callable(encode_body) else encode_body)
        if not isinstance(body, bytes):
            problem = (
                f"must be a function that returns the bytes of the request; there is a value of {type(body).__name__}"
            )
            raise SettingsError("encode_body", problem)
        divide = partial(self._log.sent_bodies.pieces, scope, body, request.positions, native_at)
        return (await plan_in_thread(divide) if self._are_new_long else divide()) or NO_BODY

    def _prefix_break(
        self, last: SentRequest, sent: SentRequest, receipt_reasons: Sequence[str]
    ) -> log.PrefixBreak | None:
        """Return why a request does not begin with the agent's last one; None if it does."""
        known, new = last.prefix, sent.prefix
        before, after = known.messages, new.messages
        are_kept = last.model == sent.model, known.system == new.system, known.tools == new.tools
        if not all(are_kept):
            names = "the model", "the system text", "the tools"
            changed = [name for name, is_kept in zip(names, are_kept, strict=True) if not is_kept]
            return log.PrefixBreak(at=0, reason=f"{' and '.join(changed)} changed")
        if before == after[: len(before)]:
            return None
        same = next(index for index, message in enumerate(before) if after[index : index + 1] != [message])
        history, reasons = self._log.history, [*receipt_reasons]
        if history.change_count != last.change_count:
            kind = "a compaction" if history.is_last_change_a_compaction else "a change of the context"
            reasons.insert(0, f"{kind} since the last request")
        return log.PrefixBreak(at=same, reason="; ".join(reasons) or "earlier messages were repaired or shortened anew")


def _is_long_to_plan(plan_input: PlanInput) -> bool:
    return plan_input.tokens > MAX_INLINE_TOKENS or plan_input.projection.text_bytes > MAX_INLINE_CHARS


def _copied_extras(
    last: SentRequest | None, options: RequestOptions
) -> tuple[object, Sequence[Mapping[str, object]] | None]:
    """Return system text and tools as they are now: a caller may edit its own lists before the next request.

    If they are those of the last request, its own values are returned, which take no time to compare.
    """
    if last is not None and (last.prefix.system, last.prefix.tools) == (options.system, options.tools):
        return last.prefix.system, last.prefix.tools
    return copied_json(options.system), copied_json(options.tools)


def _limited_options(
    options: RequestOptions, budget: Budget, provider_limit: int, reasons: list[str]
) -> RequestOptions:
    """Return the options with a budget within the limit that a provider has reported.

    A budget that the user named stays; if it exceeds the limit, that becomes one of the `reasons` on the receipt.
    """
    if options.has_users_budget:
        if budget.tokens > provider_limit:
            reasons.append(f"the provider has reported a limit of {provider_limit:,} tokens, below the budget")
        return options
    most = budget_for(None, provider_window=provider_limit).tokens
    return (
        options if budget.tokens <= most else replace(options, budget=replace(budget, tokens=most, source="provider"))
    )
