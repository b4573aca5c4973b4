"""What goes out: what stands, in the form the policy wants, with the floor under it.

The stages have names and an order, also where a policy leaves one empty: whatever shortens a single request
comes after whatever changes what stands.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.core.conversation.mend import repair_entries
from holdfast.core.conversation.messages import Message, Thinking, ToolCall
from holdfast.core.conversation.pairing import Repair
from holdfast.core.conversation.soundness import is_valid_history
from holdfast.core.conversation.tokens import message_tokens
from holdfast.core.conversation.view import Entry
from holdfast.core.history.events import MAIN, RequestTruncated
from holdfast.core.planning.footing import fit_entries
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.steps import PlanInput
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
