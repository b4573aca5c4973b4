"""One agent's conversation: records its messages, and prepares its requests from the messages it may see.

A conversation is bound to one scope of the log. The `Session` is the main agent's conversation; each `Delegate` has its
own. All conversations of a session share one `SessionEngine`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from holdfast.core.conversation.json_values import copied_json
from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.conversation.transcript import MessageFormat
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.planning.changes import add_effect
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.request_stages import RequestProcessors
from holdfast.core.planning.situation import Budget
from holdfast.core.planning.steps import PlanInput
from holdfast.core.recall.query import (
    DEFAULT_RECALL_TOKENS,
    MAX_RECALL_TOKENS,
    MIN_RECALL_TOKENS,
    RECALL_DESCRIPTION,
    RECALL_PARAMETERS,
    RecallQuery,
)
from holdfast.core.schema import short_repr
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import (
    ArtifactTooLargeError,
    CompactionError,
    ConcurrentWriteError,
    DelegationEndedError,
    MalformedInputError,
    ModelError,
    SettingsError,
    StoreError,
    UnknownReferenceError,
)
from holdfast.session.arguments import (
    LIST_TYPES,
    as_json_messages,
    check_count,
    check_endpoint,
    check_extras,
    check_model,
    check_scope,
    check_text,
    check_texts,
    decode_messages,
)
from holdfast.session.calibration import UsageCalibrator
from holdfast.session.compaction.compactor import CompactionOptions, Compactor
from holdfast.session.heavy_work import (
    MAX_INLINE_MESSAGES,
    are_long,
    count_messages,
    plan_in_thread,
    record_in_thread,
)
from holdfast.session.log.event_log import Clock, SessionLog, locked, other_format_error, retried
from holdfast.session.log.records import encode_event
from holdfast.session.overflow_retry import OverflowRetry
from holdfast.session.prepare import EncodeBody, RequestBuilder, RequestOptions
from holdfast.session.requested_compaction import RequestedCompaction
from holdfast.session.sync import with_read_notes
from holdfast.session.thinking import with_prefix_hashes
from holdfast.session.tools import COMPACT_CONTEXT, COMPACT_DESCRIPTION, COMPACT_PARAMETERS, ModelTool
from holdfast.stores.base import Store
from holdfast.wire.formats import detect_format, format_named
from holdfast.wire.json_reader import is_mapping
from holdfast.wire.request import Request
from holdfast.wire.usage import read_usage

if TYPE_CHECKING:
    from holdfast.core.recall.answer import RecallAnswer
    from holdfast.core.recall.artifacts import Artifact

MAX_GROWN_RECALL_TOKENS = 2_500
"""An answer grows up to this size into room that is free; readers make less of a longer one."""
RECALL_CALL_TOKENS = 100
"""Left free for the model's call and the frame of its result."""
T = TypeVar("T")
MAX_ALLOWANCE_FACTOR = 4
"""A model may ask for this many times its token budget at most."""
READ_AHEAD_PARTS = 2
"""How often `read_ahead` extends the ledger: `record` would do so once for a prompt and once for its answer."""


def with_notes_and_hashes(
    history: History, events: Sequence[log.MessageAppended], decoded: Sequence[Message]
) -> list[log.MessageAppended]:
    """Return new messages of one scope with what the history says about them: notes on reads, hashes for thinking."""
    return with_prefix_hashes(history, with_read_notes(history, events, decoded), decoded)


class SessionEngine:
    """The parts that a session's conversations share: the log, the compactor with the policy, the request builder."""

    def __init__(
        self,
        store: Store,
        session_id: str,
        clock: Clock,
        *,
        policy: Policy,
        model: str | None,
        endpoint: str | None,
        compaction: CompactionOptions,
        processors: RequestProcessors,
        format_name: str | None = None,
    ) -> None:
        self.model = model
        self.endpoint = endpoint
        self.log = SessionLog(store, session_id, clock, format_name)
        self.compactor = Compactor(self.log, policy, compaction)
        self.calibrator = UsageCalibrator(store, clock)
        self.builder = RequestBuilder(self.log, self.compactor, self.calibrator, processors)
        self.requested = RequestedCompaction(self.log, self.compactor, self.builder)
        self.overflow_retry = OverflowRetry(self.builder, self.calibrator)


class OwnScope:
    """The default of `scope`: the scope that the conversation is bound to."""


OWN_SCOPE = OwnScope()


