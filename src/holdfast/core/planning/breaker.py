"""Why folding would not help, found out before anybody is asked to write a summary.

There are two reasons. What no fold can make smaller may fill the room by itself: then the parts are told, and which of
them to make smaller. Or an agent got nowhere since the last compaction: every call gave what it had given before, and
nobody said or decided anything. Folding that again would only let it begin anew, so it is said instead. A fold keeps
marks of what had been done by then, a hash each, so that this is known without reading what was folded.
"""

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256

from holdfast.core.conversation.cuts import uncuttable_span
from holdfast.core.conversation.messages import Entry, ToolCall
from holdfast.core.conversation.tokens import REPLY_OVERHEAD
from holdfast.core.ledger.constraints import Constraints
from holdfast.core.planning.steps import PlanInput
from holdfast.text import pluralize

MAX_PROGRESS_MARKS = 200
"""How many of the newest marks a fold keeps; what was done before them counts as new again."""
PROGRESS_MARK_CHARS = 8
MIN_CALLS = 3
"""Fewer calls since the last compaction say nothing about an agent."""
OVERSIZE_REMEDIES = {
    "system": "shorten the system text",
    "tools": "offer fewer tools",
    "pins": "unpin something",
    "newest prompt": "say less at once, or put it into a file",
}
# How long a command took is no news. Where numbers are no duration, the second alternative takes all of them at once,
# so that a long list of numbers is read once and not again from each of its numbers.
_DURATION = re.compile(
    r"(\B\d++[.,:])?+\b\d++(?:[.,:]\d++)*+\s?(?:ms|s|secs?|seconds?)\b|(\d++(?:[.,:]\d++)*+)",
)


def loop_reason(plan_input: PlanInput) -> str:
    """Return why another fold would lead nowhere; empty where something was done since the last one."""
    standing = plan_input.projection.context.state
    if not standing.compactions or not standing.compactions[-1].marks:
        return ""
    stop, known = standing.compactions[-1].span.stop, frozenset(standing.compactions[-1].marks)
    behind = [entry for entry in _recorded_entries(plan_input) if (entry.position or 0) >= stop]
    # What stayed behind the fold was said before it.
    calls = sum(len(entry.message.results) for entry in behind if (entry.position or 0) >= standing.changed_at)
    if calls < MIN_CALLS or any(mark not in known for mark in _marks_in(behind)):
        return ""
    return (
        f"the agent got nowhere since the last compaction: {pluralize(calls, 'call')} gave what they had given "
        "before, and "
        f"nothing was said or decided; folding again would only let it begin anew ({describe_breakdown(plan_input)})"
    )


def progress_marks(plan_input: PlanInput) -> tuple[str, ...]:
    """Return the marks of what has been done by now, those of the last fold included, the newest last."""
    folds = plan_input.projection.context.state.compactions
    before = folds[-1].marks if folds else ()
    newest_last = dict.fromkeys(reversed([*before, *_marks_in(_recorded_entries(plan_input))]))
    return tuple(reversed([*newest_last][:MAX_PROGRESS_MARKS]))


def describe_breakdown(plan_input: PlanInput) -> str:
    """Return what a request would be made of, in words."""
    shown, sizes = plan_input.projection, plan_input.projection.entry_tokens()
    last = sum(sizes[slice(*uncuttable_span(shown, len(shown) - 1))]) if len(shown) else 0
    summaries = sum(size for entry, size in zip(shown.entries, sizes, strict=True) if entry.position is None)
    parts = {**_fixed_tokens(plan_input), "last exchange": last, "summaries": summaries}
    told = ", ".join(f"{name} {tokens:,}" for name, tokens in parts.items() if tokens)
    whole = shown.tokens + plan_input.situation.extras_tokens + REPLY_OVERHEAD
    return f"of {whole:,} tokens: {told}" if told else f"{whole:,} tokens"


def describe_fixed_size(plan_input: PlanInput) -> str:
    """Return what a request is made of and what to do about it, where no fold makes it small enough."""
    fixed = _fixed_tokens(plan_input)
    return f"{describe_breakdown(plan_input)}; {OVERSIZE_REMEDIES[max(fixed, key=lambda name: fixed[name])]}"


def without_durations(text: str) -> str:
    """Return a text without the times that something took."""
    return _DURATION.sub(r"\1\2", text)


def _fixed_tokens(plan_input: PlanInput) -> dict[str, int]:
    """Return what no fold makes smaller, by its parts."""
    shown, situation = plan_input.projection, plan_input.situation
    parts = {"system": situation.system_tokens, "tools": situation.tools_tokens, "pins": 0, "newest prompt": 0}
    for index, (entry, size) in enumerate(zip(shown.entries, shown.entry_tokens(), strict=True)):
        if entry.message.role == "system":
            parts["system"] += size
        elif index == shown.newest_prompt:
            parts["newest prompt"] += size
        elif entry.position in situation.pins:
            parts["pins"] += size
    return parts


def _recorded_entries(plan_input: PlanInput) -> list[Entry]:
    """Return what stands as it was said, whatever it is shown as."""
    entries = plan_input.history.entries
    positions = [entry.position for entry in plan_input.projection.entries if entry.position is not None]
    entries.require(positions)
    return [entries[position] for position in positions]


def _marks_in(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield a mark for each thing the user said, each call with its result, and each decision of the model's."""
    calls: dict[str, ToolCall] = {}
    for entry in entries:
        message = entry.message
        if message.is_prompt:
            yield _hash_mark("said", str(entry.position))
        calls |= {call.id: call for call in message.calls}
        for result in message.results:
            call = calls.get(result.call_id)
            asked = (call.name, call.arguments) if call else ("", "")
            yield _hash_mark(*asked, without_durations(result.text))
        if message.role == "assistant" and message.text:
            wishes = Constraints()
            wishes.observe(message.text, "assistant", entry.position or 0)
            yield from (_hash_mark("decided", wish.text) for wish in wishes)


def _hash_mark(*parts: str) -> str:
    return sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:PROGRESS_MARK_CHARS]
