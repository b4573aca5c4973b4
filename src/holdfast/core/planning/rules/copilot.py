"""Compaction in the background up to a checkpoint, as Copilot CLI has it.

At one share of the window a summary of everything so far is begun while requests go on; at another the next
request waits for it. When it is applied, a replacement takes the place of what stood before the boundary:
the summary, what the user had said, plan, todos and skills; what was said meanwhile follows whole. Where the room is
too small for all of that, the user's words are shortened first and the summary last: without it the rest says little.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from holdfast.core.conversation.cuts import uncuttable_span
from holdfast.core.conversation.shorten import clip_text
from holdfast.core.conversation.spans import Span
from holdfast.core.conversation.tokens import MESSAGE_OVERHEAD, Counter
from holdfast.core.history.events import Summary
from holdfast.core.planning.breaker import describe_fixed_size
from holdfast.core.planning.steps import (
    MAX_SUMMARY_TOKENS,
    NO_STEPS,
    AwaitSummary,
    CompactionForecast,
    CompactSpan,
    Plan,
    PlanInput,
    Threshold,
    compact_all_step,
)
from holdfast.core.planning.triggers import CompactionMove, PendingCompaction, TwoThresholds
from holdfast.core.schema import check_fields

REMINDER_CHARS, REMINDER_MESSAGES = 30_000, 20
REMINDER_HEAD_SHARE = 0.2
"""Of the reminder: what comes from the user's first messages; the rest is from the newest."""
REMINDER_CLIP_MARK = "...<truncated>..."
REMINDER_CHARS_PER_TOKEN = 4
"""About as many characters of what a person says are a token."""
MIN_SHORTENED_CHARS = 200
"""What is shorter is not worth shortening."""
CHECKPOINT_INTRO = "Some of the conversation history has been summarized to free up context."
MANUAL_INTRO = "The conversation history has been summarized to free up context."


