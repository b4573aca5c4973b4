"""As much of what was found as an allowance of tokens holds, the best first, none of it changed.

A short message is shown whole. Of a long one that was searched for, the passage that says most of it is shown; of
one that was referred to, as much as fits, and the answer says how to ask for what follows. What there is no room for
is first in the next answer, also where something shorter behind it still fits: whoever asks for more misses nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from holdfast.core.conversation.messages import Message, ToolResult
from holdfast.core.conversation.tokens import Counter
from holdfast.core.history.recall.answer import DAY_CHARS, Excerpt, Recalled, headed, looks_like_heading, then_line
from holdfast.core.history.recall.asking import DEFAULT_TOKENS, Recall
from holdfast.core.history.recall.bodies import Body, body_of, text_of
from holdfast.core.history.recall.passages import best_passage, matches_in, said_of
from holdfast.core.history.recall.ranking import pairs_of, telling_words
from holdfast.core.history.recall.references import Reference, Span, line_count
from holdfast.plural import many

FRAME_TOKENS = 28
"""What is set aside for the first line and for how to ask for more, the question excepted."""
SIZE_TOKENS = 8
"""What it takes to say how much more is wanted, where that is not as usual."""
MARK_TOKENS, MARK_LINE_TOKENS = 6, 20
"""What it costs that headings carry a mark: each of them, and the line that says so."""
PASSAGE_SHARE, MIN_PASSAGE_TOKENS = 0.25, 60
"""What one long message may take of an allowance where many were found."""
LEAST_TOKENS = 12
"""Less room than this holds no excerpt."""
MAX_PASSED_OVER = 6
"""After so many that do not fit nothing shorter is looked for."""
MAX_CHARS_PER_TOKEN, CHARS_PER_TOKEN = 12, 4


@dataclass(frozen=True, slots=True)
class Found:
    """A message that was read, and what is known of it."""

    position: int
    message: Message
    time_ms: int
    time: str
    tool: str = ""
    about: str = ""
    """The arguments of the calls that it answers."""
    is_neighbour: bool = False

    @property
    def body(self) -> Body:
        """Its text."""
        return body_of(self.message)

    @property
    def pieces(self) -> list[tuple[int | None, str]]:
        """What a search finds of it: all, or part by part where some of them are recall's own answers."""
        parts = list(enumerate(self.message.parts, 1))
        others = [(number, part) for number, part in parts if not (isinstance(part, ToolResult) and part.is_recalled)]
        if not others or len(others) == len(parts):
            return [(None, self.body.text)]
        return [(number, text_of(part)) for number, part in others]


