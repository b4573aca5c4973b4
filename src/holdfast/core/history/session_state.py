"""The state of a session besides its messages and their context.

The last event about a fact determines its value, so the state is one immutable value that each event replaces.
"""

from collections.abc import Mapping
from dataclasses import field, replace

from holdfast.core.history import events as log
from holdfast.dataclass import dataclass


@dataclass(slots=True)
class RequestExtras:
    """System text and tools, which a request carries outside the messages. Nobody changes them."""

    system: str = ""
    tools: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class SentPrefix:
    """The last request to a model that binds its thinking to the request."""

    hash: str
    length: int
    """The number of messages when it was sent."""
    first_extras: str
    """The hash of the system text and tools of the first such request; earlier messages count as said with them."""


MAX_CLIENT_SUMMARIES = 4


@dataclass(frozen=True, slots=True)
class SessionState:
    """The state of a session after its last event."""

    plan: str = ""
    todos: str = ""
    skills: Mapping[str, str] = field(default_factory=dict[str, str])
    """Instructions by skill name, in the order of the last invocation."""
    agent: log.AgentChanged | None = None
    """The active custom agent."""
    system: str = ""
    tools: tuple[Mapping[str, object], ...] = ()
    recall_scopes: frozenset[str] = frozenset()
    """The scopes whose agents have the recall tool."""
    delegate_extras: Mapping[str, RequestExtras] = field(default_factory=dict[str, RequestExtras])
    """System text and tools of delegates, by scope."""
    model: str | None = None
    pins: frozenset[int] = frozenset()
    running_compaction: log.CompactionStarted | None = None
    """The compaction that has started and not ended."""
    ready_summary: log.SummaryWritten | None = None
    """The summary of the running compaction, ready to be applied."""
    is_compaction_stale: bool = False
    """Whether a rewind, clear, undo or redo has invalidated the running compaction."""
    last_summary: log.SummaryWritten | None = None
    """The last model summary of messages that are still in force, applied or not."""
    tokens_before_compaction: int | None = None
    """The tokens before the last compaction, until the next usage report shows whether the compaction helped."""
    compaction_failures: int = 0
    """The number of consecutive failures; a digest made by rule does not reset a summarizer's failures."""
    failed_stop: int = -1
    """The stop of the last failed span; the same span is not tried again."""
    failed_by: str = ""
    """`summary` if the summarizer failed, otherwise empty."""
    failed_at: int = 0
    """The number of messages at the last failure, or at the success that reset the failures."""
    interrupted_at: Mapping[str, int] = field(default_factory=dict[str, int])
    """By scope, the number of messages when its turn was last interrupted."""
    running_delegates: Mapping[str, str] = field(default_factory=dict[str, str])
    """The scopes of running delegations, each with the owner of its lease."""
    forked_from: log.Forked | None = None
    sent_prefixes: Mapping[str, SentPrefix] = field(default_factory=dict[str, SentPrefix])
    """By scope, the last request to a model that binds its thinking."""
    client_summaries: tuple[str, ...] = ()
    """The last summaries that a client had written for itself; one of them in its list marks its own compaction."""
    attachments: Mapping[str, int] = field(default_factory=dict[str, int])
    """The positions of attachments by name."""

    def after(self, event: log.Event, length: int) -> "SessionState":
        """Return the state after an event; `length` is the number of messages at that time."""
        match event:
            case log.MessageAppended(usage=None, name=None) | log.RequestPrepared(prefix_hash=None):
                return self
            case log.RequestPrepared():
                return self._after_request(event, length)
            case log.TurnInterrupted(scope=scope):
                return replace(self, interrupted_at={**self.interrupted_at, scope: length})
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
            case log.MessageAppended(usage=usage, name=name):
                attachments = self.attachments if name is None else {**self.attachments, name: length - 1}
                return self._after_usage(usage, length) if usage else replace(self, attachments=attachments)
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
        """Return the system text and tools of an agent's requests; the main agent's by default."""
        return self.delegate_extras.get(scope) or RequestExtras(self.system, self.tools)

    def without_agent_state(self) -> "SessionState":
        """Return the state without plan, todos, skills and agent."""
        return replace(self, plan="", todos="", skills={}, agent=None)

    @property
    def agent_summary(self) -> str:
        """The name and summary of the active agent; empty if there is none."""
        return "\n".join(text for text in (self.agent.name, self.agent.summary) if text) if self.agent else ""

    def summary_within(self, start: int, stop: int, scope: str) -> log.SummaryWritten | None:
        """Return the last summary of `scope` if its span lies between `start` and `stop`."""
        known = self.last_summary
        is_inside = known is not None and known.scope == scope and start <= known.start <= known.stop <= stop
        return known if is_inside else None

    def _after_request(self, event: log.RequestPrepared, length: int) -> "SessionState":
        """Return the state after a request, with the prefix that a model binds its thinking to."""
        known = self.sent_prefixes.get(event.scope)
        sent = SentPrefix(event.prefix_hash or "", length, known.first_extras if known else event.extras_hash or "")
        return replace(self, sent_prefixes={**self.sent_prefixes, event.scope: sent})

    def _after_compaction(self, event: log.CompactionCompleted, length: int) -> "SessionState":
        """Return the state after a compaction that was applied or failed."""
        if event.trigger == "client":
            # It says nothing about our summarizer, and makes a summary that is being written useless.
            return replace(self, last_summary=None, is_compaction_stale=True)
        known = replace(self, running_compaction=None, ready_summary=None) if event.ends_run else self
        if event.success:
            before = event.pre_compaction_tokens
            # A compaction that was not made to free tokens cannot fail to do so.
            did_shrink = before > event.post_compaction_tokens
            known = replace(known, failed_stop=-1, tokens_before_compaction=before if did_shrink else None)
            # A digest made by rule does not prove that a failing summarizer works again.
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
        """Return the state after a usage report; a compaction that did not reduce the input tokens counts as failed."""
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
        case log.Pinned(position=position) | log.Unpinned(position=position):
            others = state.pins - {position}
            return replace(state, pins=others | {position} if isinstance(event, log.Pinned) else others)
        case log.PlanChanged(text=text) | log.TodosChanged(text=text):
            return replace(state, plan=text) if isinstance(event, log.PlanChanged) else replace(state, todos=text)
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
        case log.SideCallRecorded(purpose="summary", answer=answer):
            return replace(state, client_summaries=(*state.client_summaries, answer)[-MAX_CLIENT_SUMMARIES:])
        case log.DelegationStarted() | log.DelegationResumed() | log.DelegationFinished():
            return _after_delegation(state, event)
        case _:
            return _after_fork(state, event) if isinstance(event, log.Forked) else state


