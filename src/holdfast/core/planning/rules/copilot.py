"""Background compaction up to a checkpoint, as in Copilot CLI.

At one share of the limit a summary of everything so far starts while requests continue. At a higher share the next
request waits for it. The limit is what the provider accepts as a prompt, else the model's window, and never more than
the budget allows. When the summary is applied, one message replaces everything before the boundary. It holds the
summary, the user's messages, plan, todos and skills. Later messages follow unchanged. If there is too little room, the
user's messages are shortened first and the summary last, because the rest means little without it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from itertools import islice
from typing import ClassVar

from holdfast.core.conversation.cuts import uncuttable_span
from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.shorten import clip_text
from holdfast.core.conversation.spans import Span
from holdfast.core.conversation.tokens import MESSAGE_OVERHEAD, REPLY_OVERHEAD
from holdfast.core.history.events import Summary
from holdfast.core.planning.rules.rule import CompactionRule, PolicyThreshold
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import (
    MAX_SUMMARY_TOKENS,
    NO_STEPS,
    AwaitSummary,
    CompactionForecast,
    CompactSpan,
    Plan,
    PlanInput,
    Threshold,
    cannot_help_plan,
)
from holdfast.core.schema import check_fields, integer_bounds, number_bounds
from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError

REMINDER_CHARS, REMINDER_MESSAGES = 30_000, 20
REMINDER_HEAD_SHARE = 0.2
"""The share of the reminder for the user's first messages; the newest messages get the rest."""
REMINDER_CLIP_MARK = "...<truncated>..."
DIGEST_CLIP_MARK = "[…]"
REMINDER_CHARS_PER_TOKEN = 4
"""An estimate for prose."""
MIN_SHORTENED_CHARS = 200
"""Shorter texts are not worth shortening."""
CHECKPOINT_INTRO = "Some of the conversation history has been summarized to free up context."
MANUAL_INTRO = "The conversation history has been summarized to free up context."


class PendingCompaction(Enum):
    """The state of a compaction in the background."""

    NONE = "none"
    RUNNING = "running"
    COMPLETED = "completed"


