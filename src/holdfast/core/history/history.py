"""The fold of the log: everything that happened, and how the conversation stands now.

A history grows by one event at a time, at a cost that does not depend on how much came before. What was
said stays in append-only arrays; what a change of context does is a small value, a `Version`, so that
undo and redo only choose another one, and a snapshot for work in the background is the arrays, a length
and a version. Replaying the same events gives the same history.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.core.conversation.tokens import Counter, message_tokens
from holdfast.core.conversation.transcript import Reader
from holdfast.core.conversation.view import Entry
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.history.ledger import Ledger
from holdfast.core.history.projection import Projection
from holdfast.core.history.scope import MainSees, Scopes
from holdfast.core.history.standing import Version
from holdfast.errors import MalformedInputError


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true now besides what was said."""

    plan: str = ""
    todos: str = ""
    skills: Mapping[str, str] = field(default_factory=dict[str, str])
    """Instructions by name, in the order in which the skills were last called upon."""
    system: str = ""
    tools: tuple[Mapping[str, object], ...] = ()
    model: str | None = None
    pins: frozenset[int] = frozenset()
    running: log.CompactionStarted | None = None
    """A compaction that was started and has not ended."""
    failures: int = 0
    """Compactions that failed in a row."""
    failed_stop: int = -1
    """Where the span of the last of them ended; what failed there is not tried again."""
    failed_at: int = 0
    """How much had been said then."""
    interrupted_at: Mapping[str, int] = field(default_factory=dict[str, int])
    """By scope, how much had been said when its turn was last interrupted."""
    parent: log.Forked | None = None


