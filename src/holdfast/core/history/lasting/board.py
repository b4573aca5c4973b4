"""A context board: the few lines about a piece of work that the next conversation should know of.

It is one readable file with an entry a line, which people edit as they like. What we keep beside an entry, its id, its
age, how often it was offered and where it comes from, stands in a comment behind it. A line that cannot be read is
reported and stays as it is. A board is bounded: what was proposed goes before what a person wrote. Whatever is added
is a line without comments and without what looks like a key, and by that it is known again, whoever adds it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TypeAlias, cast

from holdfast.core.conversation.tokens import Counter
from holdfast.errors import MalformedInputError
from holdfast.redaction import redacted

MAX_ENTRIES, MAX_TOKENS, MAX_CHARS = 60, 2_000, 400
MAX_SOURCES = 8
ID_CHARS = 4
_OPENINGS, _COMMENTS = ("- ", "* "), ("<!--", "-->")
_OURS = re.compile(r"\s*|#.*|<!--.*-->\s*|\ufeff.*")
"""Lines that are no entries and need not be."""
_COMMENT = re.compile(r"<!--|-->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing worth knowing."""

    id: str
    text: str
    added: str = ""
    """The day, as YYYY-MM-DD; empty where a person wrote it by hand."""
    used: int = 0
    """To how many conversations it was offered."""
    last: str = ""
    """The day it was last offered or said again."""
    sources: tuple[str, ...] = ()
    """Where it comes from, such as `SESSION #12`; none where a person wrote it."""

    @property
    def line(self) -> str:
        """The entry as a line of the file."""
        facts = {"id": self.id, "added": self.added, "used": self.used, "last": self.last, "from": list(self.sources)}
        known = {name: value for name, value in facts.items() if value}
        # No ">" of a name may end the comment.
        comment = json.dumps(known, ensure_ascii=True).replace(">", "\\u003e")
        return f"- {self.text} <!-- {comment} -->"


Line: TypeAlias = Entry | str
"""An entry, or any other line as it stands."""


