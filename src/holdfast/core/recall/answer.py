"""The answer to a recall query: verbatim excerpts, packed into a token budget, and how to ask for more.

A short message is included whole. A long message that a search found contributes its best passage. A long message
that the query references contributes as much as fits, and the answer says how to ask for the rest. A message that
does not fit comes first in the next answer, even if a shorter one after it fits into this answer. A reader who keeps
asking for more therefore misses nothing.

A model reads the answer as one text. The heading of each excerpt names its source. If an excerpt contains a line
that looks like such a heading, or like another line of an answer, every heading carries a mark that no text can
predict, and a line with the mark ends the excerpts. So no text can forge a line of ours, and excerpts stay verbatim.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from hashlib import sha256

from holdfast.core.conversation.frames import IDENTIFIERS_HEADING, LINE_BREAKS, as_read, neutralize
from holdfast.core.conversation.messages import Role
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.conversation.tokens import Counter
from holdfast.core.recall.diff import FileDiff
from holdfast.core.recall.passages import FoundMessage, best_passage, find_matches, line_end
from holdfast.core.recall.query import DEFAULT_RECALL_TOKENS, RecallQuery
from holdfast.core.recall.ranking import name_number_pairs, search_words
from holdfast.core.recall.references import MessageReference, TextSpan, line_count
from holdfast.dataclass import dataclass
from holdfast.text import lazy_pattern, pluralize

HEADING_MARK_CHARS = 6
_LINE_LIKE = lazy_pattern(
    rf"(?i)(?:\A|(?<=[{LINE_BREAKS}]))(?:#\d\S*+ (?:system|user|assistant|tool|memory|task)\b"
    rf"|(?>(?:_|[^\w{LINE_BREAKS}\[])*)\[\s*+(?:(?:recall|more)\s?:|excerpts |all of it can "
    r"|the (?:content of #|two readings)|there is no |messages before #|and [\d,]+ more like|not all words of"
    rf"|#\d\S*+ has )|{re.escape(IDENTIFIERS_HEADING)})"
)
"""A line that could be mistaken for one of the lines around the excerpts."""
DAY_CHARS = len("2026-01-31")
ANSWER_FRAME_TOKENS = 28
"""Reserved for the first line and for the hint on how to ask for more, without the text of the query."""
MAX_TOKENS_HINT_TOKENS = 8
"""Reserved for `max_tokens` in that hint, if it differs from the default."""
HEADING_MARK_TOKENS, MARK_LINE_TOKENS = 6, 40
"""What the heading mark costs: in each heading, and in the lines that explain it and end the excerpts."""
WHOLE_SHARE, MIN_WHOLE_TOKENS, MAX_WHOLE_TOKENS = 0.25, 60, 400
"""How much of the budget one message may use in a search; a longer one contributes a passage."""
PASSAGE_TOKENS = 120
"""The size of that passage; half of it often misses the needed words, and more leaves room for fewer messages."""
MIN_RECALL_EXCERPT_TOKENS = 12
"""The packer adds no excerpt when fewer tokens than this remain."""
MAX_SKIPPED_EXCERPTS = 6
"""After more than this many messages that do not fit, a search stops looking for shorter ones."""
RECALL_MAX_CHARS_PER_TOKEN, RECALL_CHARS_PER_TOKEN = 12, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A verbatim piece of a message."""

    position: int
    role: Role
    text: str
    start: int
    stop: int
    """The character range in the message's text; `stop` is exclusive."""
    total: int
    """The length of that text in characters."""
    time_ms: int
    time: str = ""
    """The same time in readable form: `2026-01-31 10:02`, in UTC."""
    tool: str = ""
    """The tool that the message calls or whose result it holds."""
    lines: str = ""
    """The line range, if the query asked for lines: `40-44 of 120`."""
    part: int | None = None
    """The part of the message, if the query asked for one; `start`, `stop` and `total` then count within that part."""
    is_neighbor: bool = False
    speaker: str = ""
    """The author, if the role does not name it: `memory`, `tool`, or `task` for the instructions of an agent."""

    @property
    def speaker_label(self) -> str:
        """The author as the heading names it."""
        return self.speaker or self.role

    @property
    def ref(self) -> str:
        """The reference that recalls the whole message or part."""
        return f"#{self.position}" if self.part is None else f"#{self.position}.{self.part}"

    @property
    def is_whole(self) -> bool:
        """Whether the excerpt covers the whole text."""
        return self.start == 0 and self.stop == self.total

    def with_heading(self, before: "Excerpt | None", mark: str) -> str:
        """Return the text under its heading, which omits the date if the excerpt before has the same."""
        day, known_day = self.time[:DAY_CHARS], before.time[:DAY_CHARS] if before else ""
        pieces = [
            f"{self.ref}{mark}",
            self.speaker_label,
            neutralize(self.tool, "name"),
            "" if day == known_day else day,
            f"lines {self.lines}," if self.lines else "",
            "" if self.is_whole else f"characters {self.start}-{self.stop} of {self.total}",
        ]
        return f"{' '.join(filter(None, pieces))}:\n{self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallAnswer:
    """The answer to a query; `str()` of it is the text that a model gets."""

    excerpts: tuple[Excerpt, ...] = ()
    found_count: int = 0
    """How many messages matched, including those without an excerpt here."""
    diff: FileDiff | None = None
    """The difference between two readings, if the query asked for it."""
    names: str = ""
    """Identifiers that are related to the query and not in view, likeliest first."""
    notes: tuple[str, ...] = ()
    """What could not be found or included, and why."""
    next_query: RecallQuery | None = None
    """The query that returns the rest."""
    next_query_line: str = ""
    """The hint about the rest; empty for the default hint, which is made from `next_query`."""
    query: RecallQuery | None = None
    """The query that this answers."""
    session: str = ""
    """The earlier session that the excerpts come from; empty for the current conversation."""
    earlier_sessions: tuple["RecallAnswer", ...] = ()
    """The answers from earlier sessions."""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.diff:
            yield self.diff.heading
            yield from filter(None, [self.diff.text])
        else:
            yield self._heading
        mark = _heading_mark(self.excerpts)
        if mark:
            yield f"[Excerpts begin at lines with the mark {mark}, and a line with it ends them.]"
        for before, excerpt in zip((None, *self.excerpts), self.excerpts, strict=False):
            yield excerpt.with_heading(before, mark)
        if mark:
            yield f"[Excerpts end {mark}]"
        if self.names:
            yield self.names
        for note in self.notes:
            yield f"[{note}]"
        if self.next_query:
            yield self.next_query_line or _next_query_hint(self.next_query, self.query)
        yield from map(str, self.earlier_sessions)

    @property
    def _heading(self) -> str:
        count, found = len(self.excerpts), self.found_count
        if not count:
            return "[Recall: nothing was found.]" if not found else "[Recall: nothing that fits into the answer.]"
        of = f" of {found:,}" if found > count else ""
        where = f" from earlier, each as {neutralize(self.session, 'name')}#…" if self.session else ""
        return f"[Recall: {count:,}{of}{where}, to the letter, for reference only.]"


