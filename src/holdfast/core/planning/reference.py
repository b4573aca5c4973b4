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
from holdfast.core.history.digest import digest
from holdfast.core.history.facts import Facts
from holdfast.core.history.identifiers import argument_text
from holdfast.core.history.ledger import render
from holdfast.core.planning.steps import FoldSpan, Outlook, Summary
from holdfast.core.planning.summary.frames import ANSWERS, STATE, WORDS, neutral, reference_frame
from holdfast.core.planning.talk import may_be_quoted, telling
from holdfast.plural import many

WORDS_SHARE, LEDGER_SHARE = 0.2, 0.68
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
    answers: str = ""
    """What the assistant said, to the letter, where a talk is folded."""


class Allowance(NamedTuple):
    """What may stand for a span, in tokens."""

    tokens: int
    """Summary or digest, the user's words and the ledger."""
    talk: int = 0
    """Turns that stay whole besides, where a talk is folded."""


def reference(outlook: Outlook, step: FoldSpan, summary: Summary | None, allowance: Allowance) -> str:
    """Return the text that stands for a span, in at most the allowance where no model's summary is in it."""
    kept = _kept(outlook, step, allowance)
    texts = kept.state, kept.words, kept.answers, kept.ledger
    taken = sum(outlook.situation.counter.count(text) + 2 for text in texts if text)
    done = (
        reference_frame(summary.text, step.count)
        if summary
        else _without_summary(outlook, step, kept, allowance.tokens - max(0, taken - allowance.talk))
    )
    return "\n\n".join(text for text in (done, *texts) if text) or f"[{many(step.count, 'earlier message')}]"


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


def beside(outlook: Outlook, step: FoldSpan, allowance: Allowance) -> list[str]:
    """Return the texts that a summary of a span will stand next to: what it need not say, and what it may lose."""
    kept = _kept(outlook, step, allowance)
    positions = sorted({*step.kept, *(pin for pin in outlook.situation.pins if step.start <= pin < step.stop)})
    staying = [outlook.history.entries[position] for position in positions]
    others = [text for text in (kept.answers, kept.state) if text]
    return [kept.words, kept.ledger, *others, *texts_of(staying), *_tail(outlook, step)]


def quoted_in(texts: Iterable[str], outlook: Outlook) -> tuple[int, ...]:
    """Return the positions of messages that texts quote whole, as this page does."""
    found: list[int] = []
    for text in texts:
        for place in re.findall(r"(?m)^\(#(\d{1,9})\) ", text):
            position = int(place)
            if position < len(outlook.history) and _line(outlook.history.entries[position]) in text:
                found.append(position)
    return tuple(sorted(set(found)))


def _kept(outlook: Outlook, step: FoldSpan, given: Allowance) -> _Kept:
    counter = outlook.situation.counter
    known = outlook.history.facts_for(outlook.situation.scope)
    state = _state(known, _at_work(outlook), int(given.tokens * STATE_SHARE), counter)
    allowance = given.tokens - counter.count(state)
    prompts = _prompts(outlook, step)
    # Of a talk the first prompt stays for its own sake, and all else for what it says.
    whole = _whole(prompts[:1] if given.talk else prompts, int(allowance * WORDS_SHARE), outlook)
    ledger = outlook.history.ledger(outlook.situation.scope, step.stop)
    near = "\n".join([_words(whole), state, *_tail(outlook, step)])
    names = render(ledger, int(allowance * LEDGER_SHARE), counter, beside=near)
    # A conversation without tools has few names: what the ledger leaves, the user's words take.
    spare = max(int(allowance * (WORDS_SHARE + LEDGER_SHARE)) - counter.count(names), int(allowance * WORDS_SHARE))
    if given.talk:
        whole, answers = _turns(outlook, step, whole, spare + given.talk)
        return _Kept(prompts, whole, _words(whole), names, state, _words(answers, ANSWERS))
    # What was quoted stays so: the ledger does not say it again.
    quoted = {entry.position for entry in whole}
    others = [entry for entry in prompts if entry.position not in quoted]
    whole = _whole([*whole, *others], spare, outlook)
    return _Kept(prompts, whole, _words(whole), names, state)


