"""Makes a view valid and makes it fit, or raises a typed error that says why it cannot.

The fitter repairs messages, shortens old tool output, drops old media, compacts the oldest part into a digest, and
removes messages. It works in this order and does no more than necessary. System text, pins and the newest prompt stay
whole. If even the last exchange is too large, the fitter shortens its outputs as far as necessary. After that, nothing
can shrink.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.pairing import Repair
from holdfast.core.conversation.repair import repair_entries
from holdfast.core.conversation.tokens import REPLY_OVERHEAD
from holdfast.core.conversation.transcript import MessageFormat, Transcript
from holdfast.core.planning.fit.compose import CLIP_CHARS_PER_TOKEN, CutGrid, ViewComposer, ViewCut
from holdfast.core.planning.fit.protection import LAST_EXCHANGE_PART, PINS_PART, PROMPT_PART, SYSTEM_PART, TOOLS_PART
from holdfast.core.planning.fit.receipt import View
from holdfast.core.planning.policy import FitSettings
from holdfast.core.planning.situation import Situation
from holdfast.errors import CannotFitError
from holdfast.text import pluralize

MIN_CLIP_CHARS = 64


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

    def fit(self) -> View:
        """Return the fullest view that fits."""
        if self._max_tokens <= 0:
            self._raise_cannot_fit()
        for cut in self._cuts():
            view = self._composer.compose(cut)
            if view is not None:
                tokens, is_counted = self._total_tokens()
                return replace(view, tokens_before=tokens, is_before_counted=is_counted and not view.has_media)
        self._raise_cannot_fit()

    def _total_tokens(self) -> tuple[int, bool]:
        """Return the tokens of the whole conversation, and whether all of it was counted."""
        raw, _ = self._suffix_sums()
        seen = len(raw) - 1
        length = len(self._transcript)
        if seen == length:
            return raw[-1], True
        weight = self._transcript.total_bytes - self._transcript.bytes_before(length - seen)
        return round(raw[-1] * self._transcript.total_bytes / max(1, weight)), False

    # Where cuts may fall.

    def _cuts(self) -> Iterator[ViewCut]:
        """Yield the cuts worth trying, mildest first."""
        raw, clipped = self._suffix_sums()
        length, limit = len(self._transcript), self._protection.limit
        start = length - (len(raw) - 1)
        if start == 0 and raw[-1] <= self._max_tokens:
            yield ViewCut()
        grid = CutGrid(self._transcript, self._situation.budget, self._max_tokens, self._policy.step_share, limit)
        first = min(limit, max(start, self._start_by_limits()))
        number = grid.number_of_cut(first) + self._policy.clip_zone_steps if first else 1
        compact = -1
        while compact < limit:
            compact = grid.cut_at(number - self._policy.clip_zone_steps)
            clip = grid.cut_at(number)
            if compact >= start and self._may_fit(compact, clip, raw, clipped):
                yield ViewCut(compact, clip)
            number += 1
        yield from self._last_resort_cuts()

    def _start_by_limits(self) -> int:
        """Return the earliest start of the kept part if messages or turns are limited."""
        budget, length = self._situation.budget, len(self._transcript)
        start = length - budget.messages if budget.messages else 0
        prompts = self._transcript.prompts_before(length)
        if budget.turns and prompts > budget.turns:
            start = max(start, self._transcript.prompt_index(prompts - budget.turns))
        return max(0, start)

    def _suffix_sums(self) -> tuple[list[int], list[int]]:
        """Return the cost of the last 0, 1, 2 … messages, whole and clipped, until the latter exceeds the budget."""
        if self._sums is not None:
            return self._sums
        raw, short = 0, 0
        raw_sums, short_sums = [0], [0]
        costs = self._transcript.cached_costs(("short", self._composer.clip_chars))
        max_tokens, protected = self._max_tokens, self._protection.whole
        for index in range(len(self._transcript) - 1, -1, -1):
            if short > max_tokens:
                break
            whole, shortened = costs.get(index) or self._cost(index)
            raw += whole
            short += whole if index in protected else shortened
            raw_sums.append(raw)
            short_sums.append(short)
        self._sums = raw_sums, short_sums
        return self._sums

    def _cost(self, index: int) -> tuple[int, int]:
        """Return the cost of a message, whole and shortened, and cache it for the next request."""
        words, media = self._transcript.tokens_of(self._transcript[index], is_cached=True)
        cost = words + media, sum(self._transcript.tokens_of(self._composer.shortened_entry(index).message))
        if index not in self._protection.whole:
            self._transcript.cached_costs(("short", self._composer.clip_chars))[index] = cost
        return cost

    def _may_fit(self, compact_before: int, clip_before: int, raw: list[int], clipped: list[int]) -> bool:
        """Return whether a cut is worth composing; the effect of repair is not known yet."""
        length, budget = len(self._transcript), self._situation.budget
        if budget.bytes and self._transcript.total_bytes - self._transcript.bytes_before(clip_before) > budget.bytes:
            return False
        clip_before = max(compact_before, clip_before)
        tail = raw[length - clip_before] + clipped[length - compact_before] - clipped[length - clip_before]
        head = sum(self._transcript.tokens(position) for position in self._protection.protected_before(compact_before))
        return tail + head + (self._composer.digest_tokens if compact_before else 0) <= self._max_tokens

    def _last_resort_cuts(self) -> Iterator[ViewCut]:
        """Yield cuts that keep only the last exchange and protected messages, with ever shorter outputs."""
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
        """Yield a cut with ever shorter outputs."""
        chars = self._max_tokens * CLIP_CHARS_PER_TOKEN
        while chars > least:
            chars = max(least, chars // 2)
            yield cut._replace(max_output_chars=chars)

    def _ends_with_recall_answer(self) -> bool:
        """Return whether the last exchange holds an answer of recall, which is shortened last."""
        last = (self._transcript[index] for index in self._protection.last)
        return self._situation.has_recall and any(
            result.is_recall_answer for message in last for result in message.results
        )

    # The error if nothing can shrink further.

    def _raise_cannot_fit(self) -> NoReturn:
        """Raise an error that names the largest part that cannot shrink, in the unit of the exceeded limit."""
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
        extras = {
            SYSTEM_PART: situation.system_tokens,
            TOOLS_PART: situation.tools_tokens,
            LAST_EXCHANGE_PART: REPLY_OVERHEAD,
        }
        whole = {name: size + extras.get(name, 0) for name, size in sizes.items()}
        raise _cannot_fit_error(whole, situation.usable_tokens, "tokens")

    def _sizes(self, entries: list[Entry], measure: Callable[[Message], int]) -> dict[str, int]:
        """Return the size of each part that cannot shrink."""
        sizes = dict.fromkeys([SYSTEM_PART, TOOLS_PART, PINS_PART, PROMPT_PART, LAST_EXCHANGE_PART], 0)
        for entry in entries:
            name = LAST_EXCHANGE_PART if entry.position is None else self._protection.part_name(entry.position)
            sizes[name] += measure(entry.message)
        return sizes

    def _minimal_entries(self) -> list[Entry]:
        """Return the messages that must be sent, each as short as possible, with what repair adds."""
        positions = sorted({*self._protection.protected_before(self._protection.limit), *self._protection.last})
        shortest = [self._composer.clipped_entry(index, MIN_CLIP_CHARS) for index in positions]
        situation = self._situation
        return repair_entries(shortest, is_interrupted=situation.is_interrupted, batching=situation.batching).entries


def _cannot_fit_error(sizes: Mapping[str, int], limit: int, unit: str) -> CannotFitError:
    part = max(sizes, key=lambda name: sizes[name])
    return CannotFitError(part, needed=sum(sizes.values()), limit=limit, unit=unit, breakdown=sizes)


def fit_view(view: View, reader: MessageFormat, settings: FitSettings, situation: Situation) -> View:
    """Return a session's view, repaired and shortened to fit; raise `CannotFitError` if it cannot shrink enough.

    The fitter numbers messages by their index in the view; the result has the positions of the history again.
    """
    entries = view.entries
    positions = [entry.position for entry in entries]
    transcript = Transcript.of_entries(entries, reader, situation.counter)
    pins = frozenset(index for index, position in enumerate(positions) if position in situation.pins)
    replacements = frozenset(index for index, position in enumerate(positions) if position is None)
    fitted = None
    if replacements:
        # Summaries are removed last, because a digest of a summary says nothing.
        with suppress(CannotFitError):
            fitted = ViewFitter(transcript, settings, replace(situation, pins=pins | replacements)).fit()
    fitted = fitted or ViewFitter(transcript, settings, replace(situation, pins=pins)).fit()

    def position(index: int | None) -> int | None:
        return None if index is None else positions[index]

    fitted_entries = [
        entries[entry.position]
        if entry.position is not None and entry.message is entries[entry.position].message
        else Entry(entry.message, position(entry.position))
        for entry in fitted.entries
    ]
    if are_same_messages(fitted_entries, entries):
        return view
    repairs = tuple(Repair(position(repair.position), repair.description) for repair in fitted.repairs)
    reasons = list(fitted.reasons)
    if repairs:
        reasons.append(f"{pluralize(len(repairs), 'place')} repaired so that the provider accepts the request")
    return replace(
        view,
        entries=fitted_entries,
        tokens=fitted.tokens,
        repairs=repairs,
        reasons=(*view.reasons, *reasons),
        is_fitted=True,
    )


def are_same_messages(one: Sequence[Entry], other: Sequence[Entry]) -> bool:
    """Return whether two lists hold the same message objects."""
    return len(one) == len(other) and all(
        mine.message is theirs.message for mine, theirs in zip(one, other, strict=True)
    )
