"""Folding a conversation on somebody's word, and telling what every change of it did.

Recall: everything that was said and is not in view any more, for programs and for the model itself.

By reference, by range, by words, from the end; for one agent, and never what that one may not see: nothing before a
clear, nothing that a rewind took out, nothing of another delegation. A program gets values and errors with types; a
model gets one text, and whatever it asks, an answer.

Looking at a conversation: what stands, what happened, and what was said, to the letter.

Large tool results by name: listed, and given out whole or in part.

Going back and forth in a conversation: clear, rewind, undo, redo, pins. Nothing is deleted by any of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.history.history import History
from holdfast.core.planning.change_receipt import ChangeReceipt, change_receipts, with_messages_restored
from holdfast.core.planning.changes import add_effect, with_measured_effect
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.rules.inkeep import InkeepCompaction
from holdfast.core.planning.situation import Budget
from holdfast.core.recall.answer import Excerpt, RecallAnswer
from holdfast.core.recall.artifacts import DEFAULT_ARTIFACT_TOKENS, RETRIEVAL_SHARE, Artifact, large_results
from holdfast.core.recall.query import (
    DEFAULT_RECALL_TOKENS,
    MAX_RECALL_TOKENS,
    MIN_RECALL_TOKENS,
    RECALL_DESCRIPTION,
    RECALL_PARAMETERS,
    RecallQuery,
)
from holdfast.core.recall.references import MAX_REFERENCE_DIGITS, TextSpan
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import (
    ArtifactTooLargeError,
    CompactionError,
    MalformedInputError,
    ModelError,
    NothingToCompactError,
    StoreError,
    UnknownArtifactError,
    UnknownReferenceError,
)
from holdfast.models.base import Summarizer
from holdfast.session.compaction.compactor import Compactor
from holdfast.session.inputs import check_count, check_position, check_scope, check_text
from holdfast.session.log.event_log import Clock, SessionLog, retry_when_not_loaded
from holdfast.session.log.records import encode_event
from holdfast.session.manual import ManualCompaction, compact_above_memory_limit, switch_model_and_fit
from holdfast.session.prepare import RequestBuilder, RequestOptions
from holdfast.session.recall.answer import answer_recall
from holdfast.session.recall.earlier import EarlierSessions
from holdfast.session.recall.search import check_query_words
from holdfast.session.request import Request
from holdfast.session.tools import COMPACT_CONTEXT, COMPACT_DESCRIPTION, COMPACT_PARAMETERS, ModelTool
from holdfast.stores.base import Store


class Traveller:
    """Changes how a conversation stands, and can take each change back."""

    model: str | None
    """Who answers."""

    def __init__(self, session_log: SessionLog, compactor: Compactor, builder: RequestBuilder) -> None:
        self._log = session_log
        self._compactor = compactor
        self._builder = builder

    @property
    def history(self) -> History:
        """How everything stands; of what was said long ago perhaps not all is in memory."""
        return self._log.history

    async def load_messages(self, positions: Sequence[int]) -> None:
        """Read messages of the past into memory."""
        async with self._log.lock:
            await self._log.load_messages(positions)

    async def clear(self) -> None:
        """Let the conversation begin anew; nothing is deleted."""
        await self._append_change(log.ContextCleared())

    async def rewind(self, *, to: int) -> None:
        """Go on from before the message at a position; what followed it does not stand any more."""
        await self._append_change(log.Rewound(to=to))

    @retry_when_not_loaded
    async def undo(self) -> bool:
        """Take back the last change of context, and say whether there was one."""
        async with self._log.lock:
            await self._log.refresh()
            if not self.history.can_undo:
                return False
            await self._log.append(log.ChangeUndone())
            await self._compactor.observers.update_checkpoints()
            return True

    @retry_when_not_loaded
    async def redo(self) -> bool:
        """Let a change that was taken back stand again, and say whether there was one."""
        async with self._log.lock:
            await self._log.refresh()
            if not self.history.can_redo:
                return False
            await self._log.append(log.ChangeRedone())
            await self._compactor.observers.update_checkpoints()
            return True

    async def pin(self, position: int) -> None:
        """Keep a message whole, whatever happens."""
        await self._append_change(log.Pinned(position=position))

    async def unpin(self, position: int) -> None:
        """Let a message go when it has to."""
        await self._append_change(log.Unpinned(position=position))

    async def interrupt(self, *, scope: str = log.MAIN) -> None:
        """Say that the turn was stopped: calls without a result will never have one."""
        await self._append_change(log.TurnInterrupted(scope=check_scope(scope)))

    @retry_when_not_loaded
    async def _append_change(self, event: log.Event) -> None:
        async with self._log.lock:
            await self._log.refresh()
            await self._log.append(self._with_effect(event))
            if isinstance(event, log.Rewound | log.ContextCleared):
                await self._compactor.observers.update_checkpoints()
                self._compactor.observers.start_memory_update()

    def _with_effect(self, event: log.Event) -> log.Event:
        """Return an event that tells what it does to the next request, if it changes what is shown."""
        if not isinstance(event, log.Rewound | log.ContextCleared):
            return event
        encode_event(event)
        return add_effect(event, self._builder.plan_input(RequestOptions(model=self.model)))


class Reader(Traveller):
    """Reads; nothing is changed by it."""

    @retry_when_not_loaded
    async def visible_messages(self, scope: str = log.MAIN) -> list[Entry]:
        """Return what stands of the conversation for an agent, before anything is done to make it fit."""
        named = await self._log.check_scope(check_scope(scope))
        async with self._log.lock:
            await self._log.refresh()
            return self.history.context(named).visible_entries()

    async def receipts(self) -> list[ChangeReceipt]:
        """Return what every change of context did, the oldest first, compactions that came to nothing included."""
        self._log.lock.check_open()
        timed = await self._log.stored.timed_events()
        return change_receipts((event for _, event in timed), (time_ms for time_ms, _ in timed))

    async def events(self) -> list[log.Event]:
        """Return everything that happened, from the log."""
        self._log.lock.check_open()
        return await self._log.stored.events()

    @retry_when_not_loaded
    async def messages_at(self, start: int, stop: int | None = None) -> list[Mapping[str, object]]:
        """Return messages as they were recorded, byte for byte, whatever has become of them in view.

        Never what stands before a clear: that is forgotten.
        """
        first = check_position("recall.start", start)
        last = first + 1 if stop is None else check_position("recall.stop", stop)
        async with self._log.lock:
            await self._log.refresh()
        cleared = self.history.version.state_of(log.MAIN).cleared_at
        if not cleared <= first < last <= len(self.history):
            raise MalformedInputError("recall", f"there are messages {cleared} to {len(self.history) - 1}")
        self.history.entries.require(range(first, last))
        self._log.require_content(range(first, last))
        return [self.history.entries.native(at) for at in range(first, last)]

    @retry_when_not_loaded
    async def messages(self, *, scope: str = log.MAIN) -> list[Mapping[str, object]]:
        """Return the messages that stand, as they were recorded, folded ones too: what a client's own list would hold.

        Never what stands before a clear, nor what a rewind took out, nor what others said in their own scopes, nor a
        note from memory.
        """
        async with self._log.lock:
            await self._log.refresh()
        context = self.history.context(check_scope(scope))
        start, entries = context.state.cleared_at, self.history.entries
        own = [
            at for at in range(start, context.length) if context.message_scopes[at] == scope and context.is_visible(at)
        ]
        entries.require(own)
        return [entries.native(position) for position in own if not entries[position].message.is_from_memory]


__all__ = ["Excerpt", "RecallAnswer", "RecallQuery", "Recalling"]
MAX_ALLOWANCE_FACTOR = 4
"""How many times its allowance a model may ask for."""


class Recalling(Reader):
    """A session as far as its past is asked for."""

    store: Store
    clock: Clock

    async def recall(
        self, query: RecallQuery | str, *, scope: str = log.MAIN, earlier: Sequence[str] = ()
    ) -> RecallAnswer:
        """Return what is asked for of everything that an agent may see, in excerpts to the letter.

        A text asks for the references it is made of, or for its words. `earlier` names other sessions of the store
        that may be searched too, and be referred to as `NAME#12`. Raises `UnknownReferenceError` where nothing of what
        it refers to is there for this agent.
        """
        named = await self._log.check_scope(check_scope(scope))
        others = EarlierSessions(
            self.store, self.clock, self.model, [name for name in earlier if name != self._log.session]
        )
        if isinstance(query, Sequence) and not isinstance(query, str):
            raise MalformedInputError("recall", "pass Recall(query=(…)) for several questions, not a list of them")
        if isinstance(query, str) and others.session_of_refs(query):
            query = RecallQuery(refs=query)
        question = query if isinstance(query, RecallQuery) else RecallQuery.from_text(query)
        check_query_words(question)
        if (elsewhere := await others.answer_references(question)) is not None:
            return elsewhere
        if not (others.names and question.questions) or question.skip:
            return await self._recall_here(question, named)
        found = await others.search(question)
        left = question.max_tokens - sum(one.query.max_tokens for one in found if one.query)
        own = await self._recall_here(replace(question, max_tokens=left), named)
        return replace(own, earlier_sessions=tuple(found), notes=(*own.notes, *await others.missing_notes()))

    @retry_when_not_loaded
    async def _recall_here(self, query: RecallQuery, scope: str) -> RecallAnswer:
        async with self._log.lock:
            await self._log.refresh()
        seen = self._positions_in_view(scope) if query.is_unseen_first else frozenset[int]()
        return await answer_recall(self._log, self.history.context(scope), query, self.model, seen)

    def has_omissions(self, request: Request, *, scope: str = log.MAIN) -> bool:
        """Return whether a request leaves something out or shortens it: only then a model has use for recall."""
        if request.receipt.compacted or request.receipt.clipped or request.receipt.elided:
            return True
        shown = set(request.positions)
        return any(entry.position not in shown for entry in self.history.context(scope).visible_entries())

    def _positions_in_view(self, scope: str) -> frozenset[int]:
        """Return the positions of what stood whole in the last request of an agent, or was quoted there."""
        sent = self._builder.last_request(scope)
        folds = self.history.version.state_of(scope).compactions
        return (sent.whole_positions if sent else frozenset[int]()).union(*(fold.quoted for fold in folds))

    def _max_answer_tokens(self, scope: str) -> int:
        """Return what an answer may take of an agent's window; what is larger is given out in parts."""
        sent = self._builder.last_request(scope)
        return int(RETRIEVAL_SHARE * sent.window) if sent else MAX_RECALL_TOKENS

    def recall_tool(
        self, *, scope: str = log.MAIN, max_tokens: int = DEFAULT_RECALL_TOKENS, earlier: Sequence[str] = ()
    ) -> ModelTool:
        """Return the tool by which the model itself recalls; say `has_recall=True` to `prepare` where it is offered."""

        async def call(arguments: Mapping[str, object]) -> str:
            try:
                asked = RecallQuery.from_arguments(arguments, max_tokens=max_tokens)
                most = min(MAX_ALLOWANCE_FACTOR * max_tokens, self._max_answer_tokens(scope))
                asked = replace(asked, max_tokens=max(MIN_RECALL_TOKENS, min(asked.max_tokens, most)))
                return str(await self.recall(asked, scope=scope, earlier=earlier))
            except MalformedInputError as error:
                where = "" if error.where == RECALL_TOOL else f"{error.where.removeprefix('recall.')}: "
                return f"[Recall: {where}{error.problem}]"
            except (UnknownReferenceError, StoreError) as error:
                return f"[Recall: {error}]"

        return ModelTool(RECALL_TOOL, RECALL_DESCRIPTION, RECALL_PARAMETERS, call)


