"""Consolidation: `rem-agent` reads conversations that are over, and proposes what the board should say of them.

It is apart from compaction, and never changes a conversation: logs are read as they are, not opened. How far each was
read is a fact in the store, so each message is read once for a board. A model reads where there is one; without one, or
where it fails, what the user laid down and what was decided is read off by rule.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.history.lasting.board import Board
from holdfast.core.planning.consolidating import Draft, Proposal, applied, asked_of, calls_in, propose_by_rule
from holdfast.core.planning.summary.material import pieces
from holdfast.counters.models import model_named
from holdfast.errors import MalformedInputError, ModelError, StoreError
from holdfast.models.base import Ask, Closes, Writer
from holdfast.models.open import writer_for
from holdfast.models.patience import patiently
from holdfast.plural import many
from holdfast.redaction import redacted
from holdfast.session.log import Log
from holdfast.session.memory.board import ContextBoard, held_at
from holdfast.session.moments import day_of
from holdfast.session.summarizer import MAX_PIECE_BYTES, UNKNOWN_WINDOW, Patience
from holdfast.stores.base import SessionInfo, Store
from holdfast.stores.facts import fact_about
from holdfast.stores.listing import every_session
from holdfast.wire.formats import format_named

INTERACTION = "memory-consolidation"
"""What a call of `rem-agent` is called, so that it can be told from a person's turn and from a compaction."""
IDLE_MS = 600_000
"""A conversation that nothing was added to for this long is over."""
MOST_SESSIONS, MOST_PIECES = 20, 6
"""How many conversations one run reads, and how many pieces of each a model is shown, the newest."""
ANSWER_TOKENS, ROOM = 1_200, 4_000
"""What a model may write, and what its question takes besides the conversation."""
MIN_MESSAGES = 2


class Reading(NamedTuple):
    """How far a conversation was read."""

    messages: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidation:
    """What one run came to."""

    proposals: tuple[Proposal, ...] = ()
    read: Mapping[str, "Reading"] = field(default_factory=dict[str, "Reading"])
    """By conversation, how far it was read."""
    notes: tuple[str, ...] = ()
    """What could not be done, a line each."""
    left: int = 0
    """How many conversations are left for the next run."""
    recent: int = 0
    """How many were changed too short a time ago to be over, and were left alone."""


