"""What is true of a session besides its messages: each fact is what the last event about it says."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.core.history import events as log


@dataclass(frozen=True, slots=True)
class RequestExtras:
    """System text and tools, which are sent outside the messages."""

    system: str = ""
    tools: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class SessionState:
    """The facts of a session besides its messages and their context."""

    plan: str = ""
    todos: str = ""
    skills: Mapping[str, str] = field(default_factory=dict[str, str])
    """Instructions by name, in the order in which the skills were last invoked."""
    agent: log.AgentChanged | None = None
    """The custom agent that is active."""
    system: str = ""
    tools: tuple[Mapping[str, object], ...] = ()
    recall_scopes: frozenset[str] = frozenset()
    """The scopes whose agents have the recall tool."""
    delegate_extras: Mapping[str, RequestExtras] = field(default_factory=dict[str, RequestExtras])
    """System text and tools of agents other than the main one, by their scopes."""
    model: str | None = None
    pins: frozenset[int] = frozenset()
    running_compaction: log.CompactionStarted | None = None
    """A compaction that was started and has not ended."""
    ready_summary: log.SummaryWritten | None = None
    """Its summary, ready to be applied."""
    is_compaction_stale: bool = False
    """Whether its span is no longer in force."""
    last_summary: log.SummaryWritten | None = None
    """The last summary that a model wrote of messages still in force, whether it was applied or not."""
    tokens_before_compaction: int | None = None
    """Tokens before the last compaction, until a provider's count has shown whether it helped."""
    compaction_failures: int = 0
    """Compactions that failed in a row; a digest made by rule does not reset a model's failures."""
    failed_stop: int = -1
    """Where the span of the last of them stopped; the same span is not tried again."""
    failed_by: str = ""
    """`summary` where a model failed, else empty."""
    failed_at: int = 0
    """How many messages there were then."""
    interrupted_at: Mapping[str, int] = field(default_factory=dict[str, int])
    """By scope, how many messages there were when its turn was last interrupted."""
    running_delegates: Mapping[str, str] = field(default_factory=dict[str, str])
    """The scopes of running delegations, each with the owner of its lease."""
    forked_from: log.Forked | None = None

    def after(self, event: log.Event, length: int) -> "SessionState":
        """Return the state after an event; `length` is how many messages there were."""
        match event:
            case log.TurnInterrupted(scope=scope):
                return replace(self, interrupted_at={**self.interrupted_at, scope: length})
            case log.Pinned(position=position):
                return replace(self, pins=self.pins | {position})
            case log.Unpinned(position=position):
                return replace(self, pins=self.pins - {position})
            case log.CompactionStarted():
                return replace(self, running_compaction=event, ready_summary=None, is_compaction_stale=False)
            case log.SummaryWritten():
                return replace(
                    self,
                    last_summary=self.last_summary if self.is_compaction_stale else event,
                    ready_summary=event if self.running_compaction else None,
                )
            case log.CompactionCompleted():
                return self._after_compaction(event, length)
            case log.MessageAppended(usage=log.Usage() as usage):
                return self._after_usage(usage, length)
            case log.Rewound(to=to):
                is_stale = self.is_compaction_stale or (
                    self.running_compaction is not None and to < self.running_compaction.span.stop
                )
                kept = self.last_summary if self.last_summary and self.last_summary.stop <= to else None
                return replace(self, last_summary=kept, is_compaction_stale=is_stale)
            case log.ContextCleared() | log.ChangeUndone() | log.ChangeRedone():
                return replace(self, last_summary=None, is_compaction_stale=True)
            case _:
                return _after_simple_event(self, event)

    def extras_for(self, scope: str) -> RequestExtras:
        """Return what an agent's requests carry outside the messages; the main agent's by default."""
        return self.delegate_extras.get(scope) or RequestExtras(self.system, self.tools)

    def without_agent_state(self) -> "SessionState":
        """Return the state without plan, todos, skills and agent."""
        return replace(self, plan="", todos="", skills={}, agent=None)

    @property
    def agent_summary(self) -> str:
        """What a successor has to know of the active agent."""
        return "\n".join(text for text in (self.agent.name, self.agent.summary) if text) if self.agent else ""

    def summary_within(self, start: int, stop: int, scope: str) -> log.SummaryWritten | None:
        """Return the last summary, if its span lies inside the given one of the same scope."""
        known = self.last_summary
        is_inside = known is not None and known.scope == scope and start <= known.start <= known.stop <= stop
        return known if is_inside else None

    def _after_compaction(self, event: log.CompactionCompleted, length: int) -> "SessionState":
        """Return the state after a compaction that was applied or failed."""
        known = replace(self, running_compaction=None, ready_summary=None) if event.ends_run else self
        if event.success:
            known = replace(known, failed_stop=-1, tokens_before_compaction=event.pre_compaction_tokens or None)
            # A digest made by rule shows nothing about a model that failed to write summaries.
            is_by_rule = not event.ends_run and self.failed_by == "summary"
            return known if is_by_rule else replace(known, compaction_failures=0, failed_at=length)
        if event.is_cancelled:
            return known
        by = "summary" if event.ends_run and self.running_compaction else ""
        return replace(
            known,
            compaction_failures=self.compaction_failures + 1,
            failed_stop=event.span.stop,
            failed_at=length,
            failed_by=by,
        )

    def _after_usage(self, usage: log.Usage, length: int) -> "SessionState":
        """Return the state after a provider's count: a compaction that did not lower it counts as failed."""
        if self.tokens_before_compaction is None:
            return self
        reported = usage.all_input_tokens
        known = replace(self, tokens_before_compaction=None)
        if not reported or reported < self.tokens_before_compaction:
            return known
        return replace(
            known, compaction_failures=self.compaction_failures + 1, failed_stop=length, failed_at=length, failed_by=""
        )


