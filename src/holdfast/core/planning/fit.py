"""Makes a view valid and makes it fit, or raises a typed error that says why it cannot.

The fitter repairs messages, shortens old tool output, drops old media, compacts the oldest part into a digest, and
removes messages. It works in this order and does no more than necessary. System text, pins and the newest prompt stay
whole. If even the last exchange is too large, the fitter shortens its outputs as far as necessary. After that, nothing
can shrink.

A digest replaces messages before the first cut; messages before the second cut have their tool output clipped. The
fitter has no memory of earlier requests, so cuts that moved with every new message would break the cached prefix every
time. Therefore cuts fall only at multiples of a step, measured from the beginning of the conversation and moved to the
next legal cut. A conversation that only grows keeps its cuts, and its prefix, until it has grown by a step.
"""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import add
from typing import NamedTuple, NoReturn

from holdfast.core.conversation.cuts import (
    MAX_WHOLE_PROMPT_SHARE,
    first_read,
    next_cut,
    prompt_start,
    reasoning_exchange,
    uncuttable_span,
)
from holdfast.core.conversation.messages import Entry, Message, Text, user
from holdfast.core.conversation.repair import positioned, positioned_repair, repair_entries
from holdfast.core.conversation.shorten import (
    clip_arguments,
    clip_outputs,
    count_all_media,
    drop_media,
    recall_range_hint,
)
from holdfast.core.conversation.spans import PositionRanges, position_count, ranges_without
from holdfast.core.conversation.tokens import MESSAGE_OVERHEAD, REPLY_OVERHEAD, tokens_of_messages
from holdfast.core.conversation.transcript import MessageFormat, Transcript, json_bytes
from holdfast.core.planning.policy import FitSettings
from holdfast.core.planning.receipt import View
from holdfast.core.planning.situation import Budget, Situation
from holdfast.errors import CannotFitError, EmptyConversationError, PendingToolCallsError

CUT_GRID_BYTES_PER_TOKEN = 4
"""About right for prose, code and Chinese; a step of digits or hashes has more tokens."""
MAX_PAIR_DISTANCE = 100_000
"""How far to search for the other half of an exchange that is not adjacent."""
FIRST_DIGEST_PROMPTS, LAST_DIGEST_PROMPTS = 2, 24
DIGEST_HORIZON_MESSAGES = 64
"""How many of the newest compacted messages a digest is made from, besides the user's prompts."""
MIN_FIT_DIGEST_TOKENS = 64
CLIP_CHARS_PER_TOKEN = 4
MIN_CLIP_CHARS = 64
SYSTEM_PART = "the system text"
TOOLS_PART = "the tool definitions"
PINS_PART = "the pinned messages"
PROMPT_PART = "the newest prompt"
LAST_EXCHANGE_PART = "the last exchange"
DIGEST_PLACEHOLDER = Entry(user("[digest]", trust="summary"))


class CutGrid(NamedTuple):
    """The possible positions of a cut, numbered from 0, the beginning."""

    transcript: Transcript
    budget: Budget
    max_tokens: int
    step_share: float
    limit: int
    """No cut falls after this position."""

    def load(self, index: int) -> float:
        """Return the sum of the shares of each limit that the messages before `index` would fill."""
        weight = self.transcript.bytes_before(index)
        load = weight / (max(1, self.max_tokens) * CUT_GRID_BYTES_PER_TOKEN)
        if self.budget.messages:
            load += index / self.budget.messages
        if self.budget.bytes:
            load += weight / self.budget.bytes
        if self.budget.turns:
            load += self.transcript.prompts_before(index) / self.budget.turns
        return load

    def cut_at(self, number: int) -> int:
        """Return the position of a cut: the first legal one at or after its multiple of a step."""
        if number <= 0:
            return 0
        known = self.transcript.cached_cuts[self.budget, self.max_tokens, self.step_share]
        position = known.get(number)
        if position is None:
            target = number * self.step_share
            if self.budget.messages or self.budget.bytes or self.budget.turns:
                index = bisect_left(range(self.limit), target, key=self.load)
            else:
                index = self.transcript.index_at_bytes(target * self.max_tokens * CUT_GRID_BYTES_PER_TOKEN, self.limit)
            position = next_cut(self.transcript, index, self.transcript.uncuttable)
            self.transcript.uncuttable = range(index, position + 1)
            if position < self.limit:
                # Messages before a cut never change, so neither does the cut.
                known[number] = position
        return min(position, self.limit)

    def number_of_cut(self, index: int) -> int:
        """Return the number of the first cut at or after `index`."""
        number = max(0, int(self.load(index) / self.step_share))
        while self.cut_at(number) < index:
            number += 1
        # Several cuts can fall at the end of one exchange: return the first of them.
        while number and self.cut_at(number - 1) >= index:
            number -= 1
        return number


