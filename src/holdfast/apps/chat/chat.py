"""The conversation a person has: which session it is, who answers, and what may be done about it.

Everything that is shown goes through a screen and everything that is kept through the session, so the same chat runs
in a terminal, behind a pipe, and in a test.

What a new conversation finds in its inbox: the context board of the repository and branch it is held in.
"""

import asyncio
import secrets
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from holdfast.apps.chat.events import ChatNotice, Screen, TurnEnded, TurnOutcome, describe_losses
from holdfast.apps.chat.file_tools import FileTools
from holdfast.apps.chat.prompts import attachment_text, clean_prompt, is_too_large, save_attachment
from holdfast.apps.chat.runtime import RuntimeCache
from holdfast.apps.settings.build import (
    SessionCallbacks,
    board_from,
    budget_from,
    open_session,
    rem_agent_from,
    update_session_settings,
)
from holdfast.apps.settings.models import bare_model_name, configured_model
from holdfast.apps.settings.settings import Settings
from holdfast.core.history.events import MAIN
from holdfast.core.planning.situation import Budget
from holdfast.core.recall.artifacts import strip_artifact_references
from holdfast.counters.models import budget_for
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import HoldfastError, SettingsError, StoreError, UnknownSessionError
from holdfast.models.errors import as_model_error
from holdfast.redaction import redact_text
from holdfast.session.compaction.compactor import SummaryDraft
from holdfast.session.log.timestamps import local_day
from holdfast.session.memory.board import MAX_OFFERED_TOKENS, board_key
from holdfast.session.memory.consolidation import RemAgent
from holdfast.session.request import Request
from holdfast.session.session import Session
from holdfast.stores.base import Store, resolve_session_id
from holdfast.stores.open import open_store

CHAT_SESSION_FORMAT = "pydantic-ai"
BOARD_SHARE = 1 / 16
"""The most of the budget that a board takes."""


async def offer_board(session: Session, settings: Settings, screen: Screen, budget: Budget) -> None:
    """Put the board into the inbox of a session, and remember where it is held; what is wrong with it is shown."""
    board = board_from(settings)
    if board is None:
        return
    try:
        await session.store.put_value(board_key(session.id), {"board": board.repository.key})
        tokens = min(MAX_OFFERED_TOKENS, int(budget.tokens * BOARD_SHARE))
        if note := await board.offer(day=local_day(session.clock()), tokens=tokens):
            await session.add_memory_note(note, format=CHAT_SESSION_FORMAT)
    except HoldfastError as error:
        screen.show(ChatNotice(f"board: {error}", "warning"))


MAX_SESSION_NAME_CHARS = 100


@dataclass(frozen=True, slots=True)
class ChatStatus:
    """How the conversation stands: what the meter shows."""

    model: str
    budget: int
    tokens: int = 0
    provenance: str = ""
    cost: float | None = None
    """Dollars, since the program began; None where nobody knows the prices."""
    compactions: int = 0
    is_compacting: bool = False


