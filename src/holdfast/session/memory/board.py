"""The context board of a repository and branch: a private file that people edit and new conversations are offered.

The offer is reference, never instruction: it is in a frame that says so, and no entry can end the frame.
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
"""The most of a board that a conversation is given."""
BOARD_HEADER = """\
# Context board
<!-- {where} -->
<!-- An entry is a line that begins with "- ". Edit as you like: it is offered to new conversations as reference. -->

"""


def board_key(session: str) -> str:
    """Return the fact under which a store keeps the board of the work that a conversation is about."""
    return session_value_key(session, "board")


class ContextBoard:
    """The board of one repository and branch, in a folder of boards."""

    def __init__(self, folder: Path, repository: Repository) -> None:
        self.repository = repository
        self.path = folder / f"{repository.key}.md"
        self._counter: Counter | None = None

    @property
    def counter(self) -> Counter:
        """What its bounds are counted with."""
        self._counter = self._counter or counter_for(None)
        return self._counter

    async def read(self) -> Board:
        """Return what stands on it; nothing where there is no file yet."""
        return await asyncio.to_thread(self._read)

    async def add(self, text: str, *, day: str, sources: tuple[str, ...] = ()) -> BoardNote:
        """Put something on it, and return the entry; refused where the board is full of what people wrote."""
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
        """Take an entry off it, and return that."""
        gone: list[BoardNote] = []

        def change(board: Board) -> Board:
            gone.append(board.note_by_id(entry_id))
            return board.without_note(entry_id)

        await self.update(change)
        return gone[-1]

    async def offer(self, *, day: str, tokens: int = MAX_OFFERED_TOKENS) -> str:
        """Return what a new conversation is given of it, framed as reference, and count that; empty if nothing is."""
        offered: list[BoardNote] = []

        def change(board: Board) -> Board:
            offered[:] = board.notes_within(tokens, self.counter)
            return board.with_uses((entry.id for entry in offered), day)

        if not (await self.read()).notes:
            return ""
        await self.update(change)
        return inbox_frame([f"- {entry.text}" for entry in offered], str(self.repository)) if offered else ""

    async def update(self, change: Callable[[Board], Board]) -> Board:
        """Change the board, and return it as it is then; others who change it wait."""
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
