"""Consolidation: `rem-agent` reads finished conversations and proposes entries for the board.

It is separate from compaction and never changes a conversation: it reads logs without opening sessions. The store keeps
the progress for each conversation, so each message is read once per board. If there is a model, it reads and proposes.
Without one, or if it fails, a rule extracts the user's constraints and the decisions.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.memory.board import Board
from holdfast.core.planning.summary.board_prompt import (
    BOARD_TOOL,
    BoardDraft,
    BoardProposal,
    apply_proposals,
    board_prompt,
    declines_calls,
    parse_board_calls,
    propose_by_rule,
)
from holdfast.core.planning.summary.chunks import split_into_chunks
from holdfast.counters.models import find_model
from holdfast.errors import MalformedInputError, ModelError, ModelRefusedError, StoreError
from holdfast.models.base import DEFAULT_SUMMARIZER_WINDOW, MAX_PIECE_BYTES, Closable, Summarizer, SummaryPrompt
from holdfast.models.open import open_summarizer
from holdfast.models.retry import with_retries
from holdfast.redaction import redact_text
from holdfast.session.log.records import StoredLog
from holdfast.session.log.timestamps import local_day
from holdfast.session.memory.board_file import ContextBoard, board_key
from holdfast.stores.base import SessionInfo, Store, iter_sessions, session_value_key
from holdfast.text import pluralize
from holdfast.wire.formats import format_named

CONSOLIDATION_INTERACTION = "memory-consolidation"
"""The interaction type of a `rem-agent` call, which distinguishes it from a user's turn and from a compaction."""
SESSION_IDLE_MS = 600_000
"""A conversation counts as finished after this long without a new record."""
MAX_SESSIONS_PER_RUN, MAX_PIECES_PER_SESSION = 20, 6
"""How many conversations one run reads, and how many pieces of each, the newest, a model reads."""
MAX_PROPOSAL_TOKENS, RESERVED_PROMPT_TOKENS = 1_200, 4_000
"""The size limit of a model's reply, and the room for its prompt without the conversation."""
MIN_NEW_MESSAGES = 2


class ReadProgress(NamedTuple):
    """How much of a conversation was read."""

    messages: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationResult:
    """The result of one run."""

    proposals: tuple[BoardProposal, ...] = ()
    read_progress: Mapping[str, ReadProgress] = field(default_factory=dict[str, ReadProgress])
    """The progress of each conversation that was read."""
    notes: tuple[str, ...] = ()
    """Problems, one line each."""
    remaining: int = 0
    """How many conversations are left for the next run."""
    still_active: int = 0
    """How many conversations were skipped because they changed too recently to count as finished."""


