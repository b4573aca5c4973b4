"""The floor: whatever comes in, what goes out is valid and fits, or a typed error says why not.

Mend, shorten old tool output, elide old media, fold the oldest part into a digest, prune; in this
order, and none of it without need. System text, pins and the newest prompt stay whole. When even
the last exchange is too large, its outputs are shortened as far as it takes; after that nothing can
shrink any more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

from holdfast.core.conversation.mend import Mended, mend
from holdfast.core.conversation.messages import Message, Text, user
from holdfast.core.conversation.tokens import MESSAGE_OVERHEAD, REPLY_OVERHEAD
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.conversation.view import Entry
from holdfast.core.planning.lines import Lines
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.protection import LAST, PINS, PROMPT, SYSTEM, TOOLS, Protection
from holdfast.core.planning.receipt import Spans, spans_without
from holdfast.core.planning.rules.clip import clip_arguments, clip_outputs
from holdfast.core.planning.rules.fold import fold
from holdfast.core.planning.rules.media import count_all_media, count_media, elide_media
from holdfast.core.planning.situation import Situation
from holdfast.errors import CannotFitError, EmptyConversationError, PendingToolCallsError

CHARS_PER_TOKEN = 4
MIN_CLIP_CHARS = 64
MIN_DIGEST_TOKENS = 64
DIGEST_PLACE = Entry(user("[digest]", trust="summary"))


@dataclass(frozen=True, slots=True)
class Cut:
    """Where one request's lines stand."""

    fold: int = 0
    """Messages before this are folded, protected ones excepted."""
    clip: int = 0
    """Old tool output and media before this are shortened."""
    has_digest: bool = True
    squeeze_chars: int | None = None
    """In the last resort, what is left of each output and argument, the newest included."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A view that can be sent, and what it took."""

    entries: list[Entry]
    cut: Cut
    mended: Mended
    words: int
    """Tokens of the messages, media apart."""
    media: int
    folded: Spans
    has_digest: bool
    """Whether a digest stands for what was folded."""
    max_media: int
    is_media_limited: bool
    """Whether media were elided because there were more than `max_media`."""
    tokens_before: int
    """What the whole conversation would have cost."""
    is_before_counted: bool
    """Whether all of it was counted; else it was extrapolated from what was."""


