"""Decides about the next request: what to do, what to send, and why.

Pure: the same history, policy and situation give the same plan. What the plan wants done now the session
does, records, and plans again; what it wants done later happens beside the conversation.

What goes out: what stands, in the form the policy wants, with the floor under it.

The stages have names and an order, also where a policy leaves one empty: whatever shortens a single request
comes after whatever changes what stands.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.core.conversation.messages import Entry, Message, Thinking, ToolCall
from holdfast.core.conversation.pairing import Repair
from holdfast.core.conversation.repair import is_valid_history, repair_entries
from holdfast.core.conversation.tokens import REPLY_OVERHEAD, TokenCount, message_tokens
from holdfast.core.history.events import MAIN, RequestTruncated, TokenBreakdown, UsageMeasured
from holdfast.core.history.history import History
from holdfast.core.planning.fit.fit import fit_entries
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import NO_PROPOSAL, CompactSpan, PlanInput, Step, StepProposal
from holdfast.errors import PendingToolCallsError


@dataclass(frozen=True, slots=True)
class View:
    """What the model will see, each message with the position it came from."""

    entries: list[Entry]
    tokens: int
    """Of the messages, as our counter counts them."""
    truncated: RequestTruncated | None = None
    """What the last mile left out of this request."""
    repairs: tuple[Repair, ...] = ()
    reasons: tuple[str, ...] = ()
    is_emergency: bool = False
    """Whether little of little is sent, after a provider's refusal."""
    is_fitted: bool = False
    """Whether the floor had to change anything."""
    has_media: bool = False
    """Whether images, sounds or documents may be among them: those are estimated."""


def view_of(plan_input: PlanInput, policy: Policy) -> View:
    """Return a view that can be sent as it is."""
    _check_own_calls(plan_input)
    view = _without_open_calls_of_others(_initial_view(plan_input), plan_input)
    for stage in VIEW_STAGES.values():
        view = stage(view, plan_input, policy)
    return _fit_view(view, plan_input, policy)


def _initial_view(plan_input: PlanInput) -> View:
    return View(plan_input.entries, plan_input.message_tokens, has_media=plan_input.projection.media_count > 0)


def _check_own_calls(plan_input: PlanInput) -> None:
    """Raise where an agent's own calls still run: what its delegates say meanwhile is no answer to them."""
    shown, situation = plan_input.projection, plan_input.situation
    if not shown.has_other_scopes or situation.is_interrupted:
        return
    said_in = shown.context.message_scopes
    own = [entry for entry in shown.entries if entry.position is None or said_in[entry.position] == situation.scope]
    pending = repair_entries(own, batching=situation.batching).pending
    if pending:
        raise PendingToolCallsError(pending)


def _without_open_calls_of_others(view: View, plan_input: PlanInput) -> View:
    """Leave out calls of other agents that still run, such as the one this delegate is working for."""
    shown, scope = plan_input.projection, plan_input.situation.scope
    if not shown.has_other_scopes or scope == MAIN:
        return view
    answered = {call_id for entry in view.entries for call_id in entry.message.outline.result_ids}
    entries: list[Entry] = []
    for entry in view.entries:
        is_own = entry.position is None or shown.context.message_scopes[entry.position] == scope
        if is_own or answered.issuperset(entry.message.outline.call_ids):
            entries.append(entry)
            continue
        parts = tuple(part for part in entry.message.parts if not isinstance(part, ToolCall) or part.id in answered)
        if any(not isinstance(part, Thinking) for part in parts):
            entries.append(entry.with_message(entry.message.with_parts(parts)))
    if _are_same_messages(entries, view.entries):
        return view
    return replace(view, entries=entries, tokens=_total_tokens(entries, plan_input))


def _unchanged(view: View, plan_input: PlanInput, policy: Policy) -> View:
    del plan_input, policy
    return view


def _apply_limits(view: View, plan_input: PlanInput, policy: Policy) -> View:
    """Keep fixed limits where no model can summarise, or the last attempt failed."""
    limits, context, pins = policy.limits, plan_input.projection.context, plan_input.situation.pins
    if limits is None:
        return view
    if plan_input.situation.has_summarizer and not plan_input.history.session_state.compaction_failures:
        entries, why = (
            limits.keep_retrieved(view.entries, context.newest_start(limits.max_retrieved), pins),
            RETRIEVED_REASON,
        )
    else:
        line = context.newest_start(limits.max_messages)
        entries, why = limits.keep_limited(view.entries, line, _message_pricer(plan_input), pins), LIMITED_REASON
    if _are_same_messages(entries, view.entries):
        return view
    return replace(view, entries=entries, tokens=_total_tokens(entries, plan_input), reasons=(*view.reasons, why))


