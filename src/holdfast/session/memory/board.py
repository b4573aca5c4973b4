"""The context board of a repository and branch: a private file that people edit and new conversations receive.

A conversation receives the board as reference, never as an instruction. The frame around it says so, and no entry can
close the frame.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from holdfast.core.conversation.tokens import Counter
from holdfast.core.memory.board import Board, BoardNote, check_note_text, parse_board
from holdfast.core.planning.summary.framing import inbox_frame
from holdfast.counters.vocabularies import counter_for
from holdfast.session.memory.files import Repository, read_text, translate_disk_errors, update_file
from holdfast.stores.base import session_value_key

MAX_OFFERED_TOKENS = 1_000
"""The largest part of a board that a conversation receives."""
BOARD_HEADER = """\
# Context board
<!-- {where} -->
<!-- An entry is a line that begins with "- ". Edit as you like: it is offered to new conversations as reference. -->

"""


def board_key(session: str) -> str:
    """Return the key under which a store keeps the board that a conversation belongs to."""
    return session_value_key(session, "board")


class ContextBoard:
    """The board of one repository and branch, in a folder of boards."""

    def __init__(self, folder: Path, repository: Repository) -> None:
        self.repository = repository
        self.path = folder / f"{repository.key}.md"
        self._counter: Counter | None = None

    @property
    def counter(self) -> Counter:
        """The counter for the board's token limits."""
        self._counter = self._counter or counter_for(None)
        return self._counter

    async def read(self) -> Board:
        """Return the content of the board; it is empty if there is no file yet."""
        return await asyncio.to_thread(self._read)

    async def add(self, text: str, *, day: str, sources: tuple[str, ...] = ()) -> BoardNote:
        """Add an entry, and return it; raises if entries that people wrote fill the board."""
        said = check_note_text(text)

        def change(board: Board) -> Board:
            more = board.with_note(said, day=day, sources=sources)
            entry = more.note_with_text(said)
            return more.within_limits(self.counter, keep_id=entry.id if entry else "")

        entry = (await self.update(change)).note_with_text(said)
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

        def change(board: Board) -> Board:
            offered[:] = board.notes_within(tokens, self.counter)
            return board.with_uses((entry.id for entry in offered), day)

        if not (await self.read()).notes:
            return ""
        await self.update(change)
        return inbox_frame([f"- {entry.text}" for entry in offered], str(self.repository)) if offered else ""

    async def update(self, change: Callable[[Board], Board]) -> Board:
        """Change the board under its lock, and return the new board."""
        return await asyncio.to_thread(self._update, change)

    def _read(self) -> Board:
        with translate_disk_errors(self.path):
            return parse_board(read_text(self.path))

    def _update(self, change: Callable[[Board], Board]) -> Board:
        made: list[Board] = []

        def rewritten(content: str) -> str:
            before = parse_board(
                content if content.strip() else BOARD_HEADER.format(where=str(self.repository).replace("--", "- -"))
            )
            made.append(change(before))
            return content if made[-1] == before else str(made[-1])

        update_file(self.path, rewritten)
        return made[-1]
