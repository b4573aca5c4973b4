"""The floor: whatever comes in, what goes out is valid and fits, or a typed error says why not.

Mend, shorten old tool output, elide old media, fold the oldest part into a digest, prune; in this
order, and none of it without need. System text, pins and the newest prompt stay whole. When even
the last exchange is too large, its outputs are shortened as far as it takes; after that nothing can
shrink any more.

The floor under a view: entries that were already chosen and shortened, made valid and made to fit.

The floor works on lists of provider messages and numbers them by their place. Here are the entries of a view
in that form, and the way back to where they stand in the history.

Draws up the receipt of a fitted request.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn, cast

from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.pairing import Repair
from holdfast.core.conversation.repair import repair_entries
from holdfast.core.conversation.tokens import MESSAGE_OVERHEAD_BYTES, REPLY_OVERHEAD, TokenCount, message_bytes
from holdfast.core.conversation.transcript import FormatReader, MessageMeasures, Transcript
from holdfast.core.planning.fit.compose import CLIP_CHARS_PER_TOKEN, ComposedView, CutGrid, ViewComposer, ViewCut
from holdfast.core.planning.fit.protection import LAST_EXCHANGE_PART, PINS_PART, PROMPT_PART, SYSTEM_PART, TOOLS_PART
from holdfast.core.planning.fit.receipt import Receipt, position_count
from holdfast.core.planning.policy import FitSettings
from holdfast.core.planning.situation import Situation
from holdfast.errors import CannotFitError

MIN_CLIP_CHARS = 64


class FittedView(NamedTuple):
    """A view that can be sent, and what there was before."""

    view: ComposedView
    tokens_before: int
    """What the whole conversation would have cost."""
    is_before_counted: bool
    """Whether all of it was counted; else it was extrapolated from what was."""


class ViewFitter:
    """Fits one transcript into one situation."""

    def __init__(self, transcript: Transcript, policy: FitSettings, situation: Situation) -> None:
        self._transcript = transcript
        self._situation = situation
        self._policy = policy
        self._composer = ViewComposer(transcript, policy, situation)
        self._max_tokens = self._composer.max_tokens
        self._protection = self._composer.protection
        self._sums: tuple[list[int], list[int]] | None = None

    def fit(self) -> FittedView:
        """Return the fullest view that fits."""
        if self._max_tokens <= 0:
            self._raise_cannot_fit()
        for cut in self._cuts():
            view = self._composer.compose(cut)
            if view is not None:
                return FittedView(view, *self._total_tokens())
        self._raise_cannot_fit()

    def _total_tokens(self) -> tuple[int, bool]:
        """Return what the whole conversation costs, and whether that was counted to the end."""
        raw, _ = self._suffix_sums()
        seen = len(raw) - 1
        length = len(self._transcript)
        if seen == length:
            return raw[-1], True
        weight = self._transcript.total_bytes - self._transcript.bytes_before(length - seen)
        return round(raw[-1] * self._transcript.total_bytes / max(1, weight)), False

    # Where the lines may stand.

    def _cuts(self) -> Iterator[ViewCut]:
        """Yield the cuts worth trying, mildest first."""
        raw, clipped = self._suffix_sums()
        length, limit = len(self._transcript), self._protection.limit
        start = length - (len(raw) - 1)
        if start == 0 and raw[-1] <= self._max_tokens:
            yield ViewCut()
        lines = CutGrid(self._transcript, self._situation.budget, self._max_tokens, self._policy.step_share, limit)
        first = min(limit, max(start, self._start_by_limits()))
        number = lines.number_of_cut(first) + self._policy.clip_zone_steps if first else 1
        fold = -1
        while fold < limit:
            fold = lines.cut_at(number - self._policy.clip_zone_steps)
            clip = lines.cut_at(number)
            if fold >= start and self._may_fit(fold, clip, raw, clipped):
                yield ViewCut(fold, clip)
            number += 1
        yield from self._last_resort_cuts()

    def _start_by_limits(self) -> int:
        """Return where the kept part begins at the earliest if messages or turns are limited."""
        budget, length = self._situation.budget, len(self._transcript)
        start = length - budget.messages if budget.messages else 0
        prompts = self._transcript.prompts_before(length)
        if budget.turns and prompts > budget.turns:
            start = max(start, self._transcript.prompt_index(prompts - budget.turns))
        return max(0, start)

    def _suffix_sums(self) -> tuple[list[int], list[int]]:
        """Return the cost of the last 0, 1, 2 … messages, whole and clipped, as far as either could matter."""
        if self._sums is not None:
            return self._sums
        raw, short = 0, 0
        raw_sums, short_sums = [0], [0]
        costs = self._transcript.cached_costs(("short", self._composer.clip_chars))
        room, protected = self._max_tokens, self._protection.whole
        for index in range(len(self._transcript) - 1, -1, -1):
            if short > room:
                break
            whole, shortened = costs.get(index) or self._cost(index)
            raw += whole
            short += whole if index in protected else shortened
            raw_sums.append(raw)
            short_sums.append(short)
        self._sums = raw_sums, short_sums
        return self._sums

    def _cost(self, index: int) -> tuple[int, int]:
        """Return what a message costs, whole and shortened, and keep it for the next request."""
        words, media = self._transcript.tokens_of(self._transcript[index], is_cached=True)
        cost = words + media, sum(self._transcript.tokens_of(self._composer.shortened_entry(index).message))
        if index not in self._protection.whole:
            self._transcript.cached_costs(("short", self._composer.clip_chars))[index] = cost
        return cost

    def _may_fit(self, compact_before: int, clip_before: int, raw: list[int], clipped: list[int]) -> bool:
        """Return whether a cut is worth composing: what mending adds or removes is not known yet."""
        length, budget = len(self._transcript), self._situation.budget
        if budget.bytes and self._transcript.total_bytes - self._transcript.bytes_before(clip_before) > budget.bytes:
            return False
        clip_before = max(compact_before, clip_before)
        tail = raw[length - clip_before] + clipped[length - compact_before] - clipped[length - clip_before]
        head = sum(self._transcript.tokens(position) for position in self._protection.protected_before(compact_before))
        return tail + head + (self._composer.digest_tokens if compact_before else 0) <= self._max_tokens

    def _last_resort_cuts(self) -> Iterator[ViewCut]:
        """Yield cuts that keep nothing but the last exchange, and less and less of that."""
        limit = self._protection.limit
        tightest = ViewCut(limit, limit)
        yield tightest
        if self._ends_with_recall_answer():
            yield from self._with_shorter_outputs(tightest, self._composer.clip_chars)
        tightest = tightest._replace(keep_recall_answers=False)
        yield from self._with_shorter_outputs(tightest, self._composer.clip_chars)
        tightest = tightest._replace(has_digest=False)
        yield tightest
        yield from self._with_shorter_outputs(tightest, MIN_CLIP_CHARS)

    def _with_shorter_outputs(self, cut: ViewCut, least: int) -> Iterator[ViewCut]:
        """Yield a cut with less and less of each output."""
        chars = self._max_tokens * CLIP_CHARS_PER_TOKEN
        while chars > least:
            chars = max(least, chars // 2)
            yield cut._replace(max_output_chars=chars)

    def _ends_with_recall_answer(self) -> bool:
        """Return whether the last exchange holds an answer of recall, which is then shortened after all else."""
        last = (self._transcript[index] for index in self._protection.last)
        return self._situation.has_recall and any(
            result.is_recall_answer for message in last for result in message.results
        )

    # When nothing can shrink any more.

    def _raise_cannot_fit(self) -> NoReturn:
        """Name the largest of what cannot shrink, in the unit that it breaks."""
        situation, budget, least = self._situation, self._situation.budget, self._minimal_entries()
        measures: tuple[tuple[str, int | None, Callable[[Message], int]], ...] = (
            ("messages", budget.messages, lambda _: 1),
            ("turns", budget.turns, lambda message: int(message.is_prompt)),
            ("bytes", budget.bytes, self._transcript.reader.json_bytes),
        )
        for unit, limit, measure in measures:
            sizes = self._sizes(least, measure)
            if limit is not None and sum(sizes.values()) > limit:
                raise _cannot_fit_error(sizes, limit, unit)
        sizes = self._sizes(least, lambda message: sum(self._transcript.tokens_of(message)))
        besides = {
            SYSTEM_PART: situation.system_tokens,
            TOOLS_PART: situation.tools_tokens,
            LAST_EXCHANGE_PART: REPLY_OVERHEAD,
        }
        whole = {name: size + besides.get(name, 0) for name, size in sizes.items()}
        raise _cannot_fit_error(whole, situation.usable_tokens, "tokens")

    def _sizes(self, entries: list[Entry], measure: Callable[[Message], int]) -> dict[str, int]:
        """Return the size of each of what cannot shrink."""
        sizes = dict.fromkeys([SYSTEM_PART, TOOLS_PART, PINS_PART, PROMPT_PART, LAST_EXCHANGE_PART], 0)
        for entry in entries:
            name = LAST_EXCHANGE_PART if entry.position is None else self._protection.part_name(entry.position)
            sizes[name] += measure(entry.message)
        return sizes

    def _minimal_entries(self) -> list[Entry]:
        """Return what has to be sent, each message as short as it gets, and what mending adds to it."""
        positions = sorted({*self._protection.protected_before(self._protection.limit), *self._protection.last})
        shortest = [self._composer.clipped_entry(index, MIN_CLIP_CHARS) for index in positions]
        how = self._situation
        return repair_entries(shortest, is_interrupted=how.is_interrupted, batching=how.batching).entries


def _cannot_fit_error(sizes: Mapping[str, int], limit: int, unit: str) -> CannotFitError:
    part = max(sizes, key=lambda name: sizes[name])
    return CannotFitError(part, needed=sum(sizes.values()), limit=limit, unit=unit, breakdown=sizes)


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


@dataclass(frozen=True, slots=True)
class FittedEntries:
    """Entries that can be sent, and what it took."""

    entries: list[Entry]
    tokens: int
    repairs: tuple[Repair, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _EntryReader:
    """Reads entries as if they were provider messages."""

    reader: FormatReader

    def measure(self, natives: Sequence[object], start: int) -> MessageMeasures:
        entries = [cast("Entry", native) for native in natives]
        weights = [MESSAGE_OVERHEAD_BYTES + message_bytes(entry.message) for entry in entries]
        roles = [entry.message.role for entry in entries]
        prompts = [
            index
            for index, entry in enumerate(entries, start)
            if entry.message.role == "user" and entry.position is not None
        ]
        return MessageMeasures(weights, prompts, [index for index, role in enumerate(roles, start) if role == "system"])

    def decode(self, native: object, index: int) -> Message:
        del index
        return cast("Entry", native).message

    def json_bytes(self, message: Message) -> int:
        return self.reader.json_bytes(message)


def _fit_transcript(
    transcript: Transcript, settings: FitSettings, situation: Situation, positions: Sequence[int | None]
) -> ComposedView:
    """Return the view that fits; what stands for folded messages goes last of all, as a digest of it says nothing."""
    pins = frozenset(index for index, position in enumerate(positions) if position in situation.pins)
    made = frozenset(index for index, position in enumerate(positions) if position is None)
    if made:
        with suppress(CannotFitError):
            return ViewFitter(transcript, settings, replace(situation, pins=pins | made)).fit().view
    return ViewFitter(transcript, settings, replace(situation, pins=pins)).fit().view


def fit_entries(
    entries: Sequence[Entry], reader: FormatReader, settings: FitSettings, situation: Situation
) -> FittedEntries:
    """Return the entries as they can be sent; raises where nothing can shrink any more."""
    positions = [entry.position for entry in entries]
    transcript = Transcript(entries, _EntryReader(reader), situation.counter, positions)
    view = _fit_transcript(transcript, settings, situation, positions)

    def position(index: int | None) -> int | None:
        return None if index is None else positions[index]

    repairs = tuple(Repair(position(repair.position), repair.description) for repair in view.repaired.repairs)
    back = [
        entries[entry.position]
        if entry.position is not None and entry.message is entries[entry.position].message
        else Entry(entry.message, position(entry.position))
        for entry in view.entries
    ]
    told = tuple(f"floor: {reason}" for reason in view_reasons(situation, view, settings.max_media))
    mended = (f"floor: mended {len(repairs):,} places so that a provider accepts them",) if repairs else ()
    return FittedEntries(back, view.text_tokens + view.media_tokens, repairs, (*told, *mended))
