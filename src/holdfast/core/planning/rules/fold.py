"""Replaces the oldest part of a conversation by a digest of it."""

from holdfast.core.conversation.handles import look_up
from holdfast.core.conversation.messages import user
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.conversation.view import Entry
from holdfast.core.history.digest import digest
from holdfast.core.planning.receipt import Spans, total

FIRST_PROMPTS, LAST_PROMPTS = 2, 24
HORIZON = 64
"""How many of the newest folded messages a digest is read from, besides the user's own prompts."""


def fold(transcript: Transcript, line: int, folded: Spans, allowance_tokens: int, *, has_recall: bool = False) -> Entry:
    """Return the digest of what stands before the fold line; the same line has the same digest."""
    known = transcript.variants(("digest", allowance_tokens, folded))
    if line not in known:
        how = _look_up(transcript, folded) if has_recall else ""
        text = digest(
            [transcript.told(index) for index in _telling(transcript, line, folded)],
            allowance_tokens=allowance_tokens - (transcript.counter.count(how) + 1 if how else 0),
            counter=transcript.counter,
            message_count=total(folded),
            is_continued=line < len(transcript) and not transcript[line].is_prompt,
        )
        text = "\n".join(part for part in (text, how) if part)
        known[line] = transcript.kept(Entry(user(text, trust="summary")))
    return known[line]


def _look_up(transcript: Transcript, folded: Spans) -> str:
    """Return how to see what was folded, by the positions that others know it by."""
    told = (transcript.told(index).position for span in folded for index in span)
    places = [position for position in told if position is not None]
    return look_up(places[0], places[-1] + 1) if places else ""


def _telling(transcript: Transcript, line: int, folded: Spans) -> list[int]:
    """Return the folded positions a digest is read from: the user's prompts and the newest work."""
    count = transcript.prompts_before(line)
    numbers = {*range(min(FIRST_PROMPTS, count)), *range(max(0, count - LAST_PROMPTS), count)}
    chosen = {transcript.prompt(number) for number in numbers}
    chosen.update(range(max(0, line - HORIZON), line))
    return sorted(index for index in chosen if any(index in span for span in folded))