def _apply_emergency(view: View, plan_input: PlanInput, policy: Policy) -> View:
    """Send little of little after a provider's refusal, where a policy wants that."""
    if policy.emergency is None or plan_input.situation.refusals < policy.emergency.first:
        return _apply_limits(view, plan_input, policy)
    entries = policy.emergency.shrink(view.entries, plan_input.history.session_state.pins)
    reasons = (*view.reasons, EMERGENCY_REASON)
    return replace(view, entries=entries, tokens=_total_tokens(entries, plan_input), reasons=reasons, is_emergency=True)


def _truncate(view: View, plan_input: PlanInput, policy: Policy) -> View:
    """Leave older messages out of a request that is still too long."""
    situation = plan_input.situation
    if policy.truncator is None:
        return view
    truncator = policy.truncator.after_refusals(situation.refusals)
    limit = min(situation.budget.tokens, plan_input.window)
    static = situation.extras_tokens
    if view.tokens + static <= limit * (1 - truncator.retry_buffer) and is_valid_history(
        view.entries, situation.batching
    ):
        return view
    done = truncator.truncate(
        view.entries, limit=limit, tools_tokens=static, tokens_of=_message_pricer(plan_input), pins=situation.pins
    )
    if done.event is None:
        return view
    why = f"{done.event.messages_removed:,} messages were left out of this request to stay below {limit:,} tokens"
    tokens = done.event.post_truncation_tokens - static
    return replace(view, entries=done.entries, tokens=tokens, truncated=done.event, reasons=(*view.reasons, why))


VIEW_STAGES: Mapping[str, Callable[[View, PlanInput, Policy], View]] = {
    "attachments": _unchanged,
    "compaction": _apply_emergency,
    "truncation": _truncate,
    "immediate prompt": _unchanged,
    "file content": _unchanged,
}
EMERGENCY_REASON = "the provider refused the request as too long, so only the newest turns are sent, and short"
RETRIEVED_REASON = "only the newest messages were retrieved"
LIMITED_REASON = "no summary can be had, so only the newest messages are sent"


def _fit_view(view: View, plan_input: PlanInput, policy: Policy) -> View:
    if _can_be_sent(view, plan_input, policy):
        return view
    fitted = fit_entries(view.entries, plan_input.history.reader, policy.floor, plan_input.situation)
    if _are_same_messages(fitted.entries, view.entries):
        return view
    return replace(
        view,
        entries=fitted.entries,
        tokens=fitted.tokens,
        repairs=fitted.repairs,
        reasons=(*view.reasons, *fitted.reasons),
        is_fitted=True,
    )


def _can_be_sent(view: View, plan_input: PlanInput, policy: Policy) -> bool:
    """Return whether there is nothing for the floor to do."""
    situation, entries = plan_input.situation, view.entries
    if (
        not entries
        or view.tokens > situation.message_budget
        or plan_input.projection.media_count > policy.floor.max_media
    ):
        return False
    budget, longest = situation.budget, situation.max_text_chars
    is_as_shown = view.entries is plan_input.entries and policy.outputs is None
    if (budget.messages or budget.turns or budget.bytes) and not (is_as_shown and plan_input.fill <= 1):
        return False
    if (longest and plan_input.projection.largest_bytes > longest) or plan_input.projection.media_count > (
        situation.max_images or 10**9
    ):
        return False
    first = next((entry.message.role for entry in entries if entry.message.role != "system"), None)
    if first != "user" or entries[-1].message.role not in {"user", "tool"}:
        return False
    return (
        plan_input.projection.is_valid(situation.batching)
        if is_as_shown
        else is_valid_history(entries, situation.batching)
    )


def _are_same_messages(one: Sequence[Entry], other: Sequence[Entry]) -> bool:
    return len(one) == len(other) and all(
        mine.message is theirs.message for mine, theirs in zip(one, other, strict=True)
    )


def _message_pricer(plan_input: PlanInput) -> Callable[[Message], int]:
    """Return what tells the cost of a message; what is shown as it stands was counted before."""
    counter, shown = plan_input.situation.counter, plan_input.projection
    known = {id(entry.message): size for entry, size in zip(shown.entries, shown.entry_tokens(), strict=True)}

    def price(message: Message) -> int:
        size = known.get(id(message))
        return sum(message_tokens(message, counter)) if size is None else size

    return price


def _total_tokens(entries: list[Entry], plan_input: PlanInput) -> int:
    price = _message_pricer(plan_input)
    return sum(price(entry.message) for entry in entries)


MAX_FAILURES, MESSAGES_AFTER_FAILURES = 3, 20
"""After so many failures in a row no summary is asked for until so many more messages have been said."""
MAX_PLAN_ROUNDS = 3
"""How often a request is planned at most."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy chose."""

    view: View
    """Can be sent as it is, whether the steps are carried out or not."""
    now: tuple[Step, ...]
    later: tuple[Step, ...]
    reasons: tuple[str, ...]


def make_plan(history: History, policy: Policy, situation: Situation) -> Plan:
    """Return what to do about the next request of an agent."""
    outlook = plan_input_of(history, policy, situation)
    proposal = _proposal_of(outlook, policy)
    view = view_of(outlook, policy)
    return Plan(view, proposal.now, proposal.later, (*proposal.reasons, *view.reasons))


