"""What happened: the grammar of the log.

Everything that is ever done to a conversation is one of these, in the past tense, with all that is
needed to do it again. Nothing here deletes anything; positions are indices into the messages that were
appended. The kinds that other systems know carry their names (`session.compaction_start` and its
siblings); how a record is written down is `records.py`'s business.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from holdfast.core.history.compaction_events import (
    MAIN,
    CompactionCompleted,
    CompactionStarted,
    CompactionTrigger,
    DelegationFinished,
    DelegationOutcome,
    DelegationStarted,
    Effect,
    SummaryWritten,
    TokenBreakdown,
    Usage,
)

__all__ = [
    "MAIN",
    "CompactionCompleted",
    "CompactionStarted",
    "CompactionTrigger",
    "DelegationFinished",
    "DelegationOutcome",
    "DelegationStarted",
    "Effect",
    "Event",
    "SummaryWritten",
    "TokenBreakdown",
    "Usage",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAppended:
    """Somebody said something."""

    KIND: ClassVar[str] = "message.appended"

    format: str
    native: Mapping[str, object]
    scope: str = MAIN
    agent: str | None = None
    usage: Usage | None = None
    duration_ms: int | None = None
    trust: Literal["memory"] | None = None
    """Whose word it is, where that is not its role's: what comes from memory is reference, and nobody's word."""
    notes: tuple[tuple[str, str], ...] = ()
    """By the ids of calls, what is said beside their results whenever they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsOffloaded:
    """Tool outputs before a line are shown as a preview from now on; they stay in the log whole."""

    KIND: ClassVar[str] = "context.outputs_offloaded"

    line: int
    max_chars: int
    effect: Effect | None = None
    reason: str = ""
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsReducedToText:
    """Of the turns before a line only the first user text and the last reply are shown from now on."""

    KIND: ClassVar[str] = "context.reduced_to_text"

    line: int
    effect: Effect | None = None
    reason: str = ""
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTruncated:
    """Messages were left out of one request; an observation that changes nothing."""

    KIND: ClassVar[str] = "session.truncation"

    performed_by: str
    token_limit: int
    pre_truncation_tokens: int
    pre_truncation_messages: int
    post_truncation_tokens: int
    post_truncation_messages: int
    tokens_removed: int
    messages_removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageMeasured:
    """How full the context is; an observation that changes nothing."""

    KIND: ClassVar[str] = "session.usage_info"

    token_limit: int
    current_tokens: int
    messages_length: int
    tokens: TokenBreakdown = field(default_factory=TokenBreakdown)
    is_initial: bool = False
    provenance: str = "counted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCleared:
    """The conversation begins anew here; nothing before is shown or recalled."""

    KIND: ClassVar[str] = "session.context_cleared"

    effect: Effect | None = None
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """The conversation goes on from an earlier message; what followed it does not stand any more."""

    KIND: ClassVar[str] = "session.rewound"

    to: int
    """The first position that does not stand any more."""
    effect: Effect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """This conversation continues another one."""

    KIND: ClassVar[str] = "session.forked"

    parent: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeUndone:
    """The last change of context was taken back."""

    KIND: ClassVar[str] = "session.undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRedone:
    """A change that was taken back stands again."""

    KIND: ClassVar[str] = "session.redone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """A message stays whole whatever happens."""

    KIND: ClassVar[str] = "message.pinned"

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpinned:
    """A message is free to go again."""

    KIND: ClassVar[str] = "message.unpinned"

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChanged:
    """The agent's plan is this now."""

    KIND: ClassVar[str] = "session.plan_changed"

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TodosChanged:
    """The agent's list of things to do is this now."""

    KIND: ClassVar[str] = "session.todos_changed"

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillInvoked:
    """A skill was called upon."""

    KIND: ClassVar[str] = "skill.invoked"

    name: str
    instructions: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentChanged:
    """A custom agent is at work now; an empty name for none."""

    KIND: ClassVar[str] = "session.agent_changed"

    name: str
    summary: str = ""
    """What whoever goes on has to know of it."""
    previous: str = ""
    """Who was at work before, and has handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemChanged:
    """The system text outside the messages is this now."""

    KIND: ClassVar[str] = "session.system_changed"

    text: str
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsChanged:
    """These tools are on offer now."""

    KIND: ClassVar[str] = "session.tools_changed"

    tools: tuple[Mapping[str, object], ...]
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallOffered:
    """Whether an agent has the recall tool is this now: markers name it only where it is there."""

    KIND: ClassVar[str] = "session.recall_offered"

    is_offered: bool = True
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSwitched:
    """Another model answers from here on."""

    KIND: ClassVar[str] = "session.model_switched"

    model: str
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnInterrupted:
    """The person stopped the turn: calls without a result will never have one."""

    KIND: ClassVar[str] = "session.interrupted"

    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSignalled:
    """A provider spoke of a compaction of its own; recorded, and nothing more."""

    KIND: ClassVar[str] = "provider.compaction_signal"

    signal: str
    payload: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPrepared:
    """A request was made: what it showed, under which circumstances, and its hash."""

    KIND: ClassVar[str] = "request.prepared"

    view: tuple[Mapping[str, object], ...]
    """In order: `{"from": a, "to": b}` for a range of what stood then, `{"message": …}` for what was made for it."""
    payload_hash: str
    policy: str
    engine: str
    situation: Mapping[str, object] = field(default_factory=dict[str, object])
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionScrubbed:
    """A secret was taken out of the log, and a tombstone stands in its place; never the secret itself."""

    KIND: ClassVar[str] = "session.scrubbed"

    positions: tuple[int, ...]
    """Which records of the log were changed."""
    count: int
    """How often it stood there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent:
    """A record of a kind this program does not know: kept, and skipped."""

    KIND: ClassVar[str] = "unknown"

    kind: str
    schema: int
    data: Mapping[str, object]


Event: TypeAlias = (
    MessageAppended
    | OutputsOffloaded
    | CompactionStarted
    | SummaryWritten
    | CompactionCompleted
    | TurnsReducedToText
    | RequestTruncated
    | UsageMeasured
    | ContextCleared
    | Rewound
    | Forked
    | ChangeUndone
    | ChangeRedone
    | Pinned
    | Unpinned
    | PlanChanged
    | TodosChanged
    | SkillInvoked
    | AgentChanged
    | SystemChanged
    | ToolsChanged
    | RecallOffered
    | ModelSwitched
    | DelegationStarted
    | DelegationFinished
    | TurnInterrupted
    | ProviderSignalled
    | RequestPrepared
    | SessionScrubbed
    | UnknownEvent
)
