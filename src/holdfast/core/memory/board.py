"""A context board: a short list of facts about a project that the next conversation should know.

The board is one readable file with an entry per line, which people edit freely. A comment after an entry holds its id,
its age, how often it was offered and its sources. A line that cannot be parsed is reported and kept unchanged. The
board is limited in size, and only proposed entries are evicted, never those that a person wrote. An added entry is
normalized to one line without comments and without anything that looks like a secret key. Two entries are equal if
their normalized lines are, regardless of who added them.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TypeAlias, cast

from holdfast.core.conversation.tokens import Counter
from holdfast.errors import MalformedInputError
from holdfast.redaction import redact_text

MAX_BOARD_ENTRIES, MAX_BOARD_TOKENS, MAX_NOTE_CHARS = 60, 2_000, 400
BOARD_IS_FULL = (
    f"is full: it holds at most {MAX_BOARD_ENTRIES} entries and {MAX_BOARD_TOKENS:,} tokens; prune an entry first"
)
NOTE_OVERHEAD_TOKENS = 4
"""What an entry costs besides its text."""
MAX_NOTE_SOURCES = 8
ID_CHARS = 4
_NOT_AN_ENTRY = re.compile(r"\s*|#.*|<!--.*-->\s*|\ufeff.*")
"""Lines that are not meant as entries: blank lines, headings, comments."""
_COMMENT = re.compile(r"<!--|-->")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardNote:
    """An entry of the board."""

    id: str
    text: str
    added_on: str = ""
    """The day, as YYYY-MM-DD; empty if a person typed the entry into the file."""
    offered_count: int = 0
    """How many conversations it was offered to."""
    last_used_on: str = ""
    """The day it was last offered or proposed again."""
    sources: tuple[str, ...] = ()
    """Its sources, such as `SESSION #12`; empty if a person wrote it."""
    others: str = ""
    """What else a person has put into the JSON of the comment, as JSON without its braces."""

    def __str__(self) -> str:
        """Return the entry as a line of the file."""
        facts = {
            "id": self.id,
            "added": self.added_on,
            "used": self.offered_count,
            "last": self.last_used_on,
            "from": list(self.sources),
        }
        own = json.dumps({name: value for name, value in facts.items() if value})[1:-1]
        # Of two equal names a reader takes the last. No ">" of a name may end the comment, no "<" may begin a tag.
        comment = ", ".join(filter(None, (self.others, own))).replace(">", "\\u003e").replace("<", "\\u003c")
        return f"- {self.text} <!-- {{{comment}}} -->"


BoardLine: TypeAlias = BoardNote | str
"""An entry, or any other line verbatim."""


@dataclass(frozen=True, slots=True)
class Board:
    """The lines of a board in file order."""

    lines: tuple[BoardLine, ...] = ()

    @property
    def notes(self) -> tuple[BoardNote, ...]:
        """The entries in file order."""
        return tuple(line for line in self.lines if isinstance(line, BoardNote))

    @property
    def unreadable_lines(self) -> list[str]:
        """The lines that cannot be parsed, each with its number."""
        return [
            f"line {number}: {line.strip()[:80]}"
            for number, line in enumerate(self.lines, start=1)
            if isinstance(line, str) and not _NOT_AN_ENTRY.fullmatch(line)
        ]

    def __str__(self) -> str:
        """Return the content of the file."""
        return "".join(f"{line}\n" for line in self.lines)

    def note_by_id(self, entry_id: str) -> BoardNote:
        """Return an entry by its id or by a unique prefix of it."""
        wanted = entry_id.strip().strip("[]").lower()
        found = [entry for entry in self.notes if entry.id == wanted]
        found = found or [entry for entry in self.notes if wanted and entry.id.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        ids = ", ".join(entry.id for entry in self.notes) or "none"
        raise MalformedInputError("board", f"{entry_id!r:.40} names no single entry; the ids are: {ids}")

    def note_with_text(self, text: str) -> BoardNote | None:
        """Return the entry with an equal text, if there is one."""
        wanted = _comparison_key(text)
        return next((entry for entry in self.notes if _comparison_key(entry.text) == wanted), None)

    def with_note(self, text: str, *, day: str, sources: Sequence[str] = ()) -> "Board":
        """Return the board with an entry added, or with the sources of an equal entry extended.

        An entry without sources counts as written by a person.
        """
        line = check_note_text(text)
        known = self.note_with_text(line)
        if known is None:
            new_id = _free_id(line, {entry.id for entry in self.notes})
            entry = BoardNote(id=new_id, text=line, added_on=day, sources=tuple(sources)[:MAX_NOTE_SOURCES])
            return Board((*self.lines, entry))
        if not sources or not known.sources:
            # An entry that a person also wrote, before or after it was proposed, counts as the person's.
            return self._replace_note(known, replace(known, sources=()))
        joined = tuple(dict.fromkeys((*known.sources, *sources)))[-MAX_NOTE_SOURCES:]
        if joined == known.sources:
            return self
        return self._replace_note(known, replace(known, sources=joined, last_used_on=day))

    def without_note(self, entry_id: str) -> "Board":
        """Return the board without an entry."""
        gone = self.note_by_id(entry_id)
        return Board(tuple(line for line in self.lines if line is not gone))

    def within_limits(self, counter: Counter, *, keep_id: str = "") -> "Board":
        """Return the board within its limits: evict the lowest-ranked proposed entries, but never `keep_id`."""
        board = self
        while len(board.notes) > MAX_BOARD_ENTRIES or board.tokens(counter) > MAX_BOARD_TOKENS:
            free = [entry for entry in board.notes if entry.sources and entry.id != keep_id]
            if not free:
                raise MalformedInputError("board", BOARD_IS_FULL)
            board = board.without_note(min(free, key=_note_rank).id)
        return board

    def check_room(self, counter: Counter) -> None:
        """Raise MalformedInputError if entries that people wrote fill the board, so that no proposed one can stay."""
        own = Board(tuple(entry for entry in self.notes if not entry.sources))
        if len(own.notes) >= MAX_BOARD_ENTRIES or own.tokens(counter) >= MAX_BOARD_TOKENS - NOTE_OVERHEAD_TOKENS:
            raise MalformedInputError("board", BOARD_IS_FULL)

    def tokens(self, counter: Counter) -> int:
        """Return how many tokens the entries cost."""
        return sum(counter.count(entry.text) + NOTE_OVERHEAD_TOKENS for entry in self.notes)

    def notes_within(self, max_tokens: int, counter: Counter) -> tuple[BoardNote, ...]:
        """Return the highest-ranked entries that fit an allowance, in file order."""
        chosen: set[str] = set()
        for entry in sorted(self.notes, key=_note_rank, reverse=True):
            cost = counter.count(entry.text) + NOTE_OVERHEAD_TOKENS
            if cost <= max_tokens:
                chosen.add(entry.id)
                max_tokens -= cost
        return tuple(entry for entry in self.notes if entry.id in chosen)

    def with_uses(self, ids: Iterable[str], day: str) -> "Board":
        """Return the board with one more use counted for some entries."""
        wanted = {*ids}
        lines = (
            replace(line, offered_count=line.offered_count + 1, last_used_on=day)
            if isinstance(line, BoardNote) and line.id in wanted
            else line
            for line in self.lines
        )
        return Board(tuple(lines))

    def _replace_note(self, old: BoardNote, new: BoardNote) -> "Board":
        return Board(tuple(new if line is old else line for line in self.lines))


def check_note_text(text: str) -> str:
    """Return the normalized text of an entry. Raise MalformedInputError if it is empty or too long."""
    line = _one_line_text(text)
    if not line:
        raise MalformedInputError("board", "an entry needs a text")
    if len(line) > MAX_NOTE_CHARS:
        problem = f"an entry has at most {MAX_NOTE_CHARS} characters, not {len(line):,}; shorten it"
        raise MalformedInputError("board", problem)
    return line


def check_note_day(day: object) -> str:
    """Return a day; raises for another form, because an entry without a day counts as typed by a person."""
    if not _valid_day(day):
        raise MalformedInputError("day", f"{day!r:.60} is no day; write it as YYYY-MM-DD")
    return cast("str", day)


def _one_line_text(text: str) -> str:
    """Return a text as one line, without comment marks and with anything that looks like a secret key redacted."""
    printable = text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
    return redact_text(" ".join(_COMMENT.sub(" ", printable).split()))


def parse_board(content: str) -> Board:
    """Return the board of a file; lines that cannot be parsed are kept unchanged."""
    lines: list[BoardLine] = []
    taken: set[str] = set()
    for line in content.replace("\r\n", "\n").removesuffix("\n").split("\n") if content else ():
        entry = _parse_note(line, taken)
        if entry is not None:
            taken.add(entry.id)
        lines.append(line if entry is None else entry)
    return Board(tuple(lines))


def _parse_note(line: str, taken: set[str]) -> BoardNote | None:
    entry, comment = _split_comment(line)
    text = " ".join(entry.split())
    if not text or _COMMENT.search(text):
        return None
    try:
        facts: object = json.loads(comment)
        if not isinstance(facts, dict):
            return None
        known = cast("dict[str, object]", facts)
        others = json.dumps({name: value for name, value in known.items() if not _is_own_fact(name, value)})[1:-1]
    except (ValueError, RecursionError):
        return None
    used, sources, own_id = known.get("used"), known.get("from"), known.get("id")
    if not isinstance(own_id, str) or not re.fullmatch(r"[0-9a-f]{4,64}", own_id) or own_id in taken:
        own_id = _free_id(text, taken)
    return BoardNote(
        id=own_id,
        text=text,
        added_on=_valid_day(known.get("added")),
        offered_count=used if isinstance(used, int) and used >= 0 else 0,
        last_used_on=_valid_day(known.get("last")),
        sources=tuple(map(str, cast("list[object]", sources))) if isinstance(sources, list) else (),
        others=others,
    )


def _is_own_fact(name: str, value: object) -> bool:
    """Return whether a name and its value in the comment of an entry are ours, or say nothing."""
    if name == "id" or not value:
        return name in {"id", "added", "used", "last", "from"}
    if name in {"added", "last"}:
        return bool(_valid_day(value))
    return isinstance(value, list if name == "from" else int) and name in {"used", "from"}


def _split_comment(line: str) -> tuple[str, str]:
    """Return the text of an entry and the JSON in the comment after it; two empty strings if the line is no entry.

    It uses no regular expression, so even a very long line parses in linear time.
    """
    if not line.startswith(("- ", "* ")):
        return "", ""
    body = line[2:].strip()
    text, _, comment = body.partition("<!--")
    facts = comment.removesuffix("-->").strip()
    has_facts = comment.endswith("-->") and facts.startswith("{") and facts.endswith("}")
    return (text, facts) if has_facts else (body, "{}")


def _valid_day(value: object) -> str:
    return value if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) else ""


def _free_id(text: str, taken: set[str]) -> str:
    digest = sha256(_comparison_key(text).encode(errors="replace")).hexdigest()
    return next((digest[:length] for length in range(ID_CHARS, len(digest)) if digest[:length] not in taken), digest)


def _comparison_key(text: str) -> str:
    return _one_line_text(text).casefold().rstrip(".!")


def _note_rank(entry: BoardNote) -> tuple[bool, int, str, int]:
    """Return the rank of an entry: a person's entries first, then those with more sources, then the newer."""
    return not entry.sources, len(entry.sources), entry.last_used_on or entry.added_on, entry.offered_count
