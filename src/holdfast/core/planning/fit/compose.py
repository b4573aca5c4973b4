"""Composes the view of a cut: the messages to send, repaired, counted, and checked against every limit.

A digest replaces messages before the first cut; messages before the second cut have their tool output clipped. The
composer has no memory of earlier requests, so cuts that moved with every new message would break the cached prefix
every time. Therefore cuts fall only at multiples of a step, measured from the beginning of the conversation and moved
to the next legal cut. A conversation that only grows keeps its cuts, and its prefix, until it has grown by a step.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from holdfast.core.conversation.cuts import next_cut
from holdfast.core.conversation.messages import Entry, Text, user
from holdfast.core.conversation.repair import repair_entries
from holdfast.core.conversation.shorten import (
    clip_arguments,
    clip_outputs,
    count_all_media,
    drop_media,
    recall_range_hint,
)
from holdfast.core.conversation.spans import PositionRanges, position_count, ranges_without
from holdfast.core.conversation.tokens import MESSAGE_OVERHEAD
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.history.digest import make_digest
from holdfast.core.planning.fit.protection import Protection
from holdfast.core.planning.fit.receipt import View
from holdfast.core.planning.policy import FitSettings
from holdfast.core.planning.situation import Budget, Situation
from holdfast.errors import CannotFitError, EmptyConversationError, PendingToolCallsError

CUT_GRID_BYTES_PER_TOKEN = 4
"""About right for prose, code and Chinese; a step of digits or hashes has more tokens."""


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
        key = (self.budget, self.max_tokens, self.step_share)
        known = self.transcript.cached_cuts(key)
        position = known.get(number)
        if position is None:
            position = self._find_cut(number)
            if position < self.limit:
                # Messages before a cut never change, so neither does the cut.
                known[number] = position
        return min(position, self.limit)

    def _find_cut(self, number: int) -> int:
        target = number * self.step_share
        if self.budget.messages or self.budget.bytes or self.budget.turns:
            index = bisect_left(range(self.limit), target, key=self.load)
        else:
            index = self.transcript.index_at_bytes(target * self.max_tokens * CUT_GRID_BYTES_PER_TOKEN, self.limit)
        return next_cut(self.transcript, index)

    def number_of_cut(self, index: int) -> int:
        """Return the number of the first cut at or after `index`."""
        number = max(0, int(self.load(index) / self.step_share))
        while self.cut_at(number) < index:
            number += 1
        # Several cuts can fall at the end of one exchange: return the first of them.
        while number and self.cut_at(number - 1) >= index:
            number -= 1
        return number


FIRST_DIGEST_PROMPTS, LAST_DIGEST_PROMPTS = 2, 24
DIGEST_HORIZON_MESSAGES = 64
"""How many of the newest compacted messages a digest is made from, besides the user's prompts."""


def digest_entry(
    transcript: Transcript,
    compact_before: int,
    compacted: PositionRanges,
    allowance_tokens: int,
    *,
    has_recall: bool = False,
) -> Entry:
    """Return the digest of the messages before a cut; the same cut has the same digest."""
    known = transcript.edited_entries(("digest", allowance_tokens, compacted))
    if compact_before not in known:
        hint = _compacted_range_hint(transcript, compacted) if has_recall else ""
        text = make_digest(
            [transcript.entry_as_positioned(index) for index in _digest_sources(transcript, compact_before, compacted)],
            allowance_tokens=allowance_tokens - (transcript.counter.count(hint) + 1 if hint else 0),
            counter=transcript.counter,
            message_count=position_count(compacted),
            is_prompt_kept=compact_before < len(transcript) and not transcript[compact_before].is_prompt,
        )
        text = "\n".join(part for part in (text, hint) if part)
        known[compact_before] = transcript.remember_cost(Entry(user(text, trust="summary")))
    return known[compact_before]


def _compacted_range_hint(transcript: Transcript, compacted: PositionRanges) -> str:
    """Return how to recall the compacted messages, by their positions in the history."""
    found = (transcript.entry_as_positioned(index).position for span in compacted for index in span)
    positions = [position for position in found if position is not None]
    return recall_range_hint(positions[0], positions[-1] + 1) if positions else ""


def _digest_sources(transcript: Transcript, compact_before: int, compacted: PositionRanges) -> list[int]:
    """Return the compacted positions a digest is made from: the user's prompts and the newest messages."""
    count = transcript.prompts_before(compact_before)
    numbers = {*range(min(FIRST_DIGEST_PROMPTS, count)), *range(max(0, count - LAST_DIGEST_PROMPTS), count)}
    chosen = {transcript.prompt_index(number) for number in numbers}
    chosen.update(range(max(0, compact_before - DIGEST_HORIZON_MESSAGES), compact_before))
    return sorted(index for index in chosen if any(index in span for span in compacted))