def view_token_count(view: View, situation: Situation) -> TokenCount:
    """Return what a view costs, as the provider would count it: system text, tools and conversation apart."""
    systems = sum(
        sum(message_tokens(entry.message, situation.counter))
        for entry in view.entries
        if entry.message.role == "system"
    )
    media = sum(message_tokens(entry.message, situation.counter)[1] for entry in view.entries) if view.has_media else 0
    return situation.billed_count(
        system=situation.system_tokens + systems,
        conversation=view.tokens - systems - media + REPLY_OVERHEAD,
        media=media,
    )


def usage_measured_event(plan: Plan, situation: Situation) -> UsageMeasured:
    """Return how full the context is with a plan's view: what a meter shows."""
    entries, count = plan.view.entries, view_token_count(plan.view, situation)
    return UsageMeasured(
        token_limit=situation.budget.tokens,
        current_tokens=count.total,
        messages_length=len(entries),
        tokens=TokenBreakdown(
            system_tokens=count.system,
            conversation_tokens=count.conversation + count.media,
            tool_definitions_tokens=count.tools,
        ),
        is_initial=all(entry.message.role != "assistant" for entry in entries),
        provenance=count.provenance,
    )


def plan_rounds(history: History, policy: Policy, situation: Callable[[], Situation]) -> Iterator[Plan]:
    """Yield plans until one has nothing left to do; whoever asks carries out each plan's steps before the next.

    The last plan is the one to send. It never has steps: after three rounds the view is what it is.
    """
    for number in range(MAX_PLAN_ROUNDS):
        plan = make_plan(history, policy, situation())
        is_last = not plan.now or number == MAX_PLAN_ROUNDS - 1
        yield replace(plan, now=()) if is_last else plan
        if is_last:
            return


def plan_input_of(history: History, policy: Policy, situation: Situation) -> PlanInput:
    """Return what the rules of a policy look at."""
    situation = replace(
        situation,
        is_interrupted=situation.is_interrupted or history.was_interrupted(situation.scope),
        pins=situation.pins | history.session_state.pins,
    )
    window = situation.window or policy.unknown_window
    shown = history.projection(situation.counter, situation.scope)
    if policy.outputs is None:
        return PlanInput(history, shown, situation, window, shown.entries[:], shown.tokens)
    spares = shown.context.has_recall
    entries = policy.outputs.apply(shown.entries, situation.pins, keep_recall_answers=spares)
    tokens = shown.tokens + _token_difference(shown.entries, entries, situation)
    return PlanInput(history, shown, situation, window, entries, tokens)


def _token_difference(before: Sequence[Entry], after: Sequence[Entry], situation: Situation) -> int:
    """Return what a change of some entries has added to their cost."""
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old is not new]
    counter = situation.counter
    return sum(
        sum(message_tokens(new.message, counter)) - sum(message_tokens(old.message, counter)) for old, new in changed
    )


def _proposal_of(plan_input: PlanInput, policy: Policy) -> StepProposal:
    """Return what the rules want; where a summary is not to be tried again yet, what they want without one."""
    proposal = _first_proposal(plan_input, policy)
    wanted = (*proposal.now, *proposal.later)
    if not any(_failed_before(step, plan_input) for step in wanted):
        return proposal
    if plan_input.situation.has_summarizer and any(_needs_summary(step) for step in wanted):
        plan_input = replace(plan_input, situation=replace(plan_input.situation, has_summarizer=False))
        proposal = _first_proposal(plan_input, policy)
    now, later = (
        tuple(step for step in steps if not _failed_before(step, plan_input))
        for steps in (proposal.now, proposal.later)
    )
    return StepProposal(now, later, (*proposal.reasons, "a fold that failed is not tried again yet"))


def _first_proposal(plan_input: PlanInput, policy: Policy) -> StepProposal:
    """Return what the first rule that wants something wants: cheap before dear, and one break at a time."""
    for rule in (policy.emergency, policy.offload, policy.fold):
        proposal = rule.propose(plan_input) if rule else NO_PROPOSAL
        if proposal is not NO_PROPOSAL:
            return proposal
    return NO_PROPOSAL


def _failed_before(step: Step, plan_input: PlanInput) -> bool:
    """Return whether a fold has failed before: not the same again, and after three no summary for a while."""
    facts = plan_input.history.session_state
    if not isinstance(step, CompactSpan) or not facts.compaction_failures:
        return False
    is_resting = (
        facts.compaction_failures >= MAX_FAILURES
        and len(plan_input.history) - facts.failed_at < MESSAGES_AFTER_FAILURES
    )
    if _needs_summary(step):
        return is_resting or step.span.stop <= facts.failed_stop
    # What a fold without a model could not do, it cannot do again; what a model could not do, it may.
    return step.span.stop <= facts.failed_stop and facts.failed_by != "summary"


def _needs_summary(step: Step) -> bool:
    return isinstance(step, CompactSpan) and step.by == "summary"
