"""The conversation a person has: which session it is, who answers, and what may be done about it.

Everything that is shown goes through a screen and everything that is kept through the session, so the same chat runs
in a terminal, behind a pipe, and in a test.
"""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from holdfast.app.build import budget_from, follow, open_session, rem_agent_from, store_url
from holdfast.app.models import bare_name, model_of
from holdfast.app.settings import Settings
from holdfast.chat.answerer import Answerer
from holdfast.chat.folder import Folder
from holdfast.chat.happenings import Notice, Outcome, Screen, TurnEnded
from holdfast.chat.inbox import FORMAT, welcomed
from holdfast.chat.losses import losses_told
from holdfast.chat.prompts import attached, is_too_large, reference, sound
from holdfast.core.history.artifacts import without_references
from holdfast.core.history.events import MAIN
from holdfast.core.planning.situation import Budget
from holdfast.counters.models import budget_for
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import HoldfastError, SettingsError, StoreError, UnknownSessionError
from holdfast.models.base import Writer
from holdfast.models.refusals import translated
from holdfast.redaction import redacted
from holdfast.session.compactor import Approval, Draft
from holdfast.session.memory.consolidation import RemAgent
from holdfast.session.request import PreparedRequest
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.listing import session_named
from holdfast.stores.open import open_store

MAX_NAME_CHARS = 100


class Company(TypedDict):
    """Who is with a session."""

    primary: Writer | None
    approve: Approval
    notice: Callable[[str], None]
    progress: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Status:
    """How the conversation stands: what the meter shows."""

    model: str
    budget: int
    tokens: int = 0
    provenance: str = ""
    cost: float | None = None
    """Dollars, since the program began; None where nobody knows the prices."""
    folds: int = 0
    is_compacting: bool = False


