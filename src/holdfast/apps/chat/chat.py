"""A user's conversation: its session, the agent that answers, and its turns.

All output goes through a screen and all storage through the session, so the same chat runs in a terminal, in a pipe
and in a test. A new conversation starts with the context board of its repository and branch.
"""

import asyncio
import secrets
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from holdfast.apps.chat.events import ChatNotice, NoticeLevel, Screen, TurnEnded, TurnOutcome, describe_losses
from holdfast.apps.chat.file_tools import FileTools
from holdfast.apps.chat.prompts import attachment_text, clean_prompt, is_too_large, save_attachment
from holdfast.apps.chat.runtime import RuntimeCache
from holdfast.apps.settings.build import (
    SessionCallbacks,
    board_from,
    budget_from,
    open_session,
    rem_agent_from,
    request_budget,
    update_session_settings,
)
from holdfast.apps.settings.models import bare_model_name, configured_model
from holdfast.apps.settings.settings import Settings
from holdfast.core.history.events import MAIN
from holdfast.core.planning.context_report import ContextReport
from holdfast.core.planning.situation import Budget
from holdfast.core.recall.artifacts import strip_artifact_references
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import HoldfastError, SettingsError, StoreError, UnknownSessionError
from holdfast.models.errors import as_model_error
from holdfast.redaction import redact_text
from holdfast.session.compaction.compactor import SummaryDraft
from holdfast.session.log.timestamps import local_day
from holdfast.session.memory.board_file import MAX_OFFERED_TOKENS, board_key
from holdfast.session.memory.consolidation import RemAgent
from holdfast.session.session import Session
from holdfast.stores.base import Store, resolve_session_id
from holdfast.stores.open import open_store

CHAT_SESSION_FORMAT = "pydantic-ai"
BOARD_SHARE = 1 / 16
"""The largest share of the budget for a board."""


async def offer_board(session: Session, settings: Settings, screen: Screen, budget: Budget) -> None:
    """Add the board to a session as a note, and record which board it is; show errors on the screen."""
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
    """The values of the status line."""

    model: str
    budget: int
    tokens: int = 0
    provenance: str = ""
    cost: float | None = None
    """Dollars since the program started; None if the prices are unknown."""
    compactions: int = 0
    is_compacting: bool = False