class Floor:
    """Fits one transcript into one situation."""

    def __init__(self, transcript: Transcript, policy: Policy, situation: Situation) -> None:
        self._transcript = transcript
        self._situation = situation
        self._policy = policy
        self._room = situation.usable_tokens - situation.static_tokens - REPLY_OVERHEAD
        self._clip_chars = CHARS_PER_TOKEN * max(policy.clip_min_tokens, int(self._room * policy.clip_share))
        self._digest_room = min(policy.digest_max_tokens, int(self._room * policy.digest_share))
        self._protection = Protection(transcript, situation.pins)
        self._short = transcript.variants(("short", self._clip_chars))
        self._sums: tuple[list[int], list[int]] | None = None

    def fit(self) -> Fitted:
        """Return the fullest view that fits."""
        if self._room <= 0:
            self._refuse()
        for cut in self._cuts():
            fitted = self._compose(cut)
            if fitted is not None:
                return fitted
        self._refuse()

    def _tokens_of_everything(self) -> tuple[int, bool]:
        """Return what the whole conversation costs, and whether that was counted to the end."""
        raw, _ = self._suffix_sums()
        seen = len(raw) - 1
        length = len(self._transcript)
        if seen == length:
            return raw[-1], True
        weight = self._transcript.weight - self._transcript.offset(length - seen)
        return round(raw[-1] * self._transcript.weight / max(1, weight)), False

    # Where the lines may stand.

    def _cuts(self) -> Iterator[Cut]:
        """Yield the cuts worth trying, mildest first."""
        raw, clipped = self._suffix_sums()
        length, limit = len(self._transcript), self._protection.limit
        start = length - (len(raw) - 1)
        if start == 0 and raw[-1] <= self._room:
            yield Cut()
        lines = Lines(self._transcript, self._situation.budget, self._room, self._policy.step_share, limit)
        first = min(limit, max(start, self._start_by_count()))
        number = lines.number_at(first) + self._policy.clip_zone_steps if first else 1
        fold = -1
        while fold < limit:
            fold = lines.position(number - self._policy.clip_zone_steps)
            clip = lines.position(number)
            if fold >= start and self._may_fit(fold, clip, raw, clipped):
                yield Cut(fold, clip)
            number += 1
        yield from self._last_resorts()

    def _start_by_count(self) -> int:
        """Return where the kept part begins at the earliest if messages or turns are limited."""
        budget, length = self._situation.budget, len(self._transcript)
        start = length - budget.messages if budget.messages else 0
        prompts = self._transcript.prompts_before(length)
        if budget.turns and prompts > budget.turns:
            start = max(start, self._transcript.prompt(prompts - budget.turns))
        return max(0, start)

    def _suffix_sums(self) -> tuple[list[int], list[int]]:
        """Return the cost of the last 0, 1, 2 … messages, whole and clipped, as far as either could matter."""
        if self._sums is not None:
            return self._sums
        raw, short = 0, 0
        raw_sums, short_sums = [0], [0]
        costs = self._transcript.costs(("short", self._clip_chars))
        room, protected = self._room, self._protection.whole
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
        words, media = self._transcript.tokens_of(self._transcript[index], is_kept=True)
        cost = words + media, sum(self._transcript.tokens_of(self._shortened(index).message))
        if index not in self._protection.whole:
            self._transcript.costs(("short", self._clip_chars))[index] = cost
        return cost

    def _may_fit(self, fold: int, clip: int, raw: list[int], clipped: list[int]) -> bool:
        """Return whether a cut is worth composing: what mending adds or removes is not known yet."""
        length, budget = len(self._transcript), self._situation.budget
        if budget.messages and length - fold > budget.messages:
            return False
        if budget.bytes and self._transcript.weight - self._transcript.offset(clip) > budget.bytes:
            return False
        prompts = self._transcript.prompts_before(length) - self._transcript.prompts_before(fold)
        if budget.turns and prompts > budget.turns:
            return False
        clip = max(fold, clip)
        tail = raw[length - clip] + clipped[length - fold] - clipped[length - clip]
        head = sum(self._transcript.tokens(position) for position in self._protection.before(fold))
        return tail + head + (self._digest_cost if fold else 0) <= self._room

    def _last_resorts(self) -> Iterator[Cut]:
        """Yield cuts that keep nothing but the last exchange, and less and less of that."""
        limit = self._protection.limit
        tightest = Cut(limit, limit)
        for has_digest, least in ((True, self._clip_chars), (False, MIN_CLIP_CHARS)):
            chars = self._room * CHARS_PER_TOKEN
            yield replace(tightest, has_digest=has_digest)
            while chars > least:
                chars = max(least, chars // 2)
                yield replace(tightest, has_digest=has_digest, squeeze_chars=chars)

    @property
    def _digest_cost(self) -> int:
        return self._digest_room + MESSAGE_OVERHEAD if self._digest_room >= MIN_DIGEST_TOKENS else 0

    # What a cut gives.

    def _compose(self, cut: Cut) -> Fitted | None:
        """Return the view of a cut, or None if it does not fit."""
        head = self._protection.before(cut.fold)
        folded = spans_without(cut.fold, head)
        has_digest = bool(folded) and cut.has_digest and self._digest_cost > 0
        mended = mend(
            self._assemble(cut, head, has_digest=has_digest),
            is_interrupted=self._situation.is_interrupted,
            groups_results=self._situation.groups_results,
        )
        if mended.pending:
            raise PendingToolCallsError(mended.pending)
        if all(entry.message.role == "system" for entry in mended.entries):
            raise EmptyConversationError
        entries = mended.entries
        words, media = self._count(entries)
        if media:
            entries = self._limit_media(mended.entries)
            words, media = self._count(entries)
        if has_digest:
            words += self._digest_cost - sum(self._transcript.tokens_of(DIGEST_PLACE.message))
        if words + media > self._room:
            return None
        if has_digest:
            written = fold(self._transcript, cut.fold, folded, self._digest_room)
            entries = [written if entry is DIGEST_PLACE else entry for entry in entries]
            words += sum(self._transcript.tokens_of(written.message)) - self._digest_cost
        if not self._fits_otherwise(entries):
            return None
        entries = self._within_provider_limits(entries, media)
        is_media_limited = bool(media) and count_all_media(mended.entries) > self._policy.max_media
        return Fitted(
            entries,
            cut,
            mended,
            words,
            media,
            folded,
            has_digest,
            self._policy.max_media,
            is_media_limited,
            *self._tokens_of_everything(),
        )

    def _count(self, entries: list[Entry]) -> tuple[int, int]:
        tokens_of = self._transcript.tokens_of
        counts = [tokens_of(entry.message) for entry in entries]
        return sum([words for words, _ in counts]), sum([media for _, media in counts])

    def _assemble(self, cut: Cut, head: list[int], *, has_digest: bool) -> list[Entry]:
        """Return system messages, the digest's place, what else is protected, and everything after the line."""
        entry = self._transcript.entry
        systems = [entry(index) for index in head if self._transcript[index].role == "system"]
        others = [self._shown(index, cut) for index in head if self._transcript[index].role != "system"]
        place = [DIGEST_PLACE] if has_digest else []
        return [*systems, *place, *others, *self._tail(cut)]

    def _tail(self, cut: Cut) -> list[Entry]:
        length = len(self._transcript)
        if cut.squeeze_chars is not None:
            return [self._shown(index, cut) for index in range(cut.fold, length)]
        clip = max(cut.fold, cut.clip)
        entry, shortened, known = self._transcript.entry, self._shortened, self._short
        old = [known.get(index) or shortened(index) for index in range(cut.fold, clip)]
        for index in self._protection.whole:
            if cut.fold <= index < clip:
                old[index - cut.fold] = entry(index)
        return old + [entry(index) for index in range(clip, length)]

    def _shown(self, index: int, cut: Cut) -> Entry:
        """Return a message in the form that a cut leaves of it."""
        if cut.squeeze_chars is not None:
            return self._squeezed(index, cut.squeeze_chars)
        return self._shortened(index) if index < cut.clip else self._transcript.entry(index)

    def _shortened(self, index: int) -> Entry:
        """Return an old message with its tool output clipped and its media elided."""
        entry = self._transcript.entry(index)
        if index in self._protection.whole:
            return entry
        if index not in self._short:
            is_small = self._transcript.weight_of(index) <= self._clip_chars
            if not is_small or self._transcript.tokens_of(entry.message, is_kept=True)[1]:
                short = elide_media(clip_outputs(entry.message, self._clip_chars))
                entry = entry if short is entry.message else self._transcript.kept(entry.saying(short))
            self._short[index] = entry
        return self._short[index]

    def _squeezed(self, index: int, chars: int) -> Entry:
        """Return a message with as little as may be left of it; what is protected keeps its own words."""
        entry = self._transcript.entry(index)
        if index in self._protection.fixed:
            return entry
        message = clip_outputs(entry.message, chars)
        if index == self._protection.prompt:
            return entry.saying(elide_media(message, results_only=True))
        return entry.saying(elide_media(clip_arguments(message, chars)))

    def _limit_media(self, entries: list[Entry]) -> list[Entry]:
        """Elide the oldest media beyond the most that providers take, half of that at a time."""
        counts = {index: count for index, entry in enumerate(entries) if (count := count_media(entry.message))}
        excess = sum(counts.values()) - self._policy.max_media
        if excess <= 0:
            return entries
        batch = max(1, self._policy.max_media // 2)
        to_elide = -(-excess // batch) * batch
        limited = list(entries)
        for index, count in counts.items():
            if to_elide <= 0:
                break
            if entries[index].position not in self._protection.whole:
                limited[index] = entries[index].saying(elide_media(entries[index].message))
                to_elide -= count
        return limited

    def _within_provider_limits(self, entries: list[Entry], media: int) -> list[Entry]:
        """Return entries that the provider takes one by one: no text too long, not too many images."""
        longest, most = self._situation.max_text_chars, self._situation.max_images
        if media and most is not None and count_all_media(entries) > most:
            images = {PROMPT: count_all_media(entries)}
            raise CannotFitError(PROMPT, needed=images[PROMPT], limit=most, unit="images", breakdown=images)
        if longest is None or self._transcript.heaviest <= longest:
            return entries
        within = [entry.saying(clip_outputs(entry.message, longest)) for entry in entries]
        for entry in within:
            size = max((len(part.text) for part in entry.message.parts if isinstance(part, Text)), default=0)
            if size > longest and entry.position is not None:
                part = self._protection.name_of(entry.position)
                raise CannotFitError(part, needed=size, limit=longest, unit="characters", breakdown={part: size})
        return [new if new.message is not old.message else old for new, old in zip(within, entries, strict=True)]

    def _fits_otherwise(self, entries: list[Entry]) -> bool:
        budget = self._situation.budget
        if budget.messages and len(entries) > budget.messages:
            return False
        if (
            budget.turns
            and sum(entry.message.is_prompt for entry in entries if entry.position is not None) > budget.turns
        ):
            return False
        if budget.bytes:
            return sum(self._transcript.reader.json_bytes(entry.message) for entry in entries) <= budget.bytes
        return True

    # When nothing can shrink any more.

    def _refuse(self) -> NoReturn:
        """Name the largest of what cannot shrink, in the unit that it breaks."""
        budget, least = self._situation.budget, self._least()
        measures: tuple[tuple[str, int | None, Callable[[Message], int]], ...] = (
            ("messages", budget.messages, lambda _: 1),
            ("turns", budget.turns, lambda message: int(message.is_prompt)),
            ("bytes", budget.bytes, self._transcript.reader.json_bytes),
            ("tokens", self._situation.usable_tokens, lambda message: sum(self._transcript.tokens_of(message))),
        )
        for unit, limit, measure in measures:
            sizes = dict.fromkeys([SYSTEM, TOOLS, PINS, PROMPT, LAST], 0)
            if unit == "tokens":
                sizes[SYSTEM] = self._situation.system_tokens
                sizes[TOOLS] = self._situation.tools_tokens
                sizes[LAST] = REPLY_OVERHEAD
            for entry in least:
                name = LAST if entry.position is None else self._protection.name_of(entry.position)
                sizes[name] += measure(entry.message)
            needed = sum(sizes.values())
            if unit == "tokens" or (limit is not None and needed > limit):
                part = max(sizes, key=lambda name: sizes[name])
                raise CannotFitError(part, needed=needed, limit=limit or 0, unit=unit, breakdown=sizes)
        raise AssertionError

    def _least(self) -> list[Entry]:
        """Return what has to be sent, each message as short as it gets, and what mending adds to it."""
        positions = sorted({*self._protection.before(self._protection.limit), *self._protection.last})
        shortest = [self._squeezed(index, MIN_CLIP_CHARS) for index in positions]
        how = self._situation
        return mend(shortest, is_interrupted=how.is_interrupted, groups_results=how.groups_results).entries