def _at_work(outlook: Outlook) -> str:
    """Return the agents that were sent out from here, are shown here and have not answered, each with its task."""
    context, entries = outlook.shown.context, outlook.history.entries
    sent = [scope for scope in outlook.history.facts.delegates if context.scopes.parents.get(scope) == context.scope]
    firsts = {scope: context.said_in.index(scope) for scope in sent if scope in context.said_in}
    entries.need([first for first in firsts.values() if context.may_see(first)])
    told = {scope: entries[first].message.text for scope, first in firsts.items() if context.stands(first)}
    return "\n".join(f"- {scope}: {' '.join(task.split())}" for scope, task in told.items())


def _state(facts: Facts, at_work: str, allowance: int, counter: Counter) -> str:
    """Return how things stand in at most an allowance; of skills the last one with its instructions."""
    *earlier, last = [*facts.skills] or [""]
    skills = "\n".join([*(f"- {name}" for name in earlier), f"- {last}: {facts.skills[last]}"]) if last else ""
    parts = {"Plan": facts.plan, "To do": facts.todos, "Skills called upon": skills, "Agent": facts.agent_summary}
    parts["Agents at work when this was written; what they find comes later"] = at_work
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


def _turns(outlook: Outlook, step: FoldSpan, whole: list[Entry], allowance: int) -> tuple[list[Entry], list[Entry]]:
    """Return the turns of a talk that are worth staying whole, the user's and the assistant's.

    They are chosen from those that stood whole until now and those that an earlier fold has quoted.
    """
    history, counter = outlook.history, outlook.situation.counter
    known = [position for fold in outlook.shown.context.standing.folds for position in fold.quoted]
    standing = [entry.position for entry in outlook.shown.entries if entry.position is not None]
    chosen = {position for position in (*known, *standing) if step.start <= position < step.stop}
    others = sorted(chosen.difference(step.kept, (entry.position or 0 for entry in whole)))
    history.entries.need(others)
    turns = [turn for turn in (history.entries[position] for position in others) if may_be_quoted(turn)]
    room = allowance - sum(counter.count(text) + 1 for text in (_words(whole) or WORDS, ANSWERS))
    best = telling(turns, room, lambda entry: counter.count(_line(entry)) + 1)
    said = sorted([*whole, *(turn for turn in best if turn.message.role == "user")], key=_position)
    return said, [turn for turn in best if turn.message.role == "assistant"]


def _words(whole: list[Entry], heading: str = WORDS) -> str:
    return "\n".join([heading, *(_line(entry) for entry in whole)]) if whole else ""


def digest_of(outlook: Outlook, step: FoldSpan, allowance: int = 2_000) -> str:
    """Return a summary of a span made by rule alone, for those that want nothing but a summary."""
    return _digest(outlook, step, _prompts(outlook, step), [], allowance)


def _tail(outlook: Outlook, step: FoldSpan) -> Iterator[str]:
    """Yield the texts that stay in view behind the fold."""
    return texts_of(outlook.shown.context.between(step.stop, outlook.shown.context.length))


def texts_of(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield all that can be read in messages: what was said, what tools answered, and what they were asked."""
    for entry in entries:
        message = entry.message
        yield message.text
        yield from (result.text for result in message.results)
        yield from (argument_text(call.arguments) for call in message.calls)


def _digest(outlook: Outlook, step: FoldSpan, prompts: list[Entry], whole: list[Entry], allowance: int) -> str:
    context, start = outlook.shown.context, max(step.start, step.stop - HORIZON)
    telling = {entry.position: entry for entry in prompts[:QUOTED_PROMPTS]}
    telling |= {entry.position: entry for entry in context.between(start, step.stop)}
    for position in (*step.kept, *(entry.position for entry in whole)):
        telling.pop(position, None)
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
    return sorted(_fitting(prompts, allowance, outlook), key=_position)


def _fitting(prompts: list[Entry], allowance: int, outlook: Outlook) -> Iterator[Entry]:
    counter = outlook.situation.counter
    left = allowance - counter.count(WORDS)
    for entry in prompts:
        cost = counter.count(_line(entry)) + 1
        if cost <= left:
            left -= cost
            yield entry


def _position(entry: Entry) -> int:
    return entry.position or 0


def _line(entry: Entry) -> str:
    return f"(#{entry.position}) {entry.message.text}"