class Chat:
    """One user's conversation."""

    def __init__(self, settings: Settings, screen: Screen, *, folder: Path, store: Store | None = None) -> None:
        self.failure_hint = "; /retry sends the prompt again"
        """Advice after a failure, in addition to that of the error message."""
        self.settings = settings
        self.screen = screen
        self.file_tools = FileTools(folder)
        self.store = store or open_store(settings.store)
        self.is_over = False
        self.unrecorded_prompt: str | None = None
        """A prompt that was not recorded; /retry sends it."""
        self._runtimes = RuntimeCache(screen)
        self._session: Session | None = None
        self._turn: asyncio.Task[object] | None = None
        self._contents: ContextReport | None = None
        """What filled the context when it was counted last."""
        self._spent_dollars = 0.0

    def notify(self, text: str, level: NoticeLevel = "info") -> None:
        """Show a notice to the user."""
        self.screen.show(ChatNotice(text, level))

    # Sessions.

    @property
    def session(self) -> Session:
        """The open session."""
        if self._session is None:
            raise SettingsError("session", "none is open yet")
        return self._session

    async def open_conversation(self, session: str | None = None, *, is_newest: bool = False) -> None:
        """Continue the session whose id begins with a text, or the newest session, or start a new one."""
        if session:
            await self._open(await resolve_session_id(self.store, session))
        elif is_newest:
            newest = await self.store.sessions(limit=1)
            if not newest:
                raise UnknownSessionError("the newest", [])
            await self._open(newest[0].id)
        else:
            # The start time and a random part.
            await self._open(f"{datetime.now(UTC):%Y-%m-%d-%H%M%S}-{secrets.token_hex(2)}")

    async def _open(self, session: str) -> None:
        opened = await open_session(self.settings, session, store=self.store, callbacks=self._callbacks())
        format_name = opened.history.format
        if format_name not in {None, CHAT_SESSION_FORMAT}:
            await opened.close()
            problem = f"{session!r} holds {format_name} messages; the chat can continue only its own sessions"
            raise SettingsError("session", problem)
        await self._close_session()
        self._session = opened
        await self.refresh_token_count()
        self.file_tools.attachments = {path.name: path for path in sorted(self._attachments_folder.glob("*.txt"))}
        self._runtimes.invalidate()

    def _callbacks(self) -> SessionCallbacks:
        return SessionCallbacks(
            primary=self._runtimes.summarizer(self.settings),
            approve=self._approve_summary,
            notice=lambda text: self.notify(text, "warning"),
            progress=self.screen.show_busy,
        )

    def rem_agent(self) -> RemAgent | None:
        """Return the agent that maintains the context board; None if boards are off."""
        return rem_agent_from(
            self.settings, self.store, primary=self._runtimes.summarizer(self.settings), clock=self.session.clock
        )

    async def apply_settings(self, settings: Settings) -> None:
        """Continue with other settings."""
        self.settings = settings
        self.session.model = bare_model_name(settings.model)
        await update_session_settings(self.session, settings, self._callbacks())
        self._runtimes.invalidate()

    async def _close_session(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def close(self) -> None:
        """Close the session, the servers and the store."""
        await self._close_session()
        await self._runtimes.close()
        await self.store.close()

    @property
    def _attachments_folder(self) -> Path:
        return self.settings.paths.attachments(self.session.id)

    async def last_exchange(self) -> tuple[str, str]:
        """Return the last prompt and the last answer."""
        newest = [entry.message for entry in reversed(await self.session.visible_messages())]
        prompt = next((message.text for message in newest if message.is_prompt), "")
        answer = next((message.text for message in newest if message.role == "assistant" and message.text), "")
        return prompt, strip_artifact_references(answer)

    # Status.

    @property
    def model(self) -> str:
        """The model of the settings."""
        return self.settings.model

    @property
    def budget(self) -> Budget:
        """The budget of a request."""
        return request_budget(self.settings)

    @property
    def status(self) -> ChatStatus:
        """The status of the conversation."""
        history, contents, known = self.session.history, self._contents, configured_model(self.settings)
        return ChatStatus(
            model=bare_model_name(self.model),
            budget=contents.budget if contents else self.budget.tokens,
            tokens=contents.total if contents else 0,
            provenance=contents.provenance if contents else "",
            cost=self._spent_dollars if known and known.input_price else None,
            compactions=len(history.version.state_of(MAIN).compactions),
            is_compacting=history.session_state.running_compaction is not None
            and history.session_state.ready_summary is None,
        )

    async def refresh_token_count(self) -> None:
        """Count the context again, for the status line."""
        if self._session is not None:
            self._contents = await self._session.context_breakdown(budget=budget_from(self.settings))

    # Turns.

    async def warm_up(self) -> None:
        """Load what the first turn needs; that turn shows any error."""
        with suppress(Exception):
            await self._runtimes.get(self.settings, self.session, self.file_tools)

    async def take_turn(self, typed: str | None) -> TurnOutcome:
        """Run one turn: a prompt and its answer. Without a prompt, answer the last one again."""
        self._turn = asyncio.current_task()
        session, is_first, length = self.session, not len(self.session), len(self.session)
        prompt: str | None = None
        try:
            prompt = None if typed is None else await self._prepare_prompt(typed)
            if prompt == "":
                return "failed"
            if is_first:
                await offer_board(session, self.settings, self.screen, self.budget)
                length = len(session)
            outcome = await self._answer(prompt)
        except asyncio.CancelledError:
            outcome = self._show_interrupted()
        except Exception as error:  # noqa: BLE001 - the conversation continues, whatever a provider's library raises
            outcome = self._show_failed(error)
        finally:
            self._turn = None
        with suppress(HoldfastError):
            await self.refresh_token_count()
        is_recorded = len(session) > length
        self.unrecorded_prompt = None if is_recorded else prompt
        if prompt and is_recorded and is_first:
            with suppress(StoreError):
                await session.rename(" ".join(prompt.split())[:MAX_SESSION_NAME_CHARS])
        return outcome

    def interrupt(self) -> bool:
        """Stop the turn and return whether there was one; the conversation stays valid."""
        return self._turn is not None and self._turn.cancel()

    async def _answer(self, prompt: str | None) -> TurnOutcome:
        runtime = await self._runtimes.get(self.settings, self.session, self.file_tools)
        from holdfast.apps.chat.turn import turn_events  # noqa: PLC0415 - loaded by now

        outcome, last_request = "failed", runtime.capability.last_request
        async with aclosing(turn_events(runtime.agent, prompt, self.settings.max_steps)) as events:
            async for event in events:
                if runtime.capability.last_request is not last_request:
                    last_request = runtime.capability.last_request
                    await self.refresh_token_count()
                if isinstance(event, TurnEnded):
                    outcome = event.outcome
                    self._add_cost(event)
                self.screen.show(event)
        return outcome

    def _show_interrupted(self) -> TurnOutcome:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        self.notify("Interrupted by user.", "warning")
        self.screen.show(TurnEnded("interrupted"))
        return "interrupted"

    def _show_failed(self, error: Exception) -> TurnOutcome:
        failure = describe_failure(error, bare_model_name(self.model))
        self.notify(f"{failure}\nNothing is lost{self.failure_hint}.", "error")
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
        """Return the prompt to send; empty if nothing should be sent."""
        cleaned = clean_prompt(typed)
        if cleaned.problem:
            self.notify(cleaned.problem, "error")
        if cleaned.note:
            self.notify(cleaned.note, "warning")
        if not cleaned.text or not is_too_large(cleaned.text, self.budget.tokens, counter_for(self.model)):
            return cleaned.text
        size = f"{len(cleaned.text):,} characters are too much for a budget of {self.budget.tokens:,} tokens"
        if await self.screen.ask_consent(f"{size}. Attach them as a file that the model reads piece by piece?") == "no":
            self.notify("not sent", "warning")
            return ""
        name, path = await asyncio.to_thread(save_attachment, cleaned.text, self._attachments_folder)
        self.file_tools.attachments[name] = path
        self._runtimes.invalidate()
        return attachment_text(name, cleaned.text)

    async def _approve_summary(self, draft: SummaryDraft) -> bool | str:
        """Show which facts a summary loses, and let the user edit, accept or reject it."""
        if lost := describe_losses(draft.summary.put_back, draft.summary.left_out):
            self.notify(lost)
        what = f"This summary will replace {draft.replaced_tokens:,} tokens. Edit it, or accept it as it is"
        edited = await self.screen.edit_text(what, draft.summary.text)
        return False if edited is None else edited if edited != draft.summary.text else True


def describe_failure(error: Exception, model: str) -> str:
    """Return a text that says what failed and what to do."""
    if isinstance(error, HoldfastError):
        return str(error)
    if any(
        kind.__module__.split(".")[0] in {"mcp", "fastmcp"} or kind.__name__ == "MCPError"
        for kind in type(error).__mro__
    ):
        return f"an MCP server failed: {redact_text(str(error))}; check [mcp] in the settings, or remove the server"
    return str(as_model_error(model, error))
