"""Draws up the receipt of a fitted request."""

from collections.abc import Iterator, Sequence

from holdfast.core.conversation.pairing import Repair
from holdfast.core.conversation.tokens import REPLY_OVERHEAD, TokenCount
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.planning.compose import Composed
from holdfast.core.planning.floor import Fitted
from holdfast.core.planning.receipt import Receipt, total
from holdfast.core.planning.situation import Situation


def account(
    transcript: Transcript, situation: Situation, fitted: Fitted, max_media: int, repairs: Sequence[Repair] = ()
) -> Receipt:
    """Return what was kept, clipped, elided, folded, pruned and mended, and why."""
    view = fitted.view
    mended = [*repairs, *view.mended.repairs]
    told = {repair.position for repair in mended}
    changed_outside = {repair.position for repair in repairs}
    kept: list[int] = []
    clipped: list[int] = []
    elided: list[int] = []
    for entry in view.entries:
        position, message = entry.position, entry.message
        if position is None:
            continue
        if message.notes:
            mended += [Repair(position, note) for note in message.notes]
            told.add(position)
        if message.is_untouched:
            if not message.notes and position not in changed_outside:
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
        tokens=_tokens(transcript, situation, view),
        messages_before=len(transcript),
        messages=len(view.entries),
        kept=tuple(kept),
        clipped=tuple(clipped),
        elided=tuple(elided),
        folded=view.folded if view.has_digest else (),
        pruned=() if view.has_digest else view.folded,
        mended=tuple(mended),
        reasons=tuple(reasons_of(situation, view, max_media)),
    )


def _tokens(transcript: Transcript, situation: Situation, view: Composed) -> TokenCount:
    system_words = sum(
        sum(transcript.tokens_of(entry.message)) for entry in view.entries if entry.message.role == "system"
    )
    return situation.as_billed(
        system=situation.system_tokens + system_words,
        conversation=view.words - system_words + REPLY_OVERHEAD,
        media=view.media,
        is_counted=True,
    )


def _tokens_before(situation: Situation, fitted: Fitted) -> TokenCount:
    return situation.as_billed(
        system=situation.system_tokens,
        conversation=fitted.tokens_before + REPLY_OVERHEAD,
        media=0,
        is_counted=fitted.is_before_counted and not fitted.view.media,
    )


def reasons_of(situation: Situation, view: Composed, max_media: int) -> Iterator[str]:
    """Yield why a view is not simply everything."""
    if view.cut.fold or view.cut.clip or view.cut.squeeze_chars:
        margin = f", {situation.margin:.0%} of it kept free for the error of the count" if situation.margin else ""
        yield f"the conversation is longer than its budget{margin}"
    if view.folded and view.has_digest:
        yield f"lines move in steps: everything before #{view.cut.fold} that is not protected was folded"
    if view.folded and not view.has_digest:
        yield f"{total(view.folded):,} messages left without a digest: there was no room for one"
    if view.is_media_limited:
        yield f"providers take {max_media} images for certain, so the oldest were elided"
    if view.cut.squeeze_chars is not None:
        yield f"the last exchange alone is too long: its outputs were cut to {view.cut.squeeze_chars:,} characters"
