"""What goes out: what stands, in the form the policy wants, with the floor under it.

The stages have names and an order, also where a policy leaves one empty: whatever shortens a single request
comes after whatever changes what stands.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.core.conversation.mend import mend
from holdfast.core.conversation.messages import Message, Thinking, ToolCall
from holdfast.core.conversation.pairing import Repair
from holdfast.core.conversation.soundness import is_sound
from holdfast.core.conversation.tokens import message_tokens
from holdfast.core.conversation.view import Entry
from holdfast.core.history.events import MAIN, RequestTruncated
from holdfast.core.planning.footing import footed
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.steps import Outlook
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
    is_rescued: bool = False
    """Whether little of little is sent, after a provider's refusal."""
    is_floored: bool = False
    """Whether the floor had to change anything."""
    has_media: bool = False
    """Whether images, sounds or documents may be among them: those are estimated."""


def view_of(outlook: Outlook, policy: Policy) -> View:
    """Return a view that can be sent as it is."""
    _check_own_calls(outlook)
    view = _without_open_calls_of_others(_as_shown(outlook), outlook)
    for stage in STAGES.values():
        view = stage(view, outlook, policy)
    return _with_floor(view, outlook, policy)


def _as_shown(outlook: Outlook) -> View:
    return View(outlook.entries, outlook.message_tokens, has_media=outlook.shown.media > 0)


def _check_own_calls(outlook: Outlook) -> None:
    """Raise where an agent's own calls still run: what its delegates say meanwhile is no answer to them."""
    shown, situation = outlook.shown, outlook.situation
    if not shown.has_foreign or situation.is_interrupted:
        return
    said_in = shown.context.said_in
    own = [entry for entry in shown.entries if entry.position is None or said_in[entry.position] == situation.scope]
    pending = mend(own, batching=situation.batching).pending
    if pending:
        raise PendingToolCallsError(pending)


def _without_open_calls_of_others(view: View, outlook: Outlook) -> View:
    """Leave out calls of other agents that still run, such as the one this delegate is working for."""
    shown, scope = outlook.shown, outlook.situation.scope
    if not shown.has_foreign or scope == MAIN:
        return view
    answered = {call_id for entry in view.entries for call_id in entry.message.outline.result_ids}
    entries: list[Entry] = []
    for entry in view.entries:
        is_own = entry.position is None or shown.context.said_in[entry.position] == scope
        if is_own or answered.issuperset(entry.message.outline.call_ids):
            entries.append(entry)
            continue
        parts = tuple(part for part in entry.message.parts if not isinstance(part, ToolCall) or part.id in answered)
        if any(not isinstance(part, Thinking) for part in parts):
            entries.append(entry.saying(entry.message.with_parts(parts)))
    if _are_same(entries, view.entries):
        return view
    return replace(view, entries=entries, tokens=_total(entries, outlook))


def _unchanged(view: View, outlook: Outlook, policy: Policy) -> View:
    del outlook, policy
    return view


def _limited(view: View, outlook: Outlook, policy: Policy) -> View:
    """Keep fixed limits where no model can summarise, or the last attempt failed."""
    limits, context, pins = policy.limits, outlook.shown.context, outlook.situation.pins
    if limits is None:
        return view
    if outlook.situation.has_summariser and not outlook.history.facts.failures:
        entries, why = limits.retrieved(view.entries, context.newest(limits.max_retrieved), pins), RETRIEVED
    else:
        line = context.newest(limits.max_messages)
        entries, why = limits.apply(view.entries, line, _price(outlook), pins), LIMITED
    if _are_same(entries, view.entries):
        return view
    return replace(view, entries=entries, tokens=_total(entries, outlook), reasons=(*view.reasons, why))


