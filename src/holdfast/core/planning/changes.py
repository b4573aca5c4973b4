"""Turns steps into events and measures their effect on the next request.

A provider caches the prefix of the last request. A change invalidates the cache from the first position that it
touches, and the provider bills the rest as new input. That is the price of a change, besides its summary. If nothing
was sent yet, or the cache has expired, a change costs nothing.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from holdfast.core.conversation.json_values import replace_surrogates
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.events import Summary
from holdfast.core.history.projection import Projection
from holdfast.core.planning.replacement import message_texts, quoted_positions
from holdfast.core.planning.rules.rule import CompactionRule
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import CompactSpan, OffloadOutputs, PlanInput, ReduceTurnsToText
from holdfast.core.planning.summary.must_keep import (
    MUST_KEEP_WEIGHTS,
    FactReader,
    MustKeepKind,
    must_keep_lines,
    must_keep_of,
    must_keep_redacted,
)
from holdfast.errors import MalformedInputError, SettingsError

ChangedT = TypeVar("ChangedT", bound=log.OutputsOffloaded | log.TurnsReducedToText | log.ContextCleared | log.Rewound)


def add_effect(event: ChangedT, plan_input: PlanInput) -> ChangedT:
    """Return an event with its measured effect on the agent's context."""
    return replace(
        event, effect=context_effect(plan_input.projection, projection_after(event, plan_input), plan_input.situation)
    )


def projection_after(event: log.Event, plan_input: PlanInput) -> Projection:
    """Return the projection after a change; raise `MalformedInputError` if it cannot be applied."""
    context = plan_input.projection.context
    version = context.version.after(event, context.length)
    return Projection(replace(context, version=version or context.version), plan_input.situation.counter)


def context_effect(before: Projection, after: Projection, situation: Situation) -> log.Effect:
    """Return the effect on the next request when one projection replaces another."""
    same = _common_entries(before.entries, after.entries)
    held = 0 if situation.is_cache_cold else before.cumulative_tokens[_last_answer_index(before.entries)]
    lost = max(0, held - before.cumulative_tokens[same])
    # Messages since the last request are new to the cache in any case.
    rewritten = max(0, after.tokens - after.cumulative_tokens[same] - (before.tokens - held)) if lost else 0
    return log.Effect(
        tokens_before=before.tokens,
        tokens_after=after.tokens,
        request_tokens_before=situation.request_tokens(before.tokens),
        request_tokens_after=situation.request_tokens(after.tokens),
        provenance=situation.provenance,
        prefix_lost=lost,
        rewritten=rewritten,
        rewrite_dollars=situation.prices.dollars_to_write(rewritten) if situation.prices else None,
    )


def _common_entries(one: Sequence[Entry], other: Sequence[Entry]) -> int:
    """Return the length of the common prefix of two lists."""
    pairs = zip(one, other, strict=False)
    changed = (index for index, (mine, its) in enumerate(pairs) if mine is not its and mine != its)
    return next(changed, min(len(one), len(other)))


def _last_answer_index(entries: Sequence[Entry]) -> int:
    """Return the index of the last answer: the last request sent everything before it."""
    answers = (
        index
        for index in range(len(entries) - 1, -1, -1)
        if entries[index].position is not None and entries[index].message.role == "assistant"
    )
    return next(answers, 0)


def step_event(step: OffloadOutputs | ReduceTurnsToText, plan_input: PlanInput, reason: str = "") -> log.Event:
    """Return the event of a step that needs no model."""
    scope = plan_input.situation.scope
    if isinstance(step, ReduceTurnsToText):
        return add_effect(log.TurnsReducedToText(line=step.before, reason=reason, scope=scope), plan_input)
    messages = [entry.message for entry in plan_input.projection.entries]
    has_several_texts = any(len(result.content) > 1 for message in messages for result in message.results) or any(
        step.prompts_before and message.role == "user" and len(message.parts) > 1 for message in messages
    )
    event = log.OutputsOffloaded(
        line=step.before,
        max_chars=step.max_chars,
        prompts_before=step.prompts_before,
        is_per_output=has_several_texts or None,
        reason=reason,
        scope=scope,
    )
    return add_effect(event, plan_input)


def compaction_started_event(
    step: CompactSpan, plan_input: PlanInput, focus: str = "", *, owner: str = ""
) -> log.CompactionStarted:
    """Return the event that starts a compaction; `focus` is the user's instruction for the summary."""
    situation, system_tokens = plan_input.situation, plan_input.fixed_parts["system"]
    return log.CompactionStarted(
        trigger=step.trigger,
        span=step.span,
        basis=plan_input.history.change_count,
        custom_instructions=focus or None,
        tokens=log.TokenBreakdown(
            system_tokens=system_tokens,
            conversation_tokens=plan_input.message_tokens - (system_tokens - situation.system_tokens),
            tool_definitions_tokens=situation.tools_tokens,
        ),
        owner=owner,
        scope=situation.scope,
    )


