"""Plans the next request: which steps change the context, and which view is sent.

`make_plan` asks the rules of a policy for steps. The session carries them out, records each as an event, and plans
again. `view_of` returns the messages that the model will see. Both are pure: the same input gives the same result.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from holdfast.core.conversation.messages import Entry, Message, Opaque, Part, Thinking, ToolCall
from holdfast.core.conversation.repair import (
    is_valid_history,
    repair_entries,
    with_placed_system_text,
    without_lost_reasoning,
)
from holdfast.core.conversation.shorten import count_all_media
from holdfast.core.conversation.tokens import REPLY_OVERHEAD, TokenCount, message_bytes, message_tokens
from holdfast.core.history.events import MAIN, RequestTruncated, TokenBreakdown, UsageMeasured
from holdfast.core.history.history import History
from holdfast.core.planning.fit import are_same_messages, fit_view
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.receipt import View
from holdfast.core.planning.request_stages import NO_PROCESSORS, RequestProcessor, RequestProcessors, processed_entries
from holdfast.core.planning.rules.cowagent import EMERGENCY_REASON
from holdfast.core.planning.rules.truncator import ORPHANS_REASON
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import NO_STEPS, CompactSpan, Plan, PlanInput, Step
from holdfast.errors import PendingToolCallsError, SettingsError

MAX_FAILURES, MESSAGES_AFTER_FAILURES = 3, 20
"""After the first number of failures in a row, summaries pause until the second number of messages was recorded."""
MAX_PLAN_ROUNDS = 3
"""The most plans for one request; the steps of the last plan are not carried out."""
NEXT_PROMPT_FACTOR = 1.125
"""How much longer than the last prompt the next one may be without a compaction in its request."""

OPEN_ROUND_REASON = "a compaction waits until the running tool round ends, because the round's thinking would be lost"


def plan_input_of(history: History, policy: Policy, situation: Situation) -> PlanInput:
    """Return the input of the rules of a policy."""
    window = situation.window or policy.unknown_window
    is_interrupted = situation.is_interrupted or history.was_interrupted(situation.scope)
    pins, limit = situation.pins, situation.policy_limit
    if pins is not history.session_state.pins:
        pins |= history.session_state.pins
    if policy.compaction:
        limit = policy.compaction.request_limit(window)
    if (is_interrupted, pins, limit) != (situation.is_interrupted, situation.pins, situation.policy_limit):
        situation = replace(situation, is_interrupted=is_interrupted, pins=pins, policy_limit=limit)
    projection = history.projection(situation.counter, situation.scope)
    entries, tokens = projection.entries[:], projection.tokens
    if policy.outputs is not None:
        has_recall, counter = projection.context.has_recall, situation.counter
        entries = policy.outputs.apply(projection.entries, situation.pins, keep_recall_answers=has_recall)
        for old, new in zip(projection.entries, entries, strict=True):
            if old is not new:
                tokens += sum(message_tokens(new.message, counter)) - sum(message_tokens(old.message, counter))
    return PlanInput(history, projection, situation, window, entries, tokens)


def make_plan(plan_input: PlanInput, policy: Policy) -> Plan:
    """Return the steps of the first rule that proposes any; without a summary if summaries pause after failures."""
    plan = _first_plan(plan_input, policy)
    if plan is NO_STEPS:
        return plan
    steps = (*plan.now, *plan.later)
    if not plan_input.history.session_state.compaction_failures or not any(
        _failed_before(step, plan_input) for step in steps
    ):
        return plan
    if plan_input.situation.has_summarizer and any(_needs_summary(step) for step in steps):
        plan_input = replace(plan_input, situation=replace(plan_input.situation, has_summarizer=False))
        plan = _first_plan(plan_input, policy)
    now, later = (
        tuple(step for step in steps if not _failed_before(step, plan_input)) for steps in (plan.now, plan.later)
    )
    return Plan(
        now, later, (*plan.reasons, "a compaction of these messages failed before, so it is not tried again yet")
    )


def plan_ahead(plan_input: PlanInput, policy: Policy) -> tuple[PlanInput, CompactSpan, str] | None:
    """Return the compaction that the next request would need, with the input for it and why; None if there is none.

    The next prompt may be a little longer than the last one. Nothing is compacted in the middle of a turn, where a
    model writes the summaries, and by a rule that decides with each request.
    """
    rule, projection, situation = policy.compaction, plan_input.projection, plan_input.situation
    if rule is None or not rule.compacts_ahead or situation.has_summarizer or not len(projection):
        return None
    last, room = projection[-1], int(NEXT_PROMPT_FACTOR * plan_input.prompt_tokens)
    budget, is_over = situation.budget, last.role == "assistant" and not last.outline.call_ids
    if not is_over or not 0 < room < budget.tokens:
        return None
    smaller = replace(situation, budget=replace(budget, tokens=budget.tokens - room))
    ahead = replace(plan_input, situation=smaller)
    plan = make_plan(ahead, policy)
    if len(plan.now) != 1 or not isinstance(step := plan.now[0], CompactSpan) or step.by != "digest":
        return None
    why = f"ahead of the next request, with room for a prompt like the last one ({room:,} tokens)"
    return ahead, step, f"{why}: {'; '.join(plan.reasons)}"


def _first_plan(plan_input: PlanInput, policy: Policy) -> Plan:
    """Return the plan of the first rule that proposes one: cheap rules come first, and only one changes the context."""
    emergency = policy.emergency if plan_input.situation.refusals else None
    for rule in (emergency, policy.offload, policy.compaction):
        plan: object = rule.propose(plan_input) if rule else NO_STEPS
        if not isinstance(plan, Plan):
            problem = f"propose of {type(rule).__name__} must return a Plan, not {plan!r:.60}"
            raise SettingsError("policy", problem)
        if plan is not NO_STEPS:
            return plan
    return NO_STEPS


def _failed_before(step: Step, plan_input: PlanInput) -> bool:
    """Return whether a step must not run because it failed before, or because summaries pause after failures."""
    state = plan_input.history.session_state
    if not isinstance(step, CompactSpan) or not state.compaction_failures:
        return False
    is_pausing = (
        state.compaction_failures >= MAX_FAILURES
        and len(plan_input.history) - state.failed_at < MESSAGES_AFTER_FAILURES
    )
    if _needs_summary(step):
        return is_pausing or step.span.stop <= state.failed_stop
    # A rule that could not compact a span fails again; if a model failed, a rule may still succeed.
    return step.span.stop <= state.failed_stop and state.failed_by != "summary"


def _needs_summary(step: Step) -> bool:
    return isinstance(step, CompactSpan) and step.by == "summary"


def has_open_round(view: View, plan_input: PlanInput, policy: Policy) -> bool:
    """Return whether a change of context would lose the thinking of the running tool round, and can still wait.

    It can wait as long as the whole context is sent as it is, without a repair and within all limits. Presets of other
    systems do not wait: they compact at the thresholds of those systems.
    """
    projection, situation = plan_input.projection, plan_input.situation
    if not (situation.binds_thinking and policy.compaction and policy.compaction.waits_for_round):
        return False
    if situation.refusals or not len(projection):
        return False
    start = -1 if projection.newest_prompt is None else projection.newest_prompt
    if not projection[-1].outline.result_ids or not any(
        entry.message.has_thinking for entry in projection.entries[start + 1 :]
    ):
        return False
    return are_same_messages(view.entries, projection.entries)


def after_open_round(plan: Plan) -> Plan:
    """Return a plan that changes nothing while a tool round is open; a summary is written in the background."""
    later = (*plan.later, *(step for step in plan.now if _needs_summary(step)))
    return Plan((), later, (*plan.reasons, OPEN_ROUND_REASON))


# The view that is sent.


def view_of(plan_input: PlanInput, policy: Policy, processors: RequestProcessors = NO_PROCESSORS) -> View:
    """Return a view that a provider accepts, whether or not the steps of a plan were carried out."""
    projection = plan_input.projection
    view = View(
        plan_input.entries,
        plan_input.message_tokens,
        projection.tokens,
        len(projection),
        has_media=projection.media_count > 0,
        system_tokens=projection.system_tokens,
    )
    if projection.has_other_scopes:
        _check_own_calls(plan_input)
        view = _without_open_calls_of_others(view, plan_input)
        view = _without_items_of_unseen_calls(view, plan_input)
    stages = VIEW_STAGES
    if processors is not NO_PROCESSORS:
        stages = {
            **VIEW_STAGES,
            "attachments": processors.attachments,
            "immediate prompt": processors.immediate_prompt,
            "file content": processors.file_content,
        }
    for name, stage in stages.items():
        if callable(stage):
            view = stage(view, plan_input, policy)
        elif stage:
            view = _process(view, plan_input, name, stage)
    sendable = _view_within_limits(view, plan_input, policy)
    view = sendable or fit_view(view, plan_input.history.message_format, policy.fit, plan_input.situation)
    if plan_input.situation.batching.reasoned_types:
        view = _without_lost_reasoning(view, plan_input)
    if projection.system_tokens:
        entries, repairs = with_placed_system_text(view.entries, plan_input.situation.batching)
        if entries is not view.entries:
            view = replace(view, entries=entries, repairs=(*view.repairs, *repairs))
    return view


def _check_own_calls(plan_input: PlanInput) -> None:
    """Raise if an agent's own calls still run: messages of its delegates do not answer them."""
    projection, situation = plan_input.projection, plan_input.situation
    if situation.is_interrupted:
        return
    scopes = projection.context.message_scopes
    own = [entry for entry in projection.entries if entry.position is None or scopes[entry.position] == situation.scope]
    pending = repair_entries(own, batching=situation.batching).pending
    if pending:
        raise PendingToolCallsError(pending)