def _rescued(view: View, outlook: Outlook, policy: Policy) -> View:
    """Send little of little after a provider's refusal, where a policy wants that."""
    if policy.emergency is None or outlook.situation.refusals < policy.emergency.first:
        return _limited(view, outlook, policy)
    entries = policy.emergency.apply(view.entries, outlook.history.facts.pins)
    reasons = (*view.reasons, RESCUED)
    return replace(view, entries=entries, tokens=_total(entries, outlook), reasons=reasons, is_rescued=True)


def _truncated(view: View, outlook: Outlook, policy: Policy) -> View:
    """Leave older messages out of a request that is still too long."""
    situation = outlook.situation
    if policy.truncator is None:
        return view
    truncator = policy.truncator.after_refusals(situation.refusals)
    limit = min(situation.budget.tokens, outlook.window)
    static = situation.static_tokens
    if view.tokens + static <= limit * (1 - truncator.retry_buffer) and is_sound(view.entries, situation.batching):
        return view
    done = truncator.truncate(
        view.entries, limit=limit, tools_tokens=static, tokens_of=_price(outlook), pins=situation.pins
    )
    if done.event is None:
        return view
    why = f"{done.event.messages_removed:,} messages were left out of this request to stay below {limit:,} tokens"
    tokens = done.event.post_truncation_tokens - static
    return replace(view, entries=done.entries, tokens=tokens, truncated=done.event, reasons=(*view.reasons, why))


STAGES: Mapping[str, Callable[[View, Outlook, Policy], View]] = {
    "attachments": _unchanged,
    "compaction": _rescued,
    "truncation": _truncated,
    "immediate prompt": _unchanged,
    "file content": _unchanged,
}
RESCUED = "the provider refused the request as too long, so only the newest turns are sent, and short"
RETRIEVED = "only the newest messages were retrieved"
LIMITED = "no summary can be had, so only the newest messages are sent"


def _with_floor(view: View, outlook: Outlook, policy: Policy) -> View:
    if _can_be_sent(view, outlook, policy):
        return view
    fitted = footed(view.entries, outlook.history.reader, policy.floor, outlook.situation)
    if _are_same(fitted.entries, view.entries):
        return view
    return replace(
        view,
        entries=fitted.entries,
        tokens=fitted.tokens,
        repairs=fitted.repairs,
        reasons=(*view.reasons, *fitted.reasons),
        is_floored=True,
    )


def _can_be_sent(view: View, outlook: Outlook, policy: Policy) -> bool:
    """Return whether there is nothing for the floor to do."""
    situation, entries = outlook.situation, view.entries
    if not entries or view.tokens > situation.room or outlook.shown.media > policy.floor.max_media:
        return False
    budget, longest = situation.budget, situation.max_text_chars
    is_as_shown = view.entries is outlook.entries and policy.outputs is None
    if (budget.messages or budget.turns or budget.bytes) and not (is_as_shown and outlook.fill <= 1):
        return False
    if (longest and outlook.shown.longest > longest) or outlook.shown.media > (situation.max_images or 10**9):
        return False
    first = next((entry.message.role for entry in entries if entry.message.role != "system"), None)
    if first != "user" or entries[-1].message.role not in {"user", "tool"}:
        return False
    return outlook.shown.is_sound(situation.batching) if is_as_shown else is_sound(entries, situation.batching)


def _are_same(one: Sequence[Entry], other: Sequence[Entry]) -> bool:
    return len(one) == len(other) and all(
        mine.message is theirs.message for mine, theirs in zip(one, other, strict=True)
    )


def _price(outlook: Outlook) -> Callable[[Message], int]:
    """Return what tells the cost of a message; what is shown as it stands was counted before."""
    counter, shown = outlook.situation.counter, outlook.shown
    known = {id(entry.message): size for entry, size in zip(shown.entries, shown.sizes(), strict=True)}

    def price(message: Message) -> int:
        size = known.get(id(message))
        return sum(message_tokens(message, counter)) if size is None else size

    return price


def _total(entries: list[Entry], outlook: Outlook) -> int:
    price = _price(outlook)
    return sum(price(entry.message) for entry in entries)
