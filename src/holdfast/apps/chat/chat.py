"""A user's conversation: its session, the agent that answers, and its turns.

All output goes through a screen and all storage through the session, so the same chat runs in a terminal, in a pipe
and in a test. A new conversation starts with the context board of its repository and branch.
"""

import asyncio
import gc
import os
import re
import secrets
import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

from holdfast.apps.chat.attachments import (
    MAX_INLINE_SHARE,
    AttachedImage,
    AttachedText,
    PreparedPrompt,
    mentioned_files,
    missing_files,
    read_attachment,
    render_text,
)
from holdfast.apps.chat.events import (
    ChatEvent,
    ChatNotice,
    ConversationCompacted,
    LostOutputError,
    NoticeLevel,
    Screen,
    TextDelta,
    ThinkingDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEnded,
    TurnOutcome,
    describe_losses,
)
from holdfast.apps.chat.plain_screen import preview_line
from holdfast.apps.chat.prompts import attachment_text, clean_prompt, is_too_large, new_attachment_name
from holdfast.apps.chat.runtime import RequestParts, RuntimeCache
from holdfast.apps.chat.tools.files import FileTools
from holdfast.apps.settings.build import (
    SessionCallbacks,
    board_from,
    delete_session_files,
    open_session,
    rem_agent_from,
    request_budget,
    update_session_settings,
)
from holdfast.apps.settings.models import bare_model_name, configured_model, key_variables, unknown_model_notice
from holdfast.apps.settings.settings import Settings
from holdfast.core.conversation.messages import user
from holdfast.core.conversation.tokens import TokenCount
from holdfast.core.history.events import MAIN, CompactionCompleted
from holdfast.core.planning.context_report import ContextReport
from holdfast.core.planning.situation import Budget
from holdfast.core.recall.artifacts import strip_artifact_references
from holdfast.core.recall.ranking import search_words
from holdfast.core.schema import is_integer
from holdfast.counters.vocabularies import counter_for, load_vocabulary
from holdfast.errors import (
    HoldfastError,
    ModelAccessError,
    ModelRefusedError,
    SettingsError,
    StoreError,
    UnknownSessionError,
)
from holdfast.models.base import is_embedded
from holdfast.models.errors import as_model_error
from holdfast.redaction import redact_text
from holdfast.session.compaction.compactor import SummaryDraft
from holdfast.session.log.timestamps import local_day
from holdfast.session.memory.board_file import MAX_OFFERED_TOKENS, board_key
from holdfast.session.memory.consolidation import RemAgent
from holdfast.session.session import Session
from holdfast.session.subscription import EventCallback
from holdfast.stores.base import SessionInfo, Store, resolve_session_id, session_info, session_value_key
from holdfast.stores.open import open_store
from holdfast.text import pluralize
from holdfast.wire.convert import convert
from holdfast.wire.formats import format_named

if TYPE_CHECKING:
    from holdfast.adapters.pydantic_ai import Holdfast
    from holdfast.session.request import Request

CHAT_SESSION_FORMAT = "pydantic-ai"
CONVERTED_SUFFIX = "-chat"
"""The end of the id of a copy in the chat's format."""
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


def _copy_key(session: str) -> str:
    """Return the key under which a store keeps how many messages of another session a copy began with."""
    return session_value_key(session, "copied")


def session_title(text: str) -> str:
    """Return the beginning of a text as one line, without the invisible characters that join letters and emoji."""
    beginning = text.strip()[:MAX_TITLE_SOURCE_CHARS]
    printable = "".join(char if char.isprintable() else " " for char in beginning)
    return " ".join(printable.split())[:MAX_SESSION_NAME_CHARS]


MAX_SESSION_NAME_CHARS = 100
MAX_TITLE_SOURCE_CHARS = 1_000
"""How much of a prompt is looked at for a title."""
MAX_RESUME_CANDIDATES = 20
_WORD_PARTS = re.compile(r"[^\W_]{2,}")
MAX_SEARCHED_SESSIONS, MAX_SEARCH_HITS = 1_000, 200
"""How many sessions are searched by title, and how many hits of a search are looked at."""


