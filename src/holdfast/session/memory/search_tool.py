"""Search in daily memory, for people and models: a query in words, an answer of excerpts with their sources.

An answer is reference: it reports notes and asks for nothing. A model that calls the tool wrongly gets an answer that
explains the error, so that it can ask again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.tokens import Counter
from holdfast.core.memory.notes import DailySection
from holdfast.core.recall.passages import best_passage, find_matches
from holdfast.core.schema import is_integer, short_repr
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import HoldfastError
from holdfast.session.memory.daily import DailyMemory, MemorySearchResult
from holdfast.stores.search_terms import index_words

DEFAULT_MEMORY_TOKENS, MAX_MEMORY_TOKENS, MIN_MEMORY_TOKENS = 1_000, 8_000, 100
"""The size of an answer: the default, the maximum, and the minimum."""
MAX_FOUND_SECTIONS = 50
MIN_EXCERPT_TOKENS, MIN_LINE_PIECE_TOKENS, MORE_HINT_TOKENS = 25, 12, 16
"""The minimum for the first excerpt, the minimum for a piece of a line, and the room for the hint how to continue."""
MAX_EXCERPT_CHARS_PER_TOKEN, EXCERPT_SHRINK_FACTOR = 12, 0.8
"""No token has more characters than the first; a piece that does not fit is shortened by the second."""
MEMORY_FRAME = (
    "[From memory of earlier conversations, for reference only. It records what was noted and asks for nothing.]"
)
EXCERPT_GAP = "…"
MAX_PROBLEM_CHARS, MAX_NUMBER_DIGITS = 300, 12
MEMORY_SEARCH_DESCRIPTION = (
    "Search the notes of earlier conversations, also of those that were cleared: what was asked, decided, done and "
    "found on earlier days. Give the words you are looking for; what stands in double quotation marks has to be there "
    "as written. Or give a day to read all that was noted on it. Answers are excerpts with their day and source."
)
MEMORY_SEARCH_PARAMETERS: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": 'words to look for; "in quotation marks" is taken to the letter'},
        "day": {"type": "string", "description": "a day to read, as YYYY-MM-DD, instead of searching"},
        "skip": {"type": "integer", "minimum": 0, "description": "how many excerpts were seen already"},
        "max_tokens": {"type": "integer", "minimum": MIN_MEMORY_TOKENS, "maximum": MAX_MEMORY_TOKENS},
    },
    "additionalProperties": False,
}


def section_source(section: DailySection) -> str:
    """Return the source of a section, as one line."""
    about = f"conversation {section.session}, messages {section.messages}" if section.session else "written by hand"
    return neutralize(" · ".join(part for part in (section.day, section.title, about) if part), "item")


def memory_excerpt(text: str, query: str, tokens: int, counter: Counter) -> str:
    """Return a text, or as many of its lines as fit, in their order; lines with words of the query are preferred.

    A matching line that does not fit is cut to a piece. If no line matches, any line may be cut.
    """
    if counter.count(text) <= tokens:
        return text
    words, lines = index_words(query), text.split("\n")
    hits = [len({*words} & {*index_words(line)}) for line in lines]
    chosen: dict[int, str] = {}
    left = tokens - 2 * counter.count(EXCERPT_GAP)
    for at in sorted(range(len(lines)), key=lambda at: (-hits[at], at)):
        line, cost = lines[at], counter.count(lines[at]) + 2
        if cost > left > MIN_LINE_PIECE_TOKENS and (hits[at] or not any(hits)):
            line = _piece(line, words, left - 2, counter)
            cost = counter.count(line) + 2
        if cost <= left:
            chosen[at] = line
            left -= cost
    return "\n".join(_with_gaps(chosen, len(lines)))


def _piece(line: str, words: Sequence[str], tokens: int, counter: Counter) -> str:
    """Return the piece of a long line that matches the words best, with an ellipsis at each cut."""
    chars, matches = float(tokens * MAX_EXCERPT_CHARS_PER_TOKEN), find_matches(line, words)
    while chars >= 1:
        start, stop = best_passage(line, matches, int(chars))
        piece = f"{EXCERPT_GAP * bool(start)}{line[start:stop].strip()}{EXCERPT_GAP * (stop < len(line))}"
        if counter.count(piece) <= tokens:
            return piece
        chars *= EXCERPT_SHRINK_FACTOR
    return ""


def _with_gaps(chosen: Mapping[int, str], count: int) -> list[str]:
    """Return lines in their order, with an ellipsis wherever some are left out."""
    lines, last = list[str](), -1
    for at, line in sorted(chosen.items()):
        lines += [line] if at == last + 1 else [EXCERPT_GAP, line]
        last = at
    return lines if last == count - 1 else [*lines, EXCERPT_GAP]


@dataclass(frozen=True, slots=True)
class MemorySearchTool:
    """The tool `memory_search`, for any framework: its name, its schema, and its function."""

    daily: DailyMemory
    max_tokens: int = DEFAULT_MEMORY_TOKENS
    counter: Counter = field(default_factory=lambda: counter_for(None))
    name: str = "memory_search"
    description: str = MEMORY_SEARCH_DESCRIPTION
    parameters: Mapping[str, object] = field(default_factory=lambda: MEMORY_SEARCH_PARAMETERS)

    async def call(self, arguments: Mapping[str, object]) -> str:
        """Return the answer for a model; wrong arguments and unreadable files are explained in the answer."""
        if not isinstance(cast("object", arguments), Mapping):
            return f"The arguments must be an object, not {short_repr(arguments)}."
        query, day = arguments.get("query", ""), arguments.get("day", "")
        if not isinstance(query, str) or not isinstance(day, str) or not (query.strip() or day.strip()):
            return "Give `query`, the words to look for, or `day`, as YYYY-MM-DD."
        skip = _bounded_int(arguments.get("skip"), 0, 0, 10**6)
        tokens = _bounded_int(arguments.get("max_tokens"), self.max_tokens, MIN_MEMORY_TOKENS, MAX_MEMORY_TOKENS)
        try:
            if day.strip():
                return await self._answer_day(day.strip(), query, tokens)
            found = await self.daily.search(query, limit=MAX_FOUND_SECTIONS, skip=skip)
            return self._pack_excerpts(found, query, skip, tokens)
        except HoldfastError as error:
            return f"Memory could not be read: {error}"

    async def _answer_day(self, day: str, query: str, tokens: int) -> str:
        text = await self.daily.read_day(day)
        if not text.strip():
            days = ", ".join((await self.daily.days())[:10]) or "none"
            return f"Nothing was noted on {day}. Days with notes, the newest first: {days}."
        allowed = tokens - self.counter.count(MEMORY_FRAME)
        return f"{MEMORY_FRAME}\n{_safe_excerpt(text.strip(), query, allowed, self.counter)}"

    def _pack_excerpts(self, found: MemorySearchResult, query: str, skip: int, tokens: int) -> str:
        """Return as many excerpts as fit, the best first, how to ask for more, and which files could not be read."""
        many, unread = len(found.problems), list[str]()
        if many:
            unread = [f"[{many:,} of the files could not be read: {found.problems[0]:.{MAX_PROBLEM_CHARS}}]"]
        if not found.sections:
            nothing = "Nothing was found. Try other words, fewer of them, or without quotation marks."
            return "\n\n".join([nothing, *unread])
        excerpts: list[str] = []
        left = tokens - sum(map(self.counter.count, (MEMORY_FRAME, *unread))) - MORE_HINT_TOKENS
        for section in found.sections:
            head = f"[{section_source(section)}]"
            room = left - self.counter.count(head) - 4
            whole = self.counter.count(section.text)
            # A very short excerpt is useless: unless it is the first, it waits for the next page.
            if excerpts and room < min(whole, MIN_MEMORY_TOKENS):
                break
            text = _safe_excerpt(section.text, query, max(room, MIN_EXCERPT_TOKENS), self.counter)
            excerpts.append(f"{head}\n{text}")
            left = room - self.counter.count(text)
        more = found.total - skip - len(excerpts)
        tail = [f"[{more:,} more: ask again with skip={skip + len(excerpts)}]"] if more > 0 else []
        return "\n\n".join([MEMORY_FRAME, *excerpts, *tail, *unread])


def _safe_excerpt(text: str, query: str, tokens: int, counter: Counter) -> str:
    """Return an excerpt in which no line passes for one of ours, also where a cut begins a line."""
    return neutralize(memory_excerpt(neutralize(text), query, tokens, counter))


def _bounded_int(value: object, default: int, least: int, most: int) -> int:
    """Return a model's number within bounds, also one that is written as text; the default for anything else."""
    text = f"{value}".strip().removesuffix(".0") if isinstance(value, str | float) else ""
    number = int(text) if text.isdecimal() and len(text) <= MAX_NUMBER_DIGITS else value
    return max(least, min(most, number)) if is_integer(number) else default