@dataclass(slots=True)
class Packer:
    """Takes excerpts as long as there is room."""

    counter: Counter
    allowance: int
    excerpts: list[Excerpt] = field(default_factory=list[Excerpt])
    left: int = field(init=False)
    _has_mark: bool = False
    _days: set[str] = field(default_factory=set[str])
    """The days of what was taken: excerpts of one stand together, and the first of them has the date."""

    def __post_init__(self) -> None:
        self.left = self.allowance - FRAME_TOKENS - (0 if self.allowance == DEFAULT_TOKENS else SIZE_TOKENS)

    @property
    def texts(self) -> list[str]:
        """What was taken."""
        return [excerpt.text for excerpt in self.excerpts]

    def take(self, excerpt: Excerpt, most: int | None = None) -> bool:
        """Take an excerpt if there is room for it, and say so; `most` is what it may cost."""
        room = self.left if most is None else min(most, self.left)
        if len(excerpt.text) > room * MAX_CHARS_PER_TOKEN:
            return False
        day = excerpt.time[:DAY_CHARS]
        cost = self.counter.count(headed(excerpt, excerpt if day in self._days else None, "") + "\n")
        is_marked = self._has_mark or looks_like_heading(excerpt.text)
        if is_marked:
            new = 1 if self._has_mark else len(self.excerpts) + 1
            cost += new * MARK_TOKENS + (0 if self._has_mark else MARK_LINE_TOKENS)
        if cost > room:
            return False
        self._has_mark = is_marked
        self._days.add(day)
        self.left -= cost
        self.excerpts.append(excerpt)
        return True

    def take_beginning(self, excerpt: Excerpt) -> Excerpt | None:
        """Take as much of an excerpt as there is room for, and return that; None where there is none."""
        chars = min(len(excerpt.text), self.left * CHARS_PER_TOKEN)
        while chars > 0 and self.left >= LEAST_TOKENS:
            stop = _end(excerpt.text, chars)
            beginning = replace(excerpt, text=excerpt.text[:stop], stop=excerpt.start + stop, lines="")
            if self.take(beginning):
                return beginning
            chars = min(stop - 1, chars * 3 // 4)
        return None


def packed_search(found: Sequence[Found], asking: Recall, packer: Packer) -> int:
    """Take what was searched for, the best first; returns how many can be left out of the next answer."""
    words = telling_words(" ".join(asking.questions)).split()
    words += [pair for question in asking.questions for pair in pairs_of(question)]
    most = max(MIN_PASSAGE_TOKENS, int(asking.max_tokens * PASSAGE_SHARE))
    passed_over: list[int] = []
    for number, one in enumerate(found):
        if packer.left < LEAST_TOKENS or len(passed_over) > MAX_PASSED_OVER:
            return min([number, *passed_over])
        if not _take_found(one, words, asking.text, most, packer):
            passed_over.append(number)
    return min([len(found), *passed_over])


def _take_found(one: Found, words: Sequence[str], literal: str, most: int, packer: Packer) -> bool:
    pieces = one.pieces
    part, text = pieces[0] if len(pieces) == 1 else max(pieces, key=lambda piece: said_of(piece[1], words, literal))
    if packer.take(_excerpt(one, text, 0, len(text), part), most if packer.excerpts else None):
        return True
    chars = most * CHARS_PER_TOKEN
    if len(text) <= chars and packer.left < most:
        # It would have been shown whole: it is the first of the next answer.
        return False
    matches = matches_in(text, words, literal)
    while chars >= LEAST_TOKENS * CHARS_PER_TOKEN:
        start, stop = best_passage(text, matches, chars)
        if packer.take(_excerpt(one, text, start, stop, part)):
            return True
        chars = chars * 2 // 3
    return False


def packed_places(places: Iterable[tuple[Reference, Found]], packer: Packer) -> list[Reference]:
    """Take what was referred to, in its order; returns the references to what there was no room for."""
    wanted = list(places)
    for number, (place, one) in enumerate(wanted):
        excerpt = excerpt_at(place, one)
        if packer.take(excerpt):
            continue
        beginning = packer.take_beginning(excerpt)
        if beginning is None and not packer.excerpts:
            return [place for place, _ in wanted]
        start = beginning.stop if beginning else excerpt.start
        rest = Reference(one.position, one.position, place.part, _rest(excerpt, start, place))
        return [rest, *_joined(place_of(later, other) for later, other in wanted[number + 1 :])]
    return []


def excerpt_at(place: Reference, one: Found) -> Excerpt:
    """Return the piece of a message that a reference means."""
    body = one.body
    first, last = (body.part(place.part) if place.part is not None else None) or (0, len(body.text))
    text = body.text[first:last]
    start, stop = place.span.within(text) if place.span else (0, len(text))
    excerpt = _excerpt(one, text, start, stop, place.part)
    if place.span is None or not place.span.is_lines or stop <= start or excerpt.is_whole:
        return excerpt
    count = line_count(text)
    last = count if place.span.stop is None else min(place.span.stop, count)
    return replace(excerpt, lines=f"{max(1, place.span.start)}-{last} of {count}")


def beyond(place: Reference, one: Found) -> str:
    """Return how long a message is where a piece behind its end is asked for; empty where there is such a piece."""
    excerpt = excerpt_at(place, one)
    if place.span is None or excerpt.text or not excerpt.total:
        return ""
    text = one.body.text if excerpt.part is None else one.body.text[slice(*(one.body.part(excerpt.part) or (0, 0)))]
    length = many(line_count(text), "line") if place.span.is_lines else many(excerpt.total, "character")
    return f"{excerpt.ref} has {length}"


def place_of(place: Reference, one: Found) -> Reference:
    """Return the reference to one message of those that another one means."""
    return Reference(one.position, one.position, place.part, place.span)


def answered_places(
    left: Sequence[Reference],
    asking: Recall,
    packer: Packer,
    notes: Sequence[str],
    *,
    rest: Sequence[Reference],
    skip: int,
) -> Recalled:
    """Return the answer to references; `rest` is what is left of the first `skip` of them."""
    more = replace(asking, refs=", ".join(map(str, left)), lines="", chars="", last=0, skip=0) if left else None
    excerpts = tuple(packer.excerpts)
    if more and not excerpts:
        more = more.roomier()
    answer = Recalled(excerpts=excerpts, found=len(excerpts), notes=tuple(notes), more=more, asked=asking)
    if more is None or packer.counter.count(str(answer)) <= asking.max_tokens:
        return answer
    # The references that are left take too much room: whoever asked has them.
    first = replace(more, refs=", ".join(map(str, rest)))
    return replace(answer, more_line=then_line(first, asking.skip + skip))


def _rest(excerpt: Excerpt, start: int, place: Reference) -> Span | None:
    if start == 0 and place.span is None:
        return None
    end = None if excerpt.stop == excerpt.total else excerpt.stop
    return Span(start, end)


def _joined(places: Iterable[Reference]) -> Iterator[Reference]:
    """Yield references with those joined that follow each other."""
    run: Reference | None = None
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


def _excerpt(one: Found, text: str, start: int, stop: int, part: int | None) -> Excerpt:
    return Excerpt(
        position=one.position,
        role=one.message.role,
        text=text[start:stop],
        start=start,
        stop=stop,
        total=len(text),
        time_ms=one.time_ms,
        time=one.time,
        tool=one.tool,
        part=part,
        is_neighbour=one.is_neighbour,
        speaker=one.message.speaker if one.message.speaker != one.message.role else "",
    )


def _end(text: str, chars: int) -> int:
    """Return where to end a beginning of a text: behind a line, if that leaves at least half of it."""
    if chars >= len(text):
        return len(text)
    end = text.rfind("\n", chars // 2, chars)
    return chars if end < 0 else end + 1
