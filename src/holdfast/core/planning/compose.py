"""What a cut gives: the messages that would be sent, mended, counted, and held against every limit."""

from typing import NamedTuple, NoReturn

from holdfast.core.conversation.clip import clip_arguments, clip_outputs
from holdfast.core.conversation.elide import count_all_media, count_media, drop_media
from holdfast.core.conversation.mend import RepairedEntries, repair_entries
from holdfast.core.conversation.messages import Text, user
from holdfast.core.conversation.tokens import MESSAGE_OVERHEAD
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.conversation.view import Entry
from holdfast.core.planning.policy import FitSettings
from holdfast.core.planning.protection import Protection
from holdfast.core.planning.receipt import PositionRanges, ranges_without
from holdfast.core.planning.rules.fold import digest_entry
from holdfast.core.planning.situation import Situation
from holdfast.errors import CannotFitError, EmptyConversationError, PendingToolCallsError

CLIP_CHARS_PER_TOKEN = 4
MIN_FIT_DIGEST_TOKENS = 64
DIGEST_PLACEHOLDER = Entry(user("[digest]", trust="summary"))


class ViewCut(NamedTuple):
    """Where one request's lines stand."""

    compact_before: int = 0
    """Messages before this are folded, protected ones excepted."""
    clip_before: int = 0
    """Old tool output and media before this are shortened."""
    has_digest: bool = True
    max_output_chars: int | None = None
    """In the last resort, what is left of each output and argument, the newest included."""
    keep_recall_answers: bool = True
    """Whether recall's answers are left as they are, for a model that has recall."""


