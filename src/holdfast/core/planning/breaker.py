"""Detects that a compaction would not help, before a summarizer is called.

There are two such cases. First, the parts that no compaction makes smaller fill the budget by themselves. Then the
reason lists them and says which one to make smaller. Second, an agent is in a loop since the last compaction: every
call returned the same result as before, and there was no new prompt or decision. Another compaction would only restart
the loop. Each compaction stores hashes of the progress so far, so that a loop is detected without reading the compacted
messages.
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
"""How many of the newest marks a compaction stores; older progress counts as new again."""
PROGRESS_MARK_CHARS = 8
MIN_CALLS = 3
"""With fewer calls since the last compaction, an agent does not count as looping."""
CANNOT_HELP = "a compaction cannot help"
OVERSIZE_REMEDIES = {
    "system": "shorten the system text",
    "tools": "offer fewer tools",
    "pins": "unpin some messages",
    "newest prompt": "shorten the newest prompt, or put it into a file",
}
_UNIT = re.compile(r"\d\s?(?:ms|s|secs?|seconds?)\b")
"""What every duration ends with. Most texts have none; searching for it takes a tenth of the time."""
# A changed duration is not progress. The second alternative consumes numbers that are not a duration all at once, so
# that a long list of numbers is scanned once and not again from each number.
_DURATION = re.compile(
    r"(\B\d++[.,:])?+\b\d++(?:[.,:]\d++)*+\s?(?:ms|s|secs?|seconds?)\b|(\d++(?:[.,:]\d++)*+)",
)


def loop_reason(plan_input: PlanInput) -> str:
    """Return why another compaction would only repeat a loop; empty if there was progress since the last one."""
    state = plan_input.projection.context.state
    if not state.compactions or not state.compactions[-1].marks:
        return ""
    stop, known = state.compactions[-1].span.stop, frozenset(state.compactions[-1].marks)
    after = [entry for entry in _recorded_entries(plan_input) if (entry.position or 0) >= stop]
    # Messages that the compaction kept were recorded before it.
    calls = sum(len(entry.message.results) for entry in after if (entry.position or 0) >= state.changed_at)
    if calls < MIN_CALLS or any(mark not in known for mark in _marks_in(after)):
        return ""
    return (
        f"the agent made no progress since the last compaction: {pluralize(calls, 'call')} returned the same results "
        "as before, without a new prompt or decision; another compaction would only restart the loop "
        f"({describe_breakdown(plan_input)})"
    )


def progress_marks(plan_input: PlanInput) -> tuple[str, ...]:
    """Return the marks of all progress so far, including those of the last compaction, newest last."""
    compactions = plan_input.projection.context.state.compactions
    before = compactions[-1].marks if compactions else ()
    newest_last = dict.fromkeys(reversed([*before, *_marks_in(_recorded_entries(plan_input))]))
    return tuple(reversed([*newest_last][:MAX_PROGRESS_MARKS]))


def describe_breakdown(plan_input: PlanInput) -> str:
    """Describe the parts of a request and their sizes."""
    projection, sizes = plan_input.projection, plan_input.projection.entry_tokens()
    last = sum(sizes[slice(*uncuttable_span(projection, len(projection) - 1))]) if len(projection) else 0
    summaries = sum(size for entry, size in zip(projection.entries, sizes, strict=True) if entry.position is None)
    parts = {**_fixed_tokens(plan_input), "last exchange": last, "summaries": summaries}
    listed = ", ".join(f"{name} {tokens:,}" for name, tokens in parts.items() if tokens)
    whole = projection.tokens + plan_input.situation.extras_tokens + REPLY_OVERHEAD
    return f"of {whole:,} tokens: {listed}" if listed else f"{whole:,} tokens"


def describe_fixed_size(plan_input: PlanInput) -> str:
    """Describe the parts of a request and name a remedy for the largest part that no compaction makes smaller."""
    fixed = _fixed_tokens(plan_input)
    return f"{describe_breakdown(plan_input)}; {OVERSIZE_REMEDIES[max(fixed, key=lambda name: fixed[name])]}"


def without_durations(text: str) -> str:
    """Return a text without its durations, so that two runs of one command compare as equal."""
    return _DURATION.sub(r"\1\2", text) if _UNIT.search(text) else text


def _fixed_tokens(plan_input: PlanInput) -> dict[str, int]:
    """Return the sizes of the parts that no compaction makes smaller."""
    projection, situation = plan_input.projection, plan_input.situation
    parts = {"system": situation.system_tokens, "tools": situation.tools_tokens, "pins": 0, "newest prompt": 0}
    for index, (entry, size) in enumerate(zip(projection.entries, projection.entry_tokens(), strict=True)):
        if entry.message.role == "system":
            parts["system"] += size
        elif index == projection.newest_prompt:
            parts["newest prompt"] += size
        elif entry.position in situation.pins:
            parts["pins"] += size
    return parts


def _recorded_entries(plan_input: PlanInput) -> list[Entry]:
    """Return the visible messages in their recorded form, not as the context shortens them."""
    entries = plan_input.history.entries
    positions = [entry.position for entry in plan_input.projection.entries if entry.position is not None]
    entries.require(positions)
    return [entries[position] for position in positions]


def _marks_in(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield a mark for each prompt, each call with its result, and each decision of the model."""
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
            constraints = Constraints()
            constraints.observe(message.text, "assistant", entry.position or 0)
            yield from (_hash_mark("decided", constraint.text) for constraint in constraints)


def _hash_mark(*parts: str) -> str:
    return sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:PROGRESS_MARK_CHARS]
