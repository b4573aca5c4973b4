"""What the default policy puts in the place of folded messages.

The user's own words as far as they fit, whole; what was done, by a model's summary or read off by rule; the plan, the
list of things to do, skills and agents as they stand; and the names that are likely to be needed again. All of it is
marked as reference: it asks for nothing.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from holdfast.core.conversation.clip import clip_text
from holdfast.core.conversation.tokens import Counter
from holdfast.core.conversation.view import Entry
from holdfast.core.history.digest import make_digest
from holdfast.core.history.facts import SessionState
from holdfast.core.history.identifiers import argument_text
from holdfast.core.history.ledger.rendering import render_ledger
from holdfast.core.planning.steps import CompactSpan, PlanInput, Summary
from holdfast.core.planning.summary.frames import (
    ANSWERS_HEADING,
    PROMPTS_HEADING,
    STATE_HEADING,
    neutralize_frames,
    reference_frame,
)
from holdfast.core.planning.talk import is_quotable, most_informative
from holdfast.plural import pluralize

PROMPTS_SHARE, LEDGER_SHARE = 0.2, 0.68
"""Of the allowance: for the user's words, and for the ledger; what they leave is the digest's."""
REPLACEMENT_DIGEST_MESSAGES = 64
"""How many of the newest folded messages a digest is read from."""
MAX_REPLACEMENT_PROMPTS = 256
"""How many of the user's messages are looked at, newest first."""
STATE_SHARE = 0.3
"""Of the allowance: the most that plan, todos, skills and agent take; what is longer is clipped."""
MAX_QUOTED_PROMPTS = 16
MIN_REPLACEMENT_DIGEST_TOKENS, MIN_STATE_CHARS = 60, 80


class _ReplacementParts(NamedTuple):
    """What a replacement holds besides an account of what was done."""

    prompts: list[Entry]
    """What the user said in the span, as far as it is looked at."""
    quoted: list[Entry]
    """What of it is quoted to the letter."""
    prompt_text: str
    ledger: str
    state: str
    """How things stand besides what was said."""
    answer_text: str = ""
    """What the assistant said, to the letter, where a talk is folded."""


class ReplacementBudget(NamedTuple):
    """What may stand for a span, in tokens."""

    tokens: int
    """Summary or digest, the user's words and the ledger."""
    chat_tokens: int = 0
    """Turns that stay whole besides, where a talk is folded."""


def replacement_text(
    plan_input: PlanInput, step: CompactSpan, summary: Summary | None, allowance: ReplacementBudget
) -> str:
    """Return the text that stands for a span, in at most the allowance where no model's summary is in it."""
    kept = _replacement_parts(plan_input, step, allowance)
    texts = kept.state, kept.prompt_text, kept.answer_text, kept.ledger
    taken = sum(plan_input.situation.counter.count(text) + 2 for text in texts if text)
    done = (
        reference_frame(summary.text, step.count)
        if summary
        else _digest_text(plan_input, step, kept, allowance.tokens - max(0, taken - allowance.chat_tokens))
    )
    return "\n\n".join(text for text in (done, *texts) if text) or f"[{pluralize(step.count, 'earlier message')}]"


def _digest_text(plan_input: PlanInput, step: CompactSpan, kept: _ReplacementParts, allowance: int) -> str:
    """Return what was done by rule; where a model's summary of the beginning came too late for its fold, that first."""
    known = plan_input.history.session_state.summary_within(step.start, step.stop, plan_input.situation.scope)
    if known is None:
        return _make_digest(plan_input, step, kept.prompts, kept.quoted, allowance)
    told = reference_frame(known.text, known.stop - known.start)
    left = allowance - plan_input.situation.counter.count(told)
    rest = replace(step, start=known.stop, count=max(1, step.count - (known.stop - known.start)))
    newer = [entry for entry in kept.prompts if (entry.position or 0) >= known.stop]
    if left < MIN_REPLACEMENT_DIGEST_TOKENS or known.stop == step.stop:
        return told
    return f"{told}\n\n{_make_digest(plan_input, rest, newer, kept.quoted, left)}"