def looks_like_heading(text: str) -> bool:
    """Return whether a line of a text could be mistaken for the heading of an excerpt, or another line of ours."""
    return _LINE_LIKE.search(as_read(text)) is not None


def _heading_mark(excerpts: Sequence[Excerpt]) -> str:
    """Return the mark that distinguishes headings from similar lines in the excerpts; empty if none is similar."""
    texts = [excerpt.text for excerpt in excerpts]
    if not any(map(looks_like_heading, texts)):
        return ""
    digest = sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()
    return f"~{digest[:HEADING_MARK_CHARS]}"


def _next_query_hint(next_query: RecallQuery, query: RecallQuery | None) -> str:
    """Return the hint on how to ask for the rest: all arguments, or only those that change."""
    wanted, given = next_query.to_arguments(), query.to_arguments() if query else {}
    if query is None or next_query.refs or given.keys() - wanted.keys():
        return f"[More: {RECALL_TOOL} {_as_json(wanted)}]"
    changed = {name: value for name, value in wanted.items() if given.get(name) != value and name != "query"}
    return f"[More: the same with {_as_json(changed)}]"


def _as_json(arguments: Mapping[str, object]) -> str:
    return neutralize(json.dumps(arguments, ensure_ascii=False), "item")


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
        hint_tokens = 0 if self.max_tokens == DEFAULT_RECALL_TOKENS else MAX_TOKENS_HINT_TOKENS
        self.remaining_tokens = self.max_tokens - ANSWER_FRAME_TOKENS - hint_tokens

    def add(self, excerpt: Excerpt, max_tokens: int | None = None) -> bool:
        """Add an excerpt if it fits, and return whether it did; `max_tokens` limits what it may cost."""
        room = self.remaining_tokens if max_tokens is None else min(max_tokens, self.remaining_tokens)
        if len(excerpt.text) > room * RECALL_MAX_CHARS_PER_TOKEN:
            return False
        day = excerpt.time[:DAY_CHARS]
        cost = self.counter.count(excerpt.with_heading(excerpt if day in self._days else None, "") + "\n")
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
            stop = line_end(excerpt.text, 0, chars)
            beginning = replace(excerpt, text=excerpt.text[:stop], stop=excerpt.start + stop, lines="")
            if self.add(beginning):
                return beginning
            chars = min(stop - 1, chars * 3 // 4)
        return None

    def excerpts_by_day(self) -> tuple[Excerpt, ...]:
        """Return the excerpts grouped by day: the day of the best excerpt first, and within a day the best first."""
        days: dict[str, list[Excerpt]] = {}
        for excerpt in self.excerpts:
            days.setdefault(excerpt.time[:DAY_CHARS], []).append(excerpt)
        return tuple(excerpt for day in days.values() for excerpt in day)


def pack_search(found: Sequence[FoundMessage], query: RecallQuery, packer: ExcerptPacker) -> int:
    """Add the results of a search, best first; return how many of them the next answer can skip."""
    words = search_words(" ".join(query.questions)).split()
    words += [pair for question in query.questions for pair in name_number_pairs(question)]
    most = max(MIN_WHOLE_TOKENS, min(MAX_WHOLE_TOKENS, int(query.max_tokens * WHOLE_SHARE)))
    passed_over: list[int] = []
    for number, one in enumerate(found):
        if packer.remaining_tokens < MIN_RECALL_EXCERPT_TOKENS or len(passed_over) > MAX_SKIPPED_EXCERPTS:
            return min([number, *passed_over])
        if not _add_found(one, words, query.text, most, packer):
            passed_over.append(number)
    return min([len(found), *passed_over])


def _add_found(one: FoundMessage, words: Sequence[str], literal: str, most: int, packer: ExcerptPacker) -> bool:
    def matched_words(piece: tuple[int | None, str]) -> int:
        return len({word for _, word in find_matches(piece[1], words, literal)})

    pieces = one.searchable_texts
    part, text = pieces[0] if len(pieces) == 1 else max(pieces, key=matched_words)
    if packer.add(_excerpt_of(one, text, 0, len(text), part), most if packer.excerpts else None):
        return True
    if len(text) <= most * RECALL_CHARS_PER_TOKEN and packer.remaining_tokens < most:
        # With the full share it would fit whole, so leave it to the next answer, where it comes first.
        return False
    matches = find_matches(text, words, literal)
    chars = min(most, PASSAGE_TOKENS) * RECALL_CHARS_PER_TOKEN
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
        span = TextSpan(start, None if excerpt.stop == excerpt.total else excerpt.stop) if start or place.span else None
        rest = MessageReference(one.position, one.position, place.part, span)
        return [rest, *_join_references((later, other.position) for later, other in wanted[number + 1 :])]
    return []


def _join_references(places: Iterable[tuple[MessageReference, int]]) -> list[MessageReference]:
    """Return references to single positions, with adjacent whole messages joined into ranges."""
    joined: list[MessageReference] = []
    for place, position in places:
        last = joined[-1] if joined else None
        if last and last.last + 1 == position and {last.part, last.span, place.part, place.span} == {None}:
            joined[-1] = replace(last, last=position)
        else:
            joined.append(MessageReference(position, position, place.part, place.span))
    return joined


def excerpt_at(reference: MessageReference, found: FoundMessage) -> Excerpt:
    """Return the piece of a message that a reference selects."""
    text = _referenced_text(reference, found)
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
    lines = line_count(_referenced_text(reference, found))
    length = pluralize(lines, "line") if reference.span.is_lines else pluralize(excerpt.total, "character")
    return f"{excerpt.ref} has {length}"


def _referenced_text(reference: MessageReference, found: FoundMessage) -> str:
    body = found.body
    return body.text[slice(*(body.part_range(reference.part) or (0, None)))]


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
    first = _as_json(replace(more, refs=", ".join(map(str, rest))).to_arguments())
    then = _as_json({"skip": query.skip + skip})
    return replace(answer, next_query_line=f"[More: {RECALL_TOOL} {first}, then as before with {then}]")