class Chat:
    """One person's conversation."""

    def __init__(self, settings: Settings, screen: Screen, *, folder: Path, store: Store | None = None) -> None:
        self.hint = "; /retry asks again"
        """What to do after a failure, besides what its own words say."""
        self.settings = settings
        self.screen = screen
        self.folder = Folder(folder)
        self.store = store or open_store(store_url(settings))
        self.is_over = False
        self.unsaid: str | None = None
        """A prompt that could not even be recorded; /retry says it."""
        self._answerer = Answerer(screen)
        self._session: Session | None = None
        self._turn: asyncio.Task[object] | None = None
        self._last: PreparedRequest | None = None
        self._held = 0
        """What the context took when it was opened, or last changed without a request."""
        self._changes = 0
        """How often the context had changed then."""
        self._spent = 0.0

    # Which session.

    @property
    def session(self) -> Session:
        """The session that is being talked in."""
        if self._session is None:
            raise SettingsError("session", "none is open yet")
        return self._session

    async def begin(self, session: str | None = None, *, is_newest: bool = False) -> None:
        """Go on with a session, by the beginning of its id; with the newest one; or begin a new one."""
        if session:
            await self._open(await session_named(self.store, session))
        elif is_newest:
            newest = await self.store.sessions(limit=1)
            if not newest:
                raise UnknownSessionError("the newest", [])
            await self._open(newest[0].id)
        else:
            await self._open(new_id())

    async def _open(self, session: str) -> None:
        opened = await open_session(self.settings, session, store=self.store, **self._company())
        spoken = opened.history.format
        if spoken not in {None, FORMAT}:
            await opened.close()
            problem = f"{session!r} holds {spoken} messages; the chat goes on with sessions of its own only"
            raise SettingsError("session", problem)
        await self._leave()
        self._session = opened
        await self._count()
        self.folder.beside = {path.name: path for path in sorted(self._attachments.glob("*.txt"))}
        self._answerer.forget()

    def _company(self) -> Company:
        """Return who is with a session: who writes for it, who approves, and who hears of it."""
        return {
            "primary": self._answerer.writer(self.settings),
            "approve": self._approved,
            "notice": lambda text: self.screen.show(Notice(text, "warning")),
            "progress": self.screen.busy,
        }

    def rem_agent(self) -> RemAgent | None:
        """Return who keeps the context board; None where boards are off."""
        return rem_agent_from(
            self.settings, self.store, primary=self._answerer.writer(self.settings), clock=self.session.clock
        )

    async def adopt(self, session: Session) -> None:
        """Go on with a session that is already open, such as a fork."""
        await session.close()
        await self._open(session.id)

    async def change(self, settings: Settings) -> None:
        """Go on under other settings."""
        self.settings = settings
        self.session.model = bare_name(settings.model)
        await follow(self.session, settings, **self._company())
        self._answerer.forget()

    async def _leave(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def close(self) -> None:
        """Give back everything; the conversation is kept already."""
        await self._leave()
        await self._answerer.close()
        await self.store.close()

    @property
    def _attachments(self) -> Path:
        return self.settings.places.attachments(self.session.id)

    async def recap(self) -> tuple[str, str]:
        """Return the last thing that was asked, and the last answer."""
        shown = [entry.message for entry in await self.session.shown()]
        asked = next((message.text for message in reversed(shown) if message.is_prompt), "")
        answer = next((message.text for message in reversed(shown) if message.role == "assistant" and message.text), "")
        return asked, without_references(answer)

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
    def status(self) -> Status:
        """How the conversation stands."""
        history, last, known = self.session.history, self._last, model_of(self.settings)
        return Status(
            model=bare_name(self.model),
            budget=self.budget.tokens,
            tokens=last.tokens.total if last else self._held,
            provenance=last.tokens.provenance if last else "estimated" if self._held else "",
            cost=self._spent if known and known.input_price else None,
            folds=len(history.version.of(MAIN).folds),
            is_compacting=history.facts.running is not None and history.facts.written is None,
        )

    async def recount(self) -> None:
        """Count what the context holds where something other than a request has changed it."""
        if self._session is not None and self._session.history.changes != self._changes:
            await self._count()

    async def _count(self) -> None:
        session, self._last = self.session, None
        self._held = (await session.contents(budget=self.budget)).total if len(session) else 0
        self._changes = session.history.changes

    # Turns.

    async def check_model(self, settings: Settings) -> None:
        """Raise why the model of other settings could not answer."""
        await self._answerer.check(settings)

    async def warm_up(self) -> None:
        """Load what the first turn needs; what is wrong with it is said there, where it can be acted upon."""
        with suppress(Exception):
            await self._answerer.ready(self.settings, self.session, self.folder)

    async def say(self, typed: str | None) -> Outcome:
        """Take one turn: a prompt and its answer. Without a prompt, the last one is asked again."""
        self._turn = asyncio.current_task()
        session, is_first, said = self.session, not len(self.session), len(self.session)
        prompt: str | None = None
        try:
            prompt = None if typed is None else await self._fit(typed)
            if prompt == "":
                return "failed"
            if is_first:
                await welcomed(session, self.settings, self.screen, self.budget)
                said = len(session)
            outcome = await self._answer(prompt)
        except asyncio.CancelledError:
            outcome = self._stopped()
        except Exception as error:  # noqa: BLE001 - whatever a provider's library raises, the conversation goes on
            outcome = self._failed(error)
        finally:
            self._turn = None
        is_recorded = len(session) > said
        self.unsaid = None if is_recorded else prompt
        if prompt and is_recorded and is_first:
            with suppress(StoreError):
                await session.rename(" ".join(prompt.split())[:MAX_NAME_CHARS])
        return outcome

    def interrupt(self) -> bool:
        """Stop the turn, and say whether there was one; the conversation stays valid."""
        return self._turn is not None and self._turn.cancel()

    async def _answer(self, prompt: str | None) -> Outcome:
        mind = await self._answerer.ready(self.settings, self.session, self.folder)
        from holdfast.chat.turn import happenings  # noqa: PLC0415 - loaded by now, and not before it is needed

        outcome: Outcome = "failed"
        async with aclosing(happenings(mind.agent, prompt, self.settings.max_steps)) as told:
            async for happening in told:
                self._last = mind.governed.last or self._last
                self._changes = self.session.history.changes
                if isinstance(happening, TurnEnded):
                    outcome = happening.outcome
                    self._pay(happening)
                self.screen.show(happening)
        return outcome

    def _stopped(self) -> Outcome:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        self.screen.show(Notice("Interrupted by user.", "warning"))
        self.screen.show(TurnEnded("interrupted"))
        return "interrupted"

    def _failed(self, error: Exception) -> Outcome:
        self.screen.show(Notice(f"{told_of(error, bare_name(self.model))}\nNothing is lost{self.hint}.", "error"))
        self.screen.show(TurnEnded("failed"))
        return "failed"

    def _pay(self, ended: TurnEnded) -> None:
        known = model_of(self.settings)
        if known is None or not known.input_price:
            return
        read = known.input_price if known.cache_read_price is None else known.cache_read_price
        fresh = ended.input_tokens - ended.cached_tokens
        paid = fresh * known.input_price + ended.cached_tokens * read + ended.output_tokens * (known.output_price or 0)
        self._spent += paid / 1_000_000

    async def _fit(self, typed: str) -> str:
        """Return a prompt as it can be said; empty if it is not to be."""
        found = sound(typed)
        if found.problem:
            self.screen.show(Notice(found.problem, "error"))
        if found.note:
            self.screen.show(Notice(found.note, "warning"))
        if not found.text or not is_too_large(found.text, self.budget.tokens, counter_for(self.model)):
            return found.text
        size = f"{len(found.text):,} characters are too much for a budget of {self.budget.tokens:,} tokens"
        if await self.screen.consent(f"{size}. Attach them as a file that the model reads piece by piece?") == "no":
            self.screen.show(Notice("not sent", "warning"))
            return ""
        name, path = await asyncio.to_thread(attached, found.text, self._attachments)
        self.folder.beside[name] = path
        self._answerer.forget()
        return reference(name, found.text)

    async def _approved(self, draft: Draft) -> bool | str:
        """Show what a summary loses and ask whether it may count; it may be edited."""
        if lost := losses_told(draft.summary.put_back, draft.summary.left_out):
            self.screen.show(Notice(lost))
        what = f"This summary is to stand for {draft.replaced_tokens:,} tokens. Edit it, or leave it as it is"
        edited = await self.screen.edited(what, draft.summary.text)
        return False if edited is None else edited if edited != draft.summary.text else True


def told_of(error: Exception, model: str) -> str:
    """Return what went wrong and what to do, in a line."""
    if isinstance(error, HoldfastError):
        return str(error)
    if any(
        kind.__module__.split(".")[0] in {"mcp", "fastmcp"} or kind.__name__ == "MCPError"
        for kind in type(error).__mro__
    ):
        return f"a server for tools failed: {redacted(str(error))}; check [mcp] in the settings, or take it out"
    return str(translated(model, error))


def new_id() -> str:
    """Return the id of a new session: when it began, and something of its own."""
    return f"{datetime.now(UTC):%Y-%m-%d-%H%M%S}-{secrets.token_hex(2)}"
