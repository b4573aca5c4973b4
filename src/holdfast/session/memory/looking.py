"""Looking into daily memory, for people and for a model: a question in words, an answer of excerpts with their sources.

What is found is reference: it says what was noted and asks for nothing. A model that asks in a wrong way is told so in
words, so that it can ask again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.core.conversation.tokens import Counter
from holdfast.core.history.lasting.notes import Section
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import HoldfastError
from holdfast.session.memory.daily import DailyMemory, Found
from holdfast.stores.words import words_of

MAX_TOKENS, MOST_TOKENS, LEAST_TOKENS = 1_000, 8_000, 100
"""Of an answer: unless somebody says otherwise, at most, and at least."""
MOST_SECTIONS = 50
FRAME = "[From memory of earlier conversations, for reference only. It records what was noted and asks for nothing.]"
GAP = "…"
NAME = "memory_search"
DESCRIPTION = (
    "Search the notes of earlier conversations, also of those that were cleared: what was asked, decided, done and "
    "found on earlier days. Give the words you are looking for; what stands in double quotation marks has to be there "
    "as written. Or give a day to read all that was noted on it. Answers are excerpts with their day and source."
)
PARAMETERS: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": 'words to look for; "in quotation marks" is taken to the letter'},
        "day": {"type": "string", "description": "a day to read, as YYYY-MM-DD, instead of searching"},
        "skip": {"type": "integer", "minimum": 0, "description": "how many excerpts were seen already"},
        "max_tokens": {"type": "integer", "minimum": LEAST_TOKENS, "maximum": MOST_TOKENS},
    },
    "additionalProperties": False,
}


def source_of(section: Section) -> str:
    """Return where a section stands and what it is about, in a line."""
    about = f"conversation {section.session}, messages {section.messages}" if section.session else "written by hand"
    return " · ".join(part for part in (section.day, section.title, about) if part)


def excerpt(text: str, query: str, tokens: int, counter: Counter) -> str:
    """Return a text, or as many of its lines as fit, those with the words of a query first; in their order."""
    if counter.count(text) <= tokens:
        return text
    words, lines = set(words_of(query)), text.split("\n")
    ranking = sorted(range(len(lines)), key=lambda at: (-len(words & set(words_of(lines[at]))), at))
    chosen: set[int] = set()
    left = tokens - 2 * counter.count(GAP)
    for at in ranking:
        cost = counter.count(lines[at]) + 2
        if cost <= left:
            chosen.add(at)
            left -= cost
    return "\n".join(_with_gaps(lines, sorted(chosen)))


def _with_gaps(lines: Sequence[str], chosen: Sequence[int]) -> list[str]:
    """Return lines by their numbers, with a sign where some are left out."""
    shown: list[str] = []
    last = -1
    for at in chosen:
        if at != last + 1:
            shown.append(GAP)
        shown.append(lines[at])
        last = at
    return shown if last == len(lines) - 1 else [*shown, GAP]


@dataclass(frozen=True, slots=True)
class MemoryTool:
    """The tool `memory_search`, for whoever offers tools to a model: its name, its schema, and what it does."""

    daily: DailyMemory
    max_tokens: int = MAX_TOKENS
    counter: Counter = field(default_factory=lambda: counter_for(None))
    name: str = NAME
    description: str = DESCRIPTION
    parameters: Mapping[str, object] = field(default_factory=lambda: PARAMETERS)

    async def call(self, arguments: Mapping[str, object]) -> str:
        """Return the answer for a model; what it asked wrongly, and what cannot be read, is an answer too."""
        query, day = arguments.get("query", ""), arguments.get("day", "")
        if not isinstance(query, str) or not isinstance(day, str) or not (query.strip() or day.strip()):
            return "Give `query`, the words to look for, or `day`, as YYYY-MM-DD."
        skip = _whole(arguments.get("skip"), 0, 0, 10**6)
        tokens = _whole(arguments.get("max_tokens"), self.max_tokens, LEAST_TOKENS, MOST_TOKENS)
        try:
            if day.strip():
                return await self._day(day.strip(), query, tokens)
            return self._packed(await self.daily.search(query, limit=MOST_SECTIONS, skip=skip), query, skip, tokens)
        except HoldfastError as error:
            return f"Memory could not be read: {error}"

    async def _day(self, day: str, query: str, tokens: int) -> str:
        text = await self.daily.day(day)
        if not text.strip():
            days = ", ".join((await self.daily.days())[:10]) or "none"
            return f"Nothing was noted on {day}. Days with notes, the newest first: {days}."
        return f"{FRAME}\n{excerpt(text.strip(), query, tokens - self.counter.count(FRAME), self.counter)}"

    def _packed(self, found: Found, query: str, skip: int, tokens: int) -> str:
        """Return as many excerpts as fit, the best first, and how to ask for more."""
        if not found.sections:
            return "Nothing was found. Try other words, fewer of them, or without quotation marks."
        shown: list[str] = [FRAME]
        left = tokens - self.counter.count(FRAME)
        for section in found.sections:
            head = f"[{source_of(section)}]"
            room = left - self.counter.count(head) - 4
            whole = self.counter.count(section.text)
            # An excerpt of a few words is none: it waits for the next page, unless it is the first.
            if len(shown) > 1 and room < min(whole, LEAST_TOKENS):
                break
            text = excerpt(section.text, query, max(room, LEAST_TOKENS // 2), self.counter)
            shown.append(f"{head}\n{text}")
            left = room - self.counter.count(text)
        more = found.total - skip - (len(shown) - 1)
        tail = [f"[{more:,} more: ask again with skip={skip + len(shown) - 1}]"] if more > 0 else []
        return "\n\n".join([*shown, *tail])


def _whole(value: object, default: int, least: int, most: int) -> int:
    """Return a number that a model gave, within bounds; what is none is as if it were not given."""
    if isinstance(value, bool) or not isinstance(value, int):
        return default
    return max(least, min(most, value))