@dataclass(frozen=True, slots=True, kw_only=True)
class CopilotCompaction:
    """Folds everything up to where the conversation stood when the summary was begun."""

    RULE: ClassVar[str] = "checkpoint"
    offers_recall: ClassVar[bool] = True
    detects_loops: ClassVar[bool] = False

    lines: TwoThresholds = field(default_factory=TwoThresholds)

    def __post_init__(self) -> None:
        check_fields(self, "policy.fold")

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return what the two lines say: start, wait, apply or go on."""
        situation = plan_input.situation
        if not situation.has_summarizer:
            return NO_STEPS
        limit = plan_input.window
        if plan_input.fixed_tokens >= self.lines.background * limit:
            told = "system text, tools, pins and the newest prompt alone are over the line: compaction cannot help"
            return Plan(reasons=(f"{told} ({describe_fixed_size(plan_input)})",))
        pending = PendingCompaction.RUNNING if plan_input.is_summarizing else PendingCompaction.NONE
        move = self.lines.next_move(
            utilization=plan_input.tokens / limit,
            pending=PendingCompaction.COMPLETED if situation.has_ready_summary else pending,
            messages=sum(entry.message.role != "system" for entry in plan_input.entries),
            was_refused=situation.refusals > 0,
        )
        why = (f"{plan_input.tokens:,} tokens are {plan_input.tokens / limit:.0%} of the window: {move.value}",)
        if move in {CompactionMove.APPLY, CompactionMove.WAIT}:
            return Plan(now=(AwaitSummary(),), reasons=why)
        step = self._span(plan_input) if move is not CompactionMove.CONTINUE else None
        if step is None:
            return NO_STEPS
        return Plan(later=(step,), reasons=why) if move is CompactionMove.START else Plan(now=(step,), reasons=why)

    def threshold(self, plan_input: PlanInput) -> Threshold:
        """Return how near the line is at which a summary is begun."""
        return Threshold(plan_input.tokens, int(self.lines.background * plan_input.window), "tokens")

    def forecast(self, plan_input: PlanInput, tokens: int) -> CompactionForecast | None:
        """Return what a fold is expected to leave: the prompt, a summary and what the user had said."""
        del tokens
        said = sum(
            size
            for entry, size in zip(plan_input.projection.entries, plan_input.projection.entry_tokens(), strict=True)
            if entry.message.is_prompt
        )
        quoted = min(said, REMINDER_CHARS // REMINDER_CHARS_PER_TOKEN)
        has_summarizer = plan_input.situation.has_summarizer
        return (
            CompactionForecast(plan_input.prompt_tokens, MAX_SUMMARY_TOKENS, quoted, by_model=True)
            if has_summarizer
            else None
        )

    def manual_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return the fold of everything so far."""
        return compact_all_step(plan_input)

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the message that stands for everything before the boundary."""
        if summary is None:
            return ()
        facts, entries = plan_input.history.session_state_for(plan_input.situation.scope), plan_input.history.entries
        positions = list(reversed(plan_input.prompts_between(step.span.start, step.span.stop)))
        entries.require(positions)
        said = [entries[position].message.text for position in positions if position not in step.span.kept]
        whole = _CheckpointParts(
            summary.text,
            user_messages=said,
            plan=facts.plan,
            todos=facts.todos,
            skills=facts.skills,
            agent_summary=facts.agent_summary,
            is_manual=step.trigger == "manual",
        )
        return (_fit_checkpoint(whole, self._max_replacement_tokens(plan_input, step), plan_input.situation.counter),)

    def _max_replacement_tokens(self, plan_input: PlanInput, step: CompactSpan) -> int:
        """Return what a replacement may take: with what stays it must not reach the line at which one is begun."""
        shown, situation = plan_input.projection, plan_input.situation
        stays = {*step.span.kept, *situation.pins, *plan_input.history.system_positions}
        left = sum(
            size
            for entry, size in zip(shown.entries, shown.entry_tokens(), strict=True)
            if entry.position is not None and (entry.position >= step.span.stop or entry.position in stays)
        )
        return int(self.lines.background * situation.message_budget) - left

    @staticmethod
    def _span(plan_input: PlanInput) -> CompactSpan | None:
        """Return everything so far, the prompt that is being answered and an exchange that is open excepted."""
        shown = plan_input.projection
        last = len(shown) - 1
        boundary = (
            uncuttable_span(shown, last)[0] if shown[last].outline.result_ids or shown[last].is_prompt else last + 1
        )
        prompt = shown.newest_prompt
        kept = shown.entries[prompt].position if prompt is not None and prompt < boundary else None
        stop = shown.position_at(boundary)
        count = len([entry for entry in shown.entries[:boundary] if entry.message.role != "system"])
        trigger = "context_limit_retry" if plan_input.situation.refusals else "threshold"
        if not count:
            return None
        return CompactSpan(
            span=Span(start=0, stop=stop, kept=() if kept is None else (kept,), count=count),
            by="summary",
            trigger=trigger,
        )


@dataclass(frozen=True, slots=True)
class _CheckpointParts:
    """What a replacement is made of, and how much of each."""

    summary: str
    user_messages: Sequence[str]
    plan: str
    todos: str
    skills: Mapping[str, str]
    agent_summary: str
    is_manual: bool
    reminder_chars: int = REMINDER_CHARS

    def __str__(self) -> str:
        return compacted_history(
            self.summary,
            user_messages=self.user_messages,
            plan=self.plan,
            todos=self.todos,
            skills=self.skills,
            agent_summary=self.agent_summary,
            is_manual=self.is_manual,
            reminder_chars=self.reminder_chars,
        )

    def shorter_versions(self) -> Iterator["_CheckpointParts"]:
        """Yield the same with less and less: of the user's words, of skills, of how things stand, of the summary."""
        kept = self
        for chars in _decreasing_sizes(min(self.reminder_chars, sum(map(len, self.user_messages)))):
            kept = replace(kept, reminder_chars=chars)
            yield kept
        kept = replace(kept, skills=dict.fromkeys(self.skills, ""))
        yield kept
        for chars in _decreasing_sizes(max(len(self.plan), len(self.todos), len(self.agent_summary))):
            plan, todos, agent = (clip_text(text, chars) for text in (self.plan, self.todos, self.agent_summary))
            kept = replace(kept, plan=plan, todos=todos, agent_summary=agent)
            yield kept
        kept = replace(kept, plan="", todos="", agent_summary="")
        for chars in _decreasing_sizes(len(self.summary)):
            yield replace(kept, summary=clip_text(self.summary, max(MIN_SHORTENED_CHARS, chars)))


