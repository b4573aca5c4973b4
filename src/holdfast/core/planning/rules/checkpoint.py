"""Compaction in the background up to a checkpoint, as Copilot CLI has it.

At one share of the window a summary of everything so far is begun while requests go on; at another the next
request waits for it. When it is applied, a replacement takes the place of what stood before the boundary:
the summary, what the user had said, plan, todos and skills; what was said meanwhile follows whole. Where the room is
too small for all of that, the user's words are shortened first and the summary last: without it the rest says little.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from holdfast.core.conversation.clip import clip_text
from holdfast.core.conversation.cuts import unit_around
from holdfast.core.conversation.tokens import MESSAGE_OVERHEAD, Counter
from holdfast.core.planning.breaker import floor_told
from holdfast.core.planning.settings import check_settings
from holdfast.core.planning.steps import (
    MAX_SUMMARY_TOKENS,
    NOTHING,
    AwaitSummary,
    FoldSpan,
    Leaves,
    Line,
    Outlook,
    Proposal,
    Summary,
    fold_of_all,
)
from holdfast.core.planning.triggers import Move, Pending, TwoLines

REMINDER_CHARS, REMINDER_MESSAGES = 30_000, 20
HEAD_SHARE = 0.2
"""Of the reminder: what comes from the user's first messages; the rest is from the newest."""
CLIPPED = "...<truncated>..."
CHARS_PER_TOKEN = 4
"""About as many characters of what a person says are a token."""
LEAST_CHARS = 200
"""What is shorter is not worth shortening."""
INTRO = "Some of the conversation history has been summarized to free up context."
MANUAL_INTRO = "The conversation history has been summarized to free up context."


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldToCheckpoint:
    """Folds everything up to where the conversation stood when the summary was begun."""

    RULE: ClassVar[str] = "checkpoint"
    offers_recall: ClassVar[bool] = True
    notices_loops: ClassVar[bool] = False

    lines: TwoLines = field(default_factory=TwoLines)

    def __post_init__(self) -> None:
        check_settings(self, "fold")

    def propose(self, outlook: Outlook) -> Proposal:
        """Return what the two lines say: start, wait, apply or go on."""
        situation = outlook.situation
        if not situation.has_summariser:
            return NOTHING
        limit = outlook.window
        if outlook.fixed_tokens >= self.lines.background * limit:
            told = "system text, tools, pins and the newest prompt alone are over the line: compaction cannot help"
            return Proposal(reasons=(f"{told} ({floor_told(outlook)})",))
        pending = Pending.RUNNING if outlook.is_summarising else Pending.NONE
        move = self.lines.move(
            utilisation=outlook.tokens / limit,
            pending=Pending.COMPLETED if situation.has_ready_summary else pending,
            messages=sum(entry.message.role != "system" for entry in outlook.entries),
            was_refused=situation.refusals > 0,
        )
        why = (f"{outlook.tokens:,} tokens are {outlook.tokens / limit:.0%} of the window: {move.value}",)
        if move in {Move.APPLY, Move.WAIT}:
            return Proposal(now=(AwaitSummary(),), reasons=why)
        step = self._span(outlook) if move is not Move.CONTINUE else None
        if step is None:
            return NOTHING
        return Proposal(later=(step,), reasons=why) if move is Move.START else Proposal(now=(step,), reasons=why)

    def line(self, outlook: Outlook) -> Line:
        """Return how near the line is at which a summary is begun."""
        return Line(outlook.tokens, int(self.lines.background * outlook.window), "tokens")

    def leaves(self, outlook: Outlook, tokens: int) -> Leaves | None:
        """Return what a fold is expected to leave: the prompt, a summary and what the user had said."""
        del tokens
        said = sum(
            size
            for entry, size in zip(outlook.shown.entries, outlook.shown.sizes(), strict=True)
            if entry.message.is_prompt
        )
        quoted = min(said, REMINDER_CHARS // CHARS_PER_TOKEN)
        has_summariser = outlook.situation.has_summariser
        return Leaves(outlook.prompt_tokens, MAX_SUMMARY_TOKENS, quoted, by_model=True) if has_summariser else None

    def manual(self, outlook: Outlook) -> FoldSpan | None:
        """Return the fold of everything so far."""
        return fold_of_all(outlook)

    def replacement(self, outlook: Outlook, step: FoldSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the message that stands for everything before the boundary."""
        if summary is None:
            return ()
        facts, entries = outlook.history.facts_for(outlook.situation.scope), outlook.history.entries
        positions = list(reversed(outlook.prompts_between(step.start, step.stop)))
        entries.need(positions)
        said = [entries[position].message.text for position in positions if position not in step.kept]
        whole = _Sources(
            summary.text,
            user_messages=said,
            plan=facts.plan,
            todos=facts.todos,
            skills=facts.skills,
            agent_summary=facts.agent_summary,
            is_manual=step.trigger == "manual",
        )
        return (_fitted(whole, self._most(outlook, step), outlook.situation.counter),)

    def _most(self, outlook: Outlook, step: FoldSpan) -> int:
        """Return what a replacement may take: with what stays it must not reach the line at which one is begun."""
        shown, situation = outlook.shown, outlook.situation
        stays = {*step.kept, *situation.pins, *outlook.history.systems}
        left = sum(
            size
            for entry, size in zip(shown.entries, shown.sizes(), strict=True)
            if entry.position is not None and (entry.position >= step.stop or entry.position in stays)
        )
        return int(self.lines.background * situation.room) - left

    @staticmethod
    def _span(outlook: Outlook) -> FoldSpan | None:
        """Return everything so far, the prompt that is being answered and an exchange that is open excepted."""
        shown = outlook.shown
        last = len(shown) - 1
        boundary = unit_around(shown, last)[0] if shown[last].outline.result_ids or shown[last].is_prompt else last + 1
        prompt = shown.newest_prompt
        kept = shown.entries[prompt].position if prompt is not None and prompt < boundary else None
        stop = shown.position(boundary)
        count = len([entry for entry in shown.entries[:boundary] if entry.message.role != "system"])
        trigger = "context_limit_retry" if outlook.situation.refusals else "threshold"
        if not count:
            return None
        return FoldSpan(
            start=0, stop=stop, kept=() if kept is None else (kept,), by="summary", count=count, trigger=trigger
        )


@dataclass(frozen=True, slots=True)
class _Sources:
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

    def shorter(self) -> Iterator["_Sources"]:
        """Yield the same with less and less: of the user's words, of skills, of how things stand, of the summary."""
        kept = self
        for chars in _lessening(min(self.reminder_chars, sum(map(len, self.user_messages)))):
            kept = replace(kept, reminder_chars=chars)
            yield kept
        kept = replace(kept, skills=dict.fromkeys(self.skills, ""))
        yield kept
        for chars in _lessening(max(len(self.plan), len(self.todos), len(self.agent_summary))):
            plan, todos, agent = (clip_text(text, chars) for text in (self.plan, self.todos, self.agent_summary))
            kept = replace(kept, plan=plan, todos=todos, agent_summary=agent)
            yield kept
        kept = replace(kept, plan="", todos="", agent_summary="")
        for chars in _lessening(len(self.summary)):
            yield replace(kept, summary=clip_text(self.summary, max(LEAST_CHARS, chars)))


def _fitted(whole: _Sources, most: int, counter: Counter) -> str:
    """Return a replacement in at most so many tokens, where that can be done."""
    text = str(whole)
    for shorter in whole.shorter():
        if counter.count(text) + MESSAGE_OVERHEAD <= most:
            return text
        text = str(shorter)
    return text


def _lessening(number: int) -> Iterator[int]:
    """Yield less and less of a number of characters, and at last none."""
    while number > LEAST_CHARS:
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
        MANUAL_INTRO if is_manual else INTRO,
        _tagged("user_messages", "\n".join(reminder(user_messages, reminder_chars))),
        _tagged("summary", summary),
        _tagged("current_state", "\n".join(piece for piece in state if piece)),
        _tagged("invoked_skills", "\n".join(_skills(skills or {}))),
        _tagged("agent_summary", agent_summary),
    ]
    return "\n\n".join(piece for piece in pieces if piece)


def reminder(messages: Sequence[str], most: int = REMINDER_CHARS) -> Iterator[str]:
    """Yield what the user said: the newest messages first of all, then the first ones, and words for the rest."""
    head_count = int(REMINDER_MESSAGES * HEAD_SHARE)
    newest = list(messages[max(head_count, len(messages) - (REMINDER_MESSAGES - head_count)) :])
    oldest = list(messages[: min(head_count, len(messages))])
    head_chars = min(int(most * HEAD_SHARE), sum(map(len, oldest)))
    tail = _clipped(list(reversed(newest)), most - head_chars)
    head = _clipped(oldest, most - sum(map(len, tail)))
    yield from map(_quoted, head)
    omitted = len(messages) - len(head) - len(tail)
    if omitted:
        yield f"... {omitted} messages omitted ..."
    yield from map(_quoted, reversed(tail))


def _clipped(messages: Sequence[str], most: int) -> list[str]:
    """Return messages in at most `most` characters: the first ones whole, then one that is cut, then nothing."""
    left: list[str] = []
    for message in messages:
        if most <= 0:
            break
        left.append(message if len(message) <= most else message[:most] + CLIPPED)
        most -= len(message)
    return left


def _skills(skills: Mapping[str, str]) -> Iterator[str]:
    """Yield the skills in the order in which they were called upon, the last with its instructions."""
    for number, (name, instructions) in enumerate(skills.items(), start=1):
        yield _tagged(f'skill name="{name}"', instructions if number == len(skills) else "", "skill") or f"- {name}"


def _tagged(tag: str, text: str, closing: str | None = None) -> str:
    return f"<{tag}>\n{text}\n</{closing or tag}>" if text else ""


def _quoted(text: str) -> str:
    return f"<user_message>\n{text}\n</user_message>"
