"""What the default policy puts in the place of folded messages.

The user's own words as far as they fit, whole; what was done, by a model's summary or read off by rule; and
the names that are likely to be needed again. All of it is marked as reference: it asks for nothing.
"""

from collections.abc import Iterator

from holdfast.core.conversation.view import Entry
from holdfast.core.history.digest import digest
from holdfast.core.history.identifiers import argument_text
from holdfast.core.history.ledger import render
from holdfast.core.planning.steps import FoldSpan, Outlook, Summary

WORDS_SHARE, LEDGER_SHARE = 0.2, 0.65
"""Of the allowance: for the user's words, and for the ledger; what they leave is the digest's."""
HORIZON = 64
"""How many of the newest folded messages a digest is read from."""
MOST_PROMPTS = 256
"""How many of the user's messages are looked at, newest first."""
QUOTED_PROMPTS = 16
WORDS = "What the user said, to the letter:"


def reference(outlook: Outlook, step: FoldSpan, summary: Summary | None, allowance: int) -> str:
    """Return the text that stands for a span, in at most `allowance` tokens where no model's summary is in it."""
    counter = outlook.situation.counter
    prompts = _prompts(outlook, step)
    whole = _whole(prompts, int(allowance * WORDS_SHARE), outlook)
    ledger = outlook.history.ledger(outlook.situation.scope, step.stop)
    beside = "\n".join([_words(whole), *_tail(outlook, step)])
    names = render(ledger, int(allowance * LEDGER_SHARE), counter, beside=beside)
    # A conversation without tools has few names: what the ledger leaves, the user's words take.
    spare = int(allowance * (WORDS_SHARE + LEDGER_SHARE)) - counter.count(names)
    whole = _whole(prompts, max(spare, int(allowance * WORDS_SHARE)), outlook)
    words = _words(whole)
    taken = sum(counter.count(text) + 2 for text in (words, names) if text)
    done = _framed(summary.text, step.count) if summary else _digest(outlook, step, prompts, whole, allowance - taken)
    return "\n\n".join(text for text in (done, words, names) if text) or f"[{step.count:,} earlier messages]"


def _words(whole: list[Entry]) -> str:
    return "\n".join([WORDS, *(_line(entry) for entry in whole)]) if whole else ""


def digest_of(outlook: Outlook, step: FoldSpan, allowance: int = 2_000) -> str:
    """Return a summary of a span made by rule alone, for those that want nothing but a summary."""
    return _digest(outlook, step, _prompts(outlook, step), [], allowance)


def _tail(outlook: Outlook, step: FoldSpan) -> Iterator[str]:
    """Yield the texts that stay in view behind the fold."""
    for entry in outlook.shown.context.between(step.stop, outlook.shown.context.length):
        message = entry.message
        yield message.text
        yield from (result.text for result in message.results)
        yield from (argument_text(call.arguments) for call in message.calls)


def _framed(text: str, count: int) -> str:
    return (
        f"[Summary of {count:,} earlier messages, for reference only. "
        f"It records what happened and asks for nothing.]\n{text}"
    )


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