def _fit_checkpoint(whole: _CheckpointParts, max_tokens: int, counter: Counter) -> str:
    """Return a replacement in at most so many tokens, where that can be done."""
    text = str(whole)
    for shorter in whole.shorter_versions():
        if counter.count(text) + MESSAGE_OVERHEAD <= max_tokens:
            return text
        text = str(shorter)
    return text


def _decreasing_sizes(number: int) -> Iterator[int]:
    """Yield less and less of a number of characters, and at last none."""
    while number > MIN_SHORTENED_CHARS:
        number = number * 2 // 3
        yield number
    yield 0


def compacted_history(
    summary: str,
    *,
    user_messages: Sequence[str] = (),
    plan: str = "",
    todos: str = "",
    skills: Mapping[str, str] | None = None,
    agent_summary: str = "",
    is_manual: bool = False,
    reminder_chars: int = REMINDER_CHARS,
) -> str:
    """Return the replacement for everything before a boundary, from whatever of its sources there is."""
    state = [_tagged("plan", plan), _tagged("todos", todos)]
    pieces = [
        MANUAL_INTRO if is_manual else CHECKPOINT_INTRO,
        _tagged("user_messages", "\n".join(user_reminder(user_messages, reminder_chars))),
        _tagged("summary", summary),
        _tagged("current_state", "\n".join(piece for piece in state if piece)),
        _tagged("invoked_skills", "\n".join(_skill_lines(skills or {}))),
        _tagged("agent_summary", agent_summary),
    ]
    return "\n\n".join(piece for piece in pieces if piece)


def user_reminder(messages: Sequence[str], max_chars: int = REMINDER_CHARS) -> Iterator[str]:
    """Yield what the user said: the newest messages first of all, then the first ones, and words for the rest."""
    head_count = int(REMINDER_MESSAGES * REMINDER_HEAD_SHARE)
    newest = list(messages[max(head_count, len(messages) - (REMINDER_MESSAGES - head_count)) :])
    oldest = list(messages[: min(head_count, len(messages))])
    head_chars = min(int(max_chars * REMINDER_HEAD_SHARE), sum(map(len, oldest)))
    tail = _clip_messages(list(reversed(newest)), max_chars - head_chars)
    head = _clip_messages(oldest, max_chars - sum(map(len, tail)))
    yield from map(_escape_tags, head)
    omitted = len(messages) - len(head) - len(tail)
    if omitted:
        yield f"... {omitted} messages omitted ..."
    yield from map(_escape_tags, reversed(tail))


def _clip_messages(messages: Sequence[str], max_chars: int) -> list[str]:
    """Return messages in at most `most` characters: the first ones whole, then one that is cut, then nothing."""
    left: list[str] = []
    for message in messages:
        if max_chars <= 0:
            break
        left.append(message if len(message) <= max_chars else message[:max_chars] + REMINDER_CLIP_MARK)
        max_chars -= len(message)
    return left


def _skill_lines(skills: Mapping[str, str]) -> Iterator[str]:
    """Yield the skills in the order in which they were called upon, the last with its instructions."""
    for number, (name, instructions) in enumerate(skills.items(), start=1):
        yield _tagged(f'skill name="{name}"', instructions if number == len(skills) else "", "skill") or f"- {name}"


def _tagged(tag: str, text: str, closing: str | None = None) -> str:
    return f"<{tag}>\n{text}\n</{closing or tag}>" if text else ""


def _escape_tags(text: str) -> str:
    return f"<user_message>\n{text}\n</user_message>"