class Chat:
    """One person's conversation."""

    def __init__(self, settings: Settings, screen: Screen, *, folder: Path, store: Store | None = None) -> None:
        self.failure_hint = "; /retry asks again"
        """What to do after a failure, besides what its own words say."""
        self.settings = settings
        self.screen = screen
        self.file_tools = FileTools(folder)
        self.store = store or open_store(settings.store)
        self.is_over = False
        self.unrecorded_prompt: str | None = None
        """A prompt that could not even be recorded; /retry says it."""
        self._runtimes = RuntimeCache(screen)
        self._session: Session | None = None
        self._turn: asyncio.Task[object] | None = None
        self._last_request: Request | None = None
        self._context_tokens = 0
        """What the context took when it was opened, or last changed without a request."""
        self._counted_changes = 0
        """How often the context had changed then."""
        self._spent_dollars = 0.0

    # Which session.

    @property
    def session(self) -> Session:
        """The session that is being talked in."""
        if self._session is None:
            raise SettingsError("session", "none is open yet")
        return self._session

    async def open_conversation(self, session: str | None = None, *, is_newest: bool = False) -> None:
        """Go on with a session, by the beginning of its id; with the newest one; or begin a new one."""
        if session:
            await self._open(await resolve_session_id(self.store, session))
        elif is_newest:
            newest = await self.store.sessions(limit=1)
            if not newest:
                raise UnknownSessionError("the newest", [])
            await self._open(newest[0].id)
        else:
            await self._open(new_session_id())

    async def _open(self, session: str) -> None:
        opened = await open_session(self.settings, session, store=self.store, callbacks=self._callbacks())
        spoken = opened.history.format
        if spoken not in {None, CHAT_SESSION_FORMAT}:
            await opened.close()
            problem = f"{session!r} holds {spoken} messages; the chat goes on with sessions of its own only"
            raise SettingsError("session", problem)
        await self._close_session()
        self._session = opened
        await self._count_context()
        self.file_tools.attachments = {path.name: path for path in sorted(self._attachments_folder.glob("*.txt"))}
        self._runtimes.invalidate()

    def _callbacks(self) -> SessionCallbacks:
        return SessionCallbacks(
            primary=self._runtimes.summarizer(self.settings),
            approve=self._approve_summary,
            notice=lambda text: self.screen.show(ChatNotice(text, "warning")),
            progress=self.screen.show_busy,
        )

    def rem_agent(self) -> RemAgent | None:
        """Return who keeps the context board; None where boards are off."""
        return rem_agent_from(
            self.settings, self.store, primary=self._runtimes.summarizer(self.settings), clock=self.session.clock
        )

    async def switch_to(self, session: Session) -> None:
        """Go on with a session that is already open, such as a fork."""
        await session.close()
        await self._open(session.id)

    async def apply_settings(self, settings: Settings) -> None:
        """Go on under other settings."""
        self.settings = settings
        self.session.model = bare_model_name(settings.model)
        await update_session_settings(self.session, settings, self._callbacks())
        self._runtimes.invalidate()

    async def _close_session(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def close(self) -> None:
        """Give back everything; the conversation is kept already."""
        await self._close_session()
        await self._runtimes.close()
        await self.store.close()

    @property
    def _attachments_folder(self) -> Path:
        return self.settings.paths.attachments(self.session.id)

    async def last_exchange(self) -> tuple[str, str]:
        """Return the last thing that was asked, and the last answer."""
        shown = [entry.message for entry in await self.session.visible_messages()]
        asked = next((message.text for message in reversed(shown) if message.is_prompt), "")
        answer = next((message.text for message in reversed(shown) if message.role == "assistant" and message.text), "")
        return asked, strip_artifact_references(answer)

    # How it stands.

    @property
    def model(self) -> str:
        """Who answers."""
        return self.settings.model

    @property
    def budget(self) -> Budget:
        """The most that may be sent."""
        return budget_from(self.settings) or budget_for(self.model)

    @property
    def status(self) -> ChatStatus:
        """How the conversation stands."""
        history, last, known = self.session.history, self._last_request, configured_model(self.settings)
        return ChatStatus(
            model=bare_model_name(self.model),
            budget=self.budget.tokens,
            tokens=last.tokens.total if last else self._context_tokens,
            provenance=last.tokens.provenance if last else "estimated" if self._context_tokens else "",
            cost=self._spent_dollars if known and known.input_price else None,
            compactions=len(history.version.state_of(MAIN).compactions),
            is_compacting=history.session_state.running_compaction is not None
            and history.session_state.ready_summary is None,
        )

    async def refresh_token_count(self) -> None:
        """Count what the context holds where something other than a request has changed it."""
        if self._session is not None and self._session.history.change_count != self._counted_changes:
            await self._count_context()

    async def _count_context(self) -> None:
        session, self._last_request = self.session, None
        self._context_tokens = (await session.context_breakdown(budget=self.budget)).total if len(session) else 0
        self._counted_changes = session.history.change_count

    # Turns.

    async def check_model(self, settings: Settings) -> None:
        """Raise why the model of other settings could not answer."""
        await self._runtimes.check_model(settings)

    async def warm_up(self) -> None:
        """Load what the first turn needs; what is wrong with it is said there, where it can be acted upon."""
        with suppress(Exception):
            await self._runtimes.get(self.settings, self.session, self.file_tools)

    async def take_turn(self, typed: str | None) -> TurnOutcome:
        """Take one turn: a prompt and its answer. Without a prompt, the last one is asked again."""
        self._turn = asyncio.current_task()
        session, is_first, said = self.session, not len(self.session), len(self.session)
        prompt: str | None = None
        try:
            prompt = None if typed is None else await self._prepare_prompt(typed)
            if prompt == "":
                return "failed"
            if is_first:
                await offer_board(session, self.settings, self.screen, self.budget)
                said = len(session)
            outcome = await self._answer(prompt)
        except asyncio.CancelledError:
            outcome = self._show_interrupted()
        except Exception as error:  # noqa: BLE001 - whatever a provider's library raises, the conversation goes on
            outcome = self._show_failed(error)
        finally:
            self._turn = None
        is_recorded = len(session) > said
        self.unrecorded_prompt = None if is_recorded else prompt
        if prompt and is_recorded and is_first:
            with suppress(StoreError):
                await session.rename(" ".join(prompt.split())[:MAX_SESSION_NAME_CHARS])
        return outcome

    def interrupt(self) -> bool:
        """Stop the turn, and say whether there was one; the conversation stays valid."""
        return self._turn is not None and self._turn.cancel()

    async def _answer(self, prompt: str | None) -> TurnOutcome:
        mind = await self._runtimes.get(self.settings, self.session, self.file_tools)
        from holdfast.apps.chat.turn import turn_events  # noqa: PLC0415 - loaded by now, and not before it is needed

        outcome: TurnOutcome = "failed"
        async with aclosing(turn_events(mind.agent, prompt, self.settings.max_steps)) as told:
            async for happening in told:
                self._last_request = mind.capability.last_request or self._last_request
                self._counted_changes = self.session.history.change_count
                if isinstance(happening, TurnEnded):
                    outcome = happening.outcome
                    self._add_cost(happening)
                self.screen.show(happening)
        return outcome

    def _show_interrupted(self) -> TurnOutcome:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        self.screen.show(ChatNotice("Interrupted by user.", "warning"))
        self.screen.show(TurnEnded("interrupted"))
        return "interrupted"

    def _show_failed(self, error: Exception) -> TurnOutcome:
        self.screen.show(
            ChatNotice(
                f"{describe_failure(error, bare_model_name(self.model))}\nNothing is lost{self.failure_hint}.", "error"
            )
        )
        self.screen.show(TurnEnded("failed"))
        return "failed"

    def _add_cost(self, ended: TurnEnded) -> None:
        known = configured_model(self.settings)
        if known is None or not known.input_price:
            return
        read = known.input_price if known.cache_read_price is None else known.cache_read_price
        fresh = ended.input_tokens - ended.cached_tokens
        paid = fresh * known.input_price + ended.cached_tokens * read + ended.output_tokens * (known.output_price or 0)
        self._spent_dollars += paid / 1_000_000

    async def _prepare_prompt(self, typed: str) -> str:
        """Return a prompt as it can be said; empty if it is not to be."""
        found = clean_prompt(typed)
        if found.problem:
            self.screen.show(ChatNotice(found.problem, "error"))
        if found.note:
            self.screen.show(ChatNotice(found.note, "warning"))
        if not found.text or not is_too_large(found.text, self.budget.tokens, counter_for(self.model)):
            return found.text
        size = f"{len(found.text):,} characters are too much for a budget of {self.budget.tokens:,} tokens"
        if await self.screen.ask_consent(f"{size}. Attach them as a file that the model reads piece by piece?") == "no":
            self.screen.show(ChatNotice("not sent", "warning"))
            return ""
        name, path = await asyncio.to_thread(save_attachment, found.text, self._attachments_folder)
        self.file_tools.attachments[name] = path
        self._runtimes.invalidate()
        return attachment_text(name, found.text)

    async def _approve_summary(self, draft: SummaryDraft) -> bool | str:
        """Show what a summary loses and ask whether it may count; it may be edited."""
        if lost := describe_losses(draft.summary.put_back, draft.summary.left_out):
            self.screen.show(ChatNotice(lost))
        what = f"This summary is to stand for {draft.replaced_tokens:,} tokens. Edit it, or leave it as it is"
        edited = await self.screen.edit_text(what, draft.summary.text)
        return False if edited is None else edited if edited != draft.summary.text else True


def describe_failure(error: Exception, model: str) -> str:
    """Return what went wrong and what to do, in a line."""
    if isinstance(error, HoldfastError):
        return str(error)
    if any(
        kind.__module__.split(".")[0] in {"mcp", "fastmcp"} or kind.__name__ == "MCPError"
        for kind in type(error).__mro__
    ):
        return f"a server for tools failed: {redact_text(str(error))}; check [mcp] in the settings, or take it out"
    return str(as_model_error(model, error))


def new_session_id() -> str:
    """Return the id of a new session: when it began, and something of its own."""
    return f"{datetime.now(UTC):%Y-%m-%d-%H%M%S}-{secrets.token_hex(2)}"