@dataclass(slots=True)
class History:
    """Everything that happened; has one owner, who appends."""

    readers: Callable[[str], Reader]
    """How messages of a format are read."""
    scopes: Scopes = field(default_factory=Scopes)
    events: list[log.Event] = field(default_factory=list[log.Event])
    entries: list[Entry] = field(default_factory=list[Entry])
    origins: list[log.MessageAppended] = field(default_factory=list[log.MessageAppended])
    """For each message, the event that brought it."""
    systems: list[int] = field(default_factory=list[int])
    """Positions of system messages."""
    prompts: list[int] = field(default_factory=list[int])
    """Positions of what a user said."""
    facts: Facts = field(default_factory=Facts)
    _versions: list[Version] = field(default_factory=lambda: [Version()])
    _current: int = 0
    _projections: dict[tuple[str, str], Projection] = field(default_factory=dict[tuple[str, str], Projection])
    _tokens: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])
    """By the name of a counter, what each message costs."""
    _ledgers: dict[str, "_Kept"] = field(default_factory=dict[str, "_Kept"])

    @classmethod
    def replay(
        cls, events: Iterable[log.Event], readers: Callable[[str], Reader], *, main_sees: MainSees = "everything"
    ) -> "History":
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
    def reader(self) -> Reader:
        """What reads the format in which the newest message came."""
        return self.readers(self.origins[-1].format if self.origins else "openai-chat")

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
        return self._current > 0

    @property
    def can_redo(self) -> bool:
        """Whether a change was taken back that could stand again."""
        return self._current < len(self._versions) - 1

    def context(self, scope: str = log.MAIN) -> Context:
        """Return what an agent of a scope is shown: a snapshot that later events do not change."""
        return Context(
            self.entries,
            self.origins,
            len(self.entries),
            self.version,
            self.scopes,
            scope,
            self.systems,
            self.facts.pins,
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

    def ledger(self, scope: str, stop: int) -> Ledger:
        """Return the ledger of what stands before a position; it goes on from where it was last asked for."""
        context = self.context(scope)
        lineage = context.version.hidden, context.standing.cleared_at, scope
        kept = self._ledgers.get(scope)
        if kept is None or kept.lineage != lineage or kept.stop > stop:
            kept = self._ledgers[scope] = _Kept(lineage, context.standing.cleared_at, Ledger())
        own = self.scopes.lineage(scope)
        for entry in context.between(kept.stop, stop):
            # What one agent tells another is no word of the user's.
            if entry.message.role != "user" or self.origins[entry.position or 0].scope in own:
                kept.ledger.observe(entry)
        kept.stop = max(kept.stop, stop)
        return kept.ledger

    def _price(self, counter: Counter) -> Callable[[Entry], int]:
        """Return what tells the cost of an entry; what goes out as it was said is counted once."""
        counted, entries = self._tokens.setdefault(counter.name, {}), self.entries

        def price(entry: Entry) -> int:
            position = entry.position
            if position is None or entries[position] is not entry:
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

    def append(self, event: log.Event) -> None:
        """Take in what happened next; an event that cannot be true is refused and leaves no trace."""
        if isinstance(event, log.MessageAppended):
            self._say(event)
        elif isinstance(event, log.ChangeUndone):
            self._current -= self.can_undo
        elif isinstance(event, log.ChangeRedone):
            self._current += self.can_redo
        else:
            changed = self.version.after(event, len(self.entries))
            if changed is not None:
                self._versions[self._current + 1 :] = [changed]
                self._current += 1
            self._note(event)
        self.events.append(event)

    def _say(self, event: log.MessageAppended) -> None:
        position = len(self.entries)
        message = self.readers(event.format).decode(event.native, position)
        self.entries.append(Entry(message, position))
        self.origins.append(event)
        if message.role == "system":
            self.systems.append(position)
        elif message.is_prompt:
            self.prompts.append(position)

    def _note(self, event: log.Event) -> None:
        if isinstance(event, log.DelegationStarted):
            self.scopes.parents[event.scope] = event.parent
            # Who sees what may have changed.
            self._projections.clear()
            self._ledgers.clear()
        elif isinstance(event, log.TurnInterrupted):
            at = {**self.facts.interrupted_at, event.scope: len(self.entries)}
            self.facts = replace(self.facts, interrupted_at=at)
        elif isinstance(event, log.Pinned | log.Unpinned):
            self._pin(event)
        elif isinstance(event, log.CompactionStarted):
            self.facts = replace(self.facts, running=event)
        elif isinstance(event, log.CompactionCompleted):
            failures, stop = (0, -1) if event.success else (self.facts.failures + 1, event.stop)
            self.facts = replace(
                self.facts, running=None, failures=failures, failed_stop=stop, failed_at=len(self.entries)
            )
        else:
            self.facts = _learned(self.facts, event)

    def _check_pin(self, event: log.Pinned | log.Unpinned) -> None:
        if not 0 <= event.position < len(self.entries):
            raise MalformedInputError(event.KIND, f"there is no message {event.position}")

    def _pin(self, event: log.Pinned | log.Unpinned) -> None:
        self._check_pin(event)
        pin = frozenset({event.position})
        pins = self.facts.pins | pin if isinstance(event, log.Pinned) else self.facts.pins - pin
        self.facts = replace(self.facts, pins=pins)


@dataclass(slots=True)
class _Kept:
    """A ledger, what it has taken in, and of which version of the past."""

    lineage: tuple[object, ...]
    stop: int
    ledger: Ledger


def _learned(facts: Facts, event: log.Event) -> Facts:
    """Return what is true after an event that only says so."""
    match event:
        case log.PlanChanged(text=text):
            return replace(facts, plan=text)
        case log.TodosChanged(text=text):
            return replace(facts, todos=text)
        case log.SkillInvoked(name=name, instructions=instructions):
            others = {known: words for known, words in facts.skills.items() if known != name}
            return replace(facts, skills={**others, name: instructions})
        case log.SystemChanged(text=text):
            return replace(facts, system=text)
        case log.ToolsChanged(tools=tools):
            return replace(facts, tools=tools)
        case log.ModelSwitched(model=model):
            return replace(facts, model=model)
        case log.Forked():
            return replace(facts, parent=event)
        case _:
            return facts
