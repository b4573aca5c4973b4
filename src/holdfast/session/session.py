"""A conversation that is kept: recorded before anything is sent, prepared for each request, and taken back at will.

A session owns the history of one log. Everything it does to it becomes an event that is durable before it
counts; when another process has written meanwhile, the session takes that in and does its own part after it.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from types import TracebackType
from typing import TypeAlias, get_args

from holdfast.core.conversation.messages import user
from holdfast.core.history import events as log
from holdfast.core.history.scope import MainSees
from holdfast.core.history.sees import EVERYTHING, Sees
from holdfast.core.history.sync import difference
from holdfast.core.planning.contents import Contents, contents_of
from holdfast.core.planning.plan import outlook_of
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.presets import policy_of
from holdfast.core.planning.restore import restoration
from holdfast.core.planning.situation import Budget
from holdfast.errors import MalformedInputError, SettingsError, StoreUnavailableError
from holdfast.models.base import Writer
from holdfast.session.child import Delegating
from holdfast.session.circumstances import Wanted, billed_usage
from holdfast.session.compactor import Compaction, Compactor
from holdfast.session.delegating import Delegator, errand_of
from holdfast.session.fetching import fetching
from holdfast.session.given import count, model_named, position, read_beside, read_messages, scope_named, shown, words
from holdfast.session.keeping import Clock, Keeper
from holdfast.session.known import last_sent, name_of, noted, recorded
from holdfast.session.meter import Meter
from holdfast.session.overflow import Ladder
from holdfast.session.preparer import Preparer
from holdfast.session.request import PreparedRequest
from holdfast.session.retention import prune
from holdfast.stores.base import Store, session_named
from holdfast.stores.open import open_store
from holdfast.wire.formats import Format, format_named

Noted: TypeAlias = log.PlanChanged | log.TodosChanged | log.SkillInvoked | log.AgentChanged | log.ProviderSignalled
"""What a caller may record besides messages."""


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return int(time.time() * 1000)


class Session(Delegator):
    """One conversation in a store."""

    def __init__(
        self,
        session_id: str,
        *,
        store: str | Store,
        policy: str | Policy,
        model: str | None,
        compaction: Compaction,
        clock: Clock,
    ) -> None:
        self.id = session_named(session_id)
        self.policy = policy_of(policy)
        self.model = model_named(model)
        self.store = open_store(store)
        self.clock = clock
        self._owns_store = isinstance(store, str)
        if not callable(clock):
            raise SettingsError("clock", f"must be a function that returns milliseconds, not {shown(clock)}")
        keeper = Keeper(self.store, session_id, clock)
        compactor = Compactor(keeper, self.policy, compaction)
        self._meter = Meter(self.store)
        self._preparer = Preparer(keeper, compactor, self._meter, self.policy)
        super().__init__(keeper, compactor, self._preparer, self.policy)
        self._ladder = Ladder(self._preparer, self._meter)

    @classmethod
    def open(
        cls,
        session_id: str,
        *,
        store: str | Store = "memory://",
        policy: str | Policy = "default",
        model: str | None = None,
        summariser: str | Writer | None = None,
        compaction: Compaction | None = None,
        clock: Clock = now_ms,
    ) -> "Opening":
        """Open a session, or begin one; use it with `async with` or `await`.

        `summariser` writes summaries: a pydantic-ai model by its name, or a writer; `compaction` says more about that.
        """
        how = Compaction() if compaction is None else compaction
        if not isinstance(how, Compaction):
            raise SettingsError("compaction", f"must be a Compaction, not {shown(how)}")
        if summariser is not None:
            how = replace(how, automatic=summariser)
        return Opening(cls(session_id, store=store, policy=policy, model=model, compaction=how, clock=clock))

    def __len__(self) -> int:
        return len(self.history)

    @property
    def damage(self) -> list[str]:
        """What of the log could not be taken in, and why."""
        return self._keeper.damage

    async def close(self) -> None:
        """Give back what the session holds open; everything is already durable. Closing twice changes nothing."""
        if self._keeper.turn.is_over:
            return
        await self._compactor.close()
        async with self._keeper.turn:
            await self._keeper.close()
        if self._owns_store:
            await self.store.close()

    @fetching
    async def catch_up(self) -> int:
        """Take in what others have written since, and return how many events that were."""
        async with self._keeper.turn:
            return await self._keeper.take_in()

    @fetching
    async def restore(self) -> None:
        """Go on with as much of the conversation as the policy wants after a restart; nothing is deleted.

        A compaction or a delegation that nobody is at any more is ended, as far as the log can be written to.
        """
        async with self._keeper.turn:
            await self._keeper.take_in()
            with suppress(StoreUnavailableError):
                await self._compactor.tidy()
                await self.end_abandoned()
            if events := restoration(self.history.context(), self.policy):
                await self._keeper.change(*events)

    def remember(self) -> None:
        """Let memory take in what has left the view, beside everything else; where there is one."""
        self._compactor.companions.remember()

    # What was said.

    async def record(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        format: str = "openai-chat",  # noqa: A002 - the word users say
        usage: Mapping[str, int] | None = None,
        duration_ms: int | None = None,
        scope: str = log.MAIN,
        agent: str | None = None,
    ) -> range:
        """Record what was said, and return the positions; durable when this returns.

        `usage` is what the provider billed for the last of them; it corrects the counting of tokens.
        """
        wire, scope = self._format(format), scope_named(scope)
        natives, decoded = read_messages(messages, wire)
        billed = billed_usage(usage)
        events = [
            log.MessageAppended(
                format=wire.name,
                native=native,
                scope=scope,
                agent=agent,
                usage=billed if number == len(natives) - 1 else None,
                duration_ms=duration_ms if number == len(natives) - 1 else None,
            )
            for number, native in enumerate(natives)
        ]
        async with self._keeper.turn:
            events = noted(self.history, events, decoded)
            if billed is not None:
                await self._meter.billed(billed)
            if any(message.role == "assistant" for message in decoded):
                self._ladder.answered(scope)
            return await self._keeper.say(events, decoded)

    async def deliver(self, text: str, *, format: str = "openai-chat") -> int:  # noqa: A002
        """Record a note from memory, and return its position: the model sees it, as reference that nobody has said."""
        wire = self._format(format)
        message = user(words("text", text), trust="memory")
        event = log.MessageAppended(format=wire.name, native=wire.encode(message), trust="memory")
        async with self._keeper.turn:
            return (await self._keeper.say([event], [wire.decode(event.native, 0)])).start

    @fetching
    async def sync(self, messages: Sequence[Mapping[str, object]], *, format: str = "openai-chat") -> range:  # noqa: A002
        """Take in a whole list that somebody sends again: record what is new in it, and return its positions.

        The same list changes nothing; where it differs from what was recorded, that part does not stand any more.
        """
        wire = self._format(format)
        natives, decoded = read_messages(messages, wire)
        async with self._keeper.turn:
            await self._keeper.take_in()
            given = [name_of(native, wire.name) for native in natives]
            known, view = recorded(self.history, self._keeper), last_sent(self._keeper, wire.name)
            found = difference(given, known, view, len(self.history))
            if found.rewind_to is not None:
                await self._keeper.change(self._told(log.Rewound(to=found.rewind_to)))
            events = [log.MessageAppended(format=wire.name, native=native) for native in natives[found.new :]]
            events = noted(self.history, events, decoded[found.new :])
            return await self._keeper.say(events, decoded[found.new :], is_decision=True)

    # What is sent.

    @fetching
    async def prepare(
        self,
        budget: int | Budget | None = None,
        *,
        model: str | None = None,
        system: object = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        scope: str = log.MAIN,
        has_recall: bool | None = None,
    ) -> PreparedRequest:
        """Return the next request: valid for its provider, within its budget, and recorded.

        `has_recall` says whether the model has the tool of `recall_tool`: then markers tell it how to ask for the rest.
        None for as it was last said.
        """
        asked, named = model_named(model) or self.model, await self._keeper.scope(scope_named(scope))
        system, tools = read_beside(system, tools)
        wanted = Wanted(budget=budget, model=asked, system=system, tools=tools, scope=named, has_recall=has_recall)
        return await self._ladder.prepare(wanted)

    @fetching
    async def retry(self, error: object, *, status: int | None = None, scope: str = log.MAIN) -> PreparedRequest:
        """Return the last request made smaller, after the provider refused it as too long.

        `error` is what was raised, or the body of the answer with its `status`. A refusal for another reason, such as
        a rate limit, is raised as the error it is; so is one that no smaller request can help.
        """
        named, told = await self._keeper.scope(scope_named(scope)), None if status is None else count("status", status)
        return await self._ladder.climb(error, told, named)

    # Who else is at work.

    def delegate(
        self,
        agent: str,
        *,
        task: str = "",
        sees: Sees = EVERYTHING,
        main_sees: MainSees | None = None,
        timeout_seconds: float | None = None,
        tells: bool = True,
    ) -> Delegating:
        """Send out another agent: `async with session.delegate("reviewer", task="…") as child`.

        It works in a scope of its own. `sees` says what it is shown of this conversation, `main_sees` what this
        conversation is shown of its work, as the policy says where nothing is given. With `tells=False` the task is
        recorded and not said: `child.opening` is what to say to it first.
        """
        return Delegating(self, errand_of(agent, task, sees, main_sees, timeout_seconds, tells=tells))

    # What becomes of it.

    @fetching
    async def contents(self, *, budget: int | Budget | None = None) -> Contents:
        """Return what the conversation is made of now, what could be freed, when the next fold is due, at what cost."""
        async with self._keeper.turn:
            await self._keeper.take_in()
            calibration = await self._meter.calibration(self.model)
            situation = self._preparer.situation(Wanted(budget=budget, model=self.model))
            situation = replace(situation, calibration=calibration)
            by = self._compactor.summary_by(self.model, self.history.format)
            return contents_of(outlook_of(self.history, self.policy, situation), self.policy, by)

    async def follow(self, policy: str | Policy, *, compaction: Compaction | None = None) -> None:
        """Go by another policy, and with other writers and companions, from now on; what was folded stays as it is."""
        async with self._keeper.turn:
            self.policy = policy_of(policy)
            self._compactor.follow(self.policy, compaction)
            for part in (self._preparer, self._manual):
                part.follow(self.policy)

    async def note(self, event: Noted) -> None:
        """Record what is true now besides what was said: a plan, todos, a skill, the agent at work."""
        if not isinstance(event, get_args(Noted)):
            raise MalformedInputError("note", f"{type(event).__name__} is not for callers to record")
        await self._changed(event)

    async def rename(self, name: str) -> None:
        """Give the session a name for people."""
        self._keeper.turn.check()
        await self.store.rename(self.id, words("name", name))

    @fetching
    async def fork(self, session_id: str | None = None, *, at: int | None = None) -> "Session":
        """Return a new session that has this one's past, up to a message if `at` says so, and a future of its own."""
        stop = None if at is None else position("fork.at", at)
        async with self._keeper.turn:
            await self._keeper.take_in()
            other = self._other(session_id or f"{self.id}-fork-{self.clock():x}{token_hex(2)}")
            if await self.store.length(other.id):
                raise SettingsError("session", f"{other.id!r} is already there; choose another name")
            await self._keeper.copy_to(other._keeper, stop)  # noqa: SLF001 - one session to another
            return other

    def beside(self, session_id: str) -> "Opening":
        """Open another session in the same store, kept in the same way."""
        return Opening(self._other(session_id))

    # How it is done.

    def _other(self, session_id: str) -> "Session":
        how = self._compactor.how
        policy, store, model, clock = self.policy, self.store, self.model, self.clock
        return Session(session_id, store=store, policy=policy, model=model, compaction=how, clock=clock)

    def _format(self, name: str) -> Format:
        wire = format_named(name)
        spoken = self.history.format or wire.name
        if wire.name != spoken:
            problem = f"this session speaks {spoken}; use convert() to bring {wire.name} messages into it first"
            raise SettingsError("format", problem)
        return wire


class Opening:
    """A session about to be opened."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def _open(self) -> Session:
        opened = self._session
        await opened.restore()
        opened.remember()
        await prune(opened.store, days=opened.policy.retention_days, now_ms=opened.clock(), keep=opened.id)
        return opened

    def __await__(self):  # noqa: ANN204 - a generator that only the event loop sees
        return self._open().__await__()

    async def __aenter__(self) -> Session:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()