class Conversation:
    """Records messages and prepares requests for one scope of a session's log.

    Methods with a `scope` parameter can work for another agent of the same session.
    """

    def __init__(self, engine: SessionEngine, scope: str, agent: str | None = None) -> None:
        self._engine = engine
        self._log = engine.log
        self._compactor = engine.compactor
        self._builder = engine.builder
        self.scope = scope
        """The name of this conversation in the log."""
        self.shares_messages = False
        """Whether messages come and go as they are, without copies, for callers that edit none, such as adapters."""
        self.reads_ahead = True
        """Whether `record` also extends the ledger for the next compaction; otherwise call `read_ahead` later."""
        self._agent = agent

    def sharing_messages(self) -> Self:
        """Return this conversation for a caller that edits no messages; who has the original still gets copies."""
        shared = copy(self)
        shared.shares_messages = True
        return shared

    @property
    def model(self) -> str | None:
        """The model that answers requests that name no other."""
        return self._engine.model

    @model.setter
    def model(self, model: str | None) -> None:
        self._engine.model = model

    @property
    def endpoint(self) -> str | None:
        """The address that serves the model; what providers report is learned for this address alone."""
        return self._engine.endpoint

    @endpoint.setter
    def endpoint(self, endpoint: str | None) -> None:
        self._engine.endpoint = check_endpoint(endpoint)

    @property
    def history(self) -> History:
        """The history of the whole session; not all of its messages may be in memory."""
        return self._log.history

    async def record(
        self,
        messages: Sequence[Mapping[str, object] | object],
        *,
        format: str | None = None,  # noqa: A002 - the word users say
        usage: object = None,
        duration_ms: int | None = None,
        scope: str | OwnScope = OWN_SCOPE,
        agent: str | None = None,
    ) -> range:
        """Record messages, and return their positions; they are durable when this returns.

        Messages are JSON objects, or the objects of a provider's library. `format` is the session's by default, and
        the first messages show it if nobody names it.
        `usage` is what the provider billed for the last answer among them: its usage object as it came, from JSON or
        from its library, or an object with `input_tokens` (without cached ones), `output_tokens`, `cache_read_tokens`
        and `cache_write_tokens`. It calibrates the token counts.
        """
        self._check_running()
        scope = self.scope if isinstance(scope, OwnScope) else check_scope(scope)
        billed = None if usage is None else read_usage(usage)

        def read_messages() -> tuple[list[log.MessageAppended], list[Message]]:
            given = as_json_messages(messages, copies=not self.shares_messages)
            message_format = self._check_format(format, given)
            natives, decoded = decode_messages(given, message_format)
            name, last = self._agent if agent is None else agent, len(natives) - 1
            if billed is not None or duration_ms is not None:
                # The result of a call may be recorded with the answer that was billed for the call.
                answers = [number for number, message in enumerate(decoded) if message.role == "assistant"]
                last = answers[-1] if answers else last
            return [
                log.MessageAppended(
                    format=message_format.name,
                    native=native,
                    scope=scope,
                    agent=name,
                    usage=billed if number == last else None,
                    duration_ms=duration_ms if number == last else None,
                )
                for number, native in enumerate(natives)
            ], decoded

        is_long = isinstance(messages, LIST_TYPES) and are_long(messages)
        events, decoded = await record_in_thread(read_messages) if is_long else read_messages()
        await count_messages(decoded, counter_for(self._engine.model), is_long=is_long)
        async with self._log.lock:
            history = self._log.history
            if history.version.states or history.session_state.sent_prefixes:
                add = partial(with_notes_and_hashes, history, events, decoded)
                events = await record_in_thread(add) if is_long else add()
            if billed is not None:
                await self._engine.calibrator.record_usage(billed, scope)
            if "assistant" in [message.role for message in decoded]:
                self._engine.overflow_retry.reset(scope)
            places = await self._log.append_messages(events, decoded, is_long=is_long)
            if self.reads_ahead and self._builder.is_half_full(scope):
                await self._builder.extend_ledger(scope)
            return places

    def read_ahead(self) -> Coroutine[object, object, None] | None:
        """Return a coroutine that extends the ledger for the next compaction; None if no compaction is near.

        `record` does this itself while `reads_ahead` is True. A caller that sets it to False awaits the coroutine when
        nobody waits for an answer.
        """
        return self._read_ahead() if self._builder.is_half_full(self.scope) else None

    async def _read_ahead(self) -> None:
        for _ in range(READ_AHEAD_PARTS):
            async with self._log.lock:
                if self._builder.is_half_full(self.scope):  # a delegation may have ended meanwhile
                    await self._builder.extend_ledger(self.scope)
            await asyncio.sleep(0)

    @retried
    async def compact_ahead(self, *, endpoint: str | None = None) -> bool:
        """Compact now if the next request would have to, and return whether that was done.

        Call it when an answer is recorded and nobody waits: the next request then need not wait for a digest, unless
        its prompt is longer than the last one. Nothing is done in the middle of a turn, where a model writes the
        summaries, and under presets, which decide with each request. `endpoint` is that of the last request.
        """
        self._check_running()
        try:
            async with self._log.lock:
                return await self._builder.compact_ahead(self.scope, check_endpoint(endpoint) or self._engine.endpoint)
        except ConcurrentWriteError:
            return False  # the next request decides

    def one_write(self) -> AbstractAsyncContextManager[None]:
        """Write the messages that are recorded inside together with the request that is prepared after them.

        They are durable at the end of the block, also if an error ends it. Raises if they could not be written. All
        of it follows the history as it was known before: raises `ConcurrentWriteError` if another writer appended
        since, and then all of it is to be done again.
        """
        self._check_running()
        return self._log.deferring_messages()

    @retried
    async def prepare(
        self,
        budget: int | Budget | None = None,
        *,
        model: str | None = None,
        system: object = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        max_prompt_tokens: int | None = None,
        scope: str | OwnScope = OWN_SCOPE,
        has_recall: bool | None = None,
        endpoint: str | None = None,
        encode_body: EncodeBody | None = None,
        compacts: bool = True,
    ) -> Request:
        """Return the next request: valid for its provider, within its budget, and recorded.

        `system` and `tools` are counted, and the request holds them as they are, beside its messages: pass
        `request.system` and `request.tools` on as your provider takes them. With OpenAI chat, record the system text as
        the first message instead.

        `model` and `endpoint` apply to this request; None means those of the session. `max_prompt_tokens` is the
        largest prompt that the provider of the model accepts, if it names one; it applies to later requests too.
        `has_recall` says whether the model has the tool of `recall_tool`; if so, markers in the request explain how to
        recall the omitted text. None keeps the last value. `encode_body` returns the bytes that you will send for a
        request; they are recorded with it, and with those that `retry` makes of it, so that they can be proved. With
        `compacts=False` nothing is shortened, even beyond the budget; `compaction_due` of the request then says why the
        policy would compact now.
        """
        self._check_running()
        engine = self._engine
        model = engine.model if model is None else check_model(model) or engine.model
        scope = self.scope if isinstance(scope, OwnScope) else await self._find_scope(scope)
        system, tools = check_extras(system, tools)
        self._builder.set_prompt_limit(model, max_prompt_tokens)
        options = RequestOptions(
            budget=budget,
            model=model,
            endpoint=engine.endpoint if endpoint is None else check_endpoint(endpoint) or engine.endpoint,
            system=system,
            tools=tools,
            scope=scope,
            has_recall=has_recall,
            encode_body=encode_body,
            compacts=compacts,
            # With `encode_body` the caller has its bytes already, and does not edit the messages.
            shares_messages=self.shares_messages or encode_body is not None,
        )
        limit = self._compactor.options.memory_limit_bytes
        if limit is not None and scope == log.MAIN:
            await engine.requested.relieve_memory(options, limit)
        return await self._builder.prepare(options)

    @retried
    async def retry(self, error: object, *, status: int | None = None, scope: str | OwnScope = OWN_SCOPE) -> Request:
        """Return a smaller version of the last request, after the provider rejected it as too long.

        `error` is the exception, or the body of the response with its `status`. A rejection for another reason, such as
        a rate limit, is raised as the matching error; so is an overflow that no smaller request can resolve.
        """
        self._check_running()
        scope = await self._find_scope(scope)
        checked = None if status is None else check_count("status", status)
        return await self._engine.overflow_retry.retry(error, checked, scope)

    async def interrupt(self, *, scope: str | OwnScope = OWN_SCOPE) -> None:
        """Record that the turn was stopped: calls without a result will never get one."""
        await self._append_change(log.TurnInterrupted(scope=self._resolve_scope(scope)))

    # Compaction.

    async def compact(
        self,
        *,
        focus: str = "",
        trigger: log.CompactionTrigger = "manual",
        budget: int | Budget | None = None,
        scope: str | OwnScope = OWN_SCOPE,
    ) -> log.CompactionCompleted:
        """Compact now what the policy would compact; `focus` names what the summary must cover above all.

        Waits for the summary. If there is none, raises an error that says why, and nothing has changed.
        """
        return await self._compact(focus, trigger, budget, scope)

    @retried
    async def _compact(
        self, focus: str, trigger: log.CompactionTrigger, budget: int | Budget | None, scope: str | OwnScope
    ) -> log.CompactionCompleted:
        self._check_running()
        options = self._options(budget, await self._find_scope(scope))
        return await self._engine.requested.compact(options, trigger, check_text("focus", focus))

    def compact_tool(self, *, scope: str | OwnScope = OWN_SCOPE) -> ModelTool:
        """Return the tool with which a model requests a compaction itself, in the middle of its work.

        A `note` among the arguments is the model's note to itself. Record the call before you run it: the ledger keeps
        its note, also when later compactions cover the call.
        """
        named = self._resolve_scope(scope)

        async def call(arguments: Mapping[str, object]) -> str:
            # A model wrote the arguments: they may be anything.
            focus = arguments.get("focus") if is_mapping(arguments) else None
            try:
                done = await self._compact(focus if isinstance(focus, str) else "", "agent_request", None, named)
            except (CompactionError, DelegationEndedError, ModelError) as error:
                return f"[{COMPACT_CONTEXT}: nothing was changed: {error}]"
            before, after = done.request_tokens
            return f"Done: {before:,} tokens are {after:,} now. Go on with the task."

        return ModelTool(COMPACT_CONTEXT, COMPACT_DESCRIPTION, COMPACT_PARAMETERS, call)

    @retried
    async def preview(
        self, *, draft: bool = False, focus: str = "", budget: int | Budget | None = None
    ) -> log.CompactionCompleted:
        """Return what a compaction would do now, and record nothing.

        By default a rule writes the summary, at no cost. With `draft=True` a model writes the summary that would be
        used.
        """
        options, focus, requested = self._options(budget), check_text("focus", focus), self._engine.requested
        return await (requested.draft(options, focus) if draft else requested.preview(options))

    async def apply_preview(
        self, preview: log.CompactionCompleted, *, budget: int | Budget | None = None
    ) -> log.CompactionCompleted:
        """Compact exactly as `preview` said; raises `CompactionFailedError` if that is not possible any more."""
        self._check_running()
        given: object = preview
        if not isinstance(given, log.CompactionCompleted):
            raise SettingsError("preview", f"must be what `preview` has returned, not {short_repr(given)}")
        return await self._engine.requested.apply_preview(self._options(budget), preview)

    async def compact_with(
        self, texts: Sequence[str], *, span: range, budget: int | Budget | None = None
    ) -> log.CompactionCompleted:
        """Compact what a preview showed, with texts of your own in place of its `replacement`.

        `span` is that of the preview; if the conversation went on meanwhile, raises an error, and nothing has changed.
        """
        self._check_running()
        edited = tuple(check_texts("texts", texts))
        if not edited or not all(text.strip() for text in edited):
            raise SettingsError("texts", "must be one or more texts that are not empty")
        return await self._engine.requested.compact_with(self._options(budget), edited, span)

    # Reading.

    @locked
    async def visible_messages(self, scope: str | OwnScope = OWN_SCOPE) -> list[Entry]:
        """Return the context of an agent, before it is shortened to fit."""
        context = self.history.context(self._log.require_scope(self._resolve_scope(scope)))
        is_long = context.length > MAX_INLINE_MESSAGES
        return await record_in_thread(context.visible_entries) if is_long else context.visible_entries()

    async def messages(self, *, scope: str | OwnScope = OWN_SCOPE) -> list[Mapping[str, object]]:
        """Return an agent's own messages as they were recorded, compacted ones included, as a client's list holds them.

        Leaves out messages from before a clear, rewound messages, messages that a client compacted by itself, messages
        of other agents in their own scopes, notes from memory, and attachments. What no provider accepts, such as NaN,
        is in them as it was recorded; requests hold a replacement.
        """
        natives = [native for _, native in await self.numbered_messages(scope=scope)]
        if self.shares_messages:
            return natives
        is_long = are_long(natives)
        return await record_in_thread(partial(copied_json, natives)) if is_long else copied_json(natives)

    @retried
    async def numbered_messages(
        self, *, scope: str | OwnScope = OWN_SCOPE, refreshes: bool = True
    ) -> list[tuple[int, Mapping[str, object]]]:
        """Return the messages of `messages`, each with its position; without `refreshes`, those that are known here."""
        named = self._resolve_scope(scope)
        async with self._log.lock:
            if refreshes or not self._log.is_loaded:
                await self._log.refresh()
            context, entries = self.history.context(named), self.history.entries

            def read() -> list[tuple[int, Mapping[str, object]]]:
                own = context.own_positions()
                entries.require(own)
                return [(at, entries.native(at)) for at in own if not entries[at].message.is_from_memory]

            return await record_in_thread(read) if context.length > MAX_INLINE_MESSAGES else read()

    async def recall(
        self, query: RecallQuery | str, *, scope: str | OwnScope = OWN_SCOPE, earlier: Sequence[str] = ()
    ) -> "RecallAnswer":
        """Return exact excerpts from everything that an agent may see.

        A text that consists of references asks for those messages; any other text is a search for its words. `earlier`
        names other sessions of the store to search too; their messages are referred to as `NAME#12`. Raises
        `UnknownReferenceError` if this agent can see none of the references.
        """
        from holdfast.session.recall.earlier import EarlierSessions  # noqa: PLC0415 - most sessions recall nothing
        from holdfast.session.recall.search import check_query_words  # noqa: PLC0415 - as above

        scope = await self._find_scope(scope)
        names = [name for name in check_texts("earlier", earlier) if name != self._log.session]
        others = EarlierSessions(self._log.store, self._log.clock, self.model, names)
        if isinstance(query, Sequence) and not isinstance(query, str):
            raise MalformedInputError("recall", "pass RecallQuery(query=(…)) for several questions, not a list of them")
        if isinstance(query, str) and others.session_of_refs(query):
            query = RecallQuery(refs=query)
        question = query if isinstance(query, RecallQuery) else RecallQuery.from_text(query)
        check_query_words(question)
        if (elsewhere := await others.answer_references(question)) is not None:
            return elsewhere
        if not (others.names and question.questions) or question.skip:
            return await self._recall_here(question, scope)
        found = await others.search(question)
        left = question.max_tokens - sum(one.query.max_tokens for one in found if one.query)
        own = await self._recall_here(replace(question, max_tokens=left), scope)
        return replace(own, earlier_sessions=tuple(found), notes=(*own.notes, *await others.missing_notes()))

    @retried
    async def _recall_here(self, query: RecallQuery, scope: str) -> "RecallAnswer":
        from holdfast.session.recall.answerer import answer_recall  # noqa: PLC0415 - as above

        async with self._log.lock:
            await self._log.refresh()
        # A search reads the store for a long time, so the lock is released first.
        in_view = frozenset[int]()
        if query.is_unseen_first:
            request = self._builder.last_requests.get(scope)
            quoted = (compaction.quoted for compaction in self.history.version.state_of(scope).compactions)
            in_view = frozenset(request.whole_positions if request else ()).union(*quoted)
        return await answer_recall(self._log, self.history.context(scope), query, self.model, in_view)

    def recall_tool(
        self,
        *,
        scope: str | OwnScope = OWN_SCOPE,
        max_tokens: int | None = None,
        earlier: Sequence[str] = (),
    ) -> ModelTool:
        """Return the tool with which the model recalls; if you offer it, pass `has_recall=True` to `prepare`.

        `max_tokens` limits an answer if the model does not. Without it, an answer has 1,000 tokens, or as many as the
        last request left free, up to 2,500.
        """
        named, others = self._resolve_scope(scope), check_texts("earlier", earlier)

        async def call(arguments: Mapping[str, object]) -> str:
            from holdfast.core.recall.artifacts import RETRIEVAL_SHARE  # noqa: PLC0415 - as above

            try:
                request = self._builder.last_requests.get(named)
                free = request.window - request.tokens - RECALL_CALL_TOKENS if request else 0
                usual = max_tokens or max(DEFAULT_RECALL_TOKENS, min(free, MAX_GROWN_RECALL_TOKENS))
                query = RecallQuery.from_arguments(arguments, max_tokens=usual)
                limit = int(RETRIEVAL_SHARE * request.window) if request else MAX_RECALL_TOKENS
                allowed = min(query.max_tokens, MAX_ALLOWANCE_FACTOR * usual, limit)
                query = replace(query, max_tokens=max(MIN_RECALL_TOKENS, allowed))
                return str(await self.recall(query, scope=named, earlier=others))
            except MalformedInputError as error:
                where = "" if error.where == RECALL_TOOL else f"{error.where.removeprefix('recall.')}: "
                return f"[Recall: {where}{error.problem}]"
            except (UnknownReferenceError, StoreError) as error:
                return f"[Recall: {error}]"

        return ModelTool(RECALL_TOOL, RECALL_DESCRIPTION, RECALL_PARAMETERS, call)

    @locked
    async def artifacts(self, *, scope: str | OwnScope = OWN_SCOPE) -> "list[Artifact]":
        """Return the large tool results that an agent may see, in view or not, the oldest first."""
        from holdfast.session.recall.artifact_lookup import visible_artifacts  # noqa: PLC0415 - as above

        context = self.history.context(self._log.require_scope(self._resolve_scope(scope)))
        return await plan_in_thread(lambda: [*visible_artifacts(context, self._compactor.policy, self.model)])

    @locked
    async def artifact(
        self,
        reference: str,
        *,
        lines: tuple[int, int] | None = None,
        chars: tuple[int, int] | None = None,
        budget: int | Budget | None = None,
        scope: str | OwnScope = OWN_SCOPE,
    ) -> str:
        """Return the exact text of a large tool result, named by its id, the id of its call, or `#12`.

        `lines` count from 1 and include the last one; `chars` count from 0. A result that exceeds a share of the
        context window is returned only in parts.
        """
        from holdfast.core.recall.artifacts import RETRIEVAL_SHARE  # noqa: PLC0415 - as above
        from holdfast.session.recall.artifact_lookup import find_artifact, text_range  # noqa: PLC0415 - as above

        context = self.history.context(self._log.require_scope(self._resolve_scope(scope)))
        policy, name = self._compactor.policy, check_text("reference", reference)
        found = await plan_in_thread(partial(find_artifact, self._log, context, policy, self.model, name))
        results = self.history.entries[found.position].message.results
        text = next(result.text for result in results if result.call_id == found.call_id)
        part = text_range(text, lines, chars)
        tokens = found.tokens if part is text else counter_for(self.model).count(part)
        window = self._builder.situation(RequestOptions(budget=budget, model=self.model)).window
        limit = int(RETRIEVAL_SHARE * (window or policy.unknown_window))
        if tokens > limit:
            raise ArtifactTooLargeError(found.id, tokens=tokens, limit=limit)
        return part

    # For subclasses.

    def _check_running(self) -> None:
        """Raise if the conversation has ended."""

    def _check_format(self, format_name: str | None, messages: Sequence[Mapping[str, object]] = ()) -> MessageFormat:
        """Return the format of messages: the one that the caller names, the session's, or the one they show."""
        known = self._log.history.format or self._log.format_name
        if format_name is None:
            seen = detect_format(messages)
            if known and seen and not known.startswith(seen):
                problem = (
                    f"the messages of this session are in {known}, and these are in {seen}; "
                    f"open a new session with format={seen!r}, or convert them with convert()"
                )
                raise SettingsError("format", problem)
            format_name = known or seen or "openai-chat"
        history = self._log.history
        message_format = history.message_format if format_name == history.format else format_named(format_name)
        if known and message_format.name != known:
            raise other_format_error(known, message_format.name)
        return message_format

    def _options(self, budget: int | Budget | None = None, scope: str | None = None) -> RequestOptions:
        """Return options for the model of the session, and for this agent or another."""
        return RequestOptions(budget=budget, model=self.model, endpoint=self.endpoint, scope=scope or self.scope)

    def _resolve_scope(self, scope: str | OwnScope) -> str:
        return self.scope if isinstance(scope, OwnScope) else check_scope(scope)

    async def _find_scope(self, scope: str | OwnScope) -> str:
        return self.scope if isinstance(scope, OwnScope) else await self._log.find_scope(check_scope(scope))

    @locked
    async def _append_change(self, event: log.Event) -> None:
        await self._log.append(await self._with_effect(event))
        if isinstance(event, log.Rewound | log.ContextCleared):
            await self._compactor.observers.update_checkpoints()
            self._compactor.observers.start_memory_update()

    async def _with_effect(self, event: log.Event) -> log.Event:
        """Return an event with its effect on the next request, if it changes the context."""
        if not isinstance(event, log.Rewound | log.ContextCleared):
            return event
        encode_event(event)  # raises for a wrong position, with which nothing could be measured
        return await self._measured(partial(add_effect, event))

    async def _measured(self, measure: Callable[[PlanInput], T]) -> T:
        """Return an event with its effect on what would be sent next, with the budget of the last request."""
        plan_input = await self._builder.current_plan_input(self._builder.with_last_budget(self._options()))
        return await plan_in_thread(partial(measure, plan_input))