def _without_open_calls_of_others(view: View, plan_input: PlanInput) -> View:
    """Leave out calls of other agents that still run, such as the one this delegate is working for.

    The main agent sees those of its delegates with a made-up result, unless they look as if they were still to come.
    """
    projection, situation = plan_input.projection, plan_input.situation
    scopes, scope = projection.context.message_scopes, situation.scope
    if scope == MAIN and not projection.repaired(situation.batching, is_interrupted=situation.is_interrupted).pending:
        return view
    entries: list[Entry] = []
    results: set[str] = set()
    for entry in reversed(view.entries):
        outline = entry.message.outline
        # Formats that pair by name use an id again, so a result answers the nearest call before it.
        unanswered = set(outline.call_ids) - results
        results = (results - set(outline.call_ids)).union(outline.result_ids)
        if not unanswered or entry.position is None or scopes[entry.position] == scope:
            entries.append(entry)
            continue
        parts = _without_calls(entry.message.parts, unanswered)
        if any(not isinstance(part, Thinking) for part in parts):
            entries.append(entry.with_message(entry.message.with_parts(parts)))
    entries.reverse()
    return view if are_same_messages(entries, view.entries) else _with_entries(view, entries, plan_input)


def _without_items_of_unseen_calls(view: View, plan_input: PlanInput) -> View:
    """Leave out reasoning and programs that belong to calls of delegates of which only the answers are visible.

    Providers refuse reasoning without the item that its agent said after it, and a program without its calls.
    """
    context, scope = plan_input.projection.context, plan_input.situation.scope
    scopes = context.message_scopes
    if scope != MAIN or not plan_input.situation.batching.is_itemized or context.scopes.does_main_see_all:
        return view
    entries: list[Entry] = []
    said: set[int] = set()
    for entry in reversed(view.entries):
        position, message = entry.position, entry.message
        if position is not None and message.role == "assistant":
            scope, outline = scopes[position], message.outline
            if outline.is_reasoning_only:
                later = (at for at in range(position + 1, context.length) if scopes[at] == scope)
                if next(later, None) not in said:
                    continue
            elif context.scopes.main_view_of(scope) == "answers" and not message.text and outline.has_server_tools:
                continue
            said.add(position)
        entries.append(entry)
    entries.reverse()
    return view if are_same_messages(entries, view.entries) else _with_entries(view, entries, plan_input)


