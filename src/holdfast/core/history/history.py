"""The fold of the log: everything that was said, and how the conversation stands now.

A history grows by one event at a time, at a cost that does not depend on how much came before. What was
said stays in append-only arrays; what a change of context does is a small value, a `Version`, so that
undo and redo only choose another one, and a snapshot for work in the background is the arrays, a length
and a version. Replaying the same events gives the same history, and so does going on from a `State` of it.
"""

from array import array
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Self

from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.tokens import Counter, message_tokens
from holdfast.core.conversation.transcript import Reader
from holdfast.core.conversation.view import Entry
from holdfast.core.history import events as log
from holdfast.core.history.answers import Answers
from holdfast.core.history.behind import Behind, with_notes
from holdfast.core.history.context import Context
from holdfast.core.history.facts import Facts
from holdfast.core.history.ledger import Ledger
from holdfast.core.history.past import Past
from holdfast.core.history.plain import packed, unpacked
from holdfast.core.history.projection import Projection
from holdfast.core.history.scope import HEIR, MainSees, Scopes, labelled
from holdfast.core.history.standing import Standing, Version
from holdfast.core.history.state import REMEMBERED, AtHand, Lineage, State
from holdfast.errors import MalformedInputError, NotInMemoryError


@dataclass(slots=True)
class History:
    """Everything that happened; has one owner, who appends."""

    readers: Callable[[str], Reader]
    """How messages of a format are read."""
    scopes: Scopes = field(default_factory=Scopes)
    entries: Past = field(default_factory=Past)
    """What was said."""
    said_in: list[str] = field(default_factory=list[str])
    """For each message, its scope."""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """How much was said in each scope."""
    format: str | None = None
    """In which format the newest message came."""
    systems: list[int] = field(default_factory=list[int])
    """Positions of system messages."""
    prompts: "array[int]" = field(default_factory=lambda: array("q"))
    """Positions of what a user said."""
    answers: Answers = field(default_factory=Answers)
    """What of the messages is recall's own."""
    facts: Facts = field(default_factory=Facts)
    _versions: list[Version] = field(default_factory=lambda: [Version()])
    _current: int = 0
    changes: int = 0
    """How often the context has changed, changes that were taken back and made again included."""
    _has_earlier: bool = False
    """Whether there were versions before the first of these, which nobody remembers."""
    _projections: dict[tuple[str, str], Projection] = field(default_factory=dict[tuple[str, str], Projection])
    _tokens: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])
    """By the name of a counter, what each message costs."""
    _ledgers: dict[str, AtHand] = field(default_factory=dict[str, AtHand])
    _behind: dict[str, Behind] = field(default_factory=dict[str, Behind])

    @classmethod
    def replay(
        cls, events: Iterable[log.Event], readers: Callable[[str], Reader], *, main_sees: MainSees = "everything"
    ) -> Self:
        """Return the history of a log."""
        history = cls(readers, Scopes(main_sees=main_sees))
        for event in events:
            history.append(event)
        return history

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def version(self) -> Version:
        """How everything stands now."""
        return self._versions[self._current]

    @property
    def spoken(self) -> str:
        """In which format to speak: that of the newest message, or the commonest where nothing was said yet."""
        return self.format or "openai-chat"

    @property
    def reader(self) -> Reader:
        """What reads the format that is spoken."""
        return self.readers(self.spoken)

    @property
    def is_interrupted(self) -> bool:
        """Whether nothing was said since the last turn was interrupted."""
        return self.was_interrupted(log.MAIN)

    def was_interrupted(self, scope: str) -> bool:
        """Return whether nothing was said since an agent's turn was interrupted."""
        return 0 < self.facts.interrupted_at.get(scope, 0) == len(self.entries)

    @property
    def can_undo(self) -> bool:
        """Whether there is a change of context to take back."""
        return self._current > 0 or self._has_earlier

    @property
    def is_last_change_a_fold(self) -> bool:
        """Whether the last change of context that stands was a compaction of the main conversation."""
        if not self._current:
            return False
        before, now = self._versions[self._current - 1], self.version
        return before.hidden == now.hidden and before.of(log.MAIN).folds != now.of(log.MAIN).folds

    @property
    def can_redo(self) -> bool:
        """Whether a change was taken back that could stand again."""
        return self._current < len(self._versions) - 1

    def context(self, scope: str = log.MAIN) -> Context:
        """Return what an agent of a scope is shown: a snapshot that later events do not change."""
        return Context(
            self.entries,
            self.said_in,
            len(self.entries),
            self.version,
            self.scopes,
            scope,
            self.systems,
            self.facts.pins,
            self.answers if scope in self.facts.recallers else None,
        )

    def projection(self, counter: Counter, scope: str = log.MAIN) -> Projection:
        """Return what an agent is shown, counted; made anew only where the context has changed."""
        key = scope, counter.name
        known, context = self._projections.get(key), self.context(scope)
        grown = known.grown(context) if known else None
        if grown is None:
            grown = self._projections[key] = self.seen(context, counter)
        return grown

    def seen(self, context: Context, counter: Counter) -> Projection:
        """Return what a context shows, counted."""
        return Projection(context, self._price(counter))

    def line(self, parent: str) -> Context:
        """Return what a delegate of an agent could see of everything so far, not to be shown as it is."""
        return self.context(HEIR if parent == log.MAIN else parent)

    def ledger(self, scope: str, stop: int) -> Ledger:
        """Return the ledger of what stands before a position; it goes on from where it was last asked for.

        That of `HEIR` is of the main conversation alone, without what delegates did.
        """
        context = self.context(scope)
        cleared_at = self.version.of(scope or log.MAIN).cleared_at
        lineage = Lineage(context.version.hidden, cleared_at)
        kept = self._ledgers.get(scope)
        if kept is None or kept.lineage != lineage or kept.stop > stop:
            kept = self._ledgers[scope] = AtHand(lineage, cleared_at, Ledger())
        own = self.scopes.lineage(scope)
        self.entries.need(filter(context.may_see, range(kept.stop, min(stop, len(self.entries)))))
        ledger = kept.opened()
        for entry in context.between(kept.stop, stop):
            # What one agent tells another is no word of the user's.
            if entry.message.role != "user" or self.said_in[entry.position or 0] in own:
                ledger.observe(entry)
        kept.stop = max(kept.stop, stop)
        return ledger

    def facts_for(self, scope: str) -> Facts:
        """Return what is true besides what was said, as far as an agent may know: plan and todos are the main one's."""
        return self.facts.without_state() if self.scopes.is_limited(scope) else self.facts

    def behind(self, scope: str = log.MAIN) -> Behind:
        """Return what is known of what the last fold stands for; nothing where no ledger of exactly that is at hand."""
        folds = self.version.of(scope).folds
        if not folds:
            return Behind()
        known, kept = self._behind.get(scope), self._ledgers.get(scope)
        if known is not None and known.stop == folds[-1].stop:
            return known
        if kept is None or kept.stop != folds[-1].stop or kept.lineage.hidden != self.version.hidden:
            return Behind()
        known = self._behind[scope] = Behind.of(kept.opened(), kept.stop)
        return known

    def _price(self, counter: Counter) -> Callable[[Entry], int]:
        """Return what tells the cost of an entry; what goes out as it was said is counted once."""
        counted, entries = self._tokens.setdefault(counter.name, {}), self.entries

        def price(entry: Entry) -> int:
            position = entry.position
            if position is None or entries.held(position) is not entry:
                return sum(message_tokens(entry.message, counter))
            tokens = counted.get(position)
            if tokens is None:
                tokens = counted[position] = sum(message_tokens(entry.message, counter))
            return tokens

        return price

    def check(self, event: log.Event) -> None:
        """Raise what `append` would raise for an event that is not a message, and change nothing."""
        self.version.after(event, len(self.entries))
        if isinstance(event, log.Pinned | log.Unpinned):
            self._check_pin(event)
        elif isinstance(event, log.DelegationStarted):
            self.scopes.check(event)
        elif isinstance(event, log.ChangeUndone):
            self._check_undo()

    def append(self, event: log.Event, message: Message | None = None) -> None:
        """Take in what happened next; an event that cannot be true is refused and leaves no trace.

        `message` is what was said, where the caller has read it already.
        """
        before = self.version
        if isinstance(event, log.MessageAppended):
            self._say(event, message)
        elif isinstance(event, log.ChangeUndone):
            self._check_undo()
            self._travel(-self.can_undo)
        elif isinstance(event, log.ChangeRedone):
            self._travel(self.can_redo)
        elif isinstance(event, log.DelegationStarted):
            # Nothing changes for those who are there, so it is no change that could be taken back.
            before = self._begin(event)
        else:
            changed = self.version.after(event, len(self.entries))
            self._note(event)
            if changed is not None:
                self._versions[self._current + 1 :] = [changed]
                self._current += 1
            if isinstance(event, log.CompactionCompleted):
                # Its ledger was just made; the next summary to be written moves that on.
                self.behind(event.scope)
        if isinstance(event, log.Rewound):
            self._behind.clear()
        self.changes += self.version is not before
        self.facts = self.facts.after(event, len(self.entries))

    def _check_undo(self) -> None:
        if not self._current and self._has_earlier:
            raise NotInMemoryError(())

    def read(self, position: int, event: log.MessageAppended) -> None:
        """Take in a message of the past that was not read before."""
        message = self.answers.marked(self.readers(event.format).decode(event.native, position), position)
        message = _labelled(message, event)
        self.entries.put(Entry(message, position), event)

    def _say(self, event: log.MessageAppended, message: Message | None) -> None:
        position = len(self.entries)
        message = message or self.readers(event.format).decode(event.native, position)
        message = _labelled(self.answers.observe(message, position, event.scope), event)
        self.entries.append(Entry(message, position), event)
        self.said_in.append(event.scope)
        self.counts[event.scope] = self.counts.get(event.scope, 0) + 1
        self.format = event.format
        if message.role == "system":
            self.systems.append(position)
        elif message.is_prompt:
            self.prompts.append(position)

    def _note(self, event: log.Event) -> None:
        if isinstance(event, log.Pinned | log.Unpinned):
            self._check_pin(event)
        elif isinstance(event, log.DelegationFinished):
            self._forget(event.scope)

    def _begin(self, event: log.DelegationStarted) -> Version:
        """Take in a delegation, and return the version in which its agent stands as the one who sent it."""
        self.scopes.check(event)
        self.scopes.begin(event)
        self._forget(event.scope)
        if event.scope not in self.version.standings:
            above = self.version.of(event.parent)
            first = event.shown[0][0] if event.shown else len(self.entries)
            standing = Standing(cleared_at=first) if event.is_limited else self._inherited(above, event)
            self._give({event.scope: standing})
        return self.version

    def _inherited(self, above: Standing, event: log.DelegationStarted) -> Standing:
        """Return how a delegate stands; what was folded together with the work of others it sees as it was said."""
        if event.parent != log.MAIN:
            return above
        line = self.scopes.lineage(event.scope)
        folds = tuple(
            fold
            for fold in above.folds
            if not self._is_mixed({*self.said_in[fold.start : max(fold.stop, fold.read_to)]} - line)
        )
        return replace(above, folds=folds)

    def _is_mixed(self, others: set[str]) -> bool:
        """Return whether a fold that the main agent made holds something of other scopes."""
        return any(self.scopes.shown_to_main(scope) != "nothing" for scope in others)

    def _travel(self, steps: int) -> None:
        """Go to another version; who was sent out in between stands there as well."""
        before = self.version
        self._current += steps
        missing = {
            scope: standing
            for scope, standing in before.standings.items()
            if scope in self.scopes.parents and scope not in self.version.standings
        }
        if missing:
            self._give(missing)

    def _give(self, standings: Mapping[str, Standing]) -> None:
        self._versions[self._current] = replace(self.version, standings={**self.version.standings, **standings})

    def _forget(self, scope: str) -> None:
        """Let go of what was kept for an agent whose view has changed or is not needed any more."""
        for key in [key for key in self._projections if key[0] == scope]:
            del self._projections[key]
        self._ledgers.pop(scope, None)
        self._behind.pop(scope, None)

    def _check_pin(self, event: log.Pinned | log.Unpinned) -> None:
        if not 0 <= event.position < len(self.entries):
            raise MalformedInputError(event.KIND, f"there is no message {event.position}")

    # Holding no more than is needed.

    def let_go(self, newest: int) -> list[int]:
        """Let go of messages that no agent at work is shown, but not of the newest, and return where they stood.

        Of the versions before this one the last few are left. The log has all of it.
        """
        wanted = {at for scope in (log.MAIN, *self.facts.delegates) for at in self.context(scope).held_for()}
        gone = self.entries.let_go(len(self.entries) - newest, wanted)
        for counted in self._tokens.values():
            for position in gone:
                counted.pop(position, None)
        first = self._first_remembered
        self._has_earlier = self._has_earlier or first > 0
        del self._versions[:first]
        self._current -= first
        return gone

    @property
    def _first_remembered(self) -> int:
        return max(0, self._current + 1 - REMEMBERED)

    # Going on from where another has stopped.

    def state(self) -> State:
        """Return all of it but what was said, to go on from."""
        first = self._first_remembered
        return State(
            length=len(self.entries),
            format=self.format,
            said_in=tuple((scope, len(list(run))) for scope, run in groupby(self.said_in)),
            systems=tuple(self.systems),
            prompts=packed(self.prompts),
            answers=self.answers.kept(),
            versions=tuple(self._versions[first:]),
            current=self._current - first,
            changes=self.changes,
            has_earlier=self._has_earlier or first > 0,
            facts=self.facts,
            parents=dict(self.scopes.parents),
            main_sees=self.scopes.main_sees,
            limits=dict(self.scopes.limits),
            chosen=dict(self.scopes.chosen),
            attributed=tuple(sorted(self.scopes.attributed)),
            ledgers={scope: kept.packed() for scope, kept in self._ledgers.items()},
        )

    @classmethod
    def resumed(cls, state: State, readers: Callable[[str], Reader]) -> "History":
        """Return the history of a state; what was said is read when it is needed."""
        scopes = Scopes(
            dict(state.parents), state.main_sees, dict(state.limits), dict(state.chosen), set(state.attributed)
        )
        history = cls(readers, scopes, Past(state.length))
        history.said_in = [scope for scope, count in state.said_in for _ in range(count)]
        history.counts = dict(Counts(history.said_in))
        history.format = state.format
        history.systems, history.prompts = list(state.systems), unpacked(state.prompts)
        history.answers = Answers.of(state.answers)
        history._versions, history._current = list(state.versions), state.current
        history.changes = state.changes
        history._has_earlier, history.facts = state.has_earlier, state.facts
        history._ledgers = {scope: AtHand(kept.lineage, kept.stop, kept) for scope, kept in state.ledgers.items()}
        return history


def _labelled(message: Message, event: log.MessageAppended) -> Message:
    """Return a message with what its event says of it: whose word it is, and what stands beside its results."""
    return labelled(with_notes(message, event.notes), event.scope, event.trust)
