"""The events of the session log.

Every change to a conversation is one of these events. An event is named in the past tense and holds everything that
replaying it needs. No event deletes anything. Positions are indices into the appended messages. Event kinds that other
systems also use keep the names of those systems (`session.compaction_start` and its siblings).

The codec stores a field under its name in camelCase, or under the name that `metadata={"stored": …}` declares. It
stores the fields of a `Span` and of a `Summary` directly in the record of their event.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal, TypeAlias

from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.spans import PositionPairs, Span
from holdfast.dataclass import dataclass

MAIN = "main"
"""The scope of the agent that talks to the user."""

CompactionTrigger: TypeAlias = Literal[
    "threshold",
    "manual",
    "context_limit_retry",
    "model_switch",
    "memory_pressure",
    "agent_request",
    "restore",
    "client",
]
SideCallPurpose: TypeAlias = Literal["summary", "title", "memory", "other"]
DelegationOutcome: TypeAlias = Literal["answered", "silent", "failed", "cancelled", "timed_out", "abandoned"]
"""How a delegation ended; `silent` is without an answer, `abandoned` means that its process has exited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens that a provider billed for one answer."""

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
        """All input tokens, including cached ones."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBreakdown:
    """The tokens of a request by component."""

    system_tokens: int = 0
    conversation_tokens: int = 0
    tool_definitions_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """How a change of context affects the next request."""

    tokens_before: int = 0
    tokens_after: int = 0
    """Tokens of the messages, before and after, as our counter counts them."""
    request_tokens_before: int = 0
    request_tokens_after: int = 0
    """Tokens of the whole request, before and after, as `Request.tokens` counts them; 0 if they were not counted."""
    provenance: str = ""
    """The provenance of the counts, such as `counted` or `estimated`."""
    prefix_lost: int = 0
    """Tokens of the provider's cached prefix that the next request cannot reuse."""
    rewritten: int = 0
    """Tokens that the next request sends uncached for that reason."""
    rewrite_dollars: float | None = None
    """The cost of the rewritten tokens, if the prices of the model are known."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A model's summary of a span, or a digest made by rule."""

    text: str
    by_model: str | None = None
    """The model that wrote it; None for a digest made by rule."""
    usage: Usage | None = None
    duration_ms: int | None = None
    score: float | None = None
    """The share of the required facts that the summary or the other replacement texts contain."""
    dollars: float | None = None
    """The cost of the summarizer call, if the prices of the model are known."""
    request_id: str | None = None
    """The provider's id of the summarizer call."""
    put_back: tuple[str, ...] = ()
    """Facts that the model omitted and the check added."""
    left_out: tuple[str, ...] = ()
    """Required facts that no text in view contains; each names the message from which it can be recalled."""
    redacted: tuple[tuple[str, int], ...] = ()
    """The number of redacted keys and passwords by kind; never the secrets themselves."""

    @property
    def framed_text(self) -> str:
        """The text for a frame: a model's words are made safe, and a digest made by rule is safe already."""
        return self.text if self.by_model is None else neutralize(self.text)


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
    trust: Literal["memory", "attachment"] | None = None
    """Set if the role does not determine the trust: notes from memory and attachments are reference only."""
    name: str | None = None
    """The name of an attachment."""
    prefix_hash: str | None = None
    """For an answer with thinking that is bound to its request, the hash of that request."""
    notes: tuple[tuple[str, str], ...] = ()
    """Pairs of call id and note; every view adds the note to the result of that call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsOffloaded:
    """From now on, requests carry tool outputs before a position as a preview; the log keeps the full outputs."""

    KIND: ClassVar[str] = "context.outputs_offloaded"

    line: int
    max_chars: int
    prompts_before: int = 0
    """Texts of the user before this position are shortened to the same length; 0 if none is."""
    is_per_output: bool | None = None
    """Whether a whole output, or a whole prompt, has this length; None if each of its texts has: in logs of earlier
    versions, and where each of them is one text."""
    effect: Effect | None = None
    reason: str = ""
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStarted:
    """A process started to summarize a span."""

    KIND: ClassVar[str] = "session.compaction_start"

    trigger: CompactionTrigger = "threshold"
    span: Span
    basis: int = 0
    """The number of context changes at the start: the summary is applied only if this number is still the same."""
    tokens: TokenBreakdown = field(default_factory=TokenBreakdown)
    custom_instructions: str | None = None
    owner: str = ""
    """The lease (host, process and a number), from which another process can tell whether the owner has exited."""
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryWritten:
    """The summarizer finished the summary of a started compaction; it is not applied yet."""

    KIND: ClassVar[str] = "session.summary_written"

    start: int
    stop: int
    """The summarized span reaches from `start` to before `stop`."""
    summary: Summary
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionCompleted:
    """A compaction replaced a span or failed; the event holds everything needed to rebuild the replacement."""

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
    """The texts that replace the span, as alternating user and assistant messages."""
    quoted: tuple[int, ...] = ()
    """Positions inside the span that the texts quote in full, verbatim."""
    offers_recall: bool = False
    """Whether the texts end with a hint how to recall the span, if the agent has the recall tool."""
    summary: Summary = field(default=Summary(""), metadata={"stored": {"text": "summaryContent"}})
    read_to: int = 0
    """The summary may report on messages before this position.

    It can lie after the span: a model also reads later messages, and the summary names running agents.
    """
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
    """Whether the compaction was cancelled, as opposed to failed."""
    ends_run: bool = True
    """Whether this ends the started compaction; a compaction without a model can complete while that one runs."""
    marks: tuple[str, ...] = ()
    """Hashes of the actions so far, from which a later compaction detects whether there are new ones."""
    scope: str = MAIN

    @property
    def request_tokens(self) -> tuple[int, int]:
        """Tokens of the whole request before and after; those of the messages if only these were counted."""
        effect = self.effect
        if effect is None or not effect.request_tokens_before:
            return self.pre_compaction_tokens, self.post_compaction_tokens
        return effect.request_tokens_before, effect.request_tokens_after


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsReducedToText:
    """From now on, requests carry only the first user text and the last reply of each turn before a position."""

    KIND: ClassVar[str] = "context.reduced_to_text"

    line: int
    effect: Effect | None = None
    reason: str = ""
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTruncated:
    """One request omitted messages; an observation that changes no context."""

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
    """The fill level of the context window was measured; an observation that changes no context."""

    KIND: ClassVar[str] = "session.usage_info"

    token_limit: int
    current_tokens: int
    messages_length: int
    tokens: TokenBreakdown = field(default_factory=TokenBreakdown)
    is_initial: bool = False
    provenance: str = "counted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCleared:
    """The context was cleared; earlier messages are neither sent nor recalled."""

    KIND: ClassVar[str] = "session.context_cleared"

    effect: Effect | None = None
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """The conversation continues from an earlier message; later messages are hidden."""

    KIND: ClassVar[str] = "session.rewound"

    to: int
    """The first hidden position."""
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
    """A message was pinned: compactions leave it unchanged."""

    KIND: ClassVar[str] = "message.pinned"

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpinned:
    """A message was unpinned: compactions may replace it again."""

    KIND: ClassVar[str] = "message.unpinned"

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChanged:
    """The agent's plan changed."""

    KIND: ClassVar[str] = "session.plan_changed"

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TodosChanged:
    """The agent's to-do list changed."""

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
    """A custom agent became active; an empty name means that none is."""

    KIND: ClassVar[str] = "session.agent_changed"

    name: str
    summary: str = ""
    """What a successor needs to know about this agent."""
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
    """The tools offered to the model changed."""

    KIND: ClassVar[str] = "session.tools_changed"

    tools: tuple[Mapping[str, object], ...]
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallOffered:
    """An agent gained or lost the recall tool; markers name the tool only if the agent has it."""

    KIND: ClassVar[str] = "session.recall_offered"

    is_offered: bool = True
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSwitched:
    """Another model answers from now on."""

    KIND: ClassVar[str] = "session.model_switched"

    model: str
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationStarted:
    """An agent delegated a task; the delegate works in its own scope."""

    KIND: ClassVar[str] = "delegation.started"

    scope: str
    agent: str
    parent: str = MAIN
    task: str = ""
    visibility: Mapping[str, object] = field(default_factory=dict[str, object], metadata={"stored": "sees"})
    """The visibility options of the delegate; empty if it sees everything that its parent's delegates may see."""
    visible_spans: PositionPairs = field(default=(), metadata={"stored": "shown"})
    """The parent's messages that the delegate saw when it started."""
    briefing: str = ""
    """A text about the parent's conversation, in addition to the visible messages."""
    visible_tokens: int = field(default=0, metadata={"stored": "shownTokens"})
    """The tokens of the visible messages and the briefing."""
    main_visibility: str = field(default="", metadata={"stored": "mainSees"})
    """What the main agent sees of the delegate; empty for the policy's default."""
    owner: str = ""
    """The lease of the process that runs the delegate: host, process and a number."""
    is_attributed: bool = False
    """Whether the task names its addressee in the views of other agents; False in older logs."""
    key: str | None = None
    """The name by which any process finds the delegate again; None if nobody resumes it."""

    @property
    def is_limited(self) -> bool:
        """Whether the delegate sees only a selection of its parent's messages."""
        return self.visibility.get("everything") is False


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationResumed:
    """A delegate goes on, in another process or after its delegation had ended."""

    KIND: ClassVar[str] = "delegation.resumed"

    scope: str
    owner: str = ""
    """The lease of the process that runs the delegate from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationFinished:
    """A delegation ended, with or without an answer."""

    KIND: ClassVar[str] = "delegation.finished"

    scope: str
    answer: str = ""
    sources: tuple[str, ...] = ()
    """The sources of the answer: `#12` for a message, a path, a URL."""
    state: DelegationOutcome = "answered"
    error: str = ""
    """Why there is no answer."""
    findings: tuple[Mapping[str, object], ...] = ()
    """The findings, each with claim, status, sources, and sources that the delegate cannot have seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnInterrupted:
    """The user stopped the turn; calls without a result will never get one."""

    KIND: ClassVar[str] = "session.interrupted"

    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSignalled:
    """A provider reported a compaction of its own; an observation that changes no context."""

    KIND: ClassVar[str] = "provider.compaction_signal"

    signal: str
    payload: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixBreak:
    """Why a request does not begin with the whole request before it, so that the provider's cache cannot be read."""

    at: int
    """How many messages both requests begin with; 0 if the model, the system text or the tools differ."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCallRecorded:
    """A client made a call beside the conversation, such as for a title; an observation that changes no context."""

    KIND: ClassVar[str] = "session.side_call"

    purpose: SideCallPurpose
    answer: str
    model: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPrepared:
    """A request was built; the event records its view, its situation, and its hash."""

    KIND: ClassVar[str] = "request.prepared"

    view: tuple[Mapping[str, object], ...]
    """In order: `{"from": a, "to": b}` for a range of the context, `{"message": …}` for a generated message.

    A range with `"withoutThinking": true` was sent without its thinking.
    """
    payload_hash: str
    policy: str
    engine: str
    situation: Mapping[str, object] = field(default_factory=dict[str, object])
    prefix_hash: str | None = None
    """The hash to which the model binds the thinking of its answer; None for a model that does not."""
    extras_hash: str | None = None
    """The hash of the system text and tools in `prefix_hash`."""
    scope: str = MAIN
    prefix_break: PrefixBreak | None = None
    """Compared with the agent's last request of the same process; None after a restart, and if the prefix is whole."""
    chain_hash: str | None = None
    """The hash of this request's hash and of the chain before it; None in logs of earlier versions."""
    body: tuple[Mapping[str, object], ...] = ()
    """The bytes that were sent, in pieces, if the sender said which; see `session.log.sent_body`."""
    body_hash: str | None = None
    """The SHA-256 of those bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionScrubbed:
    """A tombstone replaced a secret in the log; the event never holds the secret itself."""

    KIND: ClassVar[str] = "session.scrubbed"

    positions: tuple[int, ...]
    """The log records that were changed."""
    count: int
    """The number of occurrences of the secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent:
    """A record of an unknown kind; the log keeps it and replay skips it."""

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
    | DelegationResumed
    | DelegationFinished
    | TurnInterrupted
    | ProviderSignalled
    | SideCallRecorded
    | RequestPrepared
    | SessionScrubbed
    | UnknownEvent
)
