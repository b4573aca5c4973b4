"""The context board of a repository and branch: a private file that people edit and new conversations are offered.

What is offered is reference, never instruction: it stands in a frame that says so, and nothing on it can end the frame.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from holdfast.core.conversation.tokens import Counter
from holdfast.core.history.lasting.board import Board, Entry, parsed, sound
from holdfast.core.planning.summary.frames import inbox_frame
from holdfast.counters.vocabularies import counter_for
from holdfast.session.memory.files import changed, text_of
from holdfast.session.memory.repository import Repository
from holdfast.session.workspace import disk_errors_of
from holdfast.stores.facts import fact_about

OFFERED_TOKENS = 1_000
"""The most of a board that a conversation is given."""
HEAD = """\
# Context board
<!-- {where} -->
<!-- An entry is a line that begins with "- ". Edit as you like: it is offered to new conversations as reference. -->

"""


def held_at(session: str) -> str:
    """Return the fact under which a store keeps the board of the work that a conversation is about."""
    return fact_about(session, "board")


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

    async def add(self, text: str, *, day: str, sources: tuple[str, ...] = ()) -> Entry:
        """Put something on it, and return the entry; refused where the board is full of what people wrote."""
        said = sound(text)

        def change(board: Board) -> Board:
            more = board.added(said, day=day, sources=sources)
            entry = more.same(said)
            return more.bounded(self.counter, keep=entry.id if entry else "")

        entry = (await self.change(change)).same(said)
        if entry is None:  # pragma: no cover - what was added is kept
            raise AssertionError
        return entry

    async def prune(self, entry_id: str) -> Entry:
        """Take an entry off it, and return that."""
        gone: list[Entry] = []

        def change(board: Board) -> Board:
            gone.append(board.named(entry_id))
            return board.pruned(entry_id)

        await self.change(change)
        return gone[-1]

    async def offer(self, *, day: str, tokens: int = OFFERED_TOKENS) -> str:
        """Return what a new conversation is given of it, framed as reference, and count that; empty if nothing is."""
        offered: list[Entry] = []

        def change(board: Board) -> Board:
            offered[:] = board.offered(tokens, self.counter)
            return board.used((entry.id for entry in offered), day)

        if not (await self.read()).entries:
            return ""
        await self.change(change)
        return inbox_frame([f"- {entry.text}" for entry in offered], str(self.repository)) if offered else ""

    async def change(self, change: Callable[[Board], Board]) -> Board:
        """Change the board, and return it as it is then; others who change it wait."""
        return await asyncio.to_thread(self._change, change)

    def _read(self) -> Board:
        with disk_errors_of(self.path):
            return parsed(text_of(self.path))

    def _change(self, change: Callable[[Board], Board]) -> Board:
        made: list[Board] = []

        def rewritten(content: str) -> str:
            before = parsed(
                content if content.strip() else HEAD.format(where=str(self.repository).replace("--", "- -"))
            )
            made.append(change(before))
            return content if made[-1] == before else str(made[-1])

        changed(self.path, rewritten)
        return made[-1]
