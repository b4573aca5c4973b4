"""What we want of a conversation, as data: when something is done about its length, what, and what is kept."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from holdfast.core.history.scope import MainVisibility
from holdfast.core.planning.rules.checkpoint import CopilotCompaction
from holdfast.core.planning.rules.deep import DefaultCompaction
from holdfast.core.planning.rules.everything import FixedLimits, InkeepCompaction
from holdfast.core.planning.rules.offload import Offload
from holdfast.core.planning.rules.outputs import KeepEnds, KeepHeads
from holdfast.core.planning.rules.truncator import BasicTruncator
from holdfast.core.planning.rules.turns import CowAgentCompaction, Emergency
from holdfast.core.planning.rules.window import CoCliCompaction
from holdfast.core.planning.settings import check_bounds, integer_bounds, share_bounds

SummaryTiming: TypeAlias = Literal["inline", "background", "deferred"]
FailureFallback: TypeAlias = Literal["marker", "limits", "keep", "trim", "digest"]
RestoreMode: TypeAlias = Literal["full", "since_summary", "replay", "recent_text"]
SummaryAuthorChoice: TypeAlias = Literal["cheap_then_primary", "summariser", "session"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """How a request that would not fit is made to fit, whatever the policy.

    Shares are of the room that system text and tools leave to the messages.
    """

    step_share: float = field(default=1 / 4, metadata=share_bounds())
    """Lines move by this much at a time: between two moves a growing list keeps its prefix."""
    clip_share: float = field(default=1 / 16, metadata=share_bounds())
    """Old tool output is clipped to this size."""
    clip_min_tokens: int = field(default=100, metadata=integer_bounds(1, 10**6))
    clip_zone_steps: int = field(default=4, metadata=integer_bounds(1, 1_000))
    """Tool output is clipped this many steps before its message is folded."""
    digest_share: float = field(default=1 / 10, metadata=share_bounds())
    """The most that a digest of folded messages may take."""
    digest_max_tokens: int = field(default=2_000, metadata=integer_bounds(1, 10**6))
    max_media: int = field(default=20, metadata=integer_bounds(1, 10**4))
    """Images beyond this are elided, oldest first; more than 20 have to be small for some providers."""

    def __post_init__(self) -> None:
        check_bounds(self, "floor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a conversation is kept inside a window. Presets are policies; what is None is not done."""

    name: str = "default"
    fold: DefaultCompaction | CoCliCompaction | InkeepCompaction | CopilotCompaction | CowAgentCompaction | None = (
        field(default_factory=DefaultCompaction)
    )
    """When older messages are replaced by a summary, which, and by what."""
    offload: Offload | None = None
    """When large settled tool outputs are shown as a preview from then on."""
    outputs: KeepHeads | KeepEnds | None = None
    """How old tool output is shown, decided anew for every request."""
    limits: FixedLimits | None = None
    """What is sent where no model is there to write summaries."""
    truncator: BasicTruncator | None = None
    """What leaves a single request that is still too long."""
    emergency: Emergency | None = None
    """What is left after a provider's refusal."""
    floor: FitSettings = field(default_factory=FitSettings)
    apply: SummaryTiming = "background"
    """Whether a summary is waited for, written meanwhile, or put in place at the next turn."""
    on_failure: FailureFallback = "digest"
    """What happens where no summary could be had."""
    author: SummaryAuthorChoice = "cheap_then_primary"
    """Which model writes summaries: a cheaper one unless the user asks, one of its own, or the session's."""
    reuses_prefix: bool = True
    """Whether the conversation's own model may be asked for a summary behind its last request: a prompt cache pays."""
    manual_min_messages: int = field(default=2, metadata=integer_bounds(1, 10**6))
    needs_context: bool = False
    """Whether a compaction on the user's word is refused before the first request, and without a model to write it."""
    main_sees: MainVisibility = "everything"
    """What the main agent sees of what its delegates do, unless a delegation says otherwise."""
    unknown_window: int = field(default=128_000, metadata=integer_bounds(1_000, 10**12))
    """The window of a model nobody knows."""
    max_steps: int | None = field(default=50, metadata=integer_bounds(1, 10**6))
    """How many steps an agent may take in one turn."""
    restore: RestoreMode = "replay"
    remembers: bool = False
    """Whether a program is to write down by day what leaves the view; a session does so wherever it has a folder."""
    retention_days: int | None = field(default=None, metadata=integer_bounds(1, 10**6))
    """After how many days a session may be cleaned up; None for never."""

    def __post_init__(self) -> None:
        check_bounds(self, "")
