"""Pack found messages into a token budget, best first and verbatim.

A short message is included whole. A long message that a search found contributes its best passage. A long message
that the query references contributes as much as fits, and the answer says how to ask for the rest. A message that
does not fit comes first in the next answer, even if a shorter one after it fits into this answer. A reader who keeps
asking for more therefore misses nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from holdfast.core.conversation.messages import Message, ToolResult
from holdfast.core.conversation.tokens import Counter
from holdfast.core.recall.answer import (
    DAY_CHARS,
    Excerpt,
    RecallAnswer,
    continue_then_skip_hint,
    excerpt_with_heading,
    looks_like_heading,
)
from holdfast.core.recall.passages import (
    MessageBody,
    best_passage,
    find_matches,
    matched_word_count,
    message_body,
    part_text,
)
from holdfast.core.recall.query import DEFAULT_RECALL_TOKENS, RecallQuery
from holdfast.core.recall.ranking import name_number_pairs, search_words
from holdfast.core.recall.references import MessageReference, TextSpan, line_count
from holdfast.text import pluralize

ANSWER_FRAME_TOKENS = 28
"""Reserved for the first line and for the hint on how to ask for more, without the text of the query."""
MAX_TOKENS_HINT_TOKENS = 8
"""Reserved for `max_tokens` in that hint, if it differs from the default."""
HEADING_MARK_TOKENS, MARK_LINE_TOKENS = 6, 20
"""What the heading mark costs: in each heading, and in the line that explains it."""
PASSAGE_SHARE, MIN_PASSAGE_TOKENS = 0.25, 60
"""How much of the budget one long message may use in a search."""
MIN_RECALL_EXCERPT_TOKENS = 12
"""The packer adds no excerpt when fewer tokens than this remain."""
MAX_SKIPPED_EXCERPTS = 6
"""After more than this many messages that do not fit, a search stops looking for shorter ones."""
RECALL_MAX_CHARS_PER_TOKEN, RECALL_CHARS_PER_TOKEN = 12, 4


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message that a query selected, with its time and tool."""

    position: int
    message: Message
    time_ms: int
    time: str
    tool: str = ""
    call_arguments: str = ""
    """The arguments of the calls whose results it holds."""
    is_neighbor: bool = False

    @property
    def body(self) -> MessageBody:
        """The text of the message."""
        return message_body(self.message)

    @property
    def searchable_texts(self) -> list[tuple[int | None, str]]:
        """The texts to search: the whole message, or its other parts if some are answers of recall itself."""
        parts = list(enumerate(self.message.parts, 1))
        others = [
            (number, part) for number, part in parts if not (isinstance(part, ToolResult) and part.is_recall_answer)
        ]
        if not others or len(others) == len(parts):
            return [(None, self.body.text)]
        return [(number, part_text(part)) for number, part in others]