class ComposedView(NamedTuple):
    """The view of a cut."""

    entries: list[Entry]
    cut: ViewCut
    repaired: RepairedEntries
    text_tokens: int
    """Tokens of the messages, media apart."""
    media_tokens: int
    compacted: PositionRanges
    has_digest: bool
    """Whether a digest stands for what was folded."""
    is_media_limited: bool
    """Whether media were elided because there were more than the policy wants."""


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
        self._digest_room = min(policy.digest_max_tokens, int(self.max_tokens * policy.digest_share))
        self._short = transcript.edited_entries(("short", self.clip_chars))

    @property
    def digest_tokens(self) -> int:
        """What is set aside for a digest; nothing where one would say nothing."""
        return self._digest_room + MESSAGE_OVERHEAD if self._digest_room >= MIN_FIT_DIGEST_TOKENS else 0

    def compose(self, cut: ViewCut) -> ComposedView | None:
        """Return the view of a cut, or None if it does not fit."""
        head = self.protection.protected_before(cut.compact_before)
        folded = ranges_without(cut.compact_before, head)
        has_digest = bool(folded) and cut.has_digest and self.digest_tokens > 0
        mended = self._repair(self._assemble(cut, head, has_digest=has_digest))
        entries = self._without_overlong_texts(mended.entries)
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
            has_recall = self.situation.has_recall
            written = digest_entry(
                self.transcript, cut.compact_before, folded, self._digest_room, has_recall=has_recall
            )
            entries = [written if entry is DIGEST_PLACEHOLDER else entry for entry in entries]
            words += sum(self.transcript.tokens_of(written.message)) - self.digest_tokens
        if not self._fits_other_limits(entries, media):
            return None
        return ComposedView(entries, cut, mended, words, media, folded, has_digest, is_media_limited)

    def _repair(self, entries: list[Entry]) -> RepairedEntries:
        how = self.situation
        mended = repair_entries(entries, is_interrupted=how.is_interrupted, batching=how.batching)
        if mended.pending:
            raise PendingToolCallsError(mended.pending)
        if all(entry.message.role == "system" for entry in mended.entries):
            raise EmptyConversationError
        return mended

    def _count(self, entries: list[Entry]) -> tuple[int, int]:
        tokens_of = self.transcript.tokens_of
        counts = [tokens_of(entry.message) for entry in entries]
        return sum([words for words, _ in counts]), sum([media for _, media in counts])

    def _assemble(self, cut: ViewCut, head: list[int], *, has_digest: bool) -> list[Entry]:
        """Return system messages, earlier folds, the digest's place, what else is protected, and all after the line."""
        entry, told = self.transcript.entry, self.transcript.entry_as_positioned
        systems = [entry(index) for index in head if self.transcript[index].role == "system"]
        spoken = [index for index in head if self.transcript[index].role != "system"]
        folds = [entry(index) for index in spoken if told(index).position is None]
        others = [self._cut_entry(index, cut) for index in spoken if told(index).position is not None]
        place = [DIGEST_PLACEHOLDER] if has_digest else []
        return [*systems, *folds, *place, *others, *self._entries_after(cut)]

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
        """Return a message in the form that a cut leaves of it."""
        if cut.max_output_chars is not None:
            return self.clipped_entry(index, cut.max_output_chars, keep_recall_answers=cut.keep_recall_answers)
        return self.shortened_entry(index) if index < cut.clip_before else self.transcript.entry(index)

    def shortened_entry(self, index: int) -> Entry:
        """Return an old message with its tool output clipped and its media elided."""
        entry = self.transcript.entry(index)
        if index in self.protection.whole:
            return entry
        if index not in self._short:
            is_small = self.transcript.bytes_of(index) <= self.clip_chars
            if not is_small or self.transcript.tokens_of(entry.message, is_cached=True)[1]:
                place = self._recall_position(index)
                spares = self.situation.has_recall
                clipped = clip_outputs(entry.message, self.clip_chars, place, keep_recall_answers=spares)
                short = drop_media(clipped, position=place)
                entry = entry if short is entry.message else self.transcript.remember_cost(entry.with_message(short))
            self._short[index] = entry
        return self._short[index]

    def clipped_entry(self, index: int, max_chars: int, *, keep_recall_answers: bool = False) -> Entry:
        """Return a message with as little as may be left of it; what is protected keeps its own words."""
        entry = self.transcript.entry(index)
        if index in self.protection.fixed:
            return entry
        place = self._recall_position(index)
        spares = keep_recall_answers and self.situation.has_recall
        message = clip_outputs(entry.message, max_chars, place, keep_recall_answers=spares)
        if index == self.protection.prompt_index:
            return entry.with_message(drop_media(message, results_only=True, position=place))
        return entry.with_message(drop_media(clip_arguments(message, max_chars), position=place))

    def _recall_position(self, index: int | None) -> int | None:
        """Return where a model that can ask for a message finds it; None where it cannot."""
        if index is None or not self.situation.has_recall:
            return None
        return self.transcript.entry_as_positioned(index).position

    def _limit_media(self, entries: list[Entry]) -> list[Entry]:
        """Elide the oldest media beyond the most that providers take, half of that at a time."""
        counts = {index: count for index, entry in enumerate(entries) if (count := count_media(entry.message))}
        excess = sum(counts.values()) - self.policy.max_media
        if excess <= 0:
            return entries
        batch = max(1, self.policy.max_media // 2)
        to_elide = -(-excess // batch) * batch
        limited = list(entries)
        for index, count in counts.items():
            if to_elide <= 0:
                break
            if entries[index].position not in self.protection.whole:
                place = self._recall_position(entries[index].position)
                limited[index] = entries[index].with_message(drop_media(entries[index].message, position=place))
                to_elide -= count
        return limited

    def _without_overlong_texts(self, entries: list[Entry]) -> list[Entry]:
        """Return entries whose texts the provider takes in one piece: outputs are cut, anything else is refused."""
        longest = self.situation.max_text_chars
        if longest is None or self.transcript.largest_bytes <= longest:
            return entries
        shorter: list[Entry] = []
        for entry in entries:
            is_fixed = entry.position in self.protection.fixed
            place = self._recall_position(entry.position)
            message = entry.message if is_fixed else clip_outputs(entry.message, longest, place)
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
            if entry.position is not None and (count := count_media(entry.message)):
                name = self.protection.part_name(entry.position)
                held[name] = held.get(name, 0) + count
        part = max(held, key=lambda name: held[name])
        raise CannotFitError(part, needed=sum(held.values()), limit=most, unit="images", breakdown=held)

    def _fits_other_limits(self, entries: list[Entry], media: int) -> bool:
        """Return whether a view keeps the limits besides tokens."""
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
