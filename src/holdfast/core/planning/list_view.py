"""What a policy leaves of a plain list of messages, without a session.

A compaction with a summary is a change of a session, so it is not applied here. What needs neither a session nor a
model is: clipped tool outputs, the marker of `co-cli`, the trimmed turns of `cowagent`, the fixed limits of `inkeep`,
and the truncator of `copilot`. The list has no memory of earlier calls, so these cuts move with every message.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.core.conversation.messages import Entry, Message, Text
from holdfast.core.conversation.spans import merge_ranges, position_ranges
from holdfast.core.conversation.tokens import REPLY_OVERHEAD, message_tokens
from holdfast.core.conversation.transcript import MessageFormat
from holdfast.core.planning.fit import are_same_messages, fit_view
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.receipt import View
from holdfast.core.planning.rules.rule import CompactionRule
from holdfast.core.planning.rules.truncator import ORPHANS_REASON
from holdfast.core.planning.situation import Situation


def trims_lists(policy: Policy) -> bool:
    """Return whether a policy shortens a list of messages before it is made to fit."""
    rule = policy.compaction
    has_trim = rule is not None and type(rule).trim is not CompactionRule.trim
    return has_trim or any((policy.outputs, policy.limits, policy.truncator))


def view_of_list(entries: Sequence[Entry], reader: MessageFormat, policy: Policy, situation: Situation) -> View:
    """Return a view of a list of messages: what the policy leaves of it, repaired and made to fit."""

    def price(message: Message) -> int:
        return sum(message_tokens(message, situation.counter))

    sizes = [price(entry.message) for entry in entries]
    has_media = any(entry.message.media_count for entry in entries)
    whole = View(list(entries), sum(sizes), sum(sizes), len(sizes), has_media=has_media)
    left, reasons = _apply_rules(whole.entries, policy, situation, price)
    trimmed = whole
    if not are_same_messages(left, entries):
        tokens = sum(price(entry.message) for entry in left)
        trimmed = replace(whole, entries=left, tokens=tokens, reasons=tuple(reasons))
    return _with_missing(fit_view(trimmed, reader, policy.fit, situation), trimmed.entries, whole.entries)


def _apply_rules(
    entries: list[Entry], policy: Policy, situation: Situation, price: Callable[[Message], int]
) -> tuple[list[Entry], list[str]]:
    """Return what the rules leave, and why something is missing or shortened."""
    pins, reasons = situation.pins, list[str]()

    def changed(after: list[Entry], reason: str) -> list[Entry]:
        if not are_same_messages(after, left):
            reasons.append(reason)
        return after

    left = entries
    if policy.outputs is not None:
        left = changed(policy.outputs.apply(left, pins), "old tool outputs were shortened")
    if policy.compaction is not None:
        trimmed = policy.compaction.trim(left, situation)
        left = changed(trimmed.entries, trimmed.reason)
    if policy.limits is not None:
        spoken = [entry.position or 0 for entry in entries if entry.message.role != "system"]
        start = spoken[-policy.limits.max_messages] if len(spoken) > policy.limits.max_messages else 0
        left = changed(policy.limits.keep_limited(left, start, price, pins), policy.limits.reason)
    if policy.truncator is not None:
        static, limit = situation.extras_tokens + REPLY_OVERHEAD, situation.limit
        done = policy.truncator.truncate(left, limit=limit, tools_tokens=static, tokens_of=price, pins=pins)
        is_long = done.event is not None
        why = f"older messages were left out, to stay below {situation.billed_limit:,} tokens"
        left = changed(done.entries, why if is_long else ORPHANS_REASON)
    return left, reasons


def _with_missing(view: View, trimmed: list[Entry], whole: list[Entry]) -> View:
    """Return a view that names the messages that it lacks: compacted if a marker or a digest stands for them."""
    repaired = {repair.position for repair in view.repairs}
    gone: dict[bool, list[range]] = {True: [], False: []}
    for before, after in ((whole, trimmed), (trimmed, view.entries)):
        known, sent = {id(entry.message) for entry in before}, {entry.position for entry in after}
        removed = [at for entry in before if (at := entry.position) is not None and at not in sent | repaired]
        has_digest = any(id(entry.message) not in known and _is_digest(entry) for entry in after)
        gone[has_digest] += position_ranges(removed)
    return replace(view, compacted=merge_ranges(gone[True]), dropped=merge_ranges(gone[False]))


def _is_digest(entry: Entry) -> bool:
    return any(isinstance(part, Text) and part.trust == "summary" for part in entry.message.parts)