@dataclass(slots=True)
class ExcerptPacker:
    """Collects excerpts while the token budget lasts."""

    counter: Counter
    max_tokens: int
    excerpts: list[Excerpt] = field(default_factory=list[Excerpt])
    remaining_tokens: int = field(init=False)
    _has_mark: bool = False
    _days: set[str] = field(default_factory=set[str])
    """The days of the excerpts so far; the answer groups excerpts by day, and only the first of a day has the date."""

    def __post_init__(self) -> None:
        self.remaining_tokens = (
            self.max_tokens
            - ANSWER_FRAME_TOKENS
            - (0 if self.max_tokens == DEFAULT_RECALL_TOKENS else MAX_TOKENS_HINT_TOKENS)
        )

    @property
    def texts(self) -> list[str]:
        """The texts of the excerpts so far."""
        return [excerpt.text for excerpt in self.excerpts]

    def add(self, excerpt: Excerpt, max_tokens: int | None = None) -> bool:
        """Add an excerpt if it fits, and return whether it did; `max_tokens` limits what it may cost."""
        room = self.remaining_tokens if max_tokens is None else min(max_tokens, self.remaining_tokens)
        if len(excerpt.text) > room * RECALL_MAX_CHARS_PER_TOKEN:
            return False
        day = excerpt.time[:DAY_CHARS]
        cost = self.counter.count(excerpt_with_heading(excerpt, excerpt if day in self._days else None, "") + "\n")
        is_marked = self._has_mark or looks_like_heading(excerpt.text)
        if is_marked:
            new = 1 if self._has_mark else len(self.excerpts) + 1
            cost += new * HEADING_MARK_TOKENS + (0 if self._has_mark else MARK_LINE_TOKENS)
        if cost > room:
            return False
        self._has_mark = is_marked
        self._days.add(day)
        self.remaining_tokens -= cost
        self.excerpts.append(excerpt)
        return True

    def add_beginning(self, excerpt: Excerpt) -> Excerpt | None:
        """Add as much of the beginning of an excerpt as fits, and return that; None if nothing fits."""
        chars = min(len(excerpt.text), self.remaining_tokens * RECALL_CHARS_PER_TOKEN)
        while chars > 0 and self.remaining_tokens >= MIN_RECALL_EXCERPT_TOKENS:
            stop = _beginning_end(excerpt.text, chars)
            beginning = replace(excerpt, text=excerpt.text[:stop], stop=excerpt.start + stop, lines="")
            if self.add(beginning):
                return beginning
            chars = min(stop - 1, chars * 3 // 4)
        return None


def pack_search(found: Sequence[FoundMessage], query: RecallQuery, packer: ExcerptPacker) -> int:
    """Add the results of a search, best first; return how many of them the next answer can skip."""
    words = search_words(" ".join(query.questions)).split()
    words += [pair for question in query.questions for pair in name_number_pairs(question)]
    most = max(MIN_PASSAGE_TOKENS, int(query.max_tokens * PASSAGE_SHARE))
    passed_over: list[int] = []
    for number, one in enumerate(found):
        if packer.remaining_tokens < MIN_RECALL_EXCERPT_TOKENS or len(passed_over) > MAX_SKIPPED_EXCERPTS:
            return min([number, *passed_over])
        if not _add_found(one, words, query.text, most, packer):
            passed_over.append(number)
    return min([len(found), *passed_over])


def _add_found(one: FoundMessage, words: Sequence[str], literal: str, most: int, packer: ExcerptPacker) -> bool:
    pieces = one.searchable_texts
    part, text = (
        pieces[0] if len(pieces) == 1 else max(pieces, key=lambda piece: matched_word_count(piece[1], words, literal))
    )
    if packer.add(_excerpt_of(one, text, 0, len(text), part), most if packer.excerpts else None):
        return True
    chars = most * RECALL_CHARS_PER_TOKEN
    if len(text) <= chars and packer.remaining_tokens < most:
        # With the full share it would fit whole, so leave it to the next answer, where it comes first.
        return False
    matches = find_matches(text, words, literal)
    while chars >= MIN_RECALL_EXCERPT_TOKENS * RECALL_CHARS_PER_TOKEN:
        start, stop = best_passage(text, matches, chars)
        if packer.add(_excerpt_of(one, text, start, stop, part)):
            return True
        chars = chars * 2 // 3
    return False


def pack_references(
    found: Iterable[tuple[MessageReference, FoundMessage]], packer: ExcerptPacker
) -> list[MessageReference]:
    """Add the referenced messages in order; return references to what did not fit."""
    wanted = list(found)
    for number, (place, one) in enumerate(wanted):
        excerpt = excerpt_at(place, one)
        if packer.add(excerpt):
            continue
        beginning = packer.add_beginning(excerpt)
        if beginning is None and not packer.excerpts:
            return [place for place, _ in wanted]
        start = beginning.stop if beginning else excerpt.start
        rest = MessageReference(one.position, one.position, place.part, _remaining_span(excerpt, start, place))
        return [rest, *_join_references(reference_to(later, other) for later, other in wanted[number + 1 :])]
    return []


def excerpt_at(reference: MessageReference, found: FoundMessage) -> Excerpt:
    """Return the piece of a message that a reference selects."""
    body = found.body
    first, last = (body.part_range(reference.part) if reference.part is not None else None) or (0, len(body.text))
    text = body.text[first:last]
    start, stop = reference.span.bounds_in(text) if reference.span else (0, len(text))
    excerpt = _excerpt_of(found, text, start, stop, reference.part)
    if reference.span is None or not reference.span.is_lines or stop <= start or excerpt.is_whole:
        return excerpt
    count = line_count(text)
    last = count if reference.span.stop is None else min(reference.span.stop, count)
    return replace(excerpt, lines=f"{max(1, reference.span.start)}-{last} of {count}")


def past_end_note(reference: MessageReference, found: FoundMessage) -> str:
    """Return a note on the length of a message if a reference points past its end, else an empty string."""
    excerpt = excerpt_at(reference, found)
    if reference.span is None or excerpt.text or not excerpt.total:
        return ""
    text = (
        found.body.text
        if excerpt.part is None
        else found.body.text[slice(*(found.body.part_range(excerpt.part) or (0, 0)))]
    )
    length = pluralize(line_count(text), "line") if reference.span.is_lines else pluralize(excerpt.total, "character")
    return f"{excerpt.ref} has {length}"


def reference_to(reference: MessageReference, found: FoundMessage) -> MessageReference:
    """Return the reference to a single message out of the range that a reference covers."""
    return MessageReference(found.position, found.position, reference.part, reference.span)


def answer_references(
    left: Sequence[MessageReference],
    query: RecallQuery,
    packer: ExcerptPacker,
    notes: Sequence[str],
    *,
    rest: Sequence[MessageReference],
    skip: int,
) -> RecallAnswer:
    """Return the answer to references; `rest` is what remains to be read of the first `skip` of them."""
    more = replace(query, refs=", ".join(map(str, left)), lines="", chars="", last=0, skip=0) if left else None
    excerpts = tuple(packer.excerpts)
    if more and not excerpts:
        more = more.with_doubled_budget()
    answer = RecallAnswer(
        excerpts=excerpts, found_count=len(excerpts), notes=tuple(notes), next_query=more, query=query
    )
    if more is None or packer.counter.count(str(answer)) <= query.max_tokens:
        return answer
    # The remaining references do not fit into the hint. The caller has them, so the hint only says how many to skip.
    first = replace(more, refs=", ".join(map(str, rest)))
    return replace(answer, next_query_line=continue_then_skip_hint(first, query.skip + skip))


def _remaining_span(excerpt: Excerpt, start: int, place: MessageReference) -> TextSpan | None:
    if start == 0 and place.span is None:
        return None
    end = None if excerpt.stop == excerpt.total else excerpt.stop
    return TextSpan(start, end)


def _join_references(places: Iterable[MessageReference]) -> Iterator[MessageReference]:
    """Yield references, with adjacent whole messages joined into ranges."""
    run: MessageReference | None = None
    for place in places:
        is_plain = place.part is None and place.span is None
        if run is not None and is_plain and place.first == run.last + 1 and run.part is None and run.span is None:
            run = replace(run, last=place.last)
            continue
        if run is not None:
            yield run
        run = place
    if run is not None:
        yield run


def _excerpt_of(found: FoundMessage, text: str, start: int, stop: int, part: int | None) -> Excerpt:
    return Excerpt(
        position=found.position,
        role=found.message.role,
        text=text[start:stop],
        start=start,
        stop=stop,
        total=len(text),
        time_ms=found.time_ms,
        time=found.time,
        tool=found.tool,
        part=part,
        is_neighbor=found.is_neighbor,
        speaker=found.message.speaker if found.message.speaker != found.message.role else "",
    )


def _beginning_end(text: str, chars: int) -> int:
    """Return where to cut a text to `chars`: after a line end, if that keeps at least half of them."""
    if chars >= len(text):
        return len(text)
    end = text.rfind("\n", chars // 2, chars)
    return chars if end < 0 else end + 1
