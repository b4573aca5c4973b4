"""Daily memory: notes about evicted messages, in one file per day, `YYYY-MM-DD.md`, and the search over them.

Holdfast changes a file under a lock and only appends; a person may edit it. A file belongs to no conversation: clearing
a conversation or starting another changes nothing here.
"""

import asyncio
import collections
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TypeAlias

from holdfast.core.memory.evictions import Eviction
from holdfast.core.memory.notes import DailySection, append_section, eviction_section, parse_sections
from holdfast.core.recall.ranking import rank_texts
from holdfast.dataclass import dataclass
from holdfast.errors import MalformedInputError, WorkspaceUnavailableError
from holdfast.redaction import redact_text
from holdfast.session.log.timestamps import local_day, local_time
from holdfast.session.memory.locked_files import read_text, translate_disk_errors, update_file
from holdfast.stores.search_terms import index_words
from holdfast.text import lazy_pattern

_DAY = lazy_pattern(r"\d{4}-\d{2}-\d{2}")
_CountedSection: TypeAlias = tuple[DailySection, collections.Counter[str]]
_QUOTED = lazy_pattern(r'"([^"]+)"')
MAX_QUERY_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class MemorySearchResult:
    """The result of a memory search."""

    sections: tuple[DailySection, ...]
    """The sections of this page, the best first."""
    total: int
    """How many sections match in all."""
    problems: tuple[str, ...] = ()
    """The errors of files that could not be read."""


class DailyMemory:
    """The memory in one folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self._cached_sections: dict[Path, tuple[tuple[int, int], list[_CountedSection]]] = {}
        """By file: its size and time when it was read, and its sections with their word counts."""

    async def add(self, session: str, eviction: Eviction, text: str) -> bool:
        """Add a note about evicted messages, and return whether it is new; durable when this returns."""
        day, time = local_day(eviction.time_ms), f"{local_time(eviction.time_ms):%H:%M}"
        section = eviction_section(session, eviction, redact_text(text), day=day, time=time)
        path = self.folder / f"{day}.md"
        return await asyncio.to_thread(update_file, path, lambda content: append_section(content, section))

    async def days(self) -> list[str]:
        """Return the days with notes, the newest first."""
        return await asyncio.to_thread(lambda: [path.stem for path in reversed(self._files())])

    async def read_day(self, day: str) -> str:
        """Return the notes of a day, named as YYYY-MM-DD; empty if there are none."""
        if not _is_day(day):
            raise MalformedInputError("day", f"{day!r:.60} is no day; write it as YYYY-MM-DD")
        return await asyncio.to_thread(read_text, self.folder / f"{day}.md")

    async def search(self, words: str, *, limit: int = 10, skip: int = 0) -> MemorySearchResult:
        """Return the sections that contain the words, the best first; among equals, the newest first.

        A text in quotation marks must occur literally, except for case. There are no patterns.
        """
        return await asyncio.to_thread(self._search, words[:MAX_QUERY_CHARS], limit, skip)

    def _files(self) -> list[Path]:
        with translate_disk_errors(self.folder):
            if not self.folder.exists():
                return []
            return sorted(path for path in self.folder.iterdir() if path.suffix == ".md" and _DAY.fullmatch(path.stem))

    def _search(self, words: str, limit: int, skip: int) -> MemorySearchResult:
        literal = [quoted.casefold() for quoted in _QUOTED.findall(words)]
        every: list[_CountedSection] = []
        problems: list[str] = []
        for path in self._files():
            try:
                every += self._sections(path)
            except WorkspaceUnavailableError as error:  # the other files are searched
                problems.append(str(error))
        if literal:
            every = [pair for pair in every if all(text in _section_text(pair[0]).casefold() for text in literal)]
        order = rank_texts(index_words(words), [found for _, found in every])
        if literal and not order:
            # Punctuation alone, such as "->", yields no words to rank by.
            order = list(range(len(every) - 1, -1, -1))
        chosen = [every[number][0] for number in order]
        return MemorySearchResult(tuple(chosen[skip : skip + limit]), len(chosen), tuple(problems))

    def _sections(self, path: Path) -> Sequence[_CountedSection]:
        with translate_disk_errors(path):
            status = path.stat()
            stamp = status.st_mtime_ns, status.st_size
            known = self._cached_sections.get(path)
            if known is None or known[0] != stamp:
                sections = parse_sections(read_text(path), path.stem)
                found = [(section, collections.Counter(index_words(_section_text(section)))) for section in sections]
                known = self._cached_sections[path] = stamp, found
            return known[1]


def _section_text(section: DailySection) -> str:
    return f"{section.title}\n{section.text}"


def _is_day(text: str) -> bool:
    """Return whether a text is a day of the calendar as YYYY-MM-DD."""
    try:
        return bool(_DAY.fullmatch(text)) and bool(date.fromisoformat(text))
    except ValueError:
        return False
