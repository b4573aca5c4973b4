"""What the default policy puts in the place of folded messages.

The user's own words as far as they fit, whole; what was done, by a model's summary or read off by rule; the plan, the
list of things to do, skills and agent as they stand; and the names that are likely to be needed again. All of it is
marked as reference: it asks for nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from holdfast.core.conversation.clip import clip_text
from holdfast.core.conversation.tokens import Counter
from holdfast.core.conversation.view import Entry
from holdfast.core.history.digest import digest
from holdfast.core.history.facts import Facts
from holdfast.core.history.identifiers import argument_text
from holdfast.core.history.ledger import render
from holdfast.core.planning.steps import FoldSpan, Outlook, Summary
from holdfast.core.planning.summary.frames import STATE, WORDS, neutral, reference_frame

WORDS_SHARE, LEDGER_SHARE = 0.2, 0.65
"""Of the allowance: for the user's words, and for the ledger; what they leave is the digest's."""
HORIZON = 64
"""How many of the newest folded messages a digest is read from."""
MOST_PROMPTS = 256
"""How many of the user's messages are looked at, newest first."""
STATE_SHARE = 0.3
"""Of the allowance: the most that plan, todos, skills and agent take; what is longer is clipped."""
QUOTED_PROMPTS = 16
MIN_DIGEST_TOKENS, MIN_STATE_CHARS = 60, 80


class _Kept(NamedTuple):
    """What a replacement holds besides an account of what was done."""

    prompts: list[Entry]
    """What the user said in the span, as far as it is looked at."""
    whole: list[Entry]
    """What of it is quoted to the letter."""
    words: str
    ledger: str
    state: str
    """How things stand besides what was said."""


def reference(outlook: Outlook, step: FoldSpan, summary: Summary | None, allowance: int) -> str:
    """Return the text that stands for a span, in at most `allowance` tokens where no model's summary is in it."""
    kept = _kept(outlook, step, allowance)
    taken = sum(outlook.situation.counter.count(text) + 2 for text in (kept.words, kept.ledger, kept.state) if text)
    done = (
        reference_frame(summary.text, step.count)
        if summary
        else _without_summary(outlook, step, kept, allowance - taken)
    )
    texts = [text for text in (done, kept.state, kept.words, kept.ledger) if text]
    return "\n\n".join(texts) or f"[{step.count:,} earlier messages]"


def _without_summary(outlook: Outlook, step: FoldSpan, kept: _Kept, allowance: int) -> str:
    """Return what was done by rule; where a model's summary of the beginning came too late for its fold, that first."""
    known = outlook.history.facts.summary_within(step.start, step.stop, outlook.situation.scope)
    if known is None:
        return _digest(outlook, step, kept.prompts, kept.whole, allowance)
    told = reference_frame(known.text, known.stop - known.start)
    left = allowance - outlook.situation.counter.count(told)
    rest = replace(step, start=known.stop, count=max(1, step.count - (known.stop - known.start)))
    newer = [entry for entry in kept.prompts if (entry.position or 0) >= known.stop]
    if left < MIN_DIGEST_TOKENS or known.stop == step.stop:
        return told
    return f"{told}\n\n{_digest(outlook, rest, newer, kept.whole, left)}"


def beside(outlook: Outlook, step: FoldSpan, allowance: int) -> list[str]:
    """Return the texts that a summary of a span will stand next to: what it need not say, and what it may lose."""
    kept = _kept(outlook, step, allowance)
    positions = sorted({*step.kept, *(pin for pin in outlook.situation.pins if step.start <= pin < step.stop)})
    staying = [outlook.history.entries[position] for position in positions]
    state = [kept.state] if kept.state else []
    return [kept.words, kept.ledger, *state, *_texts(staying), *_tail(outlook, step)]


