"""Daily memory: what left conversations, in a file for each day, `YYYY-MM-DD.md`, and how it is found again.

A file is changed by one writer at a time and is only ever added to; a person may edit it. It belongs to no
conversation: clearing one, or beginning another, changes nothing here.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.history.lasting.leavings import Leaving
from holdfast.core.history.lasting.notes import Note, Section, sections_of, with_note
from holdfast.core.history.lasting.ranking import Words, ranked
from holdfast.errors import MalformedInputError, WorkspaceUnavailableError
from holdfast.redaction import redacted
from holdfast.session.memory.files import changed, text_of
from holdfast.session.moments import day_of, local_time
from holdfast.session.workspace import disk_errors_of
from holdfast.stores.words import words_of

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_QUOTED = re.compile(r'"([^"]+)"')
MAX_QUERY_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has found."""

    sections: tuple[Section, ...]
    """The best first."""
    total: int
    """How many sections there were to be found."""
    problems: tuple[str, ...] = ()
    """What is wrong with the files that could not be looked through."""


class DailyMemory:
    """The memory in one folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._known: dict[Path, tuple[tuple[int, int], list[tuple[Section, Words]]]] = {}
        """By file, how it was when it was read, and its sections with their words."""

    async def add(self, session: str, leaving: Leaving, text: str) -> bool:
        """Note what left a conversation, and say whether that was new; durable when this returns."""
        return await asyncio.to_thread(self._add, session, leaving, text)

    async def days(self) -> list[str]:
        """Return the days there is a memory of, the newest first."""
        return await asyncio.to_thread(lambda: [path.stem for path in reversed(self._files())])

    async def day(self, day: str) -> str:
        """Return what was noted on a day, as YYYY-MM-DD; empty where nothing was."""
        if not _DAY.fullmatch(day):
            raise MalformedInputError("day", f"{day!r:.60} is no day; write it as YYYY-MM-DD")
        return await asyncio.to_thread(self._day, day)

    async def search(self, words: str, *, limit: int = 10, skip: int = 0) -> Found:
        """Return the sections that have words in them, the best first and of equals the newest.

        What stands in quotation marks has to be there as it is written, case aside; nothing is a pattern.
        """
        return await asyncio.to_thread(self._search, words[:MAX_QUERY_CHARS], limit, skip)

    def _add(self, session: str, leaving: Leaving, text: str) -> bool:
        day = day_of(leaving.time_ms)
        note = Note(
            session=session,
            place=leaving.place,
            time_ms=leaving.time_ms,
            cause=leaving.cause,
            time=f"{local_time(leaving.time_ms):%H:%M}",
            messages=leaving.messages,
            text=redacted(text),
        )
        return changed(self.folder / f"{day}.md", lambda content: with_note(content, day, note))

    def _day(self, day: str) -> str:
        path = self.folder / f"{day}.md"
        with disk_errors_of(path):
            return text_of(path)

    def _files(self) -> list[Path]:
        with disk_errors_of(self.folder):
            if not self.folder.exists():
                return []
            return sorted(path for path in self.folder.iterdir() if path.suffix == ".md" and _DAY.fullmatch(path.stem))

    def _search(self, words: str, limit: int, skip: int) -> Found:
        literal = [quoted.casefold() for quoted in _QUOTED.findall(words)]
        every, problems = self._every()
        if literal:
            every = [pair for pair in every if all(text in _whole(pair[0]).casefold() for text in literal)]
        order = ranked(words_of(words), [found for _, found in every])
        if literal and not order:
            # Signs alone, such as "->", are no words.
            order = list(range(len(every) - 1, -1, -1))
        chosen = [every[number][0] for number in order]
        return Found(tuple(chosen[skip : skip + limit]), len(chosen), tuple(problems))

    def _every(self) -> tuple[list[tuple[Section, Words]], list[str]]:
        """Return all sections, and what is wrong with files that cannot be read: they silence no others."""
        every: list[tuple[Section, Words]] = []
        problems: list[str] = []
        for path in self._files():
            try:
                every += self._sections(path)
            except WorkspaceUnavailableError as error:
                problems.append(str(error))
        return every, problems

    def _sections(self, path: Path) -> Sequence[tuple[Section, Words]]:
        with disk_errors_of(path):
            status = path.stat()
            stamp = status.st_mtime_ns, status.st_size
            known = self._known.get(path)
            if known is None or known[0] != stamp:
                sections = sections_of(text_of(path), path.stem)
                found = [(section, Words.of(words_of(_whole(section)))) for section in sections]
                known = self._known[path] = stamp, found
            return known[1]


def _whole(section: Section) -> str:
    return f"{section.title}\n{section.text}"