class ViewCut(NamedTuple):
    """How one request is cut."""

    compact_before: int = 0
    """Messages before this index are compacted, except protected ones."""
    clip_before: int = 0
    """Tool output and media before this index are shortened."""
    has_digest: bool = True
    max_output_chars: int | None = None
    """The last resort: the length of every output and argument, including the newest."""
    keep_recall_answers: bool = True
    """Whether answers of recall stay unchanged, for a model with the recall tool."""


class Protection:
    """The messages that always stay: system text, pins, the newest prompt, and the last exchange.

    A call and its results are protected together, because providers reject one without the other.
    """

    def __init__(
        self, transcript: Transcript, pins: frozenset[int], max_prompt_tokens: float, *, keeps_orders: bool = True
    ) -> None:
        """A prompt of several messages is protected whole if it takes at most so many tokens, else its last message.

        `keeps_orders` protects the system text that Anthropic accepts within a conversation.
        """
        self._transcript = transcript
        length = len(transcript)
        newest_first = map(transcript.prompt_index, range(transcript.prompts_before(length) - 1, -1, -1))
        self.prompt_index = next((index for index in newest_first if transcript[index].is_prompt), None)
        self.last = range(*uncuttable_span(transcript, length - 1)) if length else range(0)
        """The last exchange: no cut falls after its start."""
        systems = transcript.system_indices_before(length)
        said = () if transcript.reader.max_cache_marks is None else systems
        self.orders = {index for index in said if transcript[index].role == "system" and transcript[index].text}
        """System text within the conversation: only Anthropic has it, as well as cache marks."""
        systems = systems if keeps_orders else [index for index in systems if index not in self.orders]
        continued = frozenset(index for index in systems if transcript[index].role != "system")
        self.leading = self._exchanges(continued).union(systems)
        """System text and what replaces everything before it: nothing goes before these."""
        self.pinned = self._exchanges(pins)
        """The pinned messages, each with its whole exchange, because a call needs its result."""
        self.prompt = self._prompt(max_prompt_tokens)
        prompted = {at for index in self.prompt for at in range(*uncuttable_span(transcript, index))}
        self._kept = sorted({*self.leading, *self.pinned, *prompted, *self._with_distant_pairs(self.last)})
        self.fixed = self.pinned.union(self.leading)
        """Positions of messages that are never shortened."""
        self.whole = self.fixed.union(self.prompt)
        """The same with the newest prompt, of which only tool results may be shortened, as the last resort."""

    def protected_before(self, compact_before: int) -> list[int]:
        """Return the positions before a cut that stay, in order."""
        kept = self._kept[: bisect_left(self._kept, compact_before)]
        if self.prompt_index is None:
            return kept
        return sorted({*kept, *reasoning_exchange(self._transcript, self.prompt_index, compact_before)})

    def part_name(self, index: int) -> str:
        """Return the name of the protected part that a position belongs to."""
        if self._transcript[index].role == "system":
            return SYSTEM_PART
        if index in self.pinned:
            return PINS_PART
        return PROMPT_PART if index in self.prompt else LAST_EXCHANGE_PART

    def _prompt(self, max_tokens: float) -> range:
        """Return the messages of the newest prompt."""
        newest = self.prompt_index
        if newest is None:
            return range(0)
        whole = range(prompt_start(self._transcript, newest), newest + 1)
        is_too_long = len(whole) > 1 and sum(map(self._transcript.tokens, whole)) > max_tokens
        return range(newest, newest + 1) if is_too_long else whole

    def _exchanges(self, pins: frozenset[int]) -> frozenset[int]:
        found: set[int] = set()
        for pin in sorted(pins):
            if pin not in found:
                found |= self._with_distant_pairs(range(*uncuttable_span(self._transcript, pin)))
        return frozenset(found)

    def _with_distant_pairs(self, unit: range) -> set[int]:
        """Return the positions of an exchange, and of its calls and results that are not adjacent."""
        outlines = [self._transcript[position].outline for position in unit]
        calls = {call_id for outline in outlines for call_id in outline.call_ids}
        results = {call_id for outline in outlines for call_id in outline.result_ids}
        found = set(unit)
        if results - calls:
            found |= self._search(range(unit.start - 1, max(-1, unit.start - MAX_PAIR_DISTANCE), -1), results - calls)
        if calls - results:
            end = min(len(self._transcript), unit.stop + MAX_PAIR_DISTANCE)
            found |= self._search(range(unit.stop, end), calls - results)
        return found

    def _search(self, positions: range, call_ids: set[str]) -> set[int]:
        """Return the exchanges of the nearest messages that hold the other half of calls or results."""
        found: set[int] = set()
        for position in positions:
            outline = self._transcript[position].outline
            halves = call_ids.intersection(outline.call_ids if positions.step < 0 else outline.result_ids)
            if halves:
                found.update(range(*uncuttable_span(self._transcript, position)))
                call_ids = call_ids - halves
            if not call_ids:
                break
        return found


