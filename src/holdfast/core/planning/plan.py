"""Decides about the next request: what to do, what to send, and why.

Pure: the same history, policy and situation give the same plan. What the plan wants done now the session
does, records, and plans again; what it wants done later happens beside the conversation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from holdfast.core.conversation.tokens import REPLY_OVERHEAD, TokenCount, message_tokens
from holdfast.core.conversation.view import Entry
from holdfast.core.history.events import TokenBreakdown, UsageMeasured
from holdfast.core.history.history import History
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import NO_PROPOSAL, CompactSpan, PlanInput, Step, StepProposal
from holdfast.core.planning.view import View, view_of

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
        return is_resting or step.stop <= facts.failed_stop
    # What a fold without a model could not do, it cannot do again; what a model could not do, it may.
    return step.stop <= facts.failed_stop and facts.failed_by != "summary"


def _needs_summary(step: Step) -> bool:
    return isinstance(step, CompactSpan) and step.by == "summary"