def _after_fork(state: SessionState, event: log.Forked) -> SessionState:
    """Return the state of a fork: a summary that is still being written is written for its parent alone."""
    run = state.running_compaction if state.ready_summary else None
    return replace(state, forked_from=event, running_compaction=run)


def _after_delegation(
    state: SessionState, event: log.DelegationStarted | log.DelegationResumed | log.DelegationFinished
) -> SessionState:
    others = {scope: owner for scope, owner in state.running_delegates.items() if scope != event.scope}
    if not isinstance(event, log.DelegationFinished):
        return replace(state, running_delegates={**others, event.scope: event.owner})
    extras = {scope: known for scope, known in state.delegate_extras.items() if scope != event.scope}
    prefixes = {scope: known for scope, known in state.sent_prefixes.items() if scope != event.scope}
    return replace(state, running_delegates=others, delegate_extras=extras, sent_prefixes=prefixes)


def _after_extras_change(state: SessionState, event: log.SystemChanged | log.ToolsChanged) -> SessionState:
    before = state.extras_for(event.scope)
    now = (
        replace(before, system=event.text)
        if isinstance(event, log.SystemChanged)
        else replace(before, tools=event.tools)
    )
    if event.scope == log.MAIN:
        return replace(state, system=now.system, tools=now.tools)
    return replace(state, delegate_extras={**state.delegate_extras, event.scope: now})
