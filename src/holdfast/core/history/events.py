"""What happened: the grammar of the log.

Everything that is ever done to a conversation is one of these events, in the past tense, with all that is needed to do
it again. No event deletes anything; positions are indices into the messages that were appended. Kinds that other
systems know carry the names those systems use (`session.compaction_start` and its siblings).

The codec stores a field under its name in camelCase, or under the name that `metadata={"stored": …}` declares. The
fields of a `Span` and of a `Summary` are stored among those of their event.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from holdfast.core.conversation.spans import PositionPairs, Span

MAIN = "main"
"""The scope of the agent that talks to the user."""

CompactionTrigger: TypeAlias = Literal[
    "threshold", "manual", "context_limit_retry", "model_switch", "memory_pressure", "agent_request", "restore"
]
DelegationOutcome: TypeAlias = Literal["answered", "silent", "failed", "cancelled", "timed_out", "abandoned"]
"""How a delegation ended: with an answer, without one, by an error, stopped, out of time, or with its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a provider billed for one answer, in tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )

    @property
    def all_input_tokens(self) -> int:
        """The whole input, cached parts included."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBreakdown:
    """What a request is made of, in tokens."""

    system_tokens: int = 0
    conversation_tokens: int = 0
    tool_definitions_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a change of context does to the next request."""

    tokens_before: int = 0
    tokens_after: int = 0
    """Of the messages, as our counter counts them."""
    provenance: str = ""
    """Where the counts come from."""
    prefix_lost: int = 0
    """Tokens of the provider's cached prefix that the next request cannot reuse."""
    rewritten: int = 0
    """Tokens that are sent as new because of that."""
    rewrite_dollars: float | None = None
    """What these cost, where the prices of the model are known."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a model wrote about a span, or the text of a digest made by rule."""

    text: str
    by_model: str | None = None
    """The model that wrote it; None for a digest made by rule."""
    usage: Usage | None = None
    duration_ms: int | None = None
    score: float | None = None
    """Which share of the facts that must be kept is in the summary or in the texts next to it."""
    dollars: float | None = None
    """What writing it cost, where the prices of the model are known."""
    request_id: str | None = None
    """The provider's id of the call."""
    put_back: tuple[str, ...] = ()
    """Facts that the model's text had lost and that the check put back."""
    left_out: tuple[str, ...] = ()
    """Facts that must be kept and are in no text in view; each names the message from which it can be recalled."""
    redacted: tuple[tuple[str, int], ...] = ()
    """How many keys and passwords were hidden from the summarizer, by kind; never the secrets themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAppended:
    """A message was recorded."""

    KIND: ClassVar[str] = "message.appended"

    format: str
    native: Mapping[str, object]
    scope: str = MAIN
    agent: str | None = None
    usage: Usage | None = None
    duration_ms: int | None = None
    trust: Literal["memory"] | None = None
    """Set where the role does not tell how far to trust the text: notes from memory are reference only."""
    notes: tuple[tuple[str, str], ...] = ()
    """By the ids of calls, notes that are added to their results in every view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsOffloaded:
    """Tool outputs before a position are sent as a preview from now on; the log keeps them whole."""

    KIND: ClassVar[str] = "context.outputs_offloaded"

    line: int
    max_chars: int
    effect: Effect | None = None
    reason: str = ""
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStarted:
    """A process has begun to summarize a span."""

    KIND: ClassVar[str] = "session.compaction_start"

    trigger: CompactionTrigger = "threshold"
    span: Span
    basis: int = 0
    """How often the context had changed by then: the summary is applied only if it has not changed since."""
    tokens: TokenBreakdown = field(default_factory=TokenBreakdown)
    custom_instructions: str | None = None
    owner: str = ""
    """The lease: host, process and a number, by which another process sees whether the owner has exited."""
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryWritten:
    """The summary of a started compaction is written; it replaces nothing yet."""

    KIND: ClassVar[str] = "session.summary_written"

    start: int
    stop: int
    """The span it is about."""
    summary: Summary
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionCompleted:
    """A span was replaced by a summary or a digest, or that failed; holds all that rebuilds the replacement."""

    KIND: ClassVar[str] = "session.compaction_complete"
    KEYS: ClassVar[tuple[str, ...]] = (
        "success", "trigger", "start", "stop", "kept", "replacement", "quoted", "offersRecall", "summaryContent",
        "isMerged", "byModel", "readTo", "error", "preCompactionTokens", "postCompactionTokens", "tokensRemoved",
        "messagesRemoved", "checkpointNumber", "checkpointPath", "requestId", "usage", "durationMs", "score", "dollars",
        "effect", "reason", "isCancelled", "endsRun", "count", "marks", "putBack", "leftOut", "redacted", "scope",
    )  # fmt: skip
    """The order of the stored keys."""

    success: bool
    trigger: CompactionTrigger = "threshold"
    span: Span = field(default=Span(stop=0))
    replacement: tuple[str, ...] = ()
    """The texts that replace the span, as alternating messages: the user's first, then the assistant's."""
    quoted: tuple[int, ...] = ()
    """Positions inside the span that the texts quote whole, word for word."""
    offers_recall: bool = False
    """Whether the texts end with a line on how to recall the span, for an agent that has the recall tool."""
    summary: Summary = field(default=Summary(""), metadata={"stored": {"text": "summaryContent"}})
    read_to: int = 0
    """Up to where the summary may tell: a model also reads messages after the span, and running agents are named."""
    error: str | None = None
    pre_compaction_tokens: int = 0
    post_compaction_tokens: int = 0
    tokens_removed: int = 0
    messages_removed: int = 0
    checkpoint_number: int | None = None
    checkpoint_path: str | None = None
    effect: Effect | None = None
    reason: str = ""
    is_cancelled: bool = False
    """Whether it was cancelled and did not fail."""
    ends_run: bool = True
    """Whether it ends the started compaction; a compaction without a model can come in between."""
    marks: tuple[str, ...] = ()
    """Hashes of what had been done by then, by which a later compaction sees whether anything was done since."""
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsReducedToText:
    """Of turns before a position only the first user text and the last reply are sent from now on."""

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
    """The conversation starts afresh; nothing before this is sent or recalled."""

    KIND: ClassVar[str] = "session.context_cleared"

    effect: Effect | None = None
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """The conversation goes on from an earlier message; later messages are hidden."""

    KIND: ClassVar[str] = "session.rewound"

    to: int
    """The first position that is hidden."""
    effect: Effect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """This conversation continues another one."""

    KIND: ClassVar[str] = "session.forked"

    parent: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeUndone:
    """The last change of context was undone."""

    KIND: ClassVar[str] = "session.undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRedone:
    """A change that was undone is in force again."""

    KIND: ClassVar[str] = "session.redone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """A message stays whole whatever is compacted."""

    KIND: ClassVar[str] = "message.pinned"

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpinned:
    """A message may be compacted again."""

    KIND: ClassVar[str] = "message.unpinned"

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChanged:
    """The agent's plan changed."""

    KIND: ClassVar[str] = "session.plan_changed"

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TodosChanged:
    """The agent's list of things to do changed."""

    KIND: ClassVar[str] = "session.todos_changed"

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillInvoked:
    """A skill was invoked."""

    KIND: ClassVar[str] = "skill.invoked"

    name: str
    instructions: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentChanged:
    """A custom agent took over; an empty name for none."""

    KIND: ClassVar[str] = "session.agent_changed"

    name: str
    summary: str = ""
    """What a successor has to know of it."""
    previous: str = ""
    """The agent that handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemChanged:
    """The system text outside the messages changed."""

    KIND: ClassVar[str] = "session.system_changed"

    text: str
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsChanged:
    """The offered tools changed."""

    KIND: ClassVar[str] = "session.tools_changed"

    tools: tuple[Mapping[str, object], ...]
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallOffered:
    """An agent got or lost the recall tool: markers name the tool only where the agent has it."""

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
class DelegationStarted:
    """An agent gave another one a task; the delegate works in a scope of its own."""

    KIND: ClassVar[str] = "delegation.started"

    scope: str
    agent: str
    parent: str = MAIN
    task: str = ""
    visibility: Mapping[str, object] = field(default_factory=dict[str, object], metadata={"stored": "sees"})
    """What was chosen for it, by class; empty where it sees everything that its parent's delegates may see."""
    visible_spans: PositionPairs = field(default=(), metadata={"stored": "shown"})
    """Which of its parent's messages it saw when it began."""
    briefing: str = ""
    """What it was told about the rest."""
    visible_tokens: int = field(default=0, metadata={"stored": "shownTokens"})
    """What messages and briefing cost."""
    main_visibility: str = field(default="", metadata={"stored": "mainSees"})
    """What the main agent sees of it; empty for the policy's default."""
    owner: str = ""
    """The lease of the process that runs it: host, process and a number."""
    is_attributed: bool = False
    """Whether agents that see its task see to whom it was given; False in older logs."""

    @property
    def is_limited(self) -> bool:
        """Whether it sees only what was chosen for it."""
        return self.visibility.get("everything") is False


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationFinished:
    """The delegate has answered, or will not."""

    KIND: ClassVar[str] = "delegation.finished"

    scope: str
    answer: str = ""
    sources: tuple[str, ...] = ()
    """What the answer rests on: `#12` for a message, a path, an address."""
    state: DelegationOutcome = "answered"
    error: str = ""
    """Why there is no answer."""
    findings: tuple[Mapping[str, object], ...] = ()
    """What it found, claim by claim: claim, status, sources, and sources that it cannot have seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnInterrupted:
    """The user stopped the turn: calls without a result will never have one."""

    KIND: ClassVar[str] = "session.interrupted"

    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSignalled:
    """A provider reported a compaction of its own; an observation that changes nothing."""

    KIND: ClassVar[str] = "provider.compaction_signal"

    signal: str
    payload: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPrepared:
    """A request was made: its view, the situation, and its hash."""

    KIND: ClassVar[str] = "request.prepared"

    view: tuple[Mapping[str, object], ...]
    """In order: `{"from": a, "to": b}` for a range of the context, `{"message": …}` for what was made for it."""
    payload_hash: str
    policy: str
    engine: str
    situation: Mapping[str, object] = field(default_factory=dict[str, object])
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionScrubbed:
    """A secret was replaced by a tombstone in the log; never holds the secret itself."""

    KIND: ClassVar[str] = "session.scrubbed"

    positions: tuple[int, ...]
    """Which records of the log were changed."""
    count: int
    """How often the secret was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent:
    """A record of an unknown kind: kept, and skipped."""

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