@dataclass(frozen=True, slots=True)
class ChatStatus:
    """The values of the status line."""

    model: str
    budget: int
    """The largest request in tokens."""
    tokens: int | None = None
    """What the next request holds; None until it is counted."""
    is_shortened_next: bool = False
    """Whether the next request holds less, because this is more than it may hold."""
    provenance: str = ""
    cost: float | None = None
    """Dollars since the program started; None if the prices are unknown."""
    compactions: int = 0
    is_compacting: bool = False


@dataclass(frozen=True, slots=True)
class Activity:
    """What the user is waiting for."""

    what: str
    started: float
    """When it began, on the monotonic clock."""


CHARS_PER_TOKEN = 4
"""For the size of an answer that is still being written."""


class TurnProgress:
    """How far the running turn is, for the line that says what the user waits for."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._phase = ""
        self._written_chars = 0
        self._written: list[str] = []
        self._capability: Holdfast | None = None
        self._former_request: Request | None = None
        self.is_stopping = False
        """Whether the user has stopped the turn, which may wait for a command to end."""

    def watch(self, capability: "Holdfast") -> None:
        """Watch the requests that the turn prepares."""
        self._capability, self._former_request = capability, capability.last_request

    @property
    def request(self) -> "Request | None":
        """The newest request of the turn."""
        request = self._capability.last_request if self._capability is not None else None
        return None if request is self._former_request else request

    def note(self, event: ChatEvent) -> None:
        """Take an event of the turn into account."""
        match event:
            case TextDelta(text):
                self._phase, self._written_chars = "writing", self._written_chars + len(text)
                self._written.append(text)
            case ThinkingDelta():
                self._phase = "thinking"
            case ToolCallStarted(tool=tool):
                self._phase = f"running {preview_line(tool)}"
            case ToolCallFinished():
                self._phase, self._written_chars = "", 0
            case _:
                return

    @property
    def text(self) -> str:
        """What the model has written so far."""
        return "".join(self._written)

    @property
    def activity(self) -> Activity:
        """What the turn does now."""
        request, what = self.request, self._phase
        if self.is_stopping:
            what = "stopping"
        elif what == "writing":
            what = f"writing · {self._written_chars // CHARS_PER_TOKEN:,} tokens"
        elif not what:
            what = "starting" if request is None else f"reading {request.tokens.total:,} tokens"
        return Activity(what, self._started)


@dataclass(slots=True)
class _Unsent:
    """What a conversation has not sent yet; no other conversation sends it."""

    prompt: str | PreparedPrompt | None = None
    """A prompt that was not recorded: as it was typed, if it could not be prepared."""
    typed: str = ""
    """How the user typed it."""
    news: list[str] = field(default_factory=list[str])
    """What the model is told with the next prompt."""


class Chat:
    """One user's conversation."""

    def __init__(self, settings: Settings, screen: Screen, *, folder: Path, store: Store | None = None) -> None:
        self.failure_hint: Callable[[Chat], str] = lambda _: "; /retry sends the prompt again"
        """Returns advice after a failure, in addition to that of the error message."""
        self.session_callback: EventCallback | None = None
        """Called with the events of each session that is open."""
        self.settings = settings
        self.screen = screen
        self.file_tools = FileTools(folder)
        self.store = store or open_store(settings.store)
        self.is_over = False
        self.listed_sessions: list[str] = []
        """The sessions that /sessions listed last, for /resume N."""
        self.local_models: list[str] = []
        """The models that Ollama and the endpoint in use offer, as far as they were asked."""
        self.attached: list[AttachedText | AttachedImage] = []
        """What the user has attached to the next prompt."""
        self._unsent: defaultdict[str, _Unsent] = defaultdict(_Unsent)
        """By the id of each session of this chat, what it has not sent yet."""
        self._runtimes = RuntimeCache(screen)
        self._session: Session | None = None
        self._turn: asyncio.Task[object] | None = None
        self._progress: TurnProgress | None = None
        self._sent: TokenCount | None = None
        """The size of the newest request of the running turn."""
        self._context: ContextReport | None = None
        """What the next request would hold, counted when the context, the budget or the policy last changed."""
        self._counted_state: object = None
        """What that depended on."""
        self._is_warm = False
        """Whether the libraries of the model are loaded, without which the tools of the first request are unknown."""
        self._announced: tuple[CompactionCompleted, ...] = ()
        """The compactions that were in effect when they were last announced."""
        self._shown_compactions: list[CompactionCompleted] = []
        """Those that were ever shown; one that /redo applies again is no news."""
        self._unanswered_prompt: int | None = None
        """The position of the newest prompt, if its turn failed without an answer."""
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

    @property
    def unrecorded_prompt(self) -> str | PreparedPrompt | None:
        """A prompt of this conversation that was not recorded; /retry sends it."""
        return self._unsent[self.session.id].prompt

    @unrecorded_prompt.setter
    def unrecorded_prompt(self, prompt: str | PreparedPrompt | None) -> None:
        self._unsent[self.session.id].prompt = prompt

    @property
    def unrecorded_texts(self) -> list[str]:
        """The prompts that no conversation of this chat has recorded, as they were typed."""
        return [unsent.typed for unsent in self._unsent.values() if unsent.prompt is not None and unsent.typed]

    def copy_unsent(self, copy: str) -> None:
        """Let a copy of this conversation send what this one has not sent yet."""
        unsent = self._unsent[self.session.id]
        self._unsent[copy] = _Unsent(unsent.prompt, unsent.typed, [*unsent.news])

    async def open_conversation(self, session: str | None = None, *, is_newest: bool = False) -> None:
        """Continue a session by its id, its title or its words, or the newest session, or start a new one."""
        if session:
            await self._open(await self._resolve(session))
        elif is_newest:
            newest = await self.store.sessions(limit=1)
            if not newest:
                raise UnknownSessionError("the newest", [])
            await self._open(newest[0].id)
        else:
            # The start time and a random part.
            await self._open(f"{datetime.now(UTC):%Y-%m-%d-%H%M%S}-{secrets.token_hex(2)}")

    async def find_sessions(self, words: str, limit: int) -> list[SessionInfo]:
        """Return sessions by the beginning of their id, by words of their title, then by what was said in them."""
        by_id = await self.store.sessions(prefix=words, limit=limit)
        if not words or by_id:
            return by_id
        listed = await self.store.sessions(limit=MAX_SEARCHED_SESSIONS)
        wanted = words.casefold().split()
        titled = [info for info in listed if all(word in info.name.casefold() for word in wanted)]
        hits = await self.store.search(words, limit=MAX_SEARCH_HITS)
        known = {info.id: info for info in listed}
        said = [known[one] for one in dict.fromkeys(hit.session for hit in hits) if one in known]
        return list({info.id: info for info in (*titled, *said)}.values())[:limit]

    async def _resolve(self, words: str) -> str:
        """Return the id of the session that the user means; raises if there is none."""
        try:
            return await resolve_session_id(self.store, words)
        except UnknownSessionError:
            wanted = words.casefold().split()
            for info in await self.find_sessions(words, MAX_RESUME_CANDIDATES):
                is_named = info.id.startswith(words) or all(word in info.name.casefold() for word in wanted)
                if is_named or await self._has_all_words(info.id, words):
                    return info.id
            raise

    async def _has_all_words(self, session: str, words: str) -> bool:
        """Return whether each word was said in a session; a search finds what has any of them, or of their parts."""
        said = search_words(words)
        terms = dict.fromkeys(_WORD_PARTS.findall(said) or said.split())
        return all([await self.store.search(term, session=session, limit=1) for term in terms])

    async def _open(self, session: str) -> None:
        opened = await self._open_session(session)
        if opened.history.format not in {None, CHAT_SESSION_FORMAT}:
            opened = await self._open_converted(opened)
        # The status line is drawn at any time, so there is always an open session to describe.
        former, self._session = self._session, opened
        if self.session_callback is not None:
            opened.on(self.session_callback)
        self._context = self._sent = None
        self._announced = self._compactions
        self._unanswered_prompt = await self._find_unanswered_prompt()
        if former is not None:
            await former.close()
        await self.refresh_token_count()
        await self._warn_about_model()
        self.file_tools.attachments = await self._read_attachments()
        self._runtimes.invalidate()

    async def _open_session(self, session: str) -> Session:
        """Open a session, and say which others have expired, and what was deleted of them."""
        folders, problems = dict[str, list[Path]](), list[str]()

        def delete_files(expired: str) -> None:
            try:
                folders[expired] = delete_session_files(self.settings, expired)
            except StoreError as error:
                problems.append(str(error))
                raise

        callbacks = self._callbacks()
        opened = await open_session(
            self.settings, session, store=self.store, callbacks=callbacks, delete_files=delete_files
        )
        for expired in opened.expired_sessions:
            also = "".join(f", {folder}" for folder in folders.get(expired, []))
            self.notify(f"deleted {expired}, which its settings keep for a limited time{also}")
        for problem in problems:
            self.notify(problem, "warning")
        return opened

    async def _open_converted(self, other: Session) -> Session:
        """Close a session in another format, and return its copy in the chat's format, made now or earlier."""
        session_id, format_name = f"{other.id}{CONVERTED_SUFFIX}", other.history.format or ""
        copy = await self._open_session(session_id)
        attached = copy.history.session_state.attachments
        if len(copy) == len(attached):  # the messages come last: without them the copy is not complete
            messages, notes = convert_to_chat(await other.messages(), format_name)
            for name in other.attachments:
                if name not in attached:
                    await copy.attach(name, await other.attachment(name), format=CHAT_SESSION_FORMAT)
            await self.store.put_value(_copy_key(copy.id), {"messages": len(other)})
            await copy.record(messages, format=CHAT_SESSION_FORMAT)
            await copy.rename(f"continues {other.id}")
            for note in notes:
                self.notify(note, "warning")
        self.notify(f"{other.id} holds {format_name} messages; the chat continues its copy {copy.id}")
        copied = (await self.store.get_value(_copy_key(copy.id)) or {}).get("messages")
        if is_integer(copied) and (newer := len(other) - copied) > 0:
            # A program or a gateway went on with it, and the model would not know.
            delete = f"holdfast sessions rm {shlex.quote(copy.id)}{self.settings.store_option()}"
            self.notify(
                f"{other.id} has {pluralize(newer, 'message')} that the copy lacks, because they came later; to"
                f" continue with them instead, delete the copy first: {delete}",
                "warning",
            )
        await other.close()
        return copy

    async def _warn_about_model(self) -> None:
        """Say if another model answered before, and if the window of the model is not known."""
        answers = (entry for entry in reversed(await self.session.visible_messages()) if entry.position is not None)
        last = next((entry.message.native for entry in answers if entry.message.role == "assistant"), None)
        before, now = str((last or {}).get("model_id") or ""), bare_model_name(self.model)
        if before and before.rpartition(":")[2] != now.rpartition(":")[2]:
            # Models of every OpenAI-compatible endpoint, the embedded one too, are recorded with this prefix.
            former = before.removeprefix("openai:")
            self.notify(f"{former} answered in this conversation before; now {now} does. /model NAME switches")
        self.warn_about_window()

    def warn_about_window(self) -> None:
        """Say which window is assumed if the model is unknown and the settings set no limit."""
        if self.settings.max_context_tokens is None and (notice := unknown_model_notice(self.settings)) is not None:
            self.notify(notice, "warning")

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
        if settings.model != self.model:
            # Another model may be at another address, where nothing is learned yet.
            self.session.endpoint = None
        self.settings = settings
        self.session.model = bare_model_name(settings.model)
        await update_session_settings(self.session, settings, self._callbacks())
        self._runtimes.invalidate()

    async def close(self) -> None:
        """Close the session, the servers and the store."""
        if self._session is not None:
            await self._session.close()
        await self._runtimes.close()
        await self.store.close()

    async def _read_attachments(self) -> dict[str, str]:
        """Return the attachments of the session; versions before 0.1 kept them as files outside the store."""
        folder = self.settings.paths.attachments(self.session.id)

        def read_older() -> dict[str, str]:
            return {path.name: path.read_text("utf-8", errors="replace") for path in sorted(folder.glob("*.txt"))}

        older = await asyncio.to_thread(read_older)
        return older | {name: await self.session.attachment(name) for name in self.session.attachments}

    async def follow_attachments(self) -> None:
        """Let the model read the session's attachments: a clear or a rewind removes some, an undo restores them."""
        recorded, here = self.session.history.session_state.attachments, self.session.attachments
        known = self.file_tools.attachments
        kept = {name: text for name, text in known.items() if name in here or name not in recorded}
        new = {name: await self.session.attachment(name) for name in here if name not in kept}
        if new or len(kept) < len(known):
            self.file_tools.attachments = kept | new
            self._runtimes.invalidate()

    async def last_exchange(self) -> tuple[str, str]:
        """Return the last prompt, and the last text of its answer; the answer is empty if there is none."""
        answer = ""
        for entry in reversed(await self.session.visible_messages()):
            message = entry.message
            if message.is_prompt:
                return message.text, strip_artifact_references(answer)
            if message.role == "assistant":
                answer = answer or message.text
        return "", strip_artifact_references(answer)

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
        history, context, known = self.session.history, self._context, configured_model(self.settings)
        sent = self._progress.request if self._progress is not None else None
        shown = (sent.tokens if sent else self._sent) or context
        return ChatStatus(
            model=bare_model_name(self.model),
            budget=context.capacity if context else self.budget.tokens,
            tokens=shown.total if shown and (self._is_warm or len(self.session)) else None,
            is_shortened_next=context is not None and context is shown and context.total > context.budget,
            provenance=shown.provenance if shown else "",
            cost=self._spent_dollars if known and known.input_price else None,
            compactions=len(self._compactions),
            is_compacting=history.session_state.running_compaction is not None
            and history.session_state.ready_summary is None,
        )

    @property
    def activity(self) -> Activity | None:
        """What the user is waiting for; None if no turn runs."""
        return self._progress.activity if self._progress is not None else None

    @property
    def _compactions(self) -> tuple[CompactionCompleted, ...]:
        return self.session.history.version.state_of(MAIN).compactions

    def announce_compactions(self, sent: TokenCount | None = None) -> None:
        """Show each compaction that has taken effect since the last call.

        `sent` is the size of the request that followed. It is larger than the compaction says if the request is the
        first with the recall tool, and the meter beside the notice shows it.
        """
        before, self._announced = self._announced, self._compactions
        for event in self._announced:
            # A compaction from which messages were restored is larger than before; the command says so itself. One that
            # a later compaction replaced is in force again when that one is undone; this is no news either.
            is_known = any(event is known or event.span.stop < known.span.stop for known in before)
            was_shown = any(event is shown for shown in self._shown_compactions)
            if event.tokens_removed > 0 and not is_known and not was_shown:
                self._shown_compactions.append(event)
                shown = ConversationCompacted.from_event(event)
                self.screen.show(shown if sent is None else replace(shown, tokens_after=sent.total))

    async def refresh_token_count(self) -> None:
        """Count what the next request would hold, if that may have changed since the last count."""
        session, self._sent = self.session, None
        state = session.id, session.history.change_count, len(session), self.settings, session.policy, self._is_warm
        if state == self._counted_state:
            return
        # Before the first request, the system text and the tools are known once the libraries are loaded.
        counted = self.context_report() if self._is_warm else session.context_breakdown(budget=self.budget)
        self._context = await counted
        self._counted_state = state

    async def context_report(self, settings: Settings | None = None) -> ContextReport:
        """Return what the next request would hold, also with other settings: those of another model."""
        settings = settings or self.settings
        parts = await self.request_parts(settings)
        return await self.session.context_breakdown(
            budget=request_budget(settings),
            model=bare_model_name(settings.model),
            endpoint=parts.endpoint if parts else None,
            system=parts.system if parts else None,
            tools=parts.tools if parts else None,
        )

    async def compact_for(self, settings: Settings) -> None:
        """Compact the conversation so that a request with these settings can hold it, as far as that is possible."""
        parts = await self.request_parts(settings)
        await self.session.switch_model(
            bare_model_name(settings.model),
            budget=request_budget(settings),
            endpoint=parts.endpoint if parts else None,
            system=parts.system if parts else None,
            tools=parts.tools if parts else None,
        )

    async def request_parts(self, settings: Settings) -> RequestParts | None:
        """Return what the next request carries besides the messages; None if the next turn will show an error."""
        try:
            return await self._runtimes.request_parts(settings, self.session, self.file_tools)
        except Exception:  # noqa: BLE001 - a library of a provider may raise anything
            return None

    # Turns.

    async def warm_up(self) -> None:
        """Load what the first turn needs; that turn shows any error."""
        with suppress(Exception):
            await asyncio.to_thread(load_vocabulary, bare_model_name(self.model))
            await self._runtimes.get(self.settings, self.session, self.file_tools)
        self._is_warm = True
        with suppress(HoldfastError):
            await self.refresh_token_count()
        gc.freeze()  # else each full collection walks all that the libraries have loaded: a tenth of a second

    async def take_turn(self, typed: str | PreparedPrompt | None) -> TurnOutcome:
        """Run one turn: a prompt and its answer. Without a prompt, answer the last one again."""
        self._turn, self._progress = asyncio.current_task(), TurnProgress()
        session, is_first = self.session, not len(self.session)
        prompt: PreparedPrompt | None = None
        length: int | None = None
        try:
            prompt = await self._prepare_prompt(typed) if isinstance(typed, str) else typed
            if prompt is None and typed is not None:
                return "failed"
            if prompt:
                self._warn_about_replaced_prompt(typed)
                await self._drop_unanswered_prompt()
            if is_first:
                await offer_board(session, self.settings, self.screen, self.budget)
            length = len(session)
            outcome = await self._answer(prompt)
        except asyncio.CancelledError:
            outcome = self._show_interrupted()
        except LostOutputError:
            raise
        except Exception as error:  # noqa: BLE001 - the conversation continues, whatever a provider's library raises
            outcome = self._show_failed(error)
        finally:
            self._turn = self._progress = None
        is_recorded = length is not None and len(session) > length
        self.unrecorded_prompt = None if is_recorded else prompt or typed
        if isinstance(typed, str):
            self._unsent[session.id].typed = typed
        if prompt and is_recorded and is_first:
            await self._name_session(typed if isinstance(typed, str) else prompt.text)
        with suppress(HoldfastError):
            self._unanswered_prompt = await self._find_unanswered_prompt() if outcome == "failed" else None
            if outcome == "interrupted" and is_recorded and not session.history.was_interrupted(MAIN):
                await session.interrupt()
            await self.refresh_token_count()
        return outcome

    async def _name_session(self, prompt: str) -> None:
        """Call the session by its first prompt, unless the user has given it a title before."""
        with suppress(StoreError):
            info = await session_info(self.store, self.session.id)
            if info is None or not info.name:
                await self.session.rename(session_title(prompt))

    async def _find_unanswered_prompt(self) -> int | None:
        """Return the position of the newest message if it is a prompt whose turn has failed."""
        newest = (await self.session.visible_messages())[-1:]
        is_failed = newest and newest[0].message.is_prompt and not self.session.history.was_interrupted(MAIN)
        return newest[0].position if is_failed else None

    def _warn_about_replaced_prompt(self, typed: str | PreparedPrompt | None) -> None:
        """Say so if another prompt waits for /retry, because it sends the newest only."""
        waiting = self._unsent[self.session.id]
        if waiting.prompt is not None and isinstance(typed, str) and typed != waiting.typed:
            said = preview_line(waiting.typed, MAX_SESSION_NAME_CHARS)
            self.notify(f"the prompt before this one was never recorded, and is not sent: {said}", "warning")

    async def _drop_unanswered_prompt(self) -> None:
        """Take a prompt that failed out of the context, because another one follows it; the log keeps it."""
        position, self._unanswered_prompt = self._unanswered_prompt, None
        if position is not None and position == await self._find_unanswered_prompt():
            await self.session.rewind(to=position)
            self.notify("the prompt before this one had no answer and left the context; /undo brings it back")

    def interrupt(self) -> bool:
        """Stop the turn and return whether there was one; the conversation stays valid."""
        if self._turn is None or self._progress is None or not self._turn.cancel():
            return False
        self._progress.is_stopping = True
        return True

    async def _answer(self, prompt: PreparedPrompt | None) -> TurnOutcome:
        runtime = await self._runtimes.get(self.settings, self.session, self.file_tools)
        self._is_warm = True
        from holdfast.apps.chat.turn import takes_images, turn_events  # noqa: PLC0415 - loaded by now

        if prompt and prompt.images and (is_embedded(self.model) or not takes_images(runtime.agent)):
            raise SettingsError("model", f"{bare_model_name(self.model)} takes no images; /model switches to another")

        outcome: TurnOutcome = "failed"
        progress = self._progress or TurnProgress()
        progress.watch(runtime.capability)
        async with aclosing(turn_events(runtime.agent, prompt, self.settings.max_steps)) as events:
            async for event in events:
                progress.note(event)
                if (request := progress.request) is not None:
                    self._sent = request.tokens
                self.announce_compactions(self._sent)
                if isinstance(event, TurnEnded):
                    outcome = event.outcome
                    event = self._complete(event)  # noqa: PLW2901 - what only the chat knows
                self.screen.show(event)
        return outcome

    def _show_interrupted(self) -> TurnOutcome:
        cast("asyncio.Task[object]", asyncio.current_task()).uncancel()
        self.notify("Interrupted by user.", "warning")
        self.screen.show(self._complete(TurnEnded("interrupted")))
        return "interrupted"

    def _show_failed(self, error: Exception) -> TurnOutcome:
        failure = describe_failure(error, self.model)
        if is_timeout(error) and (limit := self.settings.idle_seconds) is not None:
            failure += f". It sent nothing for {limit} s; /config idle_seconds changes this limit"
        self.notify(f"{failure}\nNothing is lost{self.failure_hint(self)}.", "error")
        self.screen.show(self._complete(TurnEnded("failed")))
        return "failed"

    def _complete(self, ended: TurnEnded) -> TurnEnded:
        """Return the end of a turn with its session, its whole text and its cost."""
        text = self._progress.text if self._progress is not None else ""
        return replace(ended, session=self.session.id, text=text, cost=self._add_cost(ended))

    def _add_cost(self, ended: TurnEnded) -> float | None:
        """Add what a turn costs to the sum, and return it; None if the prices are unknown."""
        known = configured_model(self.settings)
        if known is None or not known.input_price:
            return None
        read = known.input_price if known.cache_read_price is None else known.cache_read_price
        fresh = ended.input_tokens - ended.cached_tokens
        paid = fresh * known.input_price + ended.cached_tokens * read + ended.output_tokens * (known.output_price or 0)
        self._spent_dollars += paid / 1_000_000
        return paid / 1_000_000

    async def _prepare_prompt(self, typed: str) -> PreparedPrompt | None:
        """Return the prompt to send, with the files that it names; None if nothing should be sent."""
        cleaned = clean_prompt(typed)
        if cleaned.problem:
            self.notify(cleaned.problem, "error")
            return None
        if cleaned.note:
            self.notify(cleaned.note, "warning")
        await self.follow_attachments()
        text = cleaned.text
        if is_too_large(text, self.budget.tokens, counter_for(self.model)):
            size = f"{len(text):,} characters are too much for a budget of {self.budget.tokens:,} tokens"
            question = f"{size}. Attach them as a file that the model reads piece by piece?"
            if await self.screen.ask_consent(question) == "no":
                remedy = "the Up key brings it back; in a pipe, --attach - attaches standard input"
                self.notify(f"not sent; {remedy}", "warning")
                return None
            known = self.file_tools.attachments
            # What was attached before a failure is not attached twice.
            again = next((name for name, content in known.items() if content == text), None)
            text = await self._attach_text(again or new_attachment_name(self._attachment_names), text)
        folder = self.file_tools.root
        if missing := await asyncio.to_thread(missing_files, typed, folder):
            self.notify(f"no such file, so nothing is attached for it: {', '.join(missing)}", "warning")
        named = await asyncio.to_thread(
            lambda: [read_attachment(path, folder) for path in mentioned_files(typed, folder)]
        )
        attached = list(dict.fromkeys([*self.attached, *named]))
        parts = [await self._place_text(one) for one in attached if isinstance(one, AttachedText)]
        images = tuple(one for one in attached if isinstance(one, AttachedImage))
        self.attached = [one for one in self.attached if one not in attached]
        unsent = self._unsent[self.session.id]
        news, unsent.news = unsent.news, []
        return PreparedPrompt("\n\n".join([text, *parts, *news]), images)

    def tell_model(self, text: str) -> None:
        """Tell the model something with the next prompt."""
        self._unsent[self.session.id].news.append(f"[{text}]")

    @property
    def _attachment_names(self) -> set[str]:
        return {*self.session.history.session_state.attachments, *self.file_tools.attachments}

    async def _place_text(self, attached: AttachedText) -> str:
        """Return a text file as part of the prompt, or, if it is long, the text that refers to it."""
        limit = int(MAX_INLINE_SHARE * self.budget.tokens)
        if not is_too_large(attached.text, 2 * limit, counter_for(self.model)):
            return render_text(attached)
        name = attached.name
        while name in self._attachment_names and self.file_tools.attachments.get(name) != attached.text:
            name = f"new-{name}"
        return await self._attach_text(name, attached.text)

    async def _attach_text(self, name: str, text: str) -> str:
        """Add a text to the conversation, and return what the prompt holds instead of it."""
        if self.file_tools.attachments.get(name) != text:
            await self.session.attach(name, text, format=CHAT_SESSION_FORMAT)
            self.file_tools.attachments[name] = text
            self._runtimes.invalidate()
        return attachment_text(name, text)

    async def _approve_summary(self, draft: SummaryDraft) -> bool | str:
        """Show which facts a summary loses, and let the user edit, accept or reject it."""
        if lost := describe_losses(draft.summary.put_back, draft.summary.left_out):
            self.notify(lost)
        what = f"This summary will replace {draft.replaced_tokens:,} tokens. Edit it, or accept it as it is"
        edited = await self.screen.edit_text(what, draft.summary.text)
        return False if edited is None else edited if edited != draft.summary.text else True


