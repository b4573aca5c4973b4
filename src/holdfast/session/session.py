"""A conversation that is kept: recorded before anything is sent, prepared for each request, and taken back at will.

A session owns the history of one log. Everything it does to it becomes an event that is durable before it
counts; when another process has written meanwhile, the session takes that in and does its own part after it.

A conversation that somebody else holds: its name, and no engine.

A session behind a server compacts there, like any other. Whoever has only its name has nothing to compact with, and is
told so by a typed error in the words that clients of such sessions know.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_hex
from types import TracebackType
from typing import TypeAlias, get_args

from holdfast.core.conversation.messages import user
from holdfast.core.history import events as log
from holdfast.core.history.fingerprints import sync_diff
from holdfast.core.history.scopes import MainVisibility
from holdfast.core.history.visibility import SEES_EVERYTHING, Visibility
from holdfast.core.planning.changes import restore_events
from holdfast.core.planning.context_report import ContextReport, context_report
from holdfast.core.planning.plan import plan_input_of
from holdfast.core.planning.policy import Policy, policy_named
from holdfast.core.planning.situation import Budget
from holdfast.core.schema import short_repr
from holdfast.errors import MalformedInputError, RemoteCompactionError, SettingsError, StoreUnavailableError
from holdfast.models.base import Summarizer
from holdfast.session.calibration import UsageCalibrator
from holdfast.session.compaction.compactor import CompactionOptions, Compactor
from holdfast.session.delegation import DelegateContext, Delegator, delegation_spec
from holdfast.session.inputs import (
    check_count,
    check_extras,
    check_model,
    check_position,
    check_scope,
    check_text,
    decode_messages,
)
from holdfast.session.log.event_log import Clock, SessionLog, retry_when_not_loaded
from holdfast.session.overflow_retry import OverflowRetry
from holdfast.session.prepare import RequestBuilder, RequestOptions, check_usage
from holdfast.session.request import Request
from holdfast.session.sync import last_sent_fingerprints, message_fingerprint, recorded_fingerprints, with_read_notes
from holdfast.stores.base import Store, check_session_id, delete_expired_sessions
from holdfast.stores.open import open_store
from holdfast.wire.formats import MessageFormat, format_named

StateEvent: TypeAlias = log.PlanChanged | log.TodosChanged | log.SkillInvoked | log.AgentChanged | log.ProviderSignalled
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
        compaction: CompactionOptions,
        clock: Clock,
    ) -> None:
        self.id = check_session_id(session_id)
        self.policy = policy_named(policy)
        self.model = check_model(model)
        self.store = open_store(store)
        self.clock = clock
        self._owns_store = isinstance(store, str)
        if not callable(clock):
            raise SettingsError("clock", f"must be a function that returns milliseconds, not {short_repr(clock)}")
        keeper = SessionLog(self.store, session_id, clock)
        compactor = Compactor(keeper, self.policy, compaction)
        self._calibrator = UsageCalibrator(self.store)
        self._builder = RequestBuilder(keeper, compactor, self._calibrator, self.policy)
        super().__init__(keeper, compactor, self._builder, self.policy)
        self._overflow_retry = OverflowRetry(self._builder, self._calibrator)

    @classmethod
    def open(
        cls,
        session_id: str,
        *,
        store: str | Store = "memory://",
        policy: str | Policy = "default",
        model: str | None = None,
        summarizer: str | Summarizer | None = None,
        compaction: CompactionOptions | None = None,
        clock: Clock = now_ms,
    ) -> "SessionOpener":
        """Open a session, or begin one; use it with `async with` or `await`.

        `summariser` writes summaries: a pydantic-ai model by its name, or a writer; `compaction` says more about that.
        """
        how = CompactionOptions() if compaction is None else compaction
        if not isinstance(how, CompactionOptions):
            raise SettingsError("compaction", f"must be a Compaction, not {short_repr(how)}")
        if summarizer is not None:
            how = replace(how, automatic=summarizer)
        return SessionOpener(cls(session_id, store=store, policy=policy, model=model, compaction=how, clock=clock))

    def __len__(self) -> int:
        return len(self.history)

    @property
    def damage(self) -> list[str]:
        """What of the log could not be taken in, and why."""
        return self._log.damage

    async def close(self) -> None:
        """Give back what the session holds open; everything is already durable. Closing twice changes nothing."""
        if self._log.lock.is_closed:
            return
        await self._compactor.close()
        async with self._log.lock:
            await self._log.close()
        if self._owns_store:
            await self.store.close()

    @retry_when_not_loaded
    async def refresh(self) -> int:
        """Take in what others have written since, and return how many events that were."""
        async with self._log.lock:
            return await self._log.refresh()

    @retry_when_not_loaded
    async def restore(self) -> None:
        """Go on with as much of the conversation as the policy wants after a restart; nothing is deleted.

        A compaction or a delegation that nobody is at any more is ended, as far as the log can be written to.
        """
        async with self._log.lock:
            await self._log.refresh()
            with suppress(StoreUnavailableError):
                await self._compactor.end_stale_run()
                await self.end_abandoned_delegations()
            if events := restore_events(self.history.context(), self.policy):
                await self._log.append(*events)

    def start_memory_update(self) -> None:
        """Let memory take in what has left the view, beside everything else; where there is one."""
        self._compactor.observers.start_memory_update()

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
        wire, scope = self._check_format(format), check_scope(scope)
        natives, decoded = decode_messages(messages, wire)
        billed = check_usage(usage)
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
        async with self._log.lock:
            events = with_read_notes(self.history, events, decoded)
            if billed is not None:
                await self._calibrator.record_usage(billed)
            if any(message.role == "assistant" for message in decoded):
                self._overflow_retry.reset(scope)
            return await self._log.append_messages(events, decoded)

    async def add_memory_note(self, text: str, *, format: str = "openai-chat") -> int:  # noqa: A002
        """Record a note from memory, and return its position: the model sees it, as reference that nobody has said."""
        wire = self._check_format(format)
        message = user(check_text("text", text), trust="memory")
        event = log.MessageAppended(format=wire.name, native=wire.encode(message), trust="memory")
        async with self._log.lock:
            return (await self._log.append_messages([event], [wire.decode(event.native, 0)])).start

    @retry_when_not_loaded
    async def sync(self, messages: Sequence[Mapping[str, object]], *, format: str = "openai-chat") -> range:  # noqa: A002
        """Take in a whole list that somebody sends again: record what is new in it, and return its positions.

        The same list changes nothing; where it differs from what was recorded, that part does not stand any more.
        """
        wire = self._check_format(format)
        natives, decoded = decode_messages(messages, wire)
        async with self._log.lock:
            await self._log.refresh()
            given = [message_fingerprint(native, wire.name) for native in natives]
            known, view = recorded_fingerprints(self.history, self._log), last_sent_fingerprints(self._log, wire.name)
            found = sync_diff(given, known, view, len(self.history))
            if found.rewind_to is not None:
                await self._log.append(self._with_effect(log.Rewound(to=found.rewind_to)))
            events = [log.MessageAppended(format=wire.name, native=native) for native in natives[found.first_new :]]
            events = with_read_notes(self.history, events, decoded[found.first_new :])
            return await self._log.append_messages(events, decoded[found.first_new :], must_be_current=True)

    # What is sent.

    @retry_when_not_loaded
    async def prepare(
        self,
        budget: int | Budget | None = None,
        *,
        model: str | None = None,
        system: object = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        scope: str = log.MAIN,
        has_recall: bool | None = None,
    ) -> Request:
        """Return the next request: valid for its provider, within its budget, and recorded.

        `has_recall` says whether the model has the tool of `recall_tool`: then markers tell it how to ask for the rest.
        None for as it was last said.
        """
        asked, named = check_model(model) or self.model, await self._log.check_scope(check_scope(scope))
        system, tools = check_extras(system, tools)
        wanted = RequestOptions(
            budget=budget, model=asked, system=system, tools=tools, scope=named, has_recall=has_recall
        )
        return await self._builder.prepare(wanted)

    @retry_when_not_loaded
    async def retry(self, error: object, *, status: int | None = None, scope: str = log.MAIN) -> Request:
        """Return the last request made smaller, after the provider refused it as too long.

        `error` is what was raised, or the body of the answer with its `status`. A refusal for another reason, such as
        a rate limit, is raised as the error it is; so is one that no smaller request can help.
        """
        named, told = (
            await self._log.check_scope(check_scope(scope)),
            None if status is None else check_count("status", status),
        )
        return await self._overflow_retry.retry(error, told, named)

    # Who else is at work.

    def delegate(
        self,
        agent: str,
        *,
        task: str = "",
        sees: Visibility = SEES_EVERYTHING,
        main_sees: MainVisibility | None = None,
        timeout_seconds: float | None = None,
        adds_task_message: bool = True,
    ) -> DelegateContext:
        """Send out another agent: `async with session.delegate("reviewer", task="…") as child`.

        It works in a scope of its own. `sees` says what it is shown of this conversation, `main_sees` what this
        conversation is shown of its work, as the policy says where nothing is given. With `tells=False` the task is
        recorded and not said: `child.opening` is what to say to it first.
        """
        return DelegateContext(
            self, delegation_spec(agent, task, sees, main_sees, timeout_seconds, adds_task_message=adds_task_message)
        )

    # What becomes of it.

    @retry_when_not_loaded
    async def context_breakdown(self, *, budget: int | Budget | None = None) -> ContextReport:
        """Return what the conversation is made of now, what could be freed, when the next fold is due, at what cost."""
        async with self._log.lock:
            await self._log.refresh()
            calibration = await self._calibrator.calibration(self.model)
            situation = self._builder.situation(RequestOptions(budget=budget, model=self.model))
            situation = replace(situation, calibration=calibration)
            by = self._compactor.next_summarizer(self.model, self.history.format)
            return context_report(plan_input_of(self.history, self.policy, situation), self.policy, by)

    async def set_policy(self, policy: str | Policy, *, compaction: CompactionOptions | None = None) -> None:
        """Go by another policy, and with other writers and companions, from now on; what was folded stays as it is."""
        async with self._log.lock:
            self.policy = policy_named(policy)
            self._compactor.set_policy(self.policy, compaction)
            for part in (self._builder, self._manual):
                part.set_policy(self.policy)

    async def record_state(self, event: StateEvent) -> None:
        """Record what is true now besides what was said: a plan, todos, a skill, the agent at work."""
        if not isinstance(event, get_args(StateEvent)):
            raise MalformedInputError("note", f"{type(event).__name__} is not for callers to record")
        await self._append_change(event)

    async def rename(self, name: str) -> None:
        """Give the session a name for people."""
        self._log.lock.check_open()
        await self.store.rename(self.id, check_text("name", name))

    @retry_when_not_loaded
    async def fork(self, session_id: str | None = None, *, at: int | None = None) -> "Session":
        """Return a new session that has this one's past, up to a message if `at` says so, and a future of its own."""
        stop = None if at is None else check_position("fork.at", at)
        async with self._log.lock:
            await self._log.refresh()
            other = self._make_sibling(session_id or f"{self.id}-fork-{self.clock():x}{token_hex(2)}")
            if await self.store.length(other.id):
                raise SettingsError("session", f"{other.id!r} is already there; choose another name")
            await self._log.copy_to(other._log, stop)  # noqa: SLF001 - one session to another
            return other

    def open_sibling(self, session_id: str) -> "SessionOpener":
        """Open another session in the same store, kept in the same way."""
        return SessionOpener(self._make_sibling(session_id))

    # How it is done.

    def _make_sibling(self, session_id: str) -> "Session":
        how = self._compactor.options
        policy, store, model, clock = self.policy, self.store, self.model, self.clock
        return Session(session_id, store=store, policy=policy, model=model, compaction=how, clock=clock)

    def _check_format(self, name: str) -> MessageFormat:
        wire = format_named(name)
        spoken = self.history.format or wire.name
        if wire.name != spoken:
            problem = f"this session speaks {spoken}; use convert() to bring {wire.name} messages into it first"
            raise SettingsError("format", problem)
        return wire


class SessionOpener:
    """A session about to be opened."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def _open(self) -> Session:
        opened = self._session
        await opened.restore()
        opened.start_memory_update()
        await delete_expired_sessions(
            opened.store, days=opened.policy.retention_days, now_ms=opened.clock(), keep=opened.id
        )
        return opened

    def __await__(self):  # noqa: ANN204 - a generator that only the event loop sees
        return self._open().__await__()

    async def __aenter__(self) -> Session:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()


@dataclass(frozen=True, slots=True)
class RemoteSession:
    """A handle on a session of another process."""

    id: str

    async def compact(self, *, focus: str = "") -> None:
        """Refuse: there is no engine here. Compact the session where it is held."""
        del focus
        raise RemoteCompactionError(self.id)
