"""When a policy acts: thresholds as values, and how Copilot CLI and Inkeep apply them.

Nothing here looks at a conversation; callers pass its size.
"""

from dataclasses import dataclass, field
from enum import Enum

from holdfast.core.schema import check_fields, integer_bounds, number_bounds
from holdfast.errors import SettingsError

SMALL_WINDOW, LARGE_WINDOW = 100_000, 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLoad:
    """How large a conversation is, in every unit."""

    messages: int = 0
    turns: int = 0
    tokens: int = 0
    bytes: int = 0
    window: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """Fires when any of its limits is reached; None switches a limit off."""

    over_messages: int | None = None
    """Fires with more messages than this."""
    over_turns: int | None = None
    over_tokens: int | None = None
    fraction: float | None = None
    """Fires at this share of the window."""
    over_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise SettingsError("trigger.fraction", f"must lie between 0 and 1, not {self.fraction!r}")

    def reasons(self, load: ContextLoad) -> list[str]:
        """Return why the trigger fires; an empty list if it does not."""
        counted = (
            ("messages", load.messages, self.over_messages),
            ("turns", load.turns, self.over_turns),
            ("tokens", load.tokens, self.over_tokens),
            ("bytes", load.bytes, self.over_bytes),
        )
        reasons = [
            f"{has:,} {what} are more than {most:,}" for what, has, most in counted if most is not None and has > most
        ]
        if self.fraction is not None and load.window and load.tokens >= self.fraction * load.window:
            reasons.append(f"{load.tokens:,} tokens are {self.fraction:.0%} of the window or more")
        return reasons


def mid_run_fraction(window: int) -> float:
    """Return the share of the window at which the tool results of a running agent are compacted."""
    if window < SMALL_WINDOW:
        return 0.75
    return 0.83 if window < LARGE_WINDOW else 0.91


class PendingCompaction(Enum):
    """The state of a compaction in the background."""

    NONE = "none"
    RUNNING = "running"
    COMPLETED = "completed"


class CompactionMove(Enum):
    """What to do about compaction before a request."""

    CONTINUE = "continue"
    START = "a summary starts in the background"
    APPLY = "the finished summary is applied"
    WAIT = "the request waits for the summary"
    START_AND_WAIT = "a summary starts, and the request waits for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoThresholds:
    """Background compaction as in Copilot CLI: it starts at one share of the window, and requests wait at another."""

    background: float = field(default=0.8, metadata=number_bounds(0.001, 1))
    exhausted: float = field(default=0.95, metadata=number_bounds(0.001, 1))
    min_messages: int = field(default=4, metadata=integer_bounds(1, 10**6))

    def __post_init__(self) -> None:
        check_fields(self, "policy.compaction.triggers")
        if self.background >= self.exhausted:
            problem = f"{self.background} must lie below {self.exhausted}"
            raise SettingsError("policy.compaction.triggers.background", problem)

    def next_move(
        self, *, utilization: float, pending: PendingCompaction, messages: int, was_refused: bool = False
    ) -> CompactionMove:
        """Return what to do about compaction at a utilization of the window."""
        if pending is PendingCompaction.COMPLETED:
            return CompactionMove.APPLY
        must_wait = was_refused or utilization >= self.exhausted
        if pending is PendingCompaction.RUNNING:
            return CompactionMove.WAIT if must_wait else CompactionMove.CONTINUE
        if messages < self.min_messages or not (must_wait or utilization >= self.background):
            return CompactionMove.CONTINUE
        return CompactionMove.START_AND_WAIT if must_wait else CompactionMove.START