def texts_beside_summary(plan_input: PlanInput, step: CompactSpan, allowance: ReplacementBudget) -> list[str]:
    """Return the texts that a summary of a span will stand next to: what it need not say, and what it may lose."""
    kept = _replacement_parts(plan_input, step, allowance)
    positions = sorted({*step.kept, *(pin for pin in plan_input.situation.pins if step.start <= pin < step.stop)})
    staying = [plan_input.history.entries[position] for position in positions]
    others = [text for text in (kept.answer_text, kept.state) if text]
    return [kept.prompt_text, kept.ledger, *others, *message_texts(staying), *_tail_texts(plan_input, step)]


def quoted_positions(texts: Iterable[str], plan_input: PlanInput) -> tuple[int, ...]:
    """Return the positions of messages that texts quote whole, as this page does."""
    found: list[int] = []
    for text in texts:
        for place in re.findall(r"(?m)^\(#(\d{1,9})\) ", text):
            position = int(place)
            if position < len(plan_input.history) and _quote_line(plan_input.history.entries[position]) in text:
                found.append(position)
    return tuple(sorted(set(found)))


def _replacement_parts(plan_input: PlanInput, step: CompactSpan, budget: ReplacementBudget) -> _ReplacementParts:
    counter = plan_input.situation.counter
    known = plan_input.history.session_state_for(plan_input.situation.scope)
    state = _state_text(known, _running_delegates(plan_input), int(budget.tokens * STATE_SHARE), counter)
    allowance = budget.tokens - counter.count(state)
    prompts = _prompts_in(plan_input, step)
    # Of a talk the first prompt stays for its own sake, and all else for what it says.
    whole = _quotable_prompts(
        prompts[:1] if budget.chat_tokens else prompts, int(allowance * PROMPTS_SHARE), plan_input
    )
    ledger = plan_input.history.ledger(plan_input.situation.scope, step.stop)
    near = "\n".join([_quote_text(whole), state, *_tail_texts(plan_input, step)])
    names = render_ledger(ledger, int(allowance * LEDGER_SHARE), counter, exclude_text=near)
    # A conversation without tools has few names: what the ledger leaves, the user's words take.
    spare = max(int(allowance * (PROMPTS_SHARE + LEDGER_SHARE)) - counter.count(names), int(allowance * PROMPTS_SHARE))
    if budget.chat_tokens:
        whole, answers = _quoted_turns(plan_input, step, whole, spare + budget.chat_tokens)
        return _ReplacementParts(
            prompts, whole, _quote_text(whole), names, state, _quote_text(answers, ANSWERS_HEADING)
        )
    # What was quoted stays so: the ledger does not say it again.
    quoted = {entry.position for entry in whole}
    others = [entry for entry in prompts if entry.position not in quoted]
    whole = _quotable_prompts([*whole, *others], spare, plan_input)
    return _ReplacementParts(prompts, whole, _quote_text(whole), names, state)


def _running_delegates(plan_input: PlanInput) -> str:
    """Return the agents that were sent out from here, are shown here and have not answered, each with its task."""
    context, entries = plan_input.projection.context, plan_input.history.entries
    sent = [
        scope
        for scope in plan_input.history.session_state.running_delegates
        if context.scopes.parents.get(scope) == context.scope
    ]
    firsts = {scope: context.message_scopes.index(scope) for scope in sent if scope in context.message_scopes}
    entries.require([first for first in firsts.values() if context.may_be_visible(first)])
    told = {scope: entries[first].message.text for scope, first in firsts.items() if context.is_visible(first)}
    return "\n".join(f"- {scope}: {' '.join(task.split())}" for scope, task in told.items())


def _state_text(state: SessionState, at_work: str, allowance: int, counter: Counter) -> str:
    """Return how things stand in at most an allowance; of skills the last one with its instructions."""
    *earlier, last = [*state.skills] or [""]
    skills = "\n".join([*(f"- {name}" for name in earlier), f"- {last}: {state.skills[last]}"]) if last else ""
    parts = {"Plan": state.plan, "To do": state.todos, "Skills called upon": skills, "Agent": state.agent_summary}
    parts["Agents at work when this was written; what they find comes later"] = at_work
    told = {name: neutralize_frames(text.strip()) for name, text in parts.items() if text.strip()}
    chars = max(map(len, told.values()), default=0)
    while told:
        text = "\n".join([STATE_HEADING, *(f"{name}:\n{clip_text(told[name], chars)}" for name in told)])
        if counter.count(text) <= allowance:
            return text
        if chars < MIN_STATE_CHARS:
            break
        chars = int(0.8 * chars)
    return ""


