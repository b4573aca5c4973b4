"""A session: the main agent's conversation, kept in a store.

Messages are recorded before anything is sent, and requests are prepared from the records. Every change is an event that
is durable before it takes effect, so it can be undone. If another process has written meanwhile, the session applies
its events first.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import NoReturn, TypeAlias, TypeVar, get_args

from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.json_values import copied_json
from holdfast.core.conversation.messages import Message, Thinking, user
from holdfast.core.history import events as log
from holdfast.core.history.scopes import DelegationRecord, delegation_records
from holdfast.core.history.session_state import RequestExtras
from holdfast.core.planning.change_receipt import ChangeReceipt, change_receipts, with_messages_restored
from holdfast.core.planning.changes import with_measured_effect
from holdfast.core.planning.context_report import ContextReport, context_report
from holdfast.core.planning.policy import Policy, policy_named
from holdfast.core.planning.request_stages import NO_PROCESSORS, RequestProcessors
from holdfast.core.planning.situation import Budget
from holdfast.core.schema import short_repr
from holdfast.errors import (
    MalformedInputError,
    NothingToCompactError,
    RemoteCompactionError,
    SettingsError,
    StoreUnavailableError,
)
from holdfast.models.base import Summarizer
from holdfast.models.open import is_summarizer_name
from holdfast.session.arguments import (
    LIST_TYPES,
    as_json_messages,
    check_clock,
    check_count,
    check_deletion,
    check_endpoint,
    check_extras,
    check_line,
    check_model,
    check_position,
    check_text,
    decode_messages,
    extras_json,
)
from holdfast.session.calibration import ServedModel
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.conversation import SessionEngine, with_notes_and_hashes
from holdfast.session.delegation import DelegatingConversation, end_abandoned_delegations
from holdfast.session.heavy_work import are_long, record_in_thread, release
from holdfast.session.log.event_log import Clock, locked, now_ms, retried
from holdfast.session.log.index_text import index_entries
from holdfast.session.log.records import StoredLog
from holdfast.session.prepare import RequestOptions
from holdfast.session.requested_compaction import JobOutcome
from holdfast.session.subscription import EventCallback, EventSubscription, check_event_names
from holdfast.session.sync import (
    ClientCompaction,
    SyncDiff,
    find_client_compaction,
    last_sent_fingerprints,
    message_fingerprint,
    recorded_fingerprints,
    sync_diff,
)
from holdfast.stores.base import Store, check_session_id
from holdfast.stores.open import SHARED_STORES, open_store
from holdfast.stores.retention import delete_expired_sessions
from holdfast.wire.formats import format_named
from holdfast.wire.signals import stream_signals
from holdfast.wire.usage import read_usage

EventT = TypeVar("EventT")
StateEvent: TypeAlias = log.PlanChanged | log.TodosChanged | log.SkillInvoked | log.AgentChanged | log.ProviderSignalled
"""What a caller may record other than messages."""
HANDOVER_TEXT = "[The conversation was handed over to {agent}, with this message from the agent before:]\n{message}"


class Session(DelegatingConversation):
    """One conversation in a store."""

    def __init__(
        self,
        session_id: str,
        *,
        store: str | Store,
        policy: str | Policy,
        model: str | None,
        endpoint: str | None = None,
        compaction: CompactionOptions,
        clock: Clock,
        processors: RequestProcessors = NO_PROCESSORS,
        format_name: str | None = None,
        delete_files: Callable[[str], object] | None = None,
    ) -> None:
        self.id = check_session_id(session_id)
        rules, model, endpoint = policy_named(policy), check_model(model), check_endpoint(endpoint)
        self.clock = clock
        if not isinstance(processors, RequestProcessors):
            raise SettingsError("processors", f"must be a RequestProcessors, not {short_repr(processors)}")
        self._shares_store = isinstance(store, str)
        self.store = SHARED_STORES.share(store, self) if isinstance(store, str) else open_store(store)
        engine = SessionEngine(
            self.store,
            session_id,
            clock,
            policy=rules,
            model=model,
            endpoint=endpoint,
            compaction=compaction,
            processors=processors,
            format_name=None if format_name is None else format_named(format_name).name,
        )
        super().__init__(engine, log.MAIN)
        self.expired_sessions: list[str] = []
        """The sessions that were deleted when this one was opened, because their own retention was over."""
        self._delete_files = delete_files
        self._log.set_retention(rules.retention_days)

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
        max_prompt_tokens: int | None = None,
        processors: RequestProcessors = NO_PROCESSORS,
        clock: Callable[[], float] = now_ms,
        endpoint: str | None = None,
        format: str | None = None,  # noqa: A002 - the word users say
        delete_files: Callable[[str], object] | None = None,
    ) -> "SessionOpener":
        """Open a session, or start one; use it with `async with` or `await`.

        `store` is the URL of a store or a `Store`. All sessions of the process with the same URL share one store, which
        is closed with the last of them; only `memory://` names a new store each time.
        `summarizer` is the name of a pydantic-ai model, or a `Summarizer`; `compaction` has more options. `processors`
        change each request at stages of their own. `endpoint` is the address that serves the model, such as
        `https://api.openai.com/v1`: how a provider counts, and what it accepts, is learned for each endpoint and model.
        `max_prompt_tokens` is the largest prompt that the provider of the model accepts, if it names one. `format` is
        the format of the messages; without it the first messages show it, and plain text counts as OpenAI chat.
        `delete_files` is called in a thread with the id of each session that is deleted because its retention is over,
        to remove what belongs to it outside the store; if it raises or is killed, a later opening calls it again.
        """
        options = CompactionOptions() if compaction is None else _check_options(compaction)
        if isinstance(summarizer, str) and not is_summarizer_name(summarizer):
            problem = f"{summarizer!r:.60} does not name a provider; write it as provider:model: openai:gpt-5-mini"
            raise SettingsError("summarizer", problem)
        if summarizer is not None:
            options = replace(options, automatic=summarizer)
        session = cls(
            session_id,
            store=store,
            policy=policy,
            model=model,
            endpoint=endpoint,
            compaction=options,
            clock=now_ms if clock is now_ms else check_clock(clock),
            processors=processors,
            format_name=format,
            delete_files=check_deletion(delete_files),
        )
        session._builder.set_prompt_limit(session.model, max_prompt_tokens)
        return SessionOpener(session, session._start)

    def __repr__(self) -> str:
        return f"<Session id={self.id!r} messages={len(self)}>"

    def __len__(self) -> int:
        return len(self.history)

    def __bool__(self) -> bool:
        """Return True: a session without messages is a session too."""
        return True

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._compactor.policy

    @property
    def damage(self) -> list[str]:
        """Which records of the log could not be applied, and why."""
        return self._log.damage

    @property
    def events_read(self) -> int:
        """How many events were read from the store so far; it grows whenever others are known to have recorded some."""
        return self._log.events_read

    @property
    def summarizers(self) -> list[Summarizer]:
        """The summarizers that were opened by name for this session alone."""
        return self._compactor.owned_summarizers

    async def close(self) -> None:
        """Release the session's resources; everything is already durable. A second close changes nothing."""
        if self._log.lock.is_closed:
            return
        self._log.lock.check_open()
        try:
            await self._compactor.close()
        finally:  # a summarizer that cannot be closed keeps neither the session nor its store open
            async with self._log.lock:
                await self._log.close()
            self._compactor.release()
            await self._release_store()

    async def _release_store(self) -> None:
        if self._shares_store:
            await SHARED_STORES.release(self.store, self)

    @retried
    async def refresh(self) -> int:
        """Apply what other writers have recorded since, and return the number of events."""
        async with self._log.lock:
            return await self._log.refresh()

    async def _start(self) -> "Session":
        try:
            if self.model is None:
                await self._restore()
            else:
                # At the same time: what another machine stores is far away.
                learned = self._engine.calibrator.read_ahead(ServedModel(self.model, self.endpoint))
                await asyncio.gather(self._restore(), learned)
            if self.policy.retention_days is not None:
                with suppress(StoreUnavailableError):  # a store that is read-only
                    self.expired_sessions = await delete_expired_sessions(
                        self.store, now_ms=self.clock(), keep=self.id, delete_files=self._delete_files
                    )
        except BaseException:
            # Nobody gets this session, and whoever keeps the error would keep it, and with it the store.
            await self._release_store()
            raise
        return self

    @locked
    async def _restore(self) -> None:
        """Continue after a restart with as much of the conversation as the policy keeps; nothing is deleted.

        Ends compactions and delegations whose process has exited. If the session has a memory, starts to write notes
        about evicted messages. A log that cannot be written to is read as it is.
        """
        with suppress(StoreUnavailableError):
            await self._compactor.end_stale_run()
            await end_abandoned_delegations(self._log)
            rule = self.policy.compaction if self.policy.restore == "recent_text" else None
            if rule and (events := rule.restore_events(self.history.context())):
                await self._log.append(*events)
        self._compactor.observers.start_memory_update()

    # Recording.

    async def add_memory_note(self, text: str, *, format: str | None = None) -> int:  # noqa: A002
        """Record a note from memory, and return its position; the model sees it as reference, not as user text."""
        message_format = self._check_format(format)
        native = message_format.encode(user(check_text("text", text), trust="memory"))
        event = log.MessageAppended(format=message_format.name, native=native, trust="memory")
        async with self._log.lock:
            decoded, is_long = message_format.decode(native, 0), are_long([native])
            return (await self._log.append_messages([event], [decoded], is_long=is_long)).start

    @locked
    async def attach(self, name: str, text: str, *, format: str | None = None) -> int:  # noqa: A002
        """Record a text as an attachment, and return its position.

        No request carries an attachment. `attachment` and recall read it, and it is forked, exported, deleted and
        scrubbed with the session. Record a prompt that says how the model can read it.
        """
        message_format, known = self._check_format(format), self.history.session_state.attachments
        if not check_text("name", name) or name in known:
            raise SettingsError("name", f"{name!r:.60} is taken; choose another" if name else "must not be empty")
        native = message_format.encode(user(check_text("text", text), trust="attachment"))
        event = log.MessageAppended(format=message_format.name, native=native, trust="attachment", name=name)
        decoded, is_long = message_format.decode(native, 0), are_long([native])
        return (await self._log.append_messages([event], [decoded], is_long=is_long)).start

    @locked
    async def sync(
        self,
        messages: Sequence[Mapping[str, object] | object],
        *,
        format: str | None = None,  # noqa: A002 - the word users say
        compacted: str | None = None,
    ) -> range:
        """Record the new messages of a complete list, and return their positions.

        The same list changes nothing. If the list differs from the records, the session rewinds to where they differ,
        unless the client has compacted its list by itself: then the messages that it left out are compacted. Pass its
        summary as `compacted` if you know that it has; a summary that `record_side_call` recorded is recognized.
        """
        compacted = None if compacted is None else check_text("compacted", compacted)

        is_long = isinstance(messages, LIST_TYPES) and are_long(messages)

        def compare() -> tuple[str, list[Mapping[str, object]], list[Message], SyncDiff, ClientCompaction | None]:
            """Return the format, the new messages and the same decoded, and how the list differs from the records."""
            given = as_json_messages(messages, copies=not self.shares_messages)
            message_format = self._check_format(format, given)
            natives, decoded = decode_messages(given, message_format)
            name = message_format.name
            fingerprints = [message_fingerprint(native, name) for native in natives]
            known, sent = recorded_fingerprints(self.history, self._log), last_sent_fingerprints(self._log, name)
            diff = sync_diff(fingerprints, known, sent, len(self.history), self._log.last_sent_length)
            found = find_client_compaction(self.history, diff, decoded, known, compacted)
            first_new = found.first_new if found else diff.first_new
            new_natives, new_decoded = natives[first_new:], decoded[first_new:]
            if is_long:
                release(given, natives)
                release(decoded)
            return name, new_natives, new_decoded, diff, found

        name, natives, decoded, diff, found = await record_in_thread(compare) if is_long else compare()
        if found:
            await self._log.append(await self._measured(partial(with_measured_effect, found.event)))
        elif diff.rewind_to is not None:
            await self._log.append(await self._with_effect(log.Rewound(to=diff.rewind_to)))

        def new_events() -> list[log.MessageAppended]:
            events = [log.MessageAppended(format=name, native=native) for native in natives]
            return with_notes_and_hashes(self.history, events, decoded)

        are_long_new = is_long and are_long(natives)
        events = await record_in_thread(new_events) if are_long_new else new_events()
        return await self._log.append_messages(events, decoded, is_long=are_long_new, must_be_current=True)

    async def record_side_call(
        self,
        answer: str,
        *,
        purpose: log.SideCallPurpose = "other",
        model: str | None = None,
        usage: object = None,
    ) -> None:
        """Record a call that a client made beside the conversation, such as for a title; the context stays as it is.

        Do not `sync` the messages of such a call: it has another system text. With `purpose="summary"` the answer is
        the summary for a compaction of the client's own, which `sync` then recognizes. `usage` is as in `record`.
        """
        if purpose not in get_args(log.SideCallPurpose):
            known = ", ".join(get_args(log.SideCallPurpose))
            raise SettingsError("purpose", f"{purpose!r} is not known; choose one of: {known}")
        await self._append_change(
            log.SideCallRecorded(
                purpose=purpose,
                answer=check_text("answer", answer),
                model=check_model(model),
                usage=None if usage is None else read_usage(usage),
            )
        )

    async def record_state(self, event: StateEvent) -> None:
        """Record state other than messages: a plan, todos, a skill, the active agent, a signal of the provider.

        The classes of these events are in `holdfast.storage`: `record_state(PlanChanged(text="1. Read the log."))`.
        """
        if not isinstance(event, get_args(StateEvent)):
            known = ", ".join(one.__name__ for one in get_args(StateEvent))
            raise MalformedInputError("record_state", f"takes one of {known}, not a {type(event).__name__}")
        await self._append_change(event)

    async def watch(self, stream: AsyncIterable[EventT]) -> AsyncIterator[EventT]:
        """Yield the events of a provider's stream unchanged, and record its signals that it compacts by itself.

        An event is an object as JSON, or one of the provider's SDK. A signal changes no context.
        """
        recorded: set[str] = set()
        async for event in stream:
            await self.record_stream_signals(event, recorded)
            yield event

    async def record_stream_signals(self, event: object, recorded: set[str]) -> None:
        """Record the signals of one event of a stream, except those in `recorded`, to which they are added."""
        for signal in stream_signals(event):
            if signal not in recorded:
                recorded.add(signal)
                await self.record_state(log.ProviderSignalled(signal=signal, payload={"source": "stream"}))

    @locked
    async def transfer(self, agent: str, *, message: str = "") -> None:
        """Hand the conversation over to another agent, with a message for it; an empty name hands it back.

        The message becomes part of the history, as reference and not as the user's text.
        """
        name, summary = check_text("agent", agent), check_text("message", message)
        known = self.history.session_state.agent
        change = log.AgentChanged(name=name, summary=summary, previous=known.name if known else "")
        if not summary:
            await self._log.append(change)
            return
        message_format = self.history.message_format
        agent = neutralize(name, "name") or "the main agent"
        text = HANDOVER_TEXT.format(agent=agent, message=neutralize(summary))
        native, position = message_format.encode(user(text)), len(self.history)
        event = log.MessageAppended(format=message_format.name, native=native, trust="memory")
        index = index_entries([(position, message_format.decode(native, position))])
        await self._log.append(change, event, index=index)  # at once: an agent without its message would know nothing

    # Changes of context; none of them deletes anything.

    async def clear(self) -> None:
        """Start the conversation over."""
        await self._append_change(log.ContextCleared())

    async def rewind(self, *, to: int) -> None:
        """Continue from before the message at a position."""
        await self._append_change(log.Rewound(to=to))

    @locked
    async def undo(self) -> bool:
        """Undo the last change of context, and return whether there was one."""
        return self.history.can_undo and await self._append_undo(log.ChangeUndone())

    @locked
    async def redo(self) -> bool:
        """Redo the change that was undone last, and return whether there was one."""
        return self.history.can_redo and await self._append_undo(log.ChangeRedone())

    async def _append_undo(self, event: log.ChangeUndone | log.ChangeRedone) -> bool:
        await self._log.append(event)
        await self._compactor.observers.update_checkpoints()
        return True

    async def pin(self, position: int) -> None:
        """Keep a message whole in every request."""
        await self._append_change(log.Pinned(position=position))

    async def unpin(self, position: int) -> None:
        """Allow a pinned message to be compacted again."""
        await self._append_change(log.Unpinned(position=position))

    @retried
    async def recompact(self, *, focus: str = "", budget: int | Budget | None = None) -> log.CompactionCompleted:
        """Undo the last compaction and compact the original again, with another focus."""
        undone, others = await self._undo_compaction()
        try:
            return await self.compact(focus=focus, budget=budget)
        except BaseException:
            await self._restore_compaction(undone, others)
            raise

    @locked
    async def _undo_compaction(self) -> tuple[log.CompactionCompleted, tuple[log.CompactionCompleted, ...]]:
        """Undo the last compaction; return it, and those in force without it.

        Raises if another change of context came after it.
        """
        compactions = self.history.version.state_of(log.MAIN).compactions
        if not compactions:
            raise NothingToCompactError(len(self.history))
        if not self.history.is_last_change_a_compaction:
            raise MalformedInputError("recompact", "the last change of context is not a compaction; undo it first")
        try:
            await self._append_undo(log.ChangeUndone())
        except asyncio.CancelledError:
            await self._log.refresh()
            if self.history.can_redo:  # the undo was stored nevertheless
                await self._append_undo(log.ChangeRedone())
            raise
        return compactions[-1], self.history.version.state_of(log.MAIN).compactions

    @locked
    async def _restore_compaction(
        self, undone: log.CompactionCompleted, others: tuple[log.CompactionCompleted, ...]
    ) -> None:
        """Put a compaction in force again that was undone, unless somebody has compacted since."""
        if self.history.can_redo:
            await self._append_undo(log.ChangeRedone())
        elif all(one in others for one in self.history.version.state_of(log.MAIN).compactions):
            # Another change came in between. If it removed what was compacted, nothing is left to restore.
            with suppress(MalformedInputError):
                await self._log.append(await self._measured(partial(with_measured_effect, undone)))

    @locked
    async def restore_messages(self, positions: Sequence[int]) -> None:
        """Restore chosen messages of the last compaction, whole, after its summary."""
        event = with_messages_restored(self.history.context(), positions)
        await self._log.append(await self._measured(partial(with_measured_effect, event)))

    @retried
    async def compact_if_memory_above(self, limit_bytes: int) -> log.CompactionCompleted | None:
        """Compact if the process still uses more memory than a limit after garbage collection."""
        limit = check_count("limit_bytes", limit_bytes)
        return await self._engine.requested.compact_above_memory_limit(self._options(), limit)

    async def run_compaction(self, owner: str) -> JobOutcome:
        """Write the summary of a compaction that was left to a queue, and return what came of it.

        `owner` is what the `CompactionQueue` was given. The next request of the session applies the summary, whoever
        prepares it. Without a model, or without a key for it, the messages are replaced by a digest. If this is
        cancelled, nothing is recorded, so that another process can do it.
        """
        return await self._engine.requested.run_started(self._options(), owner)

    async def cancel_compaction(self) -> bool:
        """Cancel the summary that this process writes or has left to a worker, and return whether there was one."""
        return await self._compactor.cancel()

    # Settings.

    async def set_policy(self, policy: str | Policy, *, compaction: CompactionOptions | None = None) -> None:
        """Use another policy from now on, and other compaction options if there are any."""
        rules, options = policy_named(policy), None if compaction is None else _check_options(compaction)
        async with self._log.lock:
            self._compactor.set_policy(rules, options)
            self._log.set_retention(rules.retention_days)

    @retried
    async def switch_model(
        self,
        model: str,
        *,
        budget: int | Budget | None = None,
        max_prompt_tokens: int | None = None,
        endpoint: str | None = None,
        system: object = None,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> log.CompactionCompleted | None:
        """Use another model from now on; if the context is too long for it, compact first and return the compaction.

        `endpoint` is the address that serves it; None means the same address as before. `system` and `tools` are those
        of its requests, if they differ from those of the last request.
        """
        self._builder.set_prompt_limit(model, max_prompt_tokens)
        endpoint = check_endpoint(endpoint) or self.endpoint
        extras = self._extras_with(system, tools)
        options = RequestOptions(model=model, budget=budget, endpoint=endpoint, extras=extras)
        done = await self._engine.requested.switch_model(options)
        self.model, self.endpoint = model, endpoint
        return done

    async def rename(self, name: str) -> None:
        """Set the session's display name; a session that has no record yet is not in its store, and has no name."""
        self._log.lock.check_open()
        await self.store.rename(self.id, check_line("name", name))

    # Reading.

    async def events(self) -> list[log.Event]:
        """Return all events of the log."""
        self._log.lock.check_open()
        return await self._log.stored.events()

    def subscribe(self, *names: str) -> EventSubscription:
        """Return an async iterator over the events from now on; names such as `session.compaction_start` select some.

        It ends when the session is closed. `event_record` returns an event as the log stores it.
        """
        self._log.lock.check_open()
        return self._log.publisher.subscribe(check_event_names(names))

    def on(self, callback: EventCallback, *names: str) -> Callable[[], None]:
        """Call a function with each event from now on, and return a function that ends this.

        Names are as in `subscribe`. The function is called on the session's event loop after the event is durable: it
        must not block. If it raises, the error goes to the log `holdfast`.
        """
        if not callable(callback):
            raise SettingsError("callback", f"must be a function of an event, not {short_repr(callback)}")
        return self._log.publisher.add_callback(callback, check_event_names(names))

    async def receipts(self) -> list[ChangeReceipt]:
        """Return the receipt of every change of context, the oldest first, including failed compactions."""
        self._log.lock.check_open()
        return await _receipts_of(self._log.stored)

    async def thinking_prefixes(self) -> dict[str, set[str]]:
        """Return by the signature of each thinking block in which requests it was said; `validate` checks with it.

        Only blocks of models that bind their thinking to the request are known.
        """
        self._log.lock.check_open()
        found: dict[str, set[str]] = {}
        for event in await self._log.stored.events():
            if isinstance(event, log.MessageAppended) and event.prefix_hash is not None:
                for part in format_named(event.format).decode(event.native, 0).parts:
                    if isinstance(part, Thinking) and part.signature:
                        found.setdefault(part.signature, set()).add(event.prefix_hash)
        return found

    async def delegations(self) -> list[DelegationRecord]:
        """Return every delegation, the oldest first: its agent, its task, what it saw, and how it ended."""
        self._log.lock.check_open()
        return await record_in_thread(partial(delegation_records, await self._log.stored.timed_events()))

    @locked
    async def messages_at(self, start: int, stop: int | None = None) -> list[Mapping[str, object]]:
        """Return messages as they were recorded, byte for byte, in view or not; none from before a clear."""
        first = check_position("messages_at.start", start)
        last = first + 1 if stop is None else check_position("messages_at.stop", stop)
        cleared = self.history.version.state_of(log.MAIN).cleared_at
        if not cleared <= first < last <= len(self.history):
            raise MalformedInputError("messages_at", f"there are messages {cleared} to {len(self.history) - 1}")
        self.history.entries.require(range(first, last))
        self._log.require_content(range(first, last))
        natives = [self.history.entries.native(position) for position in range(first, last)]
        return natives if self.shares_messages else copied_json(natives)

    @property
    def attachments(self) -> list[str]:
        """The names of the attachments that no clear or rewind has removed, the oldest first."""
        context = self.history.context()
        return [name for name, at in self.history.session_state.attachments.items() if context.is_recallable(at)]

    async def attachment(self, name: str) -> str:
        """Return the text of an attachment."""
        if name not in self.attachments:
            known = ", ".join(self.attachments) or "none"
            raise SettingsError("name", f"there is no attachment {name!r:.60}; there are: {known}")
        position = self.history.session_state.attachments[name]
        [native] = await self.messages_at(position)
        return self.history.message_format.decode(native, position).text

    @locked
    async def context_breakdown(
        self,
        *,
        budget: int | Budget | None = None,
        model: str | None = None,
        endpoint: str | None = None,
        system: object = None,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> ContextReport:
        """Return what fills the context, what could be freed, and when the next compaction is due at what cost.

        By default the budget, the system text and the tools are those of the last request, and the model and its
        endpoint are those of the session.
        """
        options = RequestOptions(
            budget=budget,
            model=check_model(model) or self.model,
            endpoint=check_endpoint(endpoint) or self.endpoint,
            extras=self._extras_with(system, tools),
        )
        calibration = await self._engine.calibrator.calibration(options.served_model)
        plan_input = await self._builder.current_plan_input(self._builder.with_last_budget(options), calibration)
        author = self._compactor.next_summarizer(options.model, self.history.format)
        return context_report(plan_input, self.policy, author)

    def _extras_with(self, system: object, tools: Sequence[Mapping[str, object]] | None) -> RequestExtras:
        """Return the system text and the tools of the last request, or others in their place."""
        system, tools = check_extras(system, tools)
        known = self.history.session_state.extras_for(self.scope)
        return RequestExtras(
            known.system if system is None else system if isinstance(system, str) else extras_json("system", system),
            known.tools if tools is None else tuple(map(dict, tools)),
        )

    # Other sessions.

    @locked
    async def fork(self, session_id: str | None = None, *, at: int | None = None) -> "Session":
        """Return a new session with a copy of this log, up to the message at a position if there is one."""
        from secrets import token_hex  # noqa: PLC0415 - most sessions are not forked

        stop = None if at is None else check_position("fork.at", at)
        other = self._make_sibling(session_id or f"{self.id}-fork-{self.clock():x}{token_hex(2)}")
        if await self.store.length(other.id):
            raise SettingsError("session", f"{other.id!r} already exists; choose another id")
        await self._log.copy_to(other._log, stop)  # noqa: SLF001 - one session to another
        await other.refresh()
        return other

    def open_sibling(self, session_id: str) -> "SessionOpener":
        """Open another session in the same store, with the same settings."""
        sibling = self._make_sibling(session_id)
        return SessionOpener(sibling, sibling._start)  # noqa: SLF001 - one session to another

    def _make_sibling(self, session_id: str) -> "Session":
        sibling = Session(
            session_id,
            store=self.store,
            policy=self.policy,
            model=self.model,
            endpoint=self.endpoint,
            compaction=self._compactor.options,
            clock=self.clock,
            processors=self._builder.processors,
            format_name=self.history.format or self._log.format_name,
            delete_files=self._delete_files,
        )
        sibling._builder.prompt_limits.update(self._builder.prompt_limits)
        return sibling


class SessionOpener:
    """A session about to be opened."""

    def __init__(self, session: Session, open_session: Callable[[], Coroutine[object, object, Session]]) -> None:
        self._session = session
        self._open = open_session

    def __await__(self):  # noqa: ANN204 - a generator that only the event loop sees
        return self._open().__await__()

    async def __aenter__(self) -> Session:
        return await self._open()

    def __getattr__(self, name: str) -> NoReturn:
        """Say how to open the session: this is only a promise of one."""
        hint = "write `async with Session.open(...) as session:`, or `session = await Session.open(...)`"
        raise AttributeError(f"the session is not open yet, so it has no {name!r}: {hint}")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    def __enter__(self) -> Session:
        raise SettingsError("open", "use `async with Session.open(…)`, or holdfast.blocking.Session without async")

    def __exit__(self, *_: object) -> None: ...


class RemoteSession:
    """A handle on a session that another process holds: it reads the log, and has no engine of its own."""

    def __init__(self, session_id: str, *, store: Store) -> None:
        self.id = check_session_id(session_id)
        self._stored = StoredLog(store, session_id)

    async def events(self) -> list[log.Event]:
        """Return all events of the log."""
        return await self._stored.events()

    async def receipts(self) -> list[ChangeReceipt]:
        """Return the receipt of every change of context, as `Session.receipts` does."""
        return await _receipts_of(self._stored)

    async def compact(self, *, focus: str = "") -> None:
        """Raise `RemoteCompactionError`: compact the session in the process that holds it."""
        del focus
        raise RemoteCompactionError(self.id)


def _check_options(options: object) -> CompactionOptions:
    if not isinstance(options, CompactionOptions):
        raise SettingsError("compaction", f"must be a CompactionOptions, not {short_repr(options)}")
    return options


async def _receipts_of(stored: StoredLog) -> list[ChangeReceipt]:
    timed = await stored.timed_events()

    def receipts() -> list[ChangeReceipt]:
        found = change_receipts((event for _, event in timed), (time_ms for time_ms, _ in timed))
        release(timed)
        return found

    return await record_in_thread(receipts)