def _without_lost_reasoning(view: View, plan_input: PlanInput) -> View:
    """Leave out the ids of items whose reasoning is not sent, so that the provider does not ask for it."""
    projection, context, batching = plan_input.projection, plan_input.projection.context, plan_input.situation.batching
    if view.entries is plan_input.entries and context.is_whole and not projection.has_other_scopes:
        return view
    entries, repairs = without_lost_reasoning(view.entries, batching, context.message_before)
    return replace(view, entries=entries, repairs=(*view.repairs, *repairs)) if repairs else view


def _without_calls(parts: Sequence[Part], call_ids: Container[str]) -> tuple[Part, ...]:
    """Return parts without some calls, and without what only counts a field of these calls."""
    kept: list[Part] = []
    for part in parts:
        if not isinstance(part, ToolCall) or part.id not in call_ids:
            kept.append(part)
        elif kept and isinstance(kept[-1], Opaque) and kept[-1].is_field_of_next:
            kept.pop()
    return tuple(kept)


def _limit(view: View, plan_input: PlanInput, policy: Policy) -> View:
    """Shrink the view after a provider's refusal; apply fixed limits where a summary cannot be had."""
    situation = plan_input.situation
    if policy.emergency is not None and situation.refusals >= policy.emergency.first:
        entries = policy.emergency.shrink(view.entries, plan_input.history.session_state.pins)
        return replace(_with_entries(view, entries, plan_input, EMERGENCY_REASON), is_emergency=True)
    limits = policy.limits
    if limits is None:
        return view
    context = plan_input.projection.context
    is_due = policy.compaction is None or policy.compaction.is_due(plan_input)
    if situation.has_summarizer and not (is_due and plan_input.history.session_state.compaction_failures):
        start = context.newest_start(limits.max_retrieved)
        entries = limits.keep_retrieved(view.entries, start, situation.pins)
        reason = f"only the newest {limits.max_retrieved:,} messages are sent"
    else:
        start = context.newest_start(limits.max_messages)
        entries = limits.keep_limited(view.entries, start, _message_pricer(plan_input), situation.pins)
        reason = limits.reason
    return view if are_same_messages(entries, view.entries) else _with_entries(view, entries, plan_input, reason)