@dataclass(frozen=True, slots=True)
class Board:
    """What stands on a board, in the order of its file."""

    lines: tuple[Line, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries, in their order."""
        return tuple(line for line in self.lines if isinstance(line, Entry))

    @property
    def damage(self) -> list[str]:
        """The lines that cannot be read, each with its number."""
        return [
            f"line {number}: {line.strip()[:80]}"
            for number, line in enumerate(self.lines, start=1)
            if isinstance(line, str) and not _OURS.fullmatch(line)
        ]

    def __str__(self) -> str:
        """The whole file."""
        return "".join(f"{line.line if isinstance(line, Entry) else line}\n" for line in self.lines)

    def named(self, entry_id: str) -> Entry:
        """Return an entry by its id, or by a beginning that only one has."""
        wanted = entry_id.strip().strip("[]").lower()
        found = [entry for entry in self.entries if entry.id == wanted]
        found = found or [entry for entry in self.entries if wanted and entry.id.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        there = ", ".join(entry.id for entry in self.entries) or "none"
        raise MalformedInputError("board", f"there is no one entry {entry_id!r:.40}; there are: {there}")

    def same(self, text: str) -> Entry | None:
        """Return the entry that says the same, if there is one."""
        wanted = _key(text)
        return next((entry for entry in self.entries if _key(entry.text) == wanted), None)

    def added(self, text: str, *, day: str, sources: Sequence[str] = ()) -> "Board":
        """Return the board with one more entry; one that is there has further sources then, or is a person's.

        Without sources it is a person who adds it.
        """
        said = sound(text)
        known = self.same(said)
        if known is None:
            entry = Entry(id=self._free_id(said), text=said, added=day, sources=tuple(sources)[:MAX_SOURCES])
            return replace(self, lines=(*self.lines, entry))
        if not sources or not known.sources:
            # What a person wrote, before or after it was proposed, is the person's.
            return self._with(known, replace(known, sources=()))
        joined = tuple(dict.fromkeys((*known.sources, *sources)))[-MAX_SOURCES:]
        return self._with(known, replace(known, sources=joined, last=day)) if joined != known.sources else self

    def pruned(self, entry_id: str) -> "Board":
        """Return the board without an entry."""
        gone = self.named(entry_id)
        return replace(self, lines=tuple(line for line in self.lines if line is not gone))

    def bounded(self, counter: Counter, *, keep: str = "") -> "Board":
        """Return the board within its bounds; the least of what nobody wrote goes first, and never the one to keep."""
        board = self
        while len(board.entries) > MAX_ENTRIES or board.tokens(counter) > MAX_TOKENS:
            free = [entry for entry in board.entries if entry.sources and entry.id != keep]
            if not free:
                problem = f"is full: it holds {MAX_ENTRIES} entries and {MAX_TOKENS:,} tokens; prune one first"
                raise MalformedInputError("board", problem)
            board = board.pruned(min(free, key=_worth).id)
        return board

    def tokens(self, counter: Counter) -> int:
        """Return what the entries cost."""
        return sum(counter.count(entry.text) + 4 for entry in self.entries)

    def offered(self, tokens: int, counter: Counter) -> tuple[Entry, ...]:
        """Return the entries that fit an allowance, those worth most first in it, in the order of the board."""
        chosen: set[str] = set()
        for entry in sorted(self.entries, key=_worth, reverse=True):
            cost = counter.count(entry.text) + 4
            if cost <= tokens:
                chosen.add(entry.id)
                tokens -= cost
        return tuple(entry for entry in self.entries if entry.id in chosen)

    def used(self, ids: Iterable[str], day: str) -> "Board":
        """Return the board with a use more of some entries."""
        wanted = {*ids}
        lines = (
            replace(line, used=line.used + 1, last=day) if isinstance(line, Entry) and line.id in wanted else line
            for line in self.lines
        )
        return replace(self, lines=tuple(lines))

    def _with(self, old: Entry, new: Entry) -> "Board":
        return replace(self, lines=tuple(new if line is old else line for line in self.lines))

    def _free_id(self, text: str) -> str:
        return _free_id(text, {entry.id for entry in self.entries})


def sound(text: str) -> str:
    """Return the words of an entry as they stand on a board; refused where there are none, or too many."""
    said = _plain(text)
    if not said:
        raise MalformedInputError("board", "an entry needs words")
    if len(said) > MAX_CHARS:
        raise MalformedInputError(
            "board", f"an entry is one thought of at most {MAX_CHARS} characters, not {len(said):,}"
        )
    return said


def _plain(text: str) -> str:
    """Return a text on one line, without comments and without what looks like a key."""
    printable = text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
    return redacted(" ".join(_COMMENT.sub(" ", printable).split()))


def parsed(content: str) -> Board:
    """Return the board of a file; what cannot be read stays as it is."""
    return Board(tuple(_parsed(content.replace("\r\n", "\n").removesuffix("\n").split("\n")))) if content else Board()


def _parsed(lines: Iterable[str]) -> Iterator[Line]:
    taken: set[str] = set()
    for line in lines:
        entry = _entry(line, taken)
        if entry is not None:
            taken.add(entry.id)
        yield line if entry is None else entry


def _entry(line: str, taken: set[str]) -> Entry | None:
    said, noted = _apart(line)
    text = " ".join(said.split())
    if not text or _COMMENT.search(text):
        return None
    try:
        facts: object = json.loads(noted)
    except (ValueError, RecursionError):
        return None
    if not isinstance(facts, dict):
        return None
    known = cast("dict[str, object]", facts)
    used, sources, named = known.get("used"), known.get("from"), known.get("id")
    is_free = isinstance(named, str) and bool(re.fullmatch(r"[0-9a-f]{4,64}", named)) and named not in taken
    return Entry(
        id=cast("str", named) if is_free else _free_id(text, taken),
        text=text,
        added=_day(known.get("added")),
        used=used if isinstance(used, int) and used >= 0 else 0,
        last=_day(known.get("last")),
        sources=tuple(map(str, cast("list[object]", sources))) if isinstance(sources, list) else (),
    )


def _apart(line: str) -> tuple[str, str]:
    """Return what a line says and the facts in the comment behind it; nothing where it begins like no entry.

    Each character is looked at once or twice: no line that somebody leaves in a file holds anybody up.
    """
    if not line.startswith(_OPENINGS):
        return "", ""
    body = line[2:].strip()
    said, begun, comment = body.partition(_COMMENTS[0])
    facts = comment.removesuffix(_COMMENTS[1]).strip()
    is_noted = begun and comment.endswith(_COMMENTS[1]) and facts.startswith("{") and facts.endswith("}")
    return (said, facts) if is_noted else (body, "{}")


def _day(value: object) -> str:
    return value if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) else ""


def _free_id(text: str, taken: set[str]) -> str:
    digest = sha256(_key(text).encode(errors="replace")).hexdigest()
    return next((digest[:length] for length in range(ID_CHARS, len(digest)) if digest[:length] not in taken), digest)


def _key(text: str) -> str:
    return _plain(text).casefold().rstrip(".!")


def _worth(entry: Entry) -> tuple[bool, int, str, int]:
    """Return what an entry is worth: a person's own words most, then what was said more often, then the newer."""
    return not entry.sources, len(entry.sources), entry.last or entry.added, entry.used
