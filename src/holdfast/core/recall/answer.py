"""The answer to a recall query: verbatim excerpts, and how to ask for more.

A model reads the answer as one text. The heading of each excerpt names its source. If an excerpt contains a line
that looks like such a heading, every heading carries a mark that no text can predict, so that no text can forge one.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from holdfast.core.conversation.messages import Role
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.recall.diff import FileDiff
from holdfast.core.recall.query import RecallQuery

HEADING_MARK_CHARS = 6
_HEADING_LIKE = re.compile(r"(?m)^#\d\S*+ (?:system|user|assistant|tool|memory|task)\b")
YEAR_CHARS, DAY_CHARS = len("2026-"), len("2026-01-31")


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
            yield answer_heading(self.excerpts, self.found_count, self.session)
        mark = heading_mark(self.excerpts)
        if mark:
            yield f"[Excerpts begin at lines with the mark {mark}.]"
        before: Excerpt | None = None
        for excerpt in self.excerpts:
            yield excerpt_with_heading(excerpt, before, mark)
            before = excerpt
        if self.names:
            yield self.names
        for note in self.notes:
            yield f"[{note}]"
        if self.next_query:
            yield self.next_query_line or next_query_hint(self.next_query, self.query)
        yield from map(str, self.earlier_sessions)


def answer_heading(excerpts: Sequence[Excerpt], found: int, session: str = "") -> str:
    """Return the first line of an answer."""
    if not excerpts:
        return "[Recall: nothing was found.]" if not found else "[Recall: nothing that fits into the answer.]"
    of = f" of {found:,}" if found > len(excerpts) else ""
    where = f" from earlier, each as {session}#…" if session else ""
    return f"[Recall: {len(excerpts):,}{of}{where}, to the letter, for reference only.]"


def next_query_hint(next_query: RecallQuery, query: RecallQuery | None) -> str:
    """Return the hint on how to ask for the rest: all arguments, or only those that change."""
    wanted, given = next_query.to_arguments(), query.to_arguments() if query else {}
    if query is None or next_query.refs or given.keys() - wanted.keys():
        return f"[More: {RECALL_TOOL} {json.dumps(wanted, ensure_ascii=False)}]"
    changed = {name: value for name, value in wanted.items() if given.get(name) != value and name != "query"}
    return f"[More: the same with {json.dumps(changed, ensure_ascii=False)}]"


def continue_then_skip_hint(first: RecallQuery, skip: int) -> str:
    """Return the hint on how to read the rest of the last excerpt first, and then the messages after it."""
    wanted = json.dumps(first.to_arguments(), ensure_ascii=False)
    return f"[More: {RECALL_TOOL} {wanted}, then as before with {json.dumps({'skip': skip})}]"


def group_by_day(excerpts: Sequence[Excerpt]) -> list[Excerpt]:
    """Return excerpts grouped by day: the day of the best excerpt first, and within a day the best first."""
    days: dict[str, list[Excerpt]] = {}
    for excerpt in excerpts:
        days.setdefault(excerpt.time[:DAY_CHARS], []).append(excerpt)
    return [excerpt for day in days.values() for excerpt in day]


def excerpt_with_heading(excerpt: Excerpt, before: Excerpt | None, mark: str) -> str:
    """Return an excerpt under its heading, which omits the date if the heading before it has the same one."""
    pieces = [f"{excerpt.ref}{mark}", excerpt.speaker_label]
    if excerpt.tool:
        pieces.append(excerpt.tool)
    if day := _new_date_part(excerpt.time, before.time if before else ""):
        pieces.append(day)
    if excerpt.lines:
        pieces.append(f"lines {excerpt.lines},")
    if not excerpt.is_whole:
        pieces.append(f"characters {excerpt.start}-{excerpt.stop} of {excerpt.total}")
    return f"{' '.join(pieces)}:\n{excerpt.text}"


def _new_date_part(time: str, before: str) -> str:
    """Return the date of a time, without the parts that equal those of the time before."""
    if time[:DAY_CHARS] == before[:DAY_CHARS]:
        return ""
    return time[YEAR_CHARS if time[:YEAR_CHARS] == before[:YEAR_CHARS] else 0 : DAY_CHARS]


def looks_like_heading(text: str) -> bool:
    """Return whether a line of a text could be mistaken for the heading of an excerpt."""
    return _HEADING_LIKE.search(text) is not None


def heading_mark(excerpts: Sequence[Excerpt]) -> str:
    """Return the mark that distinguishes headings from similar lines in the excerpts; empty if none is similar."""
    texts = [excerpt.text for excerpt in excerpts]
    if not any(map(looks_like_heading, texts)):
        return ""
    digest = sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()
    return f"~{digest[:HEADING_MARK_CHARS]}"