def _quoted_turns(
    plan_input: PlanInput, step: CompactSpan, whole: list[Entry], allowance: int
) -> tuple[list[Entry], list[Entry]]:
    """Return the turns of a talk that are worth staying whole, the user's and the assistant's.

    They are chosen from those that stood whole until now and those that an earlier fold has quoted.
    """
    history, counter = plan_input.history, plan_input.situation.counter
    known = [position for fold in plan_input.projection.context.state.compactions for position in fold.quoted]
    standing = [entry.position for entry in plan_input.projection.entries if entry.position is not None]
    chosen = {position for position in (*known, *standing) if step.start <= position < step.stop}
    others = sorted(chosen.difference(step.kept, (entry.position or 0 for entry in whole)))
    history.entries.require(others)
    turns = [turn for turn in (history.entries[position] for position in others) if is_quotable(turn)]
    room = allowance - sum(counter.count(text) + 1 for text in (_quote_text(whole) or PROMPTS_HEADING, ANSWERS_HEADING))
    best = most_informative(turns, room, lambda entry: counter.count(_quote_line(entry)) + 1)
    said = sorted([*whole, *(turn for turn in best if turn.message.role == "user")], key=_position_of)
    return said, [turn for turn in best if turn.message.role == "assistant"]


def _quote_text(whole: list[Entry], heading: str = PROMPTS_HEADING) -> str:
    return "\n".join([heading, *(_quote_line(entry) for entry in whole)]) if whole else ""


def digest_text(plan_input: PlanInput, step: CompactSpan, allowance: int = 2_000) -> str:
    """Return a summary of a span made by rule alone, for those that want nothing but a summary."""
    return _make_digest(plan_input, step, _prompts_in(plan_input, step), [], allowance)


def _tail_texts(plan_input: PlanInput, step: CompactSpan) -> Iterator[str]:
    """Yield the texts that stay in view behind the fold."""
    return message_texts(plan_input.projection.context.entries_between(step.stop, plan_input.projection.context.length))


def message_texts(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield all that can be read in messages: what was said, what tools answered, and what they were asked."""
    for entry in entries:
        message = entry.message
        yield message.text
        yield from (result.text for result in message.results)
        yield from (argument_text(call.arguments) for call in message.calls)


def _make_digest(
    plan_input: PlanInput, step: CompactSpan, prompts: list[Entry], whole: list[Entry], allowance: int
) -> str:
    context, start = plan_input.projection.context, max(step.start, step.stop - REPLACEMENT_DIGEST_MESSAGES)
    telling = {entry.position: entry for entry in prompts[:MAX_QUOTED_PROMPTS]}
    telling |= {entry.position: entry for entry in context.entries_between(start, step.stop)}
    for position in (*step.kept, *(entry.position for entry in whole)):
        telling.pop(position, None)
    entries = [telling[position] for position in sorted(telling, key=lambda position: position or 0)]
    return make_digest(
        entries,
        allowance_tokens=max(0, allowance),
        counter=plan_input.situation.counter,
        message_count=step.count,
        is_prompt_kept=bool(step.kept),
    )


def _prompts_in(plan_input: PlanInput, step: CompactSpan) -> list[Entry]:
    """Return what the user said in the span: the first message, then the newest backwards."""
    standing = [position for position in plan_input.prompts_between(step.start, step.stop) if position not in step.kept]
    chosen = [*standing[-1:], *standing[: MAX_REPLACEMENT_PROMPTS - 1]]
    plan_input.history.entries.require(chosen)
    return [plan_input.history.entries[position] for position in dict.fromkeys(chosen)]


def _quotable_prompts(prompts: list[Entry], allowance: int, plan_input: PlanInput) -> list[Entry]:
    """Return the prompts that fit an allowance whole, in the order in which they were said."""
    return sorted(_prompts_within(prompts, allowance, plan_input), key=_position_of)


def _prompts_within(prompts: list[Entry], allowance: int, plan_input: PlanInput) -> Iterator[Entry]:
    counter = plan_input.situation.counter
    left = allowance - counter.count(PROMPTS_HEADING)
    for entry in prompts:
        cost = counter.count(_quote_line(entry)) + 1
        if cost <= left:
            left -= cost
            yield entry


def _position_of(entry: Entry) -> int:
    return entry.position or 0


def _quote_line(entry: Entry) -> str:
    return f"(#{entry.position}) {entry.message.text}"
