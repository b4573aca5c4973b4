"""Replaces the oldest part of a conversation by a digest of it."""

from holdfast.core.conversation.handles import recall_range_hint
from holdfast.core.conversation.messages import user
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.conversation.view import Entry
from holdfast.core.history.digest import make_digest
from holdfast.core.planning.receipt import PositionRanges, position_count

FIRST_DIGEST_PROMPTS, LAST_DIGEST_PROMPTS = 2, 24
DIGEST_HORIZON_MESSAGES = 64
"""How many of the newest folded messages a digest is read from, besides the user's own prompts."""


def digest_entry(
    transcript: Transcript,
    compact_before: int,
    compacted: PositionRanges,
    allowance_tokens: int,
    *,
    has_recall: bool = False,
) -> Entry:
    """Return the digest of what stands before the fold line; the same line has the same digest."""
    known = transcript.edited_entries(("digest", allowance_tokens, compacted))
    if compact_before not in known:
        how = _compacted_range_hint(transcript, compacted) if has_recall else ""
        text = make_digest(
            [transcript.entry_as_positioned(index) for index in _digest_sources(transcript, compact_before, compacted)],
            allowance_tokens=allowance_tokens - (transcript.counter.count(how) + 1 if how else 0),
            counter=transcript.counter,
            message_count=position_count(compacted),
            is_prompt_kept=compact_before < len(transcript) and not transcript[compact_before].is_prompt,
        )
        text = "\n".join(part for part in (text, how) if part)
        known[compact_before] = transcript.remember_cost(Entry(user(text, trust="summary")))
    return known[compact_before]


def _compacted_range_hint(transcript: Transcript, compacted: PositionRanges) -> str:
    """Return how to see what was folded, by the positions that others know it by."""
    told = (transcript.entry_as_positioned(index).position for span in compacted for index in span)
    places = [position for position in told if position is not None]
    return recall_range_hint(places[0], places[-1] + 1) if places else ""


def _digest_sources(transcript: Transcript, compact_before: int, compacted: PositionRanges) -> list[int]:
    """Return the folded positions a digest is read from: the user's prompts and the newest work."""
    count = transcript.prompts_before(compact_before)
    numbers = {*range(min(FIRST_DIGEST_PROMPTS, count)), *range(max(0, count - LAST_DIGEST_PROMPTS), count)}
    chosen = {transcript.prompt_index(number) for number in numbers}
    chosen.update(range(max(0, compact_before - DIGEST_HORIZON_MESSAGES), compact_before))
    return sorted(index for index in chosen if any(index in span for span in compacted))
