"""All that a plan depends on besides the conversation and the policy.

A `Budget` is the largest input, system text and tools included and the answer excluded. It comes
from the user's word, else the provider's, else a table of models, else a conservative default; it
remembers which, because a wrong limit is the first thing to doubt.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from holdfast.core.conversation.batching import ONE_RESULT_PER_MESSAGE, Batching
from holdfast.core.conversation.tokens import (
    ERROR_COUNTED,
    ERROR_ESTIMATED,
    REPLY_OVERHEAD,
    Calibration,
    Counter,
    Provenance,
    TokenCount,
)
from holdfast.core.history.events import MAIN
from holdfast.core.planning.cost import Prices
from holdfast.errors import SettingsError

LimitSource: TypeAlias = Literal["user", "provider", "table", "default"]

DEFAULT_WINDOW = 128_000
"""For a model nobody knows: what most have had since 2024."""
OUTPUT_SHARE = 0.25
"""The most of a window that is set aside for an answer whose limit nobody set."""
MARGIN_ESTIMATED = ERROR_ESTIMATED
"""What stays free where the vocabulary is not the model's own: the worst text is that far off."""
MARGIN_CALIBRATED = 0.05
"""What stays free where the provider's own counts have corrected ours."""
MIN_BUDGET_TOKENS = 64
MAX_LIMIT = 10**12


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that may be sent."""

    tokens: int
    """Input tokens: system text, tools and messages."""
    messages: int | None = None
    turns: int | None = None
    """Prompts by the user, each with what follows it."""
    bytes: int | None = None
    """Bytes of the messages as JSON."""
    source: LimitSource = "user"

    def __post_init__(self) -> None:
        for name in ("tokens", "messages", "turns", "bytes"):
            _check_limit(f"budget.{name}" if name != "tokens" else "budget", getattr(self, name))
        if self.tokens < MIN_BUDGET_TOKENS:
            raise SettingsError(
                "budget", f"{self.tokens} tokens cannot hold a conversation; give at least {MIN_BUDGET_TOKENS}"
            )

    @classmethod
    def resolve(
        cls,
        *,
        user: "int | Budget | None" = None,
        provider_window: int | None = None,
        table_window: int | None = None,
        max_output: int | None = None,
    ) -> "Budget":
        """Return the budget from the first source that has a word to say.

        A user's number is the input limit itself. A window, whoever names it, has to hold the answer
        too, so room for the answer is taken off it.
        """
        if isinstance(user, Budget):
            return user
        if user is not None:
            return cls(user)
        if provider_window is not None:
            return cls(_input_tokens("provider_window", provider_window, max_output), source="provider")
        if table_window is not None:
            return cls(_input_tokens("table_window", table_window, max_output), source="table")
        return cls(_input_tokens("window", DEFAULT_WINDOW, max_output), source="default")


def _check_limit(setting: str, value: object) -> None:
    if value is None and setting != "budget":
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingsError(setting, f"must be a whole number, not {value!r}")
    if value < 1:
        raise SettingsError(setting, f"must be at least 1, not {value}")
    if value > MAX_LIMIT:
        raise SettingsError(setting, f"must be at most {MAX_LIMIT:,}")


def _input_tokens(setting: str, window: int, max_output: int | None) -> int:
    _check_limit(setting, window)
    room_for_answer = min(max_output or window, int(window * OUTPUT_SHARE))
    return window - room_for_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The circumstances of one request, as values."""

    budget: Budget
    counter: Counter
    calibration: Calibration = field(default_factory=Calibration)
    system_tokens: int = 0
    """System text that travels outside the messages."""
    tools_tokens: int = 0
    pins: frozenset[int] = frozenset()
    """Positions of messages that stay whole whatever happens."""
    is_interrupted: bool = False
    batching: Batching = ONE_RESULT_PER_MESSAGE
    """How the format carries a batch of tool calls and their results."""
    max_text_chars: int | None = None
    """The longest text the provider takes in one piece."""
    max_images: int | None = None
    """The most images the provider takes in one request."""
    scope: str = MAIN
    """Whose request it is."""
    window: int | None = None
    """The model's context window; None where nobody knows it."""
    prices: Prices | None = None
    idle_seconds: float = 0.0
    """Since the last request: a prompt cache forgets."""
    has_summarizer: bool = False
    """Whether a model is there to write summaries."""
    has_ready_summary: bool = False
    """Whether a summary that was begun earlier waits to be applied."""
    has_recall: bool = False
    """Whether the model can ask for what it is not shown: only then markers say how."""
    refusals: int = 0
    """How often in a row the provider has refused this request as too long."""

    @property
    def margin(self) -> float:
        """The share of the budget that stays free for the error of the count."""
        if self.calibration.samples:
            return MARGIN_CALIBRATED
        return 0.0 if self.counter.provenance == "counted" else MARGIN_ESTIMATED

    @property
    def usable_tokens(self) -> int:
        """The budget in tokens as our counter counts them, margin taken off."""
        return int(self.budget.tokens * (1 - self.margin) / self.calibration.factor)

    @property
    def message_budget(self) -> int:
        """Tokens that the messages may take."""
        return self.usable_tokens - self.extras_tokens - REPLY_OVERHEAD

    @property
    def is_cache_cold(self) -> bool:
        """Whether the prompt cache has forgotten the last request, so that a rewrite costs nothing extra."""
        ttl = self.prices.ttl_seconds if self.prices else None
        return ttl is not None and self.idle_seconds > ttl

    def billed_count(self, *, system: int, conversation: int, media: int = 0, is_counted: bool = True) -> TokenCount:
        """Return a count as the provider would make it, with its origin; `is_counted` is False for a guess."""
        counted = (system, self.tools_tokens, conversation, media)
        parts = [-int(-part * self.calibration.factor // 1) for part in counted]
        provenance: Provenance = "calibrated" if self.calibration.samples else self.counter.provenance
        if not is_counted or (media and provenance == "counted"):
            provenance = "estimated"
        error = self._error(provenance) if is_counted else None
        return TokenCount(sum(parts), provenance, *parts, counter=self.counter.name, counted=sum(counted), error=error)

    @property
    def error(self) -> float:
        """How far off a count may be, as a share of it."""
        return self._error("calibrated" if self.calibration.samples else self.counter.provenance)

    def _error(self, provenance: Provenance) -> float:
        if provenance == "calibrated":
            return self.calibration.error
        return ERROR_COUNTED if provenance == "counted" else ERROR_ESTIMATED

    @property
    def extras_tokens(self) -> int:
        """What is sent besides the messages."""
        return self.system_tokens + self.tools_tokens