def _after_simple_event(state: SessionState, event: log.Event) -> SessionState:
    """Return the state after an event that sets one fact."""
    match event:
        case log.PlanChanged(text=text):
            return replace(state, plan=text)
        case log.TodosChanged(text=text):
            return replace(state, todos=text)
        case log.SkillInvoked(name=name, instructions=instructions):
            others = {known: words for known, words in state.skills.items() if known != name}
            return replace(state, skills={**others, name: instructions})
        case log.AgentChanged(name=name):
            return replace(state, agent=event if name else None)
        case log.SystemChanged() | log.ToolsChanged():
            return _after_extras_change(state, event)
        case log.RecallOffered(is_offered=is_offered, scope=scope):
            others = state.recall_scopes - {scope}
            return replace(state, recall_scopes=others | frozenset([scope] * is_offered))
        case log.ModelSwitched(model=model):
            return replace(state, model=model)
        case log.DelegationStarted() | log.DelegationFinished():
            return _after_delegation(state, event)
        case _:
            return replace(state, forked_from=event) if isinstance(event, log.Forked) else state


def _after_delegation(state: SessionState, event: log.DelegationStarted | log.DelegationFinished) -> SessionState:
    """Return the state after a delegation started or finished."""
    others = {scope: owner for scope, owner in state.running_delegates.items() if scope != event.scope}
    if isinstance(event, log.DelegationStarted):
        return replace(state, running_delegates={**others, event.scope: event.owner})
    extras = {scope: known for scope, known in state.delegate_extras.items() if scope != event.scope}
    return replace(state, running_delegates=others, delegate_extras=extras)


def _after_extras_change(state: SessionState, event: log.SystemChanged | log.ToolsChanged) -> SessionState:
    """Return the state after an agent got another system text, or other tools."""
    before = state.extras_for(event.scope)
    now = (
        replace(before, system=event.text)
        if isinstance(event, log.SystemChanged)
        else replace(before, tools=event.tools)
    )
    if event.scope == log.MAIN:
        return replace(state, system=now.system, tools=now.tools)
    return replace(state, delegate_extras={**state.delegate_extras, event.scope: now})