def compaction_completed_event(
    step: CompactSpan, rule: CompactionRule, plan_input: PlanInput, summary: Summary | None = None
) -> log.CompactionCompleted:
    """Return the event of a compaction; it is a failed one if it frees no tokens and the rule requires that it does."""
    if summary is not None and not summary.text.strip():
        summary = None
    texts = rule.replacement_texts(plan_input, step, summary)
    if not isinstance(cast("object", texts), tuple) or not all(isinstance(cast("object", one), str) for one in texts):
        problem = f"replacement_texts of {type(rule).__name__} must return a tuple of texts, not {texts!r:.60}"
        raise SettingsError("policy.compaction", problem)
    # A rule of the user's may cut a text of JSON within a character, and no store or provider takes half of one.
    texts = tuple(map(replace_surrogates, texts))
    if step.by == "summary" and summary is None and (step.trigger == "manual" or not texts):
        return compaction_failed_event(step, plan_input, "the summary is empty")
    event = log.CompactionCompleted(
        success=True,
        trigger=step.trigger,
        span=step.span,
        replacement=texts,
        quoted=quoted_positions(texts, plan_input) if rule.offers_recall else (),
        offers_recall=rule.offers_recall,
        summary=summary or Summary("\n".join(texts)),
        # A replacement lists the running agents, with or without a summary.
        read_to=len(plan_input.history) if summary or plan_input.history.session_state.running_delegates else 0,
        marks=rule.progress_marks(plan_input),
        ends_run=step.by == "summary",
        scope=plan_input.situation.scope,
    )
    try:
        done = with_measured_effect(event, plan_input)
    except MalformedInputError as error:
        return compaction_failed_event(step, plan_input, f"its span does not stand any more: {error.problem}")
    before, after = done.pre_compaction_tokens, done.post_compaction_tokens
    if after < before or step.span.is_merged or rule.may_grow(step):
        return done
    problem = f"the replacement would be no smaller: {after:,} tokens instead of {before:,}"
    return replace(done, success=False, error=problem, effect=None)


def with_measured_effect(event: log.CompactionCompleted, plan_input: PlanInput) -> log.CompactionCompleted:
    """Return a compaction with its measured effect; raise `MalformedInputError` if it cannot be applied."""
    before, after = plan_input.projection, projection_after(event, plan_input)
    return replace(
        event,
        pre_compaction_tokens=before.tokens,
        post_compaction_tokens=after.tokens,
        tokens_removed=before.tokens - after.tokens,
        messages_removed=len(before) - len(after),
        effect=context_effect(before, after, plan_input.situation),
    )


def compaction_abandoned_event(
    started: log.CompactionStarted, error: str, *, is_cancelled: bool = False
) -> log.CompactionCompleted:
    """Return the event that a started compaction failed or was cancelled."""
    return log.CompactionCompleted(
        success=False,
        trigger=started.trigger,
        span=Span(start=started.span.start, stop=started.span.stop),
        error=error,
        is_cancelled=is_cancelled,
        scope=started.scope,
    )


def compaction_failed_event(step: CompactSpan, plan_input: PlanInput, error: str) -> log.CompactionCompleted:
    """Return the event of a compaction that failed."""
    return log.CompactionCompleted(
        success=False,
        trigger=step.trigger,
        span=Span(start=step.span.start, stop=step.span.stop),
        error=error,
        pre_compaction_tokens=plan_input.projection.tokens,
        post_compaction_tokens=plan_input.projection.tokens,
        ends_run=step.by == "summary",
        scope=plan_input.situation.scope,
    )


def lost_facts(
    compaction: log.CompactionCompleted,
    plan_input: PlanInput,
    hide: Callable[[str], str] = str,
    *,
    kinds: Container[MustKeepKind] = frozenset(MUST_KEEP_WEIGHTS),
) -> tuple[str, ...]:
    """Return the facts that no visible text would contain after a compaction, one line each; `hide` redacts secrets.

    Each line cites the message of its fact, so that the fact can be recalled.
    """
    facts = must_keep_redacted(
        must_keep_of(plan_input.history.ledger(plan_input.situation.scope, compaction.span.stop)), hide
    )
    sight = FactReader(map(hide, message_texts(projection_after(compaction, plan_input).entries)))
    return must_keep_lines(fact for fact in facts if fact.kind in kinds and not sight.contains(fact))
