"""Draws up the receipt of a fitted request."""

from collections.abc import Iterator, Sequence

from holdfast.core.conversation.pairing import Repair
from holdfast.core.conversation.tokens import REPLY_OVERHEAD, TokenCount
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.planning.compose import ComposedView
from holdfast.core.planning.floor import FittedView
from holdfast.core.planning.receipt import Receipt, position_count
from holdfast.core.planning.situation import Situation


def receipt_of(
    transcript: Transcript, situation: Situation, fitted: FittedView, max_media: int, repairs: Sequence[Repair] = ()
) -> Receipt:
    """Return what was kept, clipped, elided, folded, pruned and mended, and why."""
    view = fitted.view
    mended = [*repairs, *view.repaired.repairs]
    told = {repair.position for repair in mended}
    changed_outside = {repair.position for repair in repairs}
    kept: list[int] = []
    clipped: list[int] = []
    elided: list[int] = []
    for entry in view.entries:
        position, message = entry.position, entry.message
        if position is None:
            continue
        if message.repair_notes:
            mended += [Repair(position, note) for note in message.repair_notes]
            told.add(position)
        if message.is_unedited:
            if not message.repair_notes and position not in changed_outside:
                kept.append(position)
            continue
        words, media = transcript.tokens_of(message)
        raw_words, raw_media = transcript.tokens_of(transcript[position])
        has_tools = bool(message.outline.call_ids or message.outline.result_ids)
        is_elided, is_clipped = media < raw_media, has_tools and words < raw_words
        if is_elided:
            elided.append(position)
        if is_clipped:
            clipped.append(position)
        if not is_elided and not is_clipped and position not in told:
            mended.append(Repair(position, "rewritten to stand with its neighbours"))
    return Receipt(
        budget=situation.budget,
        tokens_before=_tokens_before(situation, fitted),
        tokens=_view_tokens(transcript, situation, view),
        messages_before=len(transcript),
        messages=len(view.entries),
        kept=tuple(kept),
        clipped=tuple(clipped),
        elided=tuple(elided),
        compacted=view.compacted if view.has_digest else (),
        dropped=() if view.has_digest else view.compacted,
        repairs=tuple(mended),
        reasons=tuple(view_reasons(situation, view, max_media)),
    )


def _view_tokens(transcript: Transcript, situation: Situation, view: ComposedView) -> TokenCount:
    system_words = sum(
        sum(transcript.tokens_of(entry.message)) for entry in view.entries if entry.message.role == "system"
    )
    return situation.billed_count(
        system=situation.system_tokens + system_words,
        conversation=view.text_tokens - system_words + REPLY_OVERHEAD,
        media=view.media_tokens,
        is_counted=True,
    )


def _tokens_before(situation: Situation, fitted: FittedView) -> TokenCount:
    return situation.billed_count(
        system=situation.system_tokens,
        conversation=fitted.tokens_before + REPLY_OVERHEAD,
        media=0,
        is_counted=fitted.is_before_counted and not fitted.view.media_tokens,
    )


def view_reasons(situation: Situation, view: ComposedView, max_media: int) -> Iterator[str]:
    """Yield why a view is not simply everything."""
    if view.cut.compact_before or view.cut.clip_before or view.cut.max_output_chars:
        margin = f", {situation.margin:.0%} of it kept free for the error of the count" if situation.margin else ""
        yield f"the conversation is longer than its budget{margin}"
    if view.compacted and view.has_digest:
        yield f"lines move in steps: everything before #{view.cut.compact_before} that is not protected was folded"
    if view.compacted and not view.has_digest:
        yield f"{position_count(view.compacted):,} messages left without a digest: there was no room for one"
    if view.is_media_limited:
        yield f"providers take {max_media} images for certain, so the oldest were elided"
    if view.cut.max_output_chars is not None:
        yield f"the last exchange alone is too long: its outputs were cut to {view.cut.max_output_chars:,} characters"
