"""What a change of context does to the next request: its tokens, and what of a prompt cache it gives up.

A provider's cache holds the beginning of the last request. From where a change begins, nothing of that can be read any
more, and what takes its place is paid as new: that is what a change costs, beside a summary. Where nothing was sent
yet, or the cache has forgotten it anyway, a change gives up nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from holdfast.core.conversation.view import Entry
from holdfast.core.history import events as log
from holdfast.core.history.projection import Projection
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import PlanInput

ChangedT = TypeVar("ChangedT", bound=log.OutputsOffloaded | log.TurnsReducedToText | log.ContextCleared | log.Rewound)


def add_effect(event: ChangedT, plan_input: PlanInput) -> ChangedT:
    """Return a change that tells what it does to what an agent is shown."""
    return replace(
        event, effect=context_effect(plan_input.projection, projection_after(event, plan_input), plan_input.situation)
    )


def projection_after(event: log.Event, plan_input: PlanInput) -> Projection:
    """Return what would be shown after a change; raises `MalformedInputError` where it cannot be made."""
    context = plan_input.projection.context
    version = context.version.after(event, context.length)
    return plan_input.history.project(
        replace(context, version=version or context.version), plan_input.situation.counter
    )


def context_effect(before: Projection, after: Projection, situation: Situation) -> log.Effect:
    """Return what becomes of the next request when one thing is shown instead of another."""
    same = _common_entries(before.entries, after.entries)
    held = 0 if situation.is_cache_cold else before.cumulative_tokens[_last_answer_index(before.entries)]
    lost = max(0, held - before.cumulative_tokens[same])
    # What was said since the last request is new to the cache whatever is shown before it.
    rewritten = max(0, after.tokens - after.cumulative_tokens[same] - (before.tokens - held)) if lost else 0
    return log.Effect(
        tokens_before=before.tokens,
        tokens_after=after.tokens,
        provenance=situation.counter.provenance,
        prefix_lost=lost,
        rewritten=rewritten,
        rewrite_dollars=situation.prices.dollars_to_write(rewritten) if situation.prices else None,
    )


def _common_entries(one: Sequence[Entry], other: Sequence[Entry]) -> int:
    """Return how many entries two lists begin with alike."""
    pairs = zip(one, other, strict=False)
    changed = (index for index, (mine, its) in enumerate(pairs) if mine is not its and mine != its)
    return next(changed, min(len(one), len(other)))


def _last_answer_index(entries: Sequence[Entry]) -> int:
    """Return the index of the last answer: what stands before it was the last request that was sent."""
    answers = (
        index
        for index in range(len(entries) - 1, -1, -1)
        if entries[index].position is not None and entries[index].message.role == "assistant"
    )
    return next(answers, 0)