class ViewFitter:
    """Fits one transcript into one situation."""

    def __init__(
        self, transcript: Transcript, policy: FitSettings, situation: Situation, *, is_prompt_whole: bool = True
    ) -> None:
        self._transcript = transcript
        self._situation = situation
        self._policy = policy
        self._keeps_all = is_prompt_whole
        self._max_tokens = situation.message_budget
        max_prompt_tokens = MAX_WHOLE_PROMPT_SHARE * self._max_tokens if is_prompt_whole else 0
        self._protection = Protection(transcript, situation.pins, max_prompt_tokens, keeps_orders=is_prompt_whole)
        self._clip_chars = CLIP_CHARS_PER_TOKEN * max(policy.clip_min_tokens, int(self._max_tokens * policy.clip_share))
        room = self._max_tokens
        if max_bytes := situation.budget.bytes:
            room = min(room, max_bytes // CUT_GRID_BYTES_PER_TOKEN)
        self._digest_allowance = min(policy.digest_max_tokens, int(room * policy.digest_share))
        has_room = self._digest_allowance >= MIN_FIT_DIGEST_TOKENS
        self._digest_tokens = self._digest_allowance + MESSAGE_OVERHEAD if has_room else 0
        """The tokens reserved for a digest; 0 if the allowance is too small for one."""
        self._short = transcript.edited_entries["short", self._clip_chars]
        replacing = (
            index
            for index in reversed(transcript.system_indices_before(len(transcript)))
            if transcript[index].outline.is_fixed
        )
        self._first_read = next(replacing, 0)
        """Where the provider begins to read."""

    def fit(self) -> View:
        """Return the fullest view that fits."""
        if self._max_tokens <= 0:
            self._raise_cannot_fit()
        for cut in self._cuts():
            view = self._compose(cut)
            if view is not None:
                tokens, is_counted = self._total_tokens()
                return replace(
                    view,
                    tokens_before=tokens,
                    messages_before=len(self._transcript),
                    is_before_counted=is_counted and not view.has_media,
                )
        self._raise_cannot_fit()

    @property
    def protects_several(self) -> bool:
        """Whether a prompt of several messages is kept whole, or system text within the conversation is kept."""
        return len(self._protection.prompt) > 1 or bool(self._keeps_all and self._protection.orders)

    def fit_whole(self) -> View | None:
        """Return the view of all messages if they fit unshortened; None if they do not."""
        cut = next(self._cuts(), None) if self._max_tokens > 0 else None
        view = self._compose(ViewCut()) if cut == ViewCut() else None
        if view is None:
            return None
        return replace(view, tokens_before=self._total_tokens()[0], messages_before=len(self._transcript))

    def _total_tokens(self) -> tuple[int, bool]:
        """Return the tokens of the whole conversation, and whether all of it was counted."""
        raw, _ = self._suffix_sums
        uncounted = len(self._transcript) - (len(raw) - 1)
        if not uncounted:
            return raw[-1], True
        total = self._transcript.total_bytes
        return round(raw[-1] * total / max(1, total - self._transcript.bytes_before(uncounted))), False

    # Where cuts may fall.

    def _cuts(self) -> Iterator[ViewCut]:
        """Yield the cuts worth trying, mildest first."""
        raw, _ = self._suffix_sums
        limit, steps = self._protection.last.start, self._policy.clip_zone_steps
        start = len(self._transcript) - (len(raw) - 1)
        if start == 0 and raw[-1] <= self._max_tokens:
            yield ViewCut()
        grid = CutGrid(self._transcript, self._situation.budget, self._max_tokens, self._policy.step_share, limit)
        first = min(limit, max(start, self._start_by_limits()))
        number = grid.number_of_cut(first) + steps if first else 1
        compact = -1
        while compact < limit:
            compact, clip = grid.cut_at(number - steps), grid.cut_at(number)
            if compact >= start and self._may_fit(compact, clip):
                yield ViewCut(compact, clip)
            number += 1
        yield from self._last_resort_cuts(ViewCut(limit, limit))

    def _start_by_limits(self) -> int:
        """Return the earliest start of the kept part if messages or turns are limited."""
        budget, length = self._situation.budget, len(self._transcript)
        start = length - budget.messages if budget.messages else 0
        prompts = self._transcript.prompts_before(length)
        if budget.turns and prompts > budget.turns:
            start = max(start, self._transcript.prompt_index(prompts - budget.turns))
        return max(0, start)

    @cached_property
    def _suffix_sums(self) -> tuple[list[int], list[int]]:
        """The cost of the last 0, 1, 2 … messages, whole and clipped, until the latter exceeds the budget."""
        raw_sums, short_sums = [0], [0]
        max_tokens, protected = self._max_tokens, self._protection.whole
        raw = short = 0
        stop = len(self._transcript)
        while stop > 0 and short <= max_tokens:
            # A token is rarely less than a byte, so hardly any message is counted in vain.
            start = min(stop - 1, self._transcript.start_of_last_bytes(stop, (max_tokens - short) * 0.75))
            costs = self._costs(range(start, stop))
            for index in range(stop - 1, start - 1, -1):
                if short > max_tokens:
                    break
                if index < self._first_read:
                    whole = shortened = 0
                elif index in protected:
                    whole = shortened = self._transcript.tokens(index)
                else:
                    whole, shortened = costs[index]
                raw += whole
                short += shortened
                raw_sums.append(raw)
                short_sums.append(short)
            stop = start
        return raw_sums, short_sums

    def _costs(self, indices: range) -> Mapping[int, tuple[int, int]]:
        """Return what messages cost, whole and shortened, and cache it for the next request.

        Protected messages, which are not shortened in this request, may be missing.
        """
        transcript, known = self._transcript, self._transcript.cached_costs["short", self._clip_chars]
        new = [index for index in indices if index not in known]
        entries = transcript.entries(new)
        words, media = tokens_of_messages([entry.message for entry in entries], transcript.counter)
        costs = list(map(add, words, media))
        equal = {cost: (cost, cost) for cost in set(costs)}
        priced = dict(zip(new, map(equal.__getitem__, costs), strict=True))
        small = dict(zip(new, entries, strict=True))
        if transcript.largest_bytes > self._clip_chars or any(media):
            for index, media_tokens in zip(new, media, strict=True):
                if media_tokens or transcript.bytes_of(index) > self._clip_chars:
                    del small[index]
                    whole, _ = priced.pop(index)
                    if index not in self._protection.whole:
                        priced[index] = whole, sum(transcript.tokens_of(self._shortened_entry(index).message))
        self._short.update(small)
        known.update(priced)
        return known

    def _may_fit(self, compact_before: int, clip_before: int) -> bool:
        """Return whether a cut is worth composing; the effect of repair is not known yet."""
        (raw, clipped), length, budget = self._suffix_sums, len(self._transcript), self._situation.budget
        if budget.bytes and self._transcript.total_bytes - self._transcript.bytes_before(clip_before) > budget.bytes:
            return False
        clip_before = max(compact_before, clip_before)
        tail = raw[length - clip_before] + clipped[length - compact_before] - clipped[length - clip_before]
        head = sum(self._transcript.tokens(position) for position in self._protection.protected_before(compact_before))
        return tail + head + (self._digest_tokens if compact_before else 0) <= self._max_tokens

    def _last_resort_cuts(self, tightest: ViewCut) -> Iterator[ViewCut]:
        """Yield cuts that keep only the last exchange and protected messages, with ever shorter outputs."""
        yield tightest
        last = (self._transcript[index] for index in self._protection.last)
        if self._situation.has_recall and any(
            result.is_recall_answer for message in last for result in message.results
        ):
            # Answers of recall are shortened last.
            yield from self._with_shorter_outputs(tightest, self._clip_chars)
        tightest = tightest._replace(keep_recall_answers=False)
        yield from self._with_shorter_outputs(tightest, self._clip_chars)
        tightest = tightest._replace(has_digest=False)
        yield tightest
        yield from self._with_shorter_outputs(tightest, MIN_CLIP_CHARS)

    def _with_shorter_outputs(self, cut: ViewCut, least: int) -> Iterator[ViewCut]:
        """Yield a cut with ever shorter outputs."""
        chars = self._max_tokens * CLIP_CHARS_PER_TOKEN
        while chars > least:
            chars = max(least, chars // 2)
            yield cut._replace(max_output_chars=chars)

    # The view of a cut: the messages to send, repaired, counted, and checked against every limit.

    def _compose(self, cut: ViewCut) -> View | None:
        """Return the view of a cut, or None if it does not fit."""
        head = self._protection.protected_before(cut.compact_before)
        removed = ranges_without(cut.compact_before, head)
        has_digest = bool(removed) and cut.has_digest and self._digest_tokens > 0
        repaired = repair_entries(
            self._assemble(cut, head, has_digest=has_digest),
            is_interrupted=self._situation.is_interrupted,
            batching=self._situation.batching,
        )
        if repaired.pending:
            raise PendingToolCallsError(repaired.pending)
        if all(entry.message.role == "system" for entry in repaired.entries):
            raise EmptyConversationError
        entries = self._without_overlong_texts(repaired.entries)
        if entries is None:
            return None
        words, media = self._count(entries)
        is_media_limited = False
        if media and count_all_media(entries) > self._policy.max_media:
            limited = self._limit_media(entries)
            # Pins and the newest prompt keep their images.
            is_media_limited = not are_same_messages(limited, entries)
            entries = limited
            words, media = self._count(entries)
        if has_digest:
            words += self._digest_tokens - sum(self._transcript.tokens_of(DIGEST_PLACEHOLDER.message))
        if words + media > self._max_tokens:
            return None
        if has_digest:
            digest = self._digest_entry(cut.compact_before, removed)
            if not digest.message.text:
                # A counter of the user's may find no room for even the first line, and no provider takes an empty text.
                return self._compose(cut._replace(has_digest=False))
            entries = [digest if entry is DIGEST_PLACEHOLDER else entry for entry in entries]
            words += sum(self._transcript.tokens_of(digest.message)) - self._digest_tokens
        if not self._fits_other_limits(entries, media):
            return None
        compacted, dropped = (removed, ()) if has_digest else ((), removed)
        return View(
            entries,
            words + media,
            has_media=media > 0,
            compacted=compacted,
            dropped=dropped,
            repairs=tuple(repaired.repairs),
            reasons=tuple(self._reasons(cut, compacted, dropped, is_media_limited=is_media_limited)),
        )

    def _reasons(
        self, cut: ViewCut, compacted: PositionRanges, dropped: PositionRanges, *, is_media_limited: bool
    ) -> Iterator[str]:
        """Yield why a view does not contain all messages unchanged."""
        if self._situation.is_limited_by_policy and (cut.compact_before or cut.clip_before or cut.max_output_chars):
            limit = self._situation.billed_limit
            yield f"the conversation is longer than the {limit:,} tokens that the policy allows"
        elif cut.compact_before or cut.clip_before or cut.max_output_chars:
            free = self._situation.margin
            margin = f"; {free:.0%} of the budget stays free because token counts may be wrong" if free else ""
            yield f"the conversation is longer than its budget{margin}"
        if compacted:
            yield f"a digest replaces the first {cut.compact_before:,} messages, except protected ones"
        if dropped:
            yield f"{position_count(dropped):,} messages were dropped: there was no room for a digest of them"
        if is_media_limited:
            yield f"at most {self._policy.max_media} images are sent, so a notice replaces each of the oldest"
        if cut.max_output_chars is not None:
            chars = cut.max_output_chars
            yield f"the last exchange alone is too long, so its outputs were clipped to {chars:,} characters"

    def _count(self, entries: list[Entry]) -> tuple[int, int]:
        read = entries[first_read(entries) :]
        words, media = tokens_of_messages([entry.message for entry in read], self._transcript.counter)
        return sum(words), sum(media)

    def _digest_entry(self, compact_before: int, compacted: PositionRanges) -> Entry:
        """Return the digest of the messages before a cut; the same cut has the same digest."""
        transcript, positioned = self._transcript, self._transcript.entry_as_positioned
        known = transcript.edited_entries["digest", self._digest_allowance, compacted]
        if compact_before not in known:
            from holdfast.core.history.digest import make_digest  # noqa: PLC0415 - only if not all messages fit

            hint = ""
            if self._situation.has_recall:
                found = (positioned(index).position for span in compacted for index in span)
                positions = [position for position in found if position is not None]
                hint = recall_range_hint(positions[0], positions[-1] + 1) if positions else ""
            text = make_digest(
                [positioned(index) for index in self._digest_sources(compact_before, compacted)],
                allowance_tokens=self._digest_allowance - (transcript.counter.count(hint) + 1 if hint else 0),
                counter=transcript.counter,
                message_count=position_count(compacted),
                is_prompt_kept=compact_before < len(transcript) and not transcript[compact_before].is_prompt,
            )
            text = "\n".join(part for part in (text, hint) if part)
            known[compact_before] = Entry(user(text, trust="summary"))
        return known[compact_before]

    def _digest_sources(self, compact_before: int, compacted: PositionRanges) -> list[int]:
        """Return the compacted positions a digest is made from: the user's prompts and the newest messages."""
        count = self._transcript.prompts_before(compact_before)
        numbers = {*range(min(FIRST_DIGEST_PROMPTS, count)), *range(max(0, count - LAST_DIGEST_PROMPTS), count)}
        chosen = {self._transcript.prompt_index(number) for number in numbers}
        chosen.update(range(max(0, compact_before - DIGEST_HORIZON_MESSAGES), compact_before))
        return sorted(index for index in chosen if any(index in span for span in compacted))

    def _assemble(self, cut: ViewCut, head: list[int], *, has_digest: bool) -> list[Entry]:
        """Return system messages, summaries, a placeholder for the digest, other protected messages, and the rest."""
        entry, positioned = self._transcript.entry, self._transcript.entry_as_positioned
        leading = self._protection.leading
        systems = [entry(index) for index in head if index in leading]
        spoken = [index for index in head if index not in leading]
        summaries = [entry(index) for index in spoken if positioned(index).position is None]
        others = [self._cut_entry(index, cut) for index in spoken if positioned(index).position is not None]
        place = [DIGEST_PLACEHOLDER] if has_digest else []
        return [*systems, *summaries, *place, *others, *self._entries_after(cut)]

    def _entries_after(self, cut: ViewCut) -> list[Entry]:
        length = len(self._transcript)
        if cut.max_output_chars is not None:
            return [self._cut_entry(index, cut) for index in range(cut.compact_before, length)]
        clip = max(cut.compact_before, cut.clip_before)
        entry, shortened, known = self._transcript.entry, self._shortened_entry, self._short
        old = [known.get(index) or shortened(index) for index in range(cut.compact_before, clip)]
        for index in self._protection.whole:
            if cut.compact_before <= index < clip:
                old[index - cut.compact_before] = entry(index)
        return old + [entry(index) for index in range(clip, length)]

    def _cut_entry(self, index: int, cut: ViewCut) -> Entry:
        """Return a message in the form that it has in the view of a cut."""
        if cut.max_output_chars is not None:
            return self._clipped_entry(index, cut.max_output_chars, keep_recall_answers=cut.keep_recall_answers)
        return self._shortened_entry(index) if index < cut.clip_before else self._transcript.entry(index)

    def _shortened_entry(self, index: int) -> Entry:
        """Return an old message with its tool output clipped and its media dropped."""
        entry = self._transcript.entry(index)
        if index in self._protection.whole:
            return entry
        if index not in self._short:
            is_small = self._transcript.bytes_of(index) <= self._clip_chars
            if not is_small or self._transcript.tokens_of(entry.message)[1]:
                position, spares = self._recall_position(index), self._situation.has_recall
                clipped = clip_outputs(entry.message, self._clip_chars, position, keep_recall_answers=spares)
                short = drop_media(clipped, position=position)
                entry = entry if short is entry.message else entry.with_message(short)
            self._short[index] = entry
        return self._short[index]

    def _clipped_entry(self, index: int, max_chars: int, *, keep_recall_answers: bool = False) -> Entry:
        """Return a message with outputs and arguments clipped and media dropped; protected text stays."""
        entry = self._transcript.entry(index)
        if index in self._protection.fixed:
            return entry
        position = self._recall_position(index)
        spares = keep_recall_answers and self._situation.has_recall
        message = clip_outputs(entry.message, max_chars, position, keep_recall_answers=spares)
        if index in self._protection.prompt:
            return entry.with_message(drop_media(message, results_only=True, position=position))
        return entry.with_message(drop_media(clip_arguments(message, max_chars), position=position))

    def _recall_position(self, index: int | None) -> int | None:
        """Return the position by which the model can recall a message; None without the recall tool."""
        if index is None or not self._situation.has_recall:
            return None
        return self._transcript.entry_as_positioned(index).position

    def _limit_media(self, entries: list[Entry]) -> list[Entry]:
        """Drop the oldest media above the limit, in batches of half the limit so that the prefix changes rarely."""
        counts = {index: count for index, entry in enumerate(entries) if (count := entry.message.media_count)}
        excess = sum(counts.values()) - self._policy.max_media
        if excess <= 0:
            return entries
        batch = max(1, self._policy.max_media // 2)
        excess_media = -(-excess // batch) * batch
        limited = list(entries)
        for index, count in counts.items():
            if excess_media <= 0:
                break
            if entries[index].position not in self._protection.whole:
                position = self._recall_position(entries[index].position)
                limited[index] = entries[index].with_message(drop_media(entries[index].message, position=position))
                excess_media -= count
        return limited

    def _without_overlong_texts(self, entries: list[Entry]) -> list[Entry] | None:
        """Return entries without texts that are too long for the provider: clip outputs, raise for protected texts.

        None means that another text is too long, which a later cut removes.
        """
        longest = self._situation.max_text_chars
        if longest is None or self._transcript.largest_bytes <= longest:
            return entries
        shorter: list[Entry] = []
        for entry in entries:
            is_fixed = entry.position in self._protection.fixed
            position = self._recall_position(entry.position)
            message = entry.message if is_fixed else clip_outputs(entry.message, longest, position, is_per_text=True)
            texts = [*message.parts, *(inner for result in message.results for inner in result.content)]
            size = max((len(part.text) for part in texts if isinstance(part, Text)), default=0)
            if size > longest and entry.position is not None:
                last = self._protection.last
                if entry.position < last.start and entry.position not in self._protection.protected_before(last.start):
                    return None
                raise _cannot_fit_error({self._protection.part_name(entry.position): size}, longest, "characters")
            shorter.append(entry if message is entry.message else entry.with_message(message))
        return shorter

    def _fits_other_limits(self, entries: list[Entry], media: int) -> bool:
        """Return whether a view keeps the limits on messages, turns and bytes; raise if it has too many images."""
        budget, max_images = self._situation.budget, self._situation.max_images
        if media and max_images is not None and count_all_media(entries) > max_images:
            images = Tally[str]()
            for entry in entries:
                if entry.position is not None and (count := entry.message.media_count):
                    images[self._protection.part_name(entry.position)] += count
            raise _cannot_fit_error(images, max_images, "images")
        if budget.messages and len(entries) > budget.messages:
            return False
        if budget.turns:
            prompts = sum(entry.message.is_prompt for entry in entries if entry.position is not None)
            if prompts > budget.turns:
                return False
        if budget.bytes:
            return sum(json_bytes(self._transcript.reader, entry.message) for entry in entries) <= budget.bytes
        return True

    # The error if nothing can shrink further.

    def _raise_cannot_fit(self) -> NoReturn:
        """Raise an error that names the largest part that cannot shrink, in the unit of the exceeded limit."""
        situation, budget, least = self._situation, self._situation.budget, self._minimal_entries()
        measures: tuple[tuple[str, int | None, Callable[[Message], int]], ...] = (
            ("messages", budget.messages, lambda _: 1),
            ("turns", budget.turns, lambda message: int(message.is_prompt)),
            ("bytes", budget.bytes, lambda message: json_bytes(self._transcript.reader, message)),
        )
        for unit, limit, measure in measures:
            sizes = self._sizes(least, measure)
            if limit is not None and sum(sizes.values()) > limit:
                raise _cannot_fit_error(sizes, limit, unit)
        sizes = self._sizes(least, lambda message: sum(self._transcript.tokens_of(message)))
        sizes[SYSTEM_PART] += situation.system_tokens
        sizes[TOOLS_PART] += situation.tools_tokens
        sizes[LAST_EXCHANGE_PART] += REPLY_OVERHEAD
        raise _cannot_fit_error(sizes, situation.limit, "tokens")

    def _sizes(self, entries: list[Entry], measure: Callable[[Message], int]) -> dict[str, int]:
        """Return the size of each part that cannot shrink."""
        sizes = dict.fromkeys([SYSTEM_PART, TOOLS_PART, PINS_PART, PROMPT_PART, LAST_EXCHANGE_PART], 0)
        for entry in entries:
            name = LAST_EXCHANGE_PART if entry.position is None else self._protection.part_name(entry.position)
            sizes[name] += measure(entry.message)
        return sizes

    def _minimal_entries(self) -> list[Entry]:
        """Return the messages that must be sent, each as short as possible, with what repair adds."""
        last, situation = self._protection.last, self._situation
        positions = sorted({*self._protection.protected_before(last.start), *last})
        shortest = [self._clipped_entry(index, MIN_CLIP_CHARS) for index in positions]
        return repair_entries(shortest, is_interrupted=situation.is_interrupted, batching=situation.batching).entries


def _cannot_fit_error(sizes: Mapping[str, int], limit: int, unit: str) -> CannotFitError:
    part = max(sizes, key=lambda name: sizes[name])
    return CannotFitError(part, needed=sum(sizes.values()), limit=limit, unit=unit, breakdown=sizes)


def fit_transcript(transcript: Transcript, settings: FitSettings, situations: Sequence[Situation]) -> View:
    """Return the view of the first situation that a transcript fits; raise `CannotFitError` if it fits none of them.

    If it fits none with the whole of a prompt that is several messages, only the last of these is kept. System text
    within the conversation, which only Anthropic accepts, is then compacted like other messages.
    """
    is_prompt_whole = True
    while True:
        for situation in situations:
            fitter = ViewFitter(transcript, settings, situation, is_prompt_whole=is_prompt_whole)
            try:
                return fitter.fit()
            except CannotFitError:
                if situation is situations[-1] and not fitter.protects_several:
                    raise
        is_prompt_whole = False


def fit_view(view: View, reader: MessageFormat, settings: FitSettings, situation: Situation) -> View:
    """Return a session's view, repaired and shortened to fit; raise `CannotFitError` if it cannot shrink enough.

    The fitter numbers messages by their index in the view; the result has the positions of the history again.
    """
    entries = view.entries
    positions = [entry.position for entry in entries]
    transcript = Transcript.of_entries(entries, reader, situation.counter)
    pins = frozenset(index for index, position in enumerate(positions) if position in situation.pins)
    replacements = frozenset(index for index, position in enumerate(positions) if position is None)
    # Summaries are removed last, because a digest of a summary says nothing.
    pinned = [pins | replacements, pins] if replacements else [pins]
    try:
        fitted = fit_transcript(transcript, settings, [replace(situation, pins=one) for one in pinned])
    except CannotFitError:
        if not situation.is_limited_by_policy:
            raise
        # The policy's own limit is lower than what must be sent, but the model accepts more.
        fitted = fit_view(view, reader, settings, replace(situation, policy_limit=None))
        reason = f"what must be sent exceeds the {situation.billed_limit:,} tokens that the policy allows"
        return replace(fitted, reasons=(*fitted.reasons, reason))

    fitted_entries = [positioned(entry, entries) for entry in fitted.entries]
    if are_same_messages(fitted_entries, entries):
        return view
    repairs = [positioned_repair(repair, entries) for repair in fitted.repairs]
    return view.changed(fitted_entries, fitted.tokens, repairs, fitted.reasons)


def are_same_messages(one: Sequence[Entry], other: Sequence[Entry]) -> bool:
    """Return whether two lists hold the same message objects."""
    return len(one) == len(other) and all(
        mine.message is theirs.message for mine, theirs in zip(one, other, strict=True)
    )