def _kept(outlook: Outlook, step: FoldSpan, allowance: int) -> _Kept:
    counter = outlook.situation.counter
    state = _state(outlook.history.facts, int(allowance * STATE_SHARE), counter)
    allowance -= counter.count(state)
    prompts = _prompts(outlook, step)
    whole = _whole(prompts, int(allowance * WORDS_SHARE), outlook)
    ledger = outlook.history.ledger(outlook.situation.scope, step.stop)
    near = "\n".join([_words(whole), state, *_tail(outlook, step)])
    names = render(ledger, int(allowance * LEDGER_SHARE), counter, beside=near)
    # A conversation without tools has few names: what the ledger leaves, the user's words take.
    spare = int(allowance * (WORDS_SHARE + LEDGER_SHARE)) - counter.count(names)
    # What was quoted stays so: the ledger does not say it again.
    quoted = {entry.position for entry in whole}
    others = [entry for entry in prompts if entry.position not in quoted]
    whole = _whole([*whole, *others], max(spare, int(allowance * WORDS_SHARE)), outlook)
    return _Kept(prompts, whole, _words(whole), names, state)


def _state(facts: Facts, allowance: int, counter: Counter) -> str:
    """Return plan, todos, skills and agent in at most an allowance; of skills the last one with its instructions."""
    *earlier, last = [*facts.skills] or [""]
    skills = "\n".join([*(f"- {name}" for name in earlier), f"- {last}: {facts.skills[last]}"]) if last else ""
    parts = {"Plan": facts.plan, "To do": facts.todos, "Skills called upon": skills, "Agent": facts.agent_summary}
    told = {name: neutral(text.strip()) for name, text in parts.items() if text.strip()}
    chars = max(map(len, told.values()), default=0)
    while told:
        text = "\n".join([STATE, *(f"{name}:\n{clip_text(told[name], chars)}" for name in told)])
        if counter.count(text) <= allowance:
            return text
        if chars < MIN_STATE_CHARS:
            break
        chars = int(0.8 * chars)
    return ""


def _words(whole: list[Entry]) -> str:
    return "\n".join([WORDS, *(_line(entry) for entry in whole)]) if whole else ""


def digest_of(outlook: Outlook, step: FoldSpan, allowance: int = 2_000) -> str:
    """Return a summary of a span made by rule alone, for those that want nothing but a summary."""
    return _digest(outlook, step, _prompts(outlook, step), [], allowance)


def _tail(outlook: Outlook, step: FoldSpan) -> Iterator[str]:
    """Yield the texts that stay in view behind the fold."""
    return _texts(outlook.shown.context.between(step.stop, outlook.shown.context.length))


def _texts(entries: Iterable[Entry]) -> Iterator[str]:
    for entry in entries:
        message = entry.message
        yield message.text
        yield from (result.text for result in message.results)
        yield from (argument_text(call.arguments) for call in message.calls)


def _digest(outlook: Outlook, step: FoldSpan, prompts: list[Entry], whole: list[Entry], allowance: int) -> str:
    context, start = outlook.shown.context, max(step.start, step.stop - HORIZON)
    telling = {entry.position: entry for entry in prompts[:QUOTED_PROMPTS]}
    telling |= {entry.position: entry for entry in context.between(start, step.stop)}
    for entry in whole:
        telling.pop(entry.position, None)
    entries = [telling[position] for position in sorted(telling, key=lambda position: position or 0)]
    return digest(
        entries,
        allowance_tokens=max(0, allowance),
        counter=outlook.situation.counter,
        message_count=step.count,
        is_continued=bool(step.kept),
    )


def _prompts(outlook: Outlook, step: FoldSpan) -> list[Entry]:
    """Return what the user said in the span: the first message, then the newest backwards."""
    standing = [position for position in outlook.prompts_between(step.start, step.stop) if position not in step.kept]
    chosen = [*standing[-1:], *standing[: MOST_PROMPTS - 1]]
    outlook.history.entries.need(chosen)
    return [outlook.history.entries[position] for position in dict.fromkeys(chosen)]


def _whole(prompts: list[Entry], allowance: int, outlook: Outlook) -> list[Entry]:
    """Return the prompts that fit an allowance whole, in the order in which they were said."""
    chosen = list(_fitting(prompts, allowance, outlook))
    return sorted(chosen, key=lambda entry: entry.position or 0)


def _fitting(prompts: list[Entry], allowance: int, outlook: Outlook) -> Iterator[Entry]:
    counter = outlook.situation.counter
    left = allowance - counter.count(WORDS)
    for entry in prompts:
        cost = counter.count(_line(entry)) + 1
        if cost <= left:
            left -= cost
            yield entry


def _line(entry: Entry) -> str:
    return f"(#{entry.position}) {entry.message.text}"