def _truncate(view: View, plan_input: PlanInput, policy: Policy) -> View:
    """Remove older messages from a request that is still too long."""
    if policy.truncator is None:
        return view
    situation = plan_input.situation
    truncator = policy.truncator.after_refusals(situation.refusals - situation.lowered_limits)
    limit, static = situation.limit, situation.extras_tokens + REPLY_OVERHEAD
    if view.tokens + static <= limit * (1 - truncator.retry_buffer) and is_valid_history(
        view.entries, situation.batching
    ):
        return view
    done = truncator.truncate(
        view.entries, limit=limit, tools_tokens=static, tokens_of=_message_pricer(plan_input), pins=situation.pins
    )
    if are_same_messages(done.entries, view.entries):
        return view
    if done.event is None:
        return _with_entries(view, done.entries, plan_input, ORPHANS_REASON)
    count = done.event.messages_removed
    reason = f"{count:,} messages were left out of this request alone, to stay below {situation.billed_limit:,} tokens"
    tokens = done.event.post_truncation_tokens - static
    event = _billed_event(done.event, situation)
    return replace(
        view,
        entries=done.entries,
        tokens=tokens,
        system_tokens=None,
        truncated=event,
        reasons=(*view.reasons, reason),
    )


def _billed_event(event: RequestTruncated, situation: Situation) -> RequestTruncated:
    """Return a truncation in tokens as the provider counts them, as all events state them."""
    before, after = map(situation.billed_tokens, (event.pre_truncation_tokens, event.post_truncation_tokens))
    return replace(
        event,
        token_limit=situation.billed_limit,
        pre_truncation_tokens=before,
        post_truncation_tokens=after,
        tokens_removed=before - after,
    )