class Folder(Recalling):
    """Compacts, previews, takes apart and accounts for."""

    def __init__(self, session_log: SessionLog, compactor: Compactor, builder: RequestBuilder, policy: Policy) -> None:
        super().__init__(session_log, compactor, builder)
        self._manual = ManualCompaction(session_log, compactor, builder, policy)

    @retry_when_not_loaded
    async def compact(
        self,
        *,
        focus: str = "",
        trigger: log.CompactionTrigger = "manual",
        budget: int | Budget | None = None,
        scope: str = log.MAIN,
    ) -> log.CompactionCompleted:
        """Fold what the policy would fold, now; `focus` is what the summary is to be about above all.

        Waits for the summary, and raises by name why there is none; then nothing has changed.
        """
        wanted = RequestOptions(budget=budget, model=self.model, scope=await self._log.check_scope(check_scope(scope)))
        return await self._manual.compact(wanted, trigger, check_text("focus", focus))

    def compact_tool(self, *, scope: str = log.MAIN) -> ModelTool:
        """Return the tool by which a model asks for a compaction itself, in the middle of its work."""
        named = check_scope(scope)

        async def call(arguments: Mapping[str, object]) -> str:
            focus = arguments.get("focus")
            try:
                done = await self.compact(
                    focus=focus if isinstance(focus, str) else "", trigger="agent_request", scope=named
                )
            except (CompactionError, ModelError) as error:
                return f"[{COMPACT_CONTEXT}: nothing was changed: {error}]"
            before, after = done.pre_compaction_tokens, done.post_compaction_tokens
            return f"Done: {before:,} tokens are {after:,} now. Go on with the task."

        return ModelTool(COMPACT_CONTEXT, COMPACT_DESCRIPTION, COMPACT_PARAMETERS, call)

    @retry_when_not_loaded
    async def recompact(self, *, focus: str = "", budget: int | Budget | None = None) -> log.CompactionCompleted:
        """Take the last compaction back and make it anew from the original, with other words about what matters."""
        if not self.history.version.state_of(log.MAIN).compactions:
            raise NothingToCompactError(len(self.history))
        if not self.history.is_last_change_a_compaction:
            raise MalformedInputError("recompact", "the last change of context is no compaction; undo that first")
        await self.undo()
        try:
            return await self.compact(focus=focus, budget=budget)
        except BaseException:
            await self.redo()
            raise

    @retry_when_not_loaded
    async def restore_messages(self, positions: Sequence[int]) -> None:
        """Show chosen messages of the last compaction again, whole, behind its summary."""
        async with self._log.lock:
            await self._log.refresh()
            event = with_messages_restored(self.history.context(), positions)
            await self._log.append(
                with_measured_effect(event, self._builder.plan_input(RequestOptions(model=self.model)))
            )

    @retry_when_not_loaded
    async def preview(
        self, *, draft: bool = False, focus: str = "", budget: int | Budget | None = None
    ) -> log.CompactionCompleted:
        """Return what a compaction would do now, and do nothing.

        By rule, which is free; with `draft=True` the model is asked for the summary that would count, which is not.
        """
        wanted, focus = RequestOptions(budget=budget, model=self.model), check_text("focus", focus)
        if draft:
            return await self._manual.draft(wanted, focus)
        async with self._log.lock:
            await self._log.refresh()
            return self._manual.preview(wanted)

    @retry_when_not_loaded
    async def switch_model(self, model: str, *, budget: int | Budget | None = None) -> log.CompactionCompleted | None:
        """Let another model answer from now on; what is too long for it is compacted first, and that is returned."""
        done = await switch_model_and_fit(
            self._log, self._manual, self._builder, RequestOptions(model=model, budget=budget)
        )
        self.model = model
        return done

    @retry_when_not_loaded
    async def compact_if_memory_above(self, limit_bytes: int) -> log.CompactionCompleted | None:
        """Compact if the process still holds more memory than that after cleaning up; returns what was done."""
        return await compact_above_memory_limit(
            self._manual, RequestOptions(model=self.model), check_count("limit_bytes", limit_bytes)
        )

    @property
    def summarizers(self) -> list[Summarizer]:
        """Those who write summaries for this session alone: the ones that were named and not given."""
        return self._compactor.owned_summarizers

    async def cancel_compaction(self) -> bool:
        """Give up the summary that is being written here, and say whether there was one."""
        return await self._compactor.cancel()


