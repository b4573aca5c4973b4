"""The state replayed from the session log: all messages, and the context in force.

A history grows by one event at a time, at a cost that does not depend on its length. Messages stay in append-only
arrays. A change of context creates a small immutable value, a `ContextVersion`, so undo and redo only select another
version, and background work needs only the arrays, a length and a version. Replaying the same events produces the same
history, and so does resuming from a `HistorySnapshot`.
"""

from array import array
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import field, replace
from itertools import groupby
from typing import Self

from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.tokens import Counter
from holdfast.core.conversation.transcript import MessageFormat
from holdfast.core.history import events as log
from holdfast.core.history.context import Context, ContextState, ContextVersion
from holdfast.core.history.message_cache import MessageCache
from holdfast.core.history.projection import Projection
from holdfast.core.history.read_notes import NO_READS, CompactedReads, add_read_notes
from holdfast.core.history.recall_marks import RecallMarks
from holdfast.core.history.scopes import FUTURE_DELEGATE, MainVisibility, Scopes, label_trust
from holdfast.core.history.session_state import SessionState
from holdfast.core.history.snapshot import (
    KEPT_VERSIONS,
    SNAPSHOT_VERSIONS,
    HistorySnapshot,
    LedgerLineage,
    PackedLedger,
    from_snapshot_json,
    pack_positions,
    to_snapshot_json,
    unpack_positions,
)
from holdfast.core.ledger.constraints import conflicting_constraints
from holdfast.core.ledger.ledger import Ledger
from holdfast.dataclass import dataclass
from holdfast.errors import MalformedInputError, NotInMemoryError

NO_POSITIONS = frozenset[int]()


@dataclass(slots=True)
class _OpenLedger:
    """A ledger of the messages before `stop`, to be extended with later messages."""

    lineage: LedgerLineage
    stop: int
    ledger: Ledger | str
    """The ledger, or its JSON text until it is needed."""

    def unpacked(self) -> Ledger:
        """Return the ledger for reading and extending; parse it if it is packed."""
        if isinstance(self.ledger, str):
            self.ledger = from_snapshot_json(Ledger, self.ledger)
        return self.ledger

    def pack(self) -> PackedLedger:
        """Return the ledger in packed form."""
        text = self.ledger if isinstance(self.ledger, str) else to_snapshot_json(self.ledger)
        return PackedLedger(self.lineage, self.stop, text)