CLIP_CHARS_PER_TOKEN = 4
MIN_FIT_DIGEST_TOKENS = 64
DIGEST_PLACEHOLDER = Entry(user("[digest]", trust="summary"))


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


class ViewComposer:
    """Makes views of one transcript in one situation."""

    def __init__(self, transcript: Transcript, policy: FitSettings, situation: Situation) -> None:
        self.transcript = transcript
        self.situation = situation
        self.policy = policy
        self.protection = Protection(transcript, situation.pins)
        self.max_tokens = situation.message_budget
        """Tokens that the messages may take."""
        self.clip_chars = CLIP_CHARS_PER_TOKEN * max(policy.clip_min_tokens, int(self.max_tokens * policy.clip_share))
        self._digest_allowance = min(policy.digest_max_tokens, int(self.max_tokens * policy.digest_share))
        self._short = transcript.edited_entries(("short", self.clip_chars))

    @property
    def digest_tokens(self) -> int:
        """The tokens reserved for a digest; 0 if the allowance is too small for one."""
        return self._digest_allowance + MESSAGE_OVERHEAD if self._digest_allowance >= MIN_FIT_DIGEST_TOKENS else 0

    def compose(self, cut: ViewCut) -> View | None:
        """Return the view of a cut, or None if it does not fit."""
        head = self.protection.protected_before(cut.compact_before)
        removed = ranges_without(cut.compact_before, head)
        has_digest = bool(removed) and cut.has_digest and self.digest_tokens > 0
        situation = self.situation
        repaired = repair_entries(
            self._assemble(cut, head, has_digest=has_digest),
            is_interrupted=situation.is_interrupted,
            batching=situation.batching,
        )
        if repaired.pending:
            raise PendingToolCallsError(repaired.pending)
        if all(entry.message.role == "system" for entry in repaired.entries):
            raise EmptyConversationError
        entries = self._without_overlong_texts(repaired.entries)
        words, media = self._count(entries)
        is_media_limited = bool(media) and count_all_media(entries) > self.policy.max_media
        if is_media_limited:
            entries = self._limit_media(entries)
            words, media = self._count(entries)
        if has_digest:
            words += self.digest_tokens - sum(self.transcript.tokens_of(DIGEST_PLACEHOLDER.message))
        if words + media > self.max_tokens:
            return None
        if has_digest:
            digest = digest_entry(
                self.transcript, cut.compact_before, removed, self._digest_allowance, has_recall=situation.has_recall
            )
            entries = [digest if entry is DIGEST_PLACEHOLDER else entry for entry in entries]
            words += sum(self.transcript.tokens_of(digest.message)) - self.digest_tokens
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
        if cut.compact_before or cut.clip_before or cut.max_output_chars:
            free = self.situation.margin
            margin = f"; {free:.0%} of the budget stays free because token counts may be wrong" if free else ""
            yield f"the conversation is longer than its budget{margin}"
        if compacted:
            yield f"a digest replaces the first {cut.compact_before:,} messages, except protected ones"
        if dropped:
            yield f"{position_count(dropped):,} messages were dropped: there was no room for a digest of them"
        if is_media_limited:
            yield f"at most {self.policy.max_media} images are sent, so a notice replaces each of the oldest"
        if cut.max_output_chars is not None:
            chars = cut.max_output_chars
            yield f"the last exchange alone is too long, so its outputs were clipped to {chars:,} characters"

    def _count(self, entries: list[Entry]) -> tuple[int, int]:
        tokens_of = self.transcript.tokens_of
        counts = [tokens_of(entry.message) for entry in entries]
        return sum([words for words, _ in counts]), sum([media for _, media in counts])

    def _assemble(self, cut: ViewCut, head: list[int], *, has_digest: bool) -> list[Entry]:
        """Return system messages, summaries, a placeholder for the digest, other protected messages, and the rest."""
        entry, positioned = self.transcript.entry, self.transcript.entry_as_positioned
        systems = [entry(index) for index in head if self.transcript[index].role == "system"]
        spoken = [index for index in head if self.transcript[index].role != "system"]
        summaries = [entry(index) for index in spoken if positioned(index).position is None]
        others = [self._cut_entry(index, cut) for index in spoken if positioned(index).position is not None]
        place = [DIGEST_PLACEHOLDER] if has_digest else []
        return [*systems, *summaries, *place, *others, *self._entries_after(cut)]

    def _entries_after(self, cut: ViewCut) -> list[Entry]:
        length = len(self.transcript)
        if cut.max_output_chars is not None:
            return [self._cut_entry(index, cut) for index in range(cut.compact_before, length)]
        clip = max(cut.compact_before, cut.clip_before)
        entry, shortened, known = self.transcript.entry, self.shortened_entry, self._short
        old = [known.get(index) or shortened(index) for index in range(cut.compact_before, clip)]
        for index in self.protection.whole:
            if cut.compact_before <= index < clip:
                old[index - cut.compact_before] = entry(index)
        return old + [entry(index) for index in range(clip, length)]

    def _cut_entry(self, index: int, cut: ViewCut) -> Entry:
        """Return a message in the form that it has in the view of a cut."""
        if cut.max_output_chars is not None:
            return self.clipped_entry(index, cut.max_output_chars, keep_recall_answers=cut.keep_recall_answers)
        return self.shortened_entry(index) if index < cut.clip_before else self.transcript.entry(index)

    def shortened_entry(self, index: int) -> Entry:
        """Return an old message with its tool output clipped and its media dropped."""
        entry = self.transcript.entry(index)
        if index in self.protection.whole:
            return entry
        if index not in self._short:
            is_small = self.transcript.bytes_of(index) <= self.clip_chars
            if not is_small or self.transcript.tokens_of(entry.message, is_cached=True)[1]:
                position = self._recall_position(index)
                spares = self.situation.has_recall
                clipped = clip_outputs(entry.message, self.clip_chars, position, keep_recall_answers=spares)
                short = drop_media(clipped, position=position)
                entry = entry if short is entry.message else self.transcript.remember_cost(entry.with_message(short))
            self._short[index] = entry
        return self._short[index]

    def clipped_entry(self, index: int, max_chars: int, *, keep_recall_answers: bool = False) -> Entry:
        """Return a message with outputs and arguments clipped and media dropped; protected text stays."""
        entry = self.transcript.entry(index)
        if index in self.protection.fixed:
            return entry
        position = self._recall_position(index)
        spares = keep_recall_answers and self.situation.has_recall
        message = clip_outputs(entry.message, max_chars, position, keep_recall_answers=spares)
        if index == self.protection.prompt_index:
            return entry.with_message(drop_media(message, results_only=True, position=position))
        return entry.with_message(drop_media(clip_arguments(message, max_chars), position=position))

    def _recall_position(self, index: int | None) -> int | None:
        """Return the position by which the model can recall a message; None without the recall tool."""
        if index is None or not self.situation.has_recall:
            return None
        return self.transcript.entry_as_positioned(index).position

    def _limit_media(self, entries: list[Entry]) -> list[Entry]:
        """Drop the oldest media above the limit, in batches of half the limit so that the prefix changes rarely."""
        counts = {index: count for index, entry in enumerate(entries) if (count := entry.message.media_count)}
        excess = sum(counts.values()) - self.policy.max_media
        if excess <= 0:
            return entries
        batch = max(1, self.policy.max_media // 2)
        excess_media = -(-excess // batch) * batch
        limited = list(entries)
        for index, count in counts.items():
            if excess_media <= 0:
                break
            if entries[index].position not in self.protection.whole:
                position = self._recall_position(entries[index].position)
                limited[index] = entries[index].with_message(drop_media(entries[index].message, position=position))
                excess_media -= count
        return limited

    def _without_overlong_texts(self, entries: list[Entry]) -> list[Entry]:
        """Return entries without texts that are too long for the provider: clip outputs, raise for other texts."""
        longest = self.situation.max_text_chars
        if longest is None or self.transcript.largest_bytes <= longest:
            return entries
        shorter: list[Entry] = []
        for entry in entries:
            is_fixed = entry.position in self.protection.fixed
            position = self._recall_position(entry.position)
            message = entry.message if is_fixed else clip_outputs(entry.message, longest, position)
            texts = [*message.parts, *(inner for result in message.results for inner in result.content)]
            size = max((len(part.text) for part in texts if isinstance(part, Text)), default=0)
            if size > longest and entry.position is not None:
                part = self.protection.part_name(entry.position)
                raise CannotFitError(part, needed=size, limit=longest, unit="characters", breakdown={part: size})
            shorter.append(entry if message is entry.message else entry.with_message(message))
        return shorter

    def _raise_too_many_images(self, entries: list[Entry], most: int) -> NoReturn:
        held: dict[str, int] = {}
        for entry in entries:
            if entry.position is not None and (count := entry.message.media_count):
                name = self.protection.part_name(entry.position)
                held[name] = held.get(name, 0) + count
        part = max(held, key=lambda name: held[name])
        raise CannotFitError(part, needed=sum(held.values()), limit=most, unit="images", breakdown=held)

    def _fits_other_limits(self, entries: list[Entry], media: int) -> bool:
        """Return whether a view keeps the limits on messages, turns, bytes and images."""
        budget, most = self.situation.budget, self.situation.max_images
        if media and most is not None and count_all_media(entries) > most:
            self._raise_too_many_images(entries, most)
        if budget.messages and len(entries) > budget.messages:
            return False
        if (
            budget.turns
            and sum(entry.message.is_prompt for entry in entries if entry.position is not None) > budget.turns
        ):
            return False
        if budget.bytes:
            return sum(self.transcript.reader.json_bytes(entry.message) for entry in entries) <= budget.bytes
        return True
