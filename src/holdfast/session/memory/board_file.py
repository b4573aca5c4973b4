"""The context board of a repository and branch: a private file that people edit and new conversations receive.

A conversation receives the board as reference, never as an instruction. The frame around it says so, and no entry can
close the frame. The files of `.git` say which repository and branch a folder belongs to; outside a repository, the
folder itself is the key.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from holdfast.core.conversation.frames import inbox_frame
from holdfast.core.conversation.tokens import Counter
from holdfast.core.memory.board import Board, BoardNote, check_note_day, check_note_text, parse_board
from holdfast.counters.vocabularies import counter_for
from holdfast.session.memory.locked_files import read_text, update_file
from holdfast.stores.base import session_value_key

MAX_HEAD_CHARS = 1_000
MAX_KEY_NAME_CHARS = 40
DETACHED_HEAD = "HEAD"
_REF = re.compile(r"ref:\s*refs/heads/(.+)")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
MAX_OFFERED_TOKENS = 1_000
"""The largest part of a board that a conversation receives."""
BOARD_HEADER = """\
# Context board
<!-- {where} -->
<!-- An entry is a line that begins with "- ". Edit as you like: it is offered to new conversations as reference. -->

"""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository and one of its branches; outside a repository, a folder without a branch."""

    root: Path
    branch: str = ""

    @property
    def key(self) -> str:
        """A unique identifier that is safe as part of a file name."""
        name = _UNSAFE.sub("-", f"{self.root.name}-{self.branch}" if self.branch else self.root.name)
        mark = sha256(f"{self.root}\0{self.branch}".encode(errors="surrogateescape")).hexdigest()[:12]
        return f"{name[:MAX_KEY_NAME_CHARS].strip('.-') or 'folder'}-{mark}"

    def __str__(self) -> str:
        return f"{self.root}, branch {self.branch}" if self.branch else str(self.root)


def repository_of(folder: str | Path) -> Repository:
    """Return the repository of a folder; a worktree belongs to the repository that it was created from."""
    here = Path(folder).expanduser().absolute()
    for root in (here, *here.parents):
        if (git := _git_folder(root / ".git")) is not None:
            shared, head = _read_start(git / "commondir"), _read_start(git / "HEAD")
            common = (git / shared).resolve() if shared else git
            branch = _REF.fullmatch(head)
            name = branch[1].strip() if branch else DETACHED_HEAD if head else ""
            return Repository(common.parent if common.name == ".git" else root, name)
    return Repository(here)


def _git_folder(git: Path) -> Path | None:
    """Return the Git directory: `.git` itself, or the directory that a file of that name points to."""
    if _is_folder(git):
        return git
    target = _read_start(git).removeprefix("gitdir:").strip()
    return git.parent / target if target and _is_folder(git.parent / target) else None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _read_start(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_HEAD_CHARS).strip()
    except OSError:
        return ""


def board_key(session: str) -> str:
    """Return the key under which a store keeps the board that a conversation belongs to."""
    return session_value_key(session, "board")


class ContextBoard:
    """The board of one repository and branch, in a folder of boards."""

    def __init__(self, folder: str | Path, repository: Repository) -> None:
        self.repository = repository
        self.path = Path(folder).expanduser() / f"{repository.key}.md"

    @cached_property
    def counter(self) -> Counter:
        """The counter for the board's token limits."""
        return counter_for(None)

    async def read(self) -> Board:
        """Return the content of the board; it is empty if there is no file yet."""
        return await asyncio.to_thread(lambda: parse_board(read_text(self.path)))

    async def add(self, text: str, *, day: str, sources: tuple[str, ...] = ()) -> BoardNote:
        """Add an entry, and return it; raises if entries that people wrote fill the board."""
        line, added_on = check_note_text(text), check_note_day(day)

        def change(board: Board) -> Board:
            more = board.with_note(line, day=added_on, sources=sources)
            entry = more.note_with_text(line)
            return more.within_limits(self.counter, keep_id=entry.id if entry else "")

        entry = (await self.update(change)).note_with_text(line)
        if entry is None:  # pragma: no cover - what was added is kept
            raise AssertionError
        return entry

    async def remove(self, entry_id: str) -> BoardNote:
        """Remove an entry, and return it."""
        gone: list[BoardNote] = []

        def change(board: Board) -> Board:
            gone.append(board.note_by_id(entry_id))
            return board.without_note(entry_id)

        await self.update(change)
        return gone[-1]

    async def offer(self, *, day: str, tokens: int = MAX_OFFERED_TOKENS) -> str:
        """Return entries for a new conversation, framed as reference, and count their use; empty if there are none."""
        offered: list[BoardNote] = []
        used_on = check_note_day(day)

        def change(board: Board) -> Board:
            offered[:] = board.notes_within(tokens, self.counter)
            return board.with_uses((entry.id for entry in offered), used_on)

        if not (await self.read()).notes:
            return ""
        await self.update(change)
        return inbox_frame([f"- {entry.text}" for entry in offered], str(self.repository)) if offered else ""

    async def update(self, change: Callable[[Board], Board]) -> Board:
        """Change the board under its lock, and return the new board."""
        changed: list[Board] = []

        def rewrite(content: str) -> str:
            header = BOARD_HEADER.format(where=str(self.repository).replace("--", "- -"))
            before = parse_board(content if content.strip() else header)
            changed.append(change(before))
            return content if changed[-1] == before else str(changed[-1])

        await asyncio.to_thread(update_file, self.path, rewrite)
        return changed[-1]