class RemAgent:
    """Proposes and applies the changes of one board."""

    def __init__(
        self, store: Store, board: ContextBoard, *, summarizer: str | Summarizer | None = None, clock: Callable[[], int]
    ) -> None:
        """`summarizer` is the name of a model, or a summarizer; None uses the rule alone."""
        self.board = board
        self._store = store
        self._summarizer = open_summarizer(summarizer) if isinstance(summarizer, str) else summarizer
        self._owns_summarizer = isinstance(summarizer, str)
        self._clock = clock

    async def run(self, *, exclude: str = "", only: str = "", include_active: bool = False) -> ConsolidationResult:
        """Read finished conversations from where the last run stopped, and return proposals; changes nothing.

        Raises before it reads any if entries that people wrote fill the board: no proposal could stay there. If the
        store becomes unavailable, the run ends with what it has read.
        `exclude` is a conversation to skip. `only` is the single conversation to read, finished or not.
        `include_active` also reads conversations that may continue.
        """
        unread = [] if only else await self._unread(exclude)
        limit = self._clock() - SESSION_IDLE_MS
        waiting = [only] if only else [info.id for info in unread if include_active or info.updated_ms <= limit]
        recent = len(unread) - len(waiting) if unread else 0
        board, day = await self.board.read(), local_day(self._clock())
        if waiting:
            board.check_room(self.board.counter)
        proposals, notes = list[BoardProposal](), list[str]()
        read: dict[str, ReadProgress] = {}
        left = len(waiting)
        for session in waiting:
            if len(read) == MAX_SESSIONS_PER_RUN:
                break
            left -= 1
            draft = BoardDraft(board, session, day)
            try:
                read[session] = await self._propose(draft, notes)
            except StoreError as error:
                # It takes no place of a conversation that can be read: the oldest would be tried first for ever.
                notes.append(f"{session} could not be read: {error}")
                if not await self._is_available():
                    left += 1
                    break
            proposals += draft.proposals
            board = draft.board
        return ConsolidationResult(
            proposals=tuple(proposals), read_progress=read, notes=tuple(notes), remaining=left, still_active=recent
        )

    async def apply(self, result: ConsolidationResult) -> Board:
        """Apply the approved proposals to the board, record the progress, and return the board."""
        day, counter = local_day(self._clock()), self.board.counter
        board = await self.board.update(
            lambda board: apply_proposals(board, result.proposals, day).within_limits(counter)
        )
        await self.record_progress(result)
        return board

    async def record_progress(self, result: ConsolidationResult) -> None:
        """Record the progress, so that no message is read again."""
        for session, reading in result.read_progress.items():
            await self._store.put_value(self._progress_key(session), reading._asdict())

    async def close(self) -> None:
        """Close the summarizer if it was opened by name; the caller closes one that it passed itself."""
        if self._owns_summarizer and isinstance(self._summarizer, Closable):
            await self._summarizer.close()

    async def _is_available(self) -> bool:
        """Return whether the store answers, so that other conversations may be read."""
        try:
            await self._store.sessions(limit=1)
        except StoreError:
            return False
        return True

    def _progress_key(self, session: str) -> str:
        return session_value_key(session, "consolidated", self.board.repository.key)

    async def _unread(self, exclude: str) -> list[SessionInfo]:
        """Return this board's conversations that were not read to their end, the oldest first."""
        found: list[SessionInfo] = []
        async for info in iter_sessions(self._store):
            if info.id == exclude:
                continue
            held = await self._store.get_value(board_key(info.id))
            if held is None or held.get("board") != self.board.repository.key:
                continue
            known = await self._store.get_value(self._progress_key(info.id))
            if known is None or known.get("records") != info.length:
                found.append(info)
        return found[::-1]

    async def _propose(self, draft: BoardDraft, notes: list[str]) -> ReadProgress:
        """Propose entries from one conversation, and return how far it was read."""
        history, events = History(format_named), await StoredLog(self._store, draft.session).events()
        for event in events:
            with suppress(MalformedInputError):
                history.append(event)
        known = await self._store.get_value(self._progress_key(draft.session)) or {}
        before = known.get("messages")
        context = history.context()
        start = max(before if isinstance(before, int) else 0, context.state.cleared_at)
        new = [entry for entry in context.entries_between(start, context.length) if not entry.message.is_from_memory]
        draft.messages = {entry.position or 0: entry for entry in new}
        if len(new) < MIN_NEW_MESSAGES:
            return ReadProgress(start, len(events))  # it is read with the next message
        if not await self._propose_with_model(draft, notes):
            propose_by_rule(draft, list(history.ledger(log.MAIN, context.length).constraints), start)
        return ReadProgress(context.length, len(events))

    async def _propose_with_model(self, draft: BoardDraft, notes: list[str]) -> bool:
        """Ask the model for proposals, and return whether it answered."""
        if self._summarizer is None:
            return False
        known = find_model(self._summarizer.name) if self._summarizer.window is None else None
        window = (known.max_input_tokens if known else self._summarizer.window) or DEFAULT_SUMMARIZER_WINDOW
        room = max(RESERVED_PROMPT_TOKENS, window - MAX_PROPOSAL_TOKENS - RESERVED_PROMPT_TOKENS)
        parts = split_into_chunks(draft.messages.values(), self.board.counter, room, MAX_PIECE_BYTES, redact_text)
        try:
            for part in parts[-MAX_PIECES_PER_SESSION:]:
                system, text = board_prompt(part, draft.board)
                prompt = SummaryPrompt(
                    system=system,
                    text=text,
                    max_output_tokens=MAX_PROPOSAL_TOKENS,
                    interaction=CONSOLIDATION_INTERACTION,
                )
                answer = (await with_retries(self._summarizer, prompt)).text
                calls = [*parse_board_calls(answer)]
                if not calls and not declines_calls(answer):
                    problem = f"the answer holds no call of {BOARD_TOOL}"
                    raise ModelRefusedError(self._summarizer.name, problem)
                for call in calls:
                    draft.apply_call(call)
        except ModelError as error:
            notes.append(f"{draft.session}: the model failed, so a rule made the proposals: {error}")
            return False
        return True


def describe_no_proposals(result: ConsolidationResult, remedy: str) -> str:
    """Return why a run has no proposals; `remedy` says how to include conversations that may continue."""
    read = f"nothing to propose; {pluralize(len(result.read_progress), 'finished conversation')} read"
    was = "was" if result.still_active == 1 else "were"
    since = f"{result.still_active:,} {was} changed less than {pluralize(SESSION_IDLE_MS // 60_000, 'minute')} ago"
    return f"{read}; {since}, {remedy}" if result.still_active else read


def proposal_rows(proposals: Sequence[BoardProposal]) -> list[tuple[str, str, str]]:
    """Return proposals as rows for people: the action, the text, and the sources."""
    return [(one.action, one.text, ", ".join(one.sources)) for one in proposals]
