"""What is true of a session now, besides what was said: each fact is what the last event about it says."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.core.history import events as log


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

    def after(self, event: log.Event, length: int) -> "Facts":
        """Return what is true after an event; `length` is how much had been said."""
        match event:
            case log.TurnInterrupted(scope=scope):
                return replace(self, interrupted_at={**self.interrupted_at, scope: length})
            case log.Pinned(position=position):
                return replace(self, pins=self.pins | {position})
            case log.Unpinned(position=position):
                return replace(self, pins=self.pins - {position})
            case log.CompactionStarted():
                return replace(self, running=event)
            case log.CompactionCompleted():
                failures, stop = (0, -1) if event.success else (self.failures + 1, event.stop)
                return replace(self, running=None, failures=failures, failed_stop=stop, failed_at=length)
            case _:
                return _learned(self, event)


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