@dataclass(slots=True)
class History:
    """All messages and state of a session; only one owner appends to it.

    `projection`, `ledger`, `ledger_covering` and `compacted_reads` extend what they have kept from their last call, so
    only the holder of the session's lock may call them; a thread that plans a request calls them for that holder.
    Everything else only reads, and nothing of it changes while a request is planned.
    """

    formats: Callable[[str], MessageFormat]
    """Returns a message format by its name."""
    scopes: Scopes = field(default_factory=Scopes)
    entries: MessageCache = field(default_factory=MessageCache)
    """All messages."""
    message_scopes: list[str] = field(default_factory=list[str])
    """The scope of each message."""
    message_counts: dict[str, int] = field(default_factory=dict[str, int])
    """The number of messages by scope."""
    format: str | None = None
    """The name of the format of the newest message."""
    message_format: MessageFormat = field(init=False)
    """The format of requests: that of the newest message, or OpenAI chat if there is no message yet."""
    system_positions: list[int] = field(default_factory=list[int])
    """Positions of system messages."""
    prompt_positions: "array[int]" = field(default_factory=lambda: array("q"))
    """Positions of user prompts."""
    recall_marks: RecallMarks = field(default_factory=RecallMarks)
    """Which messages belong to recall."""
    session_state: SessionState = field(default_factory=SessionState)
    _versions: list[ContextVersion] = field(default_factory=lambda: [ContextVersion()])
    _current: int = 0
    change_count: int = 0
    """The number of context changes, including undo and redo."""
    request_chain: str = ""
    """The chain hash of the last request; empty if there is none."""
    _has_forgotten_versions: bool = False
    """Whether versions before the first of `_versions` were dropped from memory."""
    _projections: dict[tuple[str, str], Projection] = field(default_factory=dict[tuple[str, str], Projection])
    _ledgers: dict[str, _OpenLedger] = field(default_factory=dict[str, _OpenLedger])
    _compacted_reads: dict[str, CompactedReads] = field(default_factory=dict[str, CompactedReads])

    def __post_init__(self) -> None:
        self.message_format = self.formats(self.format or "openai-chat")

    @classmethod
    def replay(
        cls,
        events: Iterable[log.Event],
        formats: Callable[[str], MessageFormat],
        *,
        main_sees: MainVisibility = "everything",
    ) -> Self:
        """Return the history of a log."""
        history = cls(formats, Scopes(main_sees=main_sees))
        for event in events:
            history.append(event)
        return history

    def __len__(self) -> int:
        return self.entries.length

    @property
    def version(self) -> ContextVersion:
        """The version of the context in force."""
        return self._versions[self._current]

    def was_interrupted(self, scope: str) -> bool:
        """Return whether an agent's turn was interrupted and no message of that agent followed, except attachments."""
        start = self.session_state.interrupted_at.get(scope, 0)
        if not start:
            return False
        attachments, scopes = self.session_state.attachments.values(), self.message_scopes
        return not any(scopes[at] == scope and at not in attachments for at in range(start, self.entries.length))

    @property
    def can_undo(self) -> bool:
        """Whether there is a change of context to undo."""
        return self._current > 0 or self._has_forgotten_versions

    @property
    def is_last_change_a_compaction(self) -> bool:
        """Whether the last change in force is a compaction of the main conversation."""
        if not self._current:
            return False
        before, now = self._versions[self._current - 1], self.version
        return (
            before.hidden == now.hidden and before.state_of(log.MAIN).compactions != now.state_of(log.MAIN).compactions
        )

    @property
    def can_redo(self) -> bool:
        """Whether an undone change can be redone."""
        return self._current < len(self._versions) - 1

    def context(self, scope: str = log.MAIN) -> Context:
        """Return the context of a scope: a snapshot that later events do not change."""
        state = self.session_state
        return Context(
            self.entries,
            self.message_scopes,
            self.entries.length,
            self._versions[self._current],
            self.scopes,
            scope,
            self.system_positions,
            state.pins,
            self.recall_marks if scope in state.recall_scopes else None,
            frozenset(state.attachments.values()) if state.attachments else NO_POSITIONS,
        )

    def projection(self, counter: Counter, scope: str = log.MAIN) -> Projection:
        """Return the projection of a scope; it is rebuilt only if the context has changed."""
        key = scope, counter.name
        known, context = self._projections.get(key), self.context(scope)
        grown = known.extended_to(context) if known else None
        if grown is None:
            grown = self._projections[key] = Projection(context, counter)
        return grown

    def uncounted_messages(self, counter: Counter, scope: str = log.MAIN) -> list[Message]:
        """Return the messages in memory that the next projection of a scope would have to count."""
        known = self._projections.get((scope, counter.name))
        if known is not None and known.context.version is self._versions[self._current]:
            positions: Iterable[int] = range(known.context.length, self.entries.length)
        else:
            positions = self.context(scope).needed_positions()
        entries = map(self.entries.get, positions)
        return [entry.message for entry in entries if entry is not None and counter not in entry.message.counts]

    def delegable_context(self, parent: str) -> Context:
        """Return the context with everything that a delegate of an agent may see."""
        return self.context(FUTURE_DELEGATE if parent == log.MAIN else parent)

    def ledger(self, scope: str, stop: int) -> Ledger:
        """Return the ledger of the messages before a position; it extends the ledger of the last call for the scope.

        The ledger of `FUTURE_DELEGATE` covers only the main conversation, without the work of delegates.
        """
        context = self.context(scope)
        lineage = self._ledger_lineage(scope)
        kept = self._ledgers.get(scope)
        if kept is None or kept.lineage != lineage or kept.stop > stop:
            kept = self._ledgers[scope] = _OpenLedger(lineage, lineage.cleared_at, Ledger())
        own = self.scopes.lineage(scope)
        self.entries.require(filter(context.may_be_in_view, range(kept.stop, min(stop, self.entries.length))))
        ledger = kept.unpacked()
        for entry in context.entries_between(kept.stop, stop):
            # A task that one agent gives another does not come from the user.
            if entry.message.role != "user" or self.message_scopes[entry.position or 0] in own:
                ledger.observe(entry)
        kept.stop = max(kept.stop, stop)
        return ledger

    def next_ledger_part(self, scope: str, stop: int, max_chars: int) -> tuple[int, int]:
        """Return where a ledger stops that reads about `max_chars` more, before `stop`, and how many these are.

        It reads at least one message more, however long that is.
        """
        kept, chars = self._ledgers.get(scope), 0
        for position in range(kept.stop if kept else 0, stop):
            message = self.entries[position].message
            chars += message.chat_chars + message.outline.work_chars
            if chars >= max_chars:
                return position + 1, chars
        return stop, chars

    def ledger_covering(self, scope: str, stop: int) -> Ledger:
        """Return a ledger of at least the messages before a position: the known one, if it already covers them."""
        kept = self._ledgers.get(scope)
        if kept is not None and kept.stop >= stop and kept.lineage == self._ledger_lineage(scope):
            return kept.unpacked()
        return self.ledger(scope, stop)

    def _ledger_lineage(self, scope: str) -> LedgerLineage:
        return LedgerLineage(self.context(scope).version.hidden, self.version.state_of(scope or log.MAIN).cleared_at)

    def session_state_for(self, scope: str) -> SessionState:
        """Return the session state that an agent may see; a limited delegate sees no plan, todos, skills or agent."""
        return self.session_state.without_agent_state() if self.scopes.is_limited(scope) else self.session_state

    def compacted_reads(self, scope: str = log.MAIN) -> CompactedReads:
        """Return the file reads and contradicting constraints that the last compaction replaced.

        Both are empty if no ledger ends exactly at its span.
        """
        state = self._versions[self._current].states.get(scope)
        if state is None or not (compactions := state.compactions):
            return NO_READS
        stop = compactions[-1].span.stop
        known, kept = self._compacted_reads.get(scope), self._ledgers.get(scope)
        if known is not None and known.stop == stop:
            return known
        if kept is None or kept.stop != stop or kept.lineage.hidden != self.version.hidden:
            return NO_READS
        ledger = kept.unpacked()
        reads = {file.path: file for file in ledger.files if file.last_read is not None and file.last_read.content_hash}
        known = CompactedReads(stop, reads, tuple(conflicting_constraints(ledger.constraints)))
        self._compacted_reads[scope] = known
        return known

    def check(self, event: log.Event) -> None:
        """Raise the error that `append` would raise for an event other than a message; change nothing."""
        self.version.after(event, self.entries.length)
        if isinstance(event, log.Pinned | log.Unpinned):
            self._check_pin(event)
        elif isinstance(event, log.DelegationStarted):
            self.scopes.check_delegation(event)
        elif isinstance(event, log.ChangeUndone):
            self._check_undo()

    def append(self, event: log.Event, message: Message | None = None) -> None:
        """Apply the next event; an impossible event raises an error and changes nothing.

        `message` is the decoded message, if the caller already has it.
        """
        if isinstance(event, log.UsageMeasured):
            return  # no state depends on it
        if isinstance(event, log.MessageAppended):
            self._append_message(event, message)
        elif isinstance(event, log.RequestPrepared):
            self.request_chain = event.chain_hash or self.request_chain
        else:
            self._change_context(event)
        self.session_state = self.session_state.after(event, self.entries.length)

    def _change_context(self, event: log.Event) -> None:
        """Apply an event that may change a context; an impossible event raises an error and changes nothing."""
        before = self.version
        if isinstance(event, log.ChangeUndone):
            self._check_undo()
            self._move_version(-self.can_undo)
        elif isinstance(event, log.ChangeRedone):
            self._move_version(self.can_redo)
        elif isinstance(event, log.DelegationStarted):
            # The contexts of other agents do not change, so undo skips this event.
            self._start_delegation(event)
            before = self.version
        else:
            changed = self.version.after(event, self.entries.length)
            if isinstance(event, log.Pinned | log.Unpinned):
                self._check_pin(event)
            elif isinstance(event, log.DelegationFinished):
                self._drop_caches_of(event.scope)
            if changed is not None:
                self._versions[self._current + 1 :] = [changed]
                self._current += 1
            if isinstance(event, log.CompactionCompleted):
                # Keep its reads now: the next summary extends the ledger beyond this span.
                self.compacted_reads(event.scope)
        if isinstance(event, log.Rewound):
            self._compacted_reads.clear()
        self.change_count += self.version is not before

    def _check_undo(self) -> None:
        if not self._current and self._has_forgotten_versions:
            raise NotInMemoryError(())

    def load_message(self, position: int, event: log.MessageAppended) -> None:
        """Load an earlier message that is not in memory."""
        message = self.recall_marks.mark(self.formats(event.format).decode(event.native, position), position)
        message = _apply_event_labels(message, event)
        self.entries.load(Entry(message, position), event)

    def _append_message(self, event: log.MessageAppended, message: Message | None) -> None:
        position, scope, marks = self.entries.length, event.scope, self.recall_marks
        message_format = self.message_format if event.format == self.format else self.formats(event.format)
        message = message or message_format.decode(event.native, position)
        if marks.open_calls or message.outline.call_ids or position in marks.answer_parts:
            message = marks.observe(message, position, scope)
        if event.notes or event.trust or scope != log.MAIN:
            message = _apply_event_labels(message, event)
        self.entries.append(Entry(message, position), event)
        self.message_scopes.append(scope)
        self.message_counts[scope] = self.message_counts.get(scope, 0) + 1
        self.format, self.message_format = event.format, message_format
        if message.role == "system" or message.outline.is_fixed:
            self.system_positions.append(position)
        if message.is_prompt:
            self.prompt_positions.append(position)

    def _start_delegation(self, event: log.DelegationStarted) -> None:
        """Add a delegate; its context starts as its parent's, or as the selection made for it."""
        self.scopes.check_delegation(event)
        self.scopes.add_delegation(event)
        self._drop_caches_of(event.scope)
        if event.scope not in self.version.states:
            above = self.version.state_of(event.parent)
            first = event.visible_spans[0][0] if event.visible_spans else self.entries.length
            state = ContextState(cleared_at=first) if event.is_limited else self._inherited_state(above, event)
            self._set_states({event.scope: state})

    def _inherited_state(self, above: ContextState, event: log.DelegationStarted) -> ContextState:
        """Return a delegate's first state, which inherits only compactions that reveal nothing of other delegations."""
        if event.parent != log.MAIN:
            return above
        lineage = self.scopes.lineage(event.scope)

        def is_inherited(compaction: log.CompactionCompleted) -> bool:
            scopes = {*self.message_scopes[compaction.span.start : max(compaction.span.stop, compaction.read_to)]}
            return all(self.scopes.main_view_of(scope) == "nothing" for scope in scopes - lineage)

        return replace(above, compactions=tuple(filter(is_inherited, above.compactions)))

    def _move_version(self, steps: int) -> None:
        """Select another version and keep the states of delegates that started in between."""
        before = self.version
        self._current += steps
        missing = {
            scope: state
            for scope, state in before.states.items()
            if scope in self.scopes.parents and scope not in self.version.states
        }
        if missing:
            self._set_states(missing)

    def _set_states(self, states: Mapping[str, ContextState]) -> None:
        self._versions[self._current] = replace(self.version, states={**self.version.states, **states})

    def _drop_caches_of(self, scope: str) -> None:
        """Drop the caches of an agent whose view has changed or is no longer needed."""
        for key in [key for key in self._projections if key[0] == scope]:
            del self._projections[key]
        self._ledgers.pop(scope, None)
        self._compacted_reads.pop(scope, None)

    def _check_pin(self, event: log.Pinned | log.Unpinned) -> None:
        if not 0 <= event.position < self.entries.length:
            problem = f"there is no message {event.position}; there are {self.entries.length}, counted from 0"
            raise MalformedInputError(event.KIND, problem)

    def evict(self, keep_newest: int) -> list[int]:
        """Evict messages that no running agent's view needs, except the newest, and return their positions.

        Versions before the last `KEPT_VERSIONS` are dropped too. The log keeps everything.
        """
        needed = {
            at
            for scope in (log.MAIN, *self.session_state.running_delegates)
            for at in self.context(scope).retained_positions()
        }
        gone = self.entries.evict(self.entries.length - keep_newest, needed)
        first = self._first_kept_version(KEPT_VERSIONS)
        self._has_forgotten_versions = self._has_forgotten_versions or first > 0
        del self._versions[:first]
        self._current -= first
        return gone

    def _first_kept_version(self, count: int) -> int:
        return max(0, self._current + 1 - count)

    def snapshot(self) -> HistorySnapshot:
        """Return a snapshot to resume from: everything except the messages."""
        first = self._first_kept_version(SNAPSHOT_VERSIONS)
        return HistorySnapshot(
            length=self.entries.length,
            format=self.format,
            scope_runs=tuple((scope, len(list(run))) for scope, run in groupby(self.message_scopes)),
            system_positions=tuple(self.system_positions),
            packed_prompts=pack_positions(self.prompt_positions),
            recall_marks=self.recall_marks.snapshot(),
            versions=tuple(self._versions[first:]),
            current=self._current - first,
            change_count=self.change_count,
            request_chain=self.request_chain,
            has_forgotten_versions=self._has_forgotten_versions or first > 0,
            session_state=self.session_state,
            scopes=deepcopy(self.scopes),
            ledgers={scope: kept.pack() for scope, kept in self._ledgers.items()},
        )

    def at(self, length: int, version: ContextVersion, state: SessionState, format_name: str | None) -> "History":
        """Return the history of an earlier moment, without its messages, which are loaded on demand.

        It shares what only grows with this one, so nothing may be appended to it.
        """
        past = History(
            self.formats,
            self.scopes,
            MessageCache(length),
            self.message_scopes,
            format=format_name,
            system_positions=self.system_positions[: bisect_left(self.system_positions, length)],
            recall_marks=self.recall_marks,
            session_state=state,
        )
        past._versions = [version]
        return past

    @classmethod
    def from_snapshot(cls, snapshot: HistorySnapshot, formats: Callable[[str], MessageFormat]) -> "History":
        """Return the history of a snapshot; messages are loaded on demand."""
        history = cls(formats, deepcopy(snapshot.scopes), MessageCache(snapshot.length), format=snapshot.format)
        history.message_scopes = [scope for scope, count in snapshot.scope_runs for _ in range(count)]
        history.message_counts = dict(Counts(history.message_scopes))
        history.system_positions = list(snapshot.system_positions)
        history.prompt_positions = unpack_positions(snapshot.packed_prompts)
        history.recall_marks = RecallMarks.from_snapshot(snapshot.recall_marks)
        history._versions, history._current = list(snapshot.versions), snapshot.current
        history.change_count, history.request_chain = snapshot.change_count, snapshot.request_chain
        history._has_forgotten_versions, history.session_state = snapshot.has_forgotten_versions, snapshot.session_state
        history._ledgers = {
            scope: _OpenLedger(kept.lineage, kept.stop, kept.text) for scope, kept in snapshot.ledgers.items()
        }
        return history


def _apply_event_labels(message: Message, event: log.MessageAppended) -> Message:
    """Return a message with the trust and the notes of its event."""
    noted = add_read_notes(message, event.notes) if event.notes else message
    return label_trust(noted, event.scope, event.trust)
