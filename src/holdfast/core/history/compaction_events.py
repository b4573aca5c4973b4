"""The events of a compaction: begun, its summary written, ended well or not; and what a change of context costs.

The events of a delegation: begun, with what the delegate was shown, and ended, however it did.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

MAIN = "main"
"""The scope of the agent that talks to the user."""

CompactionTrigger: TypeAlias = Literal[
    "threshold", "manual", "context_limit_retry", "model_switch", "memory_pressure", "agent_request", "restore"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a provider billed for one answer, in tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


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
    """Tokens that the provider's cache held, and that are not sent as they were any more."""
    rewritten: int = 0
    """Tokens that are sent as new because of that."""
    rewrite_dollars: float | None = None
    """What these cost, where the prices of the model are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStarted:
    """Somebody has begun to summarise the older part."""

    KIND: ClassVar[str] = "session.compaction_start"

    trigger: CompactionTrigger = "threshold"
    start: int = 0
    stop: int
    """Messages before this position are to be folded."""
    kept: tuple[int, ...] = ()
    count: int = 0
    """How many messages the summary is to stand for, as the policy counts them."""
    is_merged: bool = False
    basis: int = 0
    """How often the context had changed by then: a summary is put in place only where it has not changed since."""
    tokens: TokenBreakdown = field(default_factory=TokenBreakdown)
    custom_instructions: str | None = None
    owner: str = ""
    """Who writes it: a host, a process and a number, by which another one sees whether anybody is still at it."""
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryWritten:
    """The summary that was begun is there; nothing is replaced by it yet."""

    KIND: ClassVar[str] = "session.summary_written"

    start: int
    stop: int
    """The span it is about."""
    text: str
    by_model: str | None = None
    usage: Usage | None = None
    duration_ms: int | None = None
    score: float | None = None
    """Which share of what must not be forgotten is in it or beside it."""
    dollars: float | None = None
    """What writing it cost, where the prices of the model are known."""
    request_id: str | None = None
    """What the provider calls the call."""
    put_back: tuple[str, ...] = ()
    """What the model's text had lost and the check gave back to it, a fact each."""
    left_out: tuple[str, ...] = ()
    """What must not be forgotten and stands neither in it nor beside it; each names its message, one recall away."""
    redacted: tuple[tuple[str, int], ...] = ()
    """How many keys and passwords were kept from the summariser, by kind; never one of them."""
    scope: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionCompleted:
    """The older part was replaced by a summary, or that failed; holds all that rebuilds the replacement."""

    KIND: ClassVar[str] = "session.compaction_complete"

    success: bool
    trigger: CompactionTrigger = "threshold"
    start: int = 0
    """Messages before this position stay whole in front of the summary."""
    stop: int = 0
    """Messages from here on stay whole behind it."""
    kept: tuple[int, ...] = ()
    """Positions inside the span that stay whole behind the summary, such as the prompt that is being answered."""
    replacement: tuple[str, ...] = ()
    """The texts that stand for the span, in turns: the user's first, then the assistant's, and so on."""
    quoted: tuple[int, ...] = ()
    """Positions inside the span that the texts quote to the letter, whole."""
    offers_recall: bool = False
    """Whether the texts end with a line on how to look the span up, for an agent that can."""
    summary_content: str = ""
    is_merged: bool = False
    """Whether the text is put before the first message that stays, instead of in a message of its own."""
    by_model: str | None = None
    """Who wrote the summary; None for a digest made by rule."""
    read_to: int = 0
    """Up to where it may tell: a model reads what stays behind a span as well, and agents at work are named."""
    error: str | None = None
    pre_compaction_tokens: int = 0
    post_compaction_tokens: int = 0
    tokens_removed: int = 0
    messages_removed: int = 0
    checkpoint_number: int | None = None
    checkpoint_path: str | None = None
    request_id: str | None = None
    usage: Usage | None = None
    duration_ms: int | None = None
    score: float | None = None
    """Which share of what must not be forgotten the summary and what stands beside it hold."""
    dollars: float | None = None
    """What writing the summary cost, where the prices of the model are known."""
    effect: Effect | None = None
    reason: str = ""
    is_cancelled: bool = False
    """Whether it was given up and did not fail."""
    ends_run: bool = True
    """Whether the compaction that was started has ended with it; a fold without a model can come in between."""
    count: int = 0
    """How many messages the texts stand for, as the policy counts them; 0 in old logs."""
    marks: tuple[str, ...] = ()
    """Hashes of what had been done by then: by them a later fold sees whether anything new was done since."""
    put_back: tuple[str, ...] = ()
    """What the model's text had lost and the check gave back to it, a fact each."""
    left_out: tuple[str, ...] = ()
    """What must not be forgotten and stands neither in it nor beside it; each names its message, one recall away."""
    redacted: tuple[tuple[str, int], ...] = ()
    """How many keys and passwords were kept from the summariser, by kind; never one of them."""
    scope: str = MAIN

    @property
    def messages_compacted(self) -> int:
        """How many messages it folds: the number that its texts say, too."""
        return self.count or max(0, self.stop - self.start - len(self.kept))


DelegationOutcome: TypeAlias = Literal["answered", "silent", "failed", "cancelled", "timed_out", "abandoned"]
"""How a delegation ended: with an answer, without one, by an error, stopped, out of time, or with its process."""
PositionSpans: TypeAlias = tuple[tuple[int, int], ...]
"""Positions, as pairs of the first and the one behind the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationStarted:
    """An agent gave another one a task; what that one does has a scope of its own."""

    KIND: ClassVar[str] = "delegation.started"

    scope: str
    agent: str
    parent: str = MAIN
    task: str = ""
    sees: Mapping[str, object] = field(default_factory=dict[str, object])
    """What was chosen for it, by class; empty where it sees all of the line it was delegated from."""
    shown: PositionSpans = ()
    """Which messages of that line it was shown when it began."""
    briefing: str = ""
    """What it was told about the rest."""
    shown_tokens: int = 0
    """What both cost."""
    main_sees: str = ""
    """What the main agent sees of it; empty where nobody said."""
    owner: str = ""
    """Who runs it: a host, a process and a number."""
    is_attributed: bool = False
    """Whether those who see what it is told see to whom that was said; older logs do not know of it."""

    @property
    def is_limited(self) -> bool:
        """Whether it sees what was chosen for it and no more."""
        return self.sees.get("everything") is False


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
    """What it found, claim by claim, where it said so: claim, status, sources, and sources that it cannot have had."""