class CompactionMove(Enum):
    """What to do about compaction before a request."""

    CONTINUE = "continue"
    START = "a summary starts in the background"
    APPLY = "the finished summary is applied"
    WAIT = "the request waits for the summary"
    START_AND_WAIT = "a summary starts, and the request waits for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoThresholds:
    """Background compaction as in Copilot CLI: it starts at one share of the limit, and requests wait at another."""

    background: float = field(default=0.8, metadata=number_bounds(0.001, 1))
    """The share of the limit at which a background summary starts."""
    exhausted: float = field(default=0.95, metadata=number_bounds(0.001, 1))
    """The share of the limit at which a request waits for the summary."""
    min_messages: int = field(default=4, metadata=integer_bounds(1, 10**6))
    """Fewer messages are not compacted, unless a provider has refused the request."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.compaction.triggers")
        if self.background >= self.exhausted:
            problem = f"{self.background} must lie below {self.exhausted}"
            raise SettingsError("policy.compaction.triggers.background", problem)

    def next_move(
        self, *, utilization: float, pending: PendingCompaction, messages: int, was_refused: bool = False
    ) -> CompactionMove:
        """Return what to do about compaction at a utilization of the limit.

        After a refusal a compaction is forced, however few messages there are.
        """
        if pending is PendingCompaction.COMPLETED:
            return CompactionMove.APPLY
        must_wait = was_refused or utilization >= self.exhausted
        if pending is PendingCompaction.RUNNING:
            return CompactionMove.WAIT if must_wait else CompactionMove.CONTINUE
        is_due = messages >= self.min_messages and (must_wait or utilization >= self.background)
        if not is_due and not was_refused:
            return CompactionMove.CONTINUE
        return CompactionMove.START_AND_WAIT if must_wait else CompactionMove.START


@dataclass(frozen=True, slots=True, kw_only=True)
class CopilotCompaction(CompactionRule):
    """Compacts everything up to the newest message at the time the summary was started."""

    RULE: ClassVar[str] = "copilot"
    offers_recall: ClassVar[bool] = True
    asks_title: ClassVar[bool] = True

    triggers: TwoThresholds = field(default_factory=TwoThresholds)

    def __post_init__(self) -> None:
        check_fields(self, "policy.compaction")

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return the plan that the two thresholds require: start, wait, apply or continue."""
        situation = plan_input.situation
        if not situation.has_summarizer:
            return NO_STEPS
        if plan_input.fixed_tokens >= self.triggers.background * situation.limit and not situation.refusals:
            limit = f"{self.triggers.background:.0%} of the limit"
            return cannot_help_plan(plan_input, "system text, tools, pins", limit)
        utilization = plan_input.tokens / situation.limit
        pending = PendingCompaction.RUNNING if plan_input.is_summarizing else PendingCompaction.NONE
        move = self.triggers.next_move(
            utilization=utilization,
            pending=PendingCompaction.COMPLETED if situation.has_ready_summary else pending,
            messages=sum(entry.message.role != "system" for entry in plan_input.entries),
            was_refused=situation.refusals > 0,
        )
        tokens, limit = situation.billed_tokens(plan_input.tokens), situation.billed_limit
        reasons = (f"{tokens:,} tokens are {utilization:.0%} of the limit of {limit:,}: {move.value}",)
        if move in {CompactionMove.APPLY, CompactionMove.WAIT}:
            return Plan(now=(AwaitSummary(),), reasons=reasons)
        step = self._span(plan_input) if move is not CompactionMove.CONTINUE else None
        if step is None:
            return NO_STEPS
        return Plan(later=(step,), reasons=reasons) if move is CompactionMove.START else Plan((step,), reasons=reasons)

    def threshold(self, plan_input: PlanInput) -> Threshold:
        """Return how near the threshold is at which a summary is started."""
        return Threshold(plan_input.tokens, int(self.triggers.background * plan_input.situation.limit), "tokens")

    def request_limit(self, window: int) -> int | None:
        """Return the window: the limit on prompts if the provider names one."""
        return window

    def thresholds(self, situation: Situation, window: int) -> Iterator[PolicyThreshold]:
        """Yield where a summary is started, and where a request waits for it."""
        del window
        yield PolicyThreshold("summary starts", int(self.triggers.background * situation.limit))
        yield PolicyThreshold("request waits", int(self.triggers.exhausted * situation.limit))

    def forecast(self, plan_input: PlanInput, tokens: int) -> CompactionForecast | None:
        """Return the expected size after a compaction: the prompt, a summary and the user's messages."""
        del tokens
        if not plan_input.situation.has_summarizer:
            return None
        projection = plan_input.projection
        sizes = zip(projection.entries, projection.entry_tokens(), strict=True)
        said = sum(size for entry, size in sizes if entry.message.is_prompt)
        quoted = min(said, REMINDER_CHARS // REMINDER_CHARS_PER_TOKEN)
        return CompactionForecast(plan_input.prompt_tokens, MAX_SUMMARY_TOKENS, quoted, by_model=True)

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the message that replaces everything before the boundary, shortened to fit its room."""
        if summary is None:
            return ()
        history, situation = plan_input.history, plan_input.situation
        span, state = step.span, history.session_state_for(situation.scope)
        positions = plan_input.prompts_between(span.start, span.stop)
        history.entries.require(positions)
        parts = CompactedHistory(
            summary.text,
            [history.entries[at].message.text for at in reversed(positions) if at not in span.kept],
            state.plan,
            state.todos,
            state.skills,
            state.agent_summary,
            is_manual=step.trigger == "manual",
            is_digest=summary.by_model is None,
        )
        # Together with the kept messages, the replacement must stay below the threshold that starts the next summary.
        threshold = int(self.triggers.background * situation.limit)
        max_tokens = threshold - situation.extras_tokens - REPLY_OVERHEAD - plan_input.tokens_outside(span)
        text = str(parts)
        for shorter in parts.shorter_versions():
            if situation.counter.count(text) + MESSAGE_OVERHEAD <= max_tokens:
                break
            text = str(shorter)
        return (text,)

    @staticmethod
    def _span(plan_input: PlanInput) -> CompactSpan | None:
        """Return everything so far except the prompt that is being answered and an open exchange."""
        projection = plan_input.projection
        if not projection:
            return None
        last = len(projection) - 1
        is_open = projection[last].outline.result_ids or projection[last].is_prompt
        boundary = uncuttable_span(projection, last)[0] if is_open else last + 1
        prompt = projection.newest_prompt
        kept = projection.entries[prompt].position if prompt is not None and prompt < boundary else None
        said = [entry.position for entry in projection.entries[:boundary] if entry.message.role != "system"]
        staying = {None, kept, *plan_input.situation.pins}
        if all(position in staying for position in said):
            # Only an earlier summary and messages that stay anyway are left.
            return None
        return CompactSpan(
            span=Span(
                start=0,
                stop=projection.position_at(boundary),
                kept=() if kept is None else (kept,),
                count=len(said),
            ),
            by="summary",
            trigger="context_limit_retry" if plan_input.situation.refusals else "threshold",
        )


@dataclass(frozen=True, slots=True)
class CompactedHistory:
    """The replacement for everything before a boundary; empty parts are left out."""

    summary: str
    user_messages: Sequence[str] = ()
    plan: str = ""
    todos: str = ""
    skills: Mapping[str, str] = field(default_factory=dict[str, str])
    agent_summary: str = ""
    is_manual: bool = False
    is_digest: bool = False
    """Whether the summary is a digest made by rule: its lines are ours, and each is made safe already."""
    reminder_chars: int = REMINDER_CHARS

    def __str__(self) -> str:
        # The cut of a text may begin a line with what was in the middle of one, so the clipped text is made safe.
        state = (_tagged("plan", neutralize(self.plan)), _tagged("todos", neutralize(self.todos)))
        pieces = (
            MANUAL_INTRO if self.is_manual else CHECKPOINT_INTRO,
            _tagged("user_messages", "\n".join(user_reminder(self.user_messages, self.reminder_chars))),
            _tagged("summary", self.summary if self.is_digest else neutralize(self.summary)),
            _tagged("current_state", "\n".join(piece for piece in state if piece)),
            _tagged("invoked_skills", "\n".join(_skill_lines(self.skills))),
            _tagged("agent_summary", neutralize(self.agent_summary)),
        )
        return "\n\n".join(piece for piece in pieces if piece)

    def shorter_versions(self) -> Iterator["CompactedHistory"]:
        """Yield ever shorter versions: first the user's messages shrink, then skills, oldest first, state, summary."""
        parts = self
        for chars in _decreasing_sizes(min(self.reminder_chars, sum(map(len, self.user_messages)))):
            parts = replace(parts, reminder_chars=chars)
            yield parts
        for count in range(1, len(self.skills) + 1):
            parts = replace(parts, skills={**self.skills, **dict.fromkeys(islice(self.skills, count), "")})
            yield parts
        for chars in _decreasing_sizes(max(len(self.plan), len(self.todos), len(self.agent_summary))):
            plan, todos, agent = (clip_text(text, chars) for text in (self.plan, self.todos, self.agent_summary))
            parts = replace(parts, plan=plan, todos=todos, agent_summary=agent)
            yield parts
        parts = replace(parts, plan="", todos="", agent_summary="")
        for chars in _decreasing_sizes(len(self.summary)):
            yield replace(parts, summary=self._clip_summary(max(MIN_SHORTENED_CHARS, chars)))

    def _clip_summary(self, chars: int) -> str:
        """Return the shortened summary; a digest is cut between two lines, because a part of one would begin a line."""
        if not self.is_digest or len(self.summary) <= chars:
            return clip_text(self.summary, chars)
        return self.summary[: self.summary.rfind("\n", 0, chars) + 1].rstrip() or DIGEST_CLIP_MARK


def _decreasing_sizes(chars: int) -> Iterator[int]:
    while chars > MIN_SHORTENED_CHARS:
        chars = chars * 2 // 3
        yield chars
    yield 0


def user_reminder(messages: Sequence[str], max_chars: int = REMINDER_CHARS) -> Iterator[str]:
    """Yield the user's first and newest messages; the newest get most of the room, and a line counts the others."""
    head_count = int(REMINDER_MESSAGES * REMINDER_HEAD_SHARE)
    newest = list(messages[max(head_count, len(messages) - (REMINDER_MESSAGES - head_count)) :])
    oldest = list(messages[: min(head_count, len(messages))])
    head_chars = min(int(max_chars * REMINDER_HEAD_SHARE), sum(map(len, oldest)))
    tail = _clip_messages(list(reversed(newest)), max_chars - head_chars)
    head = _clip_messages(oldest, max_chars - sum(map(len, tail)))
    yield from map(_user_message, head)
    omitted = len(messages) - len(head) - len(tail)
    if omitted:
        yield f"... {omitted} messages omitted ..."
    yield from map(_user_message, reversed(tail))


def _clip_messages(messages: Sequence[str], max_chars: int) -> list[str]:
    """Return messages in at most `max_chars` characters: whole messages, then one that is cut."""
    clipped: list[str] = []
    for message in messages:
        if max_chars <= 0:
            break
        clipped.append(message if len(message) <= max_chars else message[:max_chars] + REMINDER_CLIP_MARK)
        max_chars -= len(message)
    return clipped


def _skill_lines(skills: Mapping[str, str]) -> Iterator[str]:
    """Yield the skills in the order of use, each with its instructions if it has any."""
    for name, instructions in skills.items():
        safe = neutralize(name, "name")
        yield _tagged(f'skill name="{safe}"', neutralize(instructions), "skill") or f"- {safe}"


def _tagged(tag: str, text: str, closing: str | None = None) -> str:
    return f"<{tag}>\n{text}\n</{closing or tag}>" if text else ""


def _user_message(text: str) -> str:
    return f"<user_message>\n{neutralize(text)}\n</user_message>"