def _process(view: View, plan_input: PlanInput, stage: str, processors: Sequence[RequestProcessor]) -> View:
    """Let the user's processors of a stage change the request."""
    entries = processed_entries(view.entries, processors, plan_input.history.message_format, stage)
    reason = f"a processor of the stage {stage} changed the request"
    return view if are_same_messages(entries, view.entries) else _with_entries(view, entries, plan_input, reason)


VIEW_STAGES: Mapping[str, Callable[[View, PlanInput, Policy], View] | tuple[()]] = {
    "attachments": (),
    "compaction": _limit,
    "truncation": _truncate,
    "immediate prompt": (),
    "file content": (),
}
"""The stages of a single request, in order; the user's processors fill the empty ones."""


def _view_within_limits(view: View, plan_input: PlanInput, policy: Policy) -> View | None:
    """Return a view that is within all limits, repaired; None if it has to be fitted."""
    situation, projection, budget = plan_input.situation, plan_input.projection, plan_input.situation.budget
    is_as_projected = view.entries is plan_input.entries and policy.outputs is None
    has_other_limits = bool(budget.messages or budget.turns or budget.bytes)
    media, largest, room = projection.media_count, projection.largest_bytes, situation.message_budget
    if view.entries is not plan_input.entries:
        # What the user's processors have added is in the view alone.
        media = count_all_media(view.entries)
        largest = max((message_bytes(entry.message) for entry in view.entries), default=0)
    if room <= 0 or view.tokens > room or media > min(policy.fit.max_media, situation.max_images or media):
        return None
    if situation.max_text_chars and largest > situation.max_text_chars:
        return None
    if has_other_limits and not (is_as_projected and plan_input.fill <= 1):
        return None
    if not is_as_projected:
        done = repair_entries(view.entries, is_interrupted=situation.is_interrupted, batching=situation.batching)
        has_speech = any(entry.message.role != "system" for entry in view.entries)
        return view if has_speech and not (done.repairs or done.pending) else None
    repaired = projection.repaired(situation.batching, is_interrupted=situation.is_interrupted)
    if repaired.pending:
        raise PendingToolCallsError(repaired.pending)
    if not repaired.entries or repaired.entries[-1].message.role == "system":
        return None
    if not repaired.repairs:
        return view
    if has_other_limits or repaired.tokens > room:
        return None
    return view.changed(repaired.entries, repaired.tokens, repaired.repairs)


def _with_entries(view: View, entries: list[Entry], plan_input: PlanInput, *reasons: str) -> View:
    price = _message_pricer(plan_input)
    tokens = sum(price(entry.message) for entry in entries)
    has_media = count_all_media(entries) > 0
    return replace(
        view, entries=entries, tokens=tokens, has_media=has_media, system_tokens=None, reasons=(*view.reasons, *reasons)
    )


def _message_pricer(plan_input: PlanInput) -> Callable[[Message], int]:
    """Return a function that counts a message; for unchanged messages it reuses the counts of the projection."""
    counter, projection = plan_input.situation.counter, plan_input.projection
    known = {id(entry.message): size for entry, size in zip(projection.entries, projection.entry_tokens(), strict=True)}

    def price(message: Message) -> int:
        size = known.get(id(message))
        return sum(message_tokens(message, counter)) if size is None else size

    return price


def usage_measured_event(view: View, tokens: TokenCount, situation: Situation) -> UsageMeasured:
    """Return the event that records how full the context is with a view."""
    return UsageMeasured(
        token_limit=situation.billed_limit,
        current_tokens=tokens.total,
        messages_length=len(view.entries),
        tokens=TokenBreakdown(
            system_tokens=tokens.system,
            conversation_tokens=tokens.conversation + tokens.media,
            tool_definitions_tokens=tokens.tools,
        ),
        is_initial=all(entry.message.role != "assistant" for entry in view.entries),
        provenance=tokens.provenance,
    )