class RemAgent:
    """Keeps one board."""

    def __init__(
        self, store: Store, board: ContextBoard, *, writer: str | Writer | None = None, clock: Callable[[], int]
    ) -> None:
        """`writer` is a model by its name, or a writer; None lets a rule read."""
        self.board = board
        self._store = store
        self._writer = writer_for(writer) if isinstance(writer, str) else writer
        self._is_ours = isinstance(writer, str)
        self._clock = clock
        self.patience = Patience()

    async def run(self, *, besides: str = "", only: str = "", is_all: bool = False) -> Consolidation:
        """Read what is over and was not read, and return what is proposed; nothing is changed by it.

        `besides` is a conversation to leave alone; `only` is the one to read, whether it is over or not; with `is_all`
        those that may go on are read as well.
        """
        unread = [] if only else await self._unread(besides)
        limit = self._clock() - IDLE_MS
        waiting = [only] if only else [info.id for info in unread if is_all or info.updated_ms <= limit]
        recent = len(unread) - len(waiting) if unread else 0
        chosen, left = waiting[:MOST_SESSIONS], max(0, len(waiting) - MOST_SESSIONS)
        board, day = await self.board.read(), self.day
        proposals: list[Proposal] = []
        notes: list[str] = []
        read: dict[str, Reading] = {}
        for session in chosen:
            draft = Draft(board, session, day)
            try:
                read[session] = await self._consider(draft, notes)
            except StoreError as error:
                notes.append(f"{session} could not be read: {error}")
            proposals += draft.proposals
            board = draft.board
        return Consolidation(proposals=tuple(proposals), read=read, notes=tuple(notes), left=left, recent=recent)

    async def apply(self, done: Consolidation) -> Board:
        """Put what was agreed to on the board, remember what was read, and return the board."""
        day, counter = self.day, self.board.counter
        board = await self.board.change(lambda board: applied(board, done.proposals, day).bounded(counter))
        await self.remember(done)
        return board

    async def remember(self, done: Consolidation) -> None:
        """Remember what was read, so that it is not read again."""
        for session, reading in done.read.items():
            await self._store.put_fact(self._key(session), reading._asdict())

    async def close(self) -> None:
        """Give back what a writer that was named holds open; one that was given is its giver's."""
        if self._is_ours and isinstance(self._writer, Closes):
            await self._writer.close()

    @property
    def day(self) -> str:
        """Today."""
        return day_of(self._clock())

    def _key(self, session: str) -> str:
        return fact_about(session, "consolidated", self.board.repository.key)

    async def _unread(self, besides: str) -> list[SessionInfo]:
        """Return the conversations about this work that were not read to their end, the oldest first."""
        found: list[SessionInfo] = []
        async for info in every_session(self._store):
            if info.id == besides:
                continue
            held = await self._store.get_fact(held_at(info.id))
            if held is None or held.get("board") != self.board.repository.key:
                continue
            known = await self._store.get_fact(self._key(info.id))
            if known is None or known.get("records") != info.length:
                found.append(info)
        return found[::-1]

    async def _consider(self, draft: Draft, notes: list[str]) -> Reading:
        """Propose what one conversation leaves, and return how far it was read."""
        history, events = History(format_named), await Log(self._store, draft.session).events()
        for event in events:
            with suppress(MalformedInputError):
                history.append(event)
        known = await self._store.get_fact(self._key(draft.session)) or {}
        before = known.get("messages")
        context = history.context()
        start = max(before if isinstance(before, int) else 0, context.standing.cleared_at)
        said = [entry for entry in context.between(start, context.length) if not entry.message.is_from_memory]
        draft.shown = {entry.position or 0: entry for entry in said}
        if len(said) >= MIN_MESSAGES and not await self._asked(draft, notes):
            propose_by_rule(draft, list(history.ledger(log.MAIN, context.length).wishes), start)
        return Reading(context.length, len(events))

    async def _asked(self, draft: Draft, notes: list[str]) -> bool:
        """Let a model propose, and say whether it could."""
        if self._writer is None:
            return False
        known = model_named(self._writer.name) if self._writer.window is None else None
        window = (known.max_input_tokens if known else self._writer.window) or UNKNOWN_WINDOW
        room = max(ROOM, window - ANSWER_TOKENS - ROOM)
        said = list(draft.shown.values())
        parts = pieces(said, self.board.counter, room, MAX_PIECE_BYTES, redacted)[-MOST_PIECES:]
        try:
            for part in parts:
                asked = asked_of(part, draft.board)
                ask = Ask(
                    system=asked.system, text=asked.text, max_output_tokens=ANSWER_TOKENS, interaction=INTERACTION
                )
                answer = await patiently(
                    self._writer,
                    ask,
                    timeout_seconds=self.patience.timeout_seconds,
                    attempts=self.patience.attempts,
                )
                for call in calls_in(answer.text):
                    draft.call(call)
        except ModelError as error:
            notes.append(f"{draft.session} was read by rule: {error}")
            return False
        return True


def told_of_nothing(done: Consolidation, remedy: str) -> str:
    """Return why a run proposes nothing; `remedy` is how what may go on is read as well."""
    read = f"nothing to propose; {many(len(done.read), 'finished conversation')} read"
    was = "was" if done.recent == 1 else "were"
    since = f"{done.recent:,} {was} changed less than {many(IDLE_MS // 60_000, 'minute')} ago"
    return f"{read}; {since}, {remedy}" if done.recent else read


def told(proposals: Sequence[Proposal]) -> list[tuple[str, str, str]]:
    """Return proposals as rows for people: what is done, what it says, and why."""
    return [(one.action, one.text, ", ".join(one.sources)) for one in proposals]