class Archivist(Folder):
    """A session as far as its large tool results are asked for."""

    policy: Policy

    @retry_when_not_loaded
    async def artifacts(self, *, scope: str = log.MAIN) -> list[Artifact]:
        """Return the large tool results that an agent may see, in view or not, the oldest first."""
        named = await self._log.check_scope(check_scope(scope))
        async with self._log.lock:
            await self._log.refresh()
        context = self.history.context(named)
        return list(self._large_results(context, range(context.state.cleared_at, context.length)))

    @retry_when_not_loaded
    async def artifact(
        self,
        reference: str,
        *,
        lines: tuple[int, int] | None = None,
        chars: tuple[int, int] | None = None,
        budget: int | Budget | None = None,
        scope: str = log.MAIN,
    ) -> str:
        """Return a large tool result by its id, the id of its call, or `#12`, to the letter.

        `lines` are counted from 1, the last one included, `chars` from 0. What is larger than a share of the window is
        given out in such parts only.
        """
        named = await self._log.check_scope(check_scope(scope))
        async with self._log.lock:
            await self._log.refresh()
        found = self._find_artifact(self.history.context(named), check_text("reference", reference))
        results = self.history.entries[found.position].message.results
        text = next(result.text for result in results if result.call_id == found.call_id)
        part = _text_range(text, lines, chars)
        tokens = found.tokens if part is text else counter_for(self.model).count(part)
        window = (
            self._builder.situation(RequestOptions(budget=budget, model=self.model)).window
            or self.policy.unknown_window
        )
        limit = int(RETRIEVAL_SHARE * window)
        if tokens > limit:
            raise ArtifactTooLargeError(found.id, tokens=tokens, limit=limit)
        return part

    def _find_artifact(self, context: Context, reference: str) -> Artifact:
        number = reference.removeprefix("#")
        positions = range(context.state.cleared_at, context.length)
        if reference.startswith("#") and number.isdecimal() and len(number) <= MAX_REFERENCE_DIGITS:
            place = int(number)
            positions = (
                range(max(positions.start, place - ARTIFACT_CALL_LOOKBACK), place + 1)
                if place in positions
                else range(0)
            )
            context.entries.require(filter(context.may_be_visible, positions))
            self._log.require_content(filter(context.may_be_visible, positions[-1:]))
        for artifact in self._large_results(context, positions):
            if reference in {artifact.id, artifact.call_id, f"#{artifact.position}"}:
                return artifact
        raise UnknownArtifactError(reference)

    def _large_results(self, context: Context, positions: range) -> Iterator[Artifact]:
        fold = self.policy.fold
        least = fold.artifact_tokens if isinstance(fold, InkeepCompaction) else DEFAULT_ARTIFACT_TOKENS
        context.entries.require(filter(context.may_be_visible, positions))
        return large_results(context.entries_between(positions.start, positions.stop), least, counter_for(self.model))


ARTIFACT_CALL_LOOKBACK = 32
"""How far before a result its call is looked for."""


def _text_range(text: str, lines: tuple[int, int] | None, chars: tuple[int, int] | None) -> str:
    """Return a range of a text."""
    if lines is not None:
        first, last = _check_range("lines", lines, least=1)
        start, stop = TextSpan(first, last, is_lines=True).bounds_in(text)
        return text[start:stop]
    if chars is not None:
        start, stop = _check_range("chars", chars, least=0)
        return text[start:stop]
    return text


def _check_range(name: str, given: object, *, least: int) -> tuple[int, int]:
    match given:
        case (int() as first, int() as last) if least <= first <= last:
            return first, last
        case _:
            raise MalformedInputError(f"artifact.{name}", f"must be two numbers from {least} on, in order")