def convert_to_chat(
    messages: Sequence[Mapping[str, object]], format_name: str
) -> tuple[list[Mapping[str, object]], tuple[str, ...]]:
    """Return messages in the chat's format, and what could not be carried over."""
    source = format_named(format_name)
    ends_with_answer = bool(messages) and source.decode(messages[-1], 0).role == "assistant"
    # A conversion makes a request, which ends with a prompt. The prompt is not part of the conversation.
    prompt = [source.encode(user("…"))] if ends_with_answer else []
    converted = convert([*messages, *prompt], source=format_name, target=CHAT_SESSION_FORMAT)
    return converted.messages[:-1] if ends_with_answer else converted.messages, converted.notes


_WRONG_CALLS = re.compile(r"Tool '(.{1,200})' exceeded max retries", re.DOTALL)
_NO_ANSWER = re.compile(r"Exceeded maximum output retries|ended without content or tool calls")
"""How pydantic-ai tells programmers that it has given up on an answer."""


def is_timeout(error: BaseException | None) -> bool:
    """Return whether an error of any library, or what caused it, is a timeout."""
    if error is None:
        return False
    return any("timeout" in kind.__name__.lower() for kind in type(error).__mro__) or is_timeout(error.__cause__)


def describe_failure(error: Exception, model: str) -> str:
    """Return a text that says what failed and what to do."""
    if any(
        kind.__module__.split(".")[0] in {"mcp", "fastmcp"} or kind.__name__ == "MCPError"
        for kind in type(error).__mro__
    ):
        return f"an MCP server failed: {redact_text(str(error))}; check [mcp] in the settings, or remove the server"
    name = bare_model_name(model)
    if called := _WRONG_CALLS.search(str(error)):
        wrong = f"it called the tool {preview_line(called[1])} wrongly again and again, so the turn was stopped"
        return str(ModelRefusedError(name, wrong))
    if _NO_ANSWER.search(str(error)):
        return str(ModelRefusedError(name, "it answered nothing"))
    known = as_model_error(name, error)
    variables = key_variables(model, os.environ) if isinstance(known, ModelAccessError) else ()
    if not variables or any(variable in str(known) for variable in variables):
        return str(known)
    return f"{known} (it is read from ${' or $'.join(variables)})"
