"""The situation of a request: everything a plan depends on besides the conversation and the policy.

A `Budget` is the largest input: system text and tools count, the answer does not. It comes from the user, else the
provider, else a table of models, else a conservative default. It records its source, because a wrong limit is the first
suspect when a request fails.

`Situation.limit` is what "full" means: the budget less a margin for errors of our count, or the policy's own limit if
that is lower. The thresholds of every rule are shares of it, truncation and fitting keep a request within it, and
reports, receipts and events show it. Nothing else in the package computes a limit. It moves as counts become exact;
`Situation.capacity` does not, so the meter of the chat shows a context beside that.

`Prices` determine what a request costs with a prompt cache, and when a compaction pays. Providers bill the cached part
of a prompt at a fraction. Some bill new text a little above its price, because they write it to the cache. So a shorter
prompt can cost more than a longer one: a rewritten prefix is new text again. Prices are relative to one input token.
"""

from collections.abc import Mapping
from dataclasses import field, replace
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
from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError

MILLION = 1_000_000
CENT = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a provider charges, in units of one plain input token."""

    name: str
    read: float
    """The price of a cached token."""
    write: float
    """The price of a token that is not cached yet."""
    output: float
    ttl_seconds: float | None = 300
    """How long the cache keeps an unused prefix; None means it never expires."""
    dollars: float | None = None
    """The price of a million plain input tokens; None if it is unknown."""

    def dollars_to_write(self, tokens: int) -> float | None:
        """Return the price of uncached input tokens; None if it is unknown."""
        return None if self.dollars is None else tokens * self.write * self.dollars / MILLION

    def dollars_to_read(self, tokens: int) -> float | None:
        """Return the price of cached input tokens; None if it is unknown."""
        return None if self.dollars is None else tokens * self.read * self.dollars / MILLION


PROVIDER_PRICES: Mapping[str, Prices] = {
    prices.name: prices
    for prices in (
        Prices(name="anthropic", read=0.1, write=1.25, output=5),
        Prices(name="gpt-5", read=0.1, write=1, output=8),
        Prices(name="gpt-4o", read=0.5, write=1, output=4),
        Prices(name="deepseek", read=0.02, write=1, output=1.5, ttl_seconds=None),
        Prices(name="none", read=1, write=1, output=4, ttl_seconds=None),
    )
}


def request_cost(prices: Prices, *, cached: int, fresh: int, output: int = 0) -> float:
    """Return the cost of one request: its cached tokens, its uncached tokens, and the answer."""
    return prices.read * cached + prices.write * fresh + prices.output * output


def break_even_turns(
    prices: Prices, *, before: int, after: int, summary_input: float = 0.0, summary_output: int = 0
) -> float:
    """Return after how many turns compacting `before` tokens to `after` has paid for itself.

    `summary_input` is the price of reading one token for the summary, relative to one input token: the price of an
    uncached read, of a cached read, or 0 for a digest. The result is infinite if compacting saves nothing.
    """
    saved = prices.read * (before - after)
    spent = (prices.write - prices.read) * after + summary_input * before + prices.output * summary_output
    return spent / saved if saved > 0 else float("inf")


def format_dollars(dollars: float) -> str:
    """Format an amount with two decimals; amounts below a cent keep up to six."""
    return f"${dollars:.2f}" if dollars >= CENT or not dollars else f"${dollars:.6f}".rstrip("0")


LimitSource: TypeAlias = Literal["user", "provider", "table", "default"]

DEFAULT_WINDOW = 128_000
"""The window of an unknown model: most models have had it since 2024."""
OUTPUT_SHARE = 0.25
"""The largest share of a window that is reserved for the answer."""
MARGIN_ESTIMATED = ERROR_ESTIMATED
"""The margin if the tokenizer is not the model's own: the error for the worst text."""
MARGIN_CALIBRATED = 0.05
"""The margin if the provider's own counts have calibrated ours."""
MIN_BUDGET_TOKENS = 64
MAX_LIMIT = 10**12


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one request."""

    tokens: int
    """Input tokens: system text, tools and messages."""
    messages: int | None = None
    turns: int | None = None
    """Prompts of the user, each with the messages that follow it."""
    bytes: int | None = None
    """Bytes of the messages as JSON."""
    source: LimitSource = "user"

    def __post_init__(self) -> None:
        for name in ("tokens", "messages", "turns", "bytes"):
            _check_limit(f"budget.{name}" if name != "tokens" else "budget", getattr(self, name))
        _check_room("budget", self.tokens)

    @classmethod
    def resolve(
        cls,
        *,
        user: "int | Budget | None" = None,
        max_prompt_tokens: int | None = None,
        provider_window: int | None = None,
        table_window: int | None = None,
        max_output: int | None = None,
        unknown_window: int = DEFAULT_WINDOW,
    ) -> "Budget":
        """Return the budget from the first source that names one.

        A user's number is the input limit itself, and so is a provider's limit on prompts; the lower one counts. A
        window must hold the answer too, so room for the answer is subtracted. `unknown_window` is assumed if nothing is
        known.
        """
        if max_prompt_tokens is not None:
            _check_limit("max_prompt_tokens", max_prompt_tokens)
            _check_room("max_prompt_tokens", max_prompt_tokens)
        if user is not None:
            budget = user if isinstance(user, Budget) else cls(user)
            if max_prompt_tokens is None or budget.tokens <= max_prompt_tokens:
                return budget
            return replace(budget, tokens=max_prompt_tokens, source="provider")
        if max_prompt_tokens is not None:
            return cls(max_prompt_tokens, source="provider")
        if provider_window is not None:
            return cls(_input_tokens("provider_window", provider_window, max_output), source="provider")
        if table_window is not None:
            return cls(_input_tokens("table_window", table_window, max_output), source="table")
        return cls(_input_tokens("unknown_window", unknown_window, max_output), source="default")

    def window(self, model_window: int | None) -> int | None:
        """Return the window to fill: the budget itself if a user or a provider names it, else the model's window."""
        return self.tokens if self.source in {"user", "provider"} else model_window


def _check_limit(setting: str, value: object) -> None:
    if value is None and setting != "budget":
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingsError(setting, f"must be a whole number, not {value!r}")
    if value < 1:
        raise SettingsError(setting, f"must be at least 1, not {value}")
    if value > MAX_LIMIT:
        raise SettingsError(setting, f"must be at most {MAX_LIMIT:,}")


def _check_room(setting: str, tokens: int) -> None:
    if tokens < MIN_BUDGET_TOKENS:
        raise SettingsError(setting, f"{tokens} tokens cannot hold a conversation; give at least {MIN_BUDGET_TOKENS}")


def _input_tokens(setting: str, window: int, max_output: int | None) -> int:
    _check_limit(setting, window)
    room_for_answer = min(max_output or window, int(window * OUTPUT_SHARE))
    return window - room_for_answer


@dataclass(slots=True, kw_only=True)
class Situation:
    """Everything that a plan for one request depends on besides history and policy, as values.

    Nobody changes one. It is not frozen, because every request makes one, and that would take three times as long.
    """

    budget: Budget
    counter: Counter
    calibration: Calibration = field(default_factory=Calibration)
    system_tokens: int = 0
    """Tokens of the system text outside the messages."""
    tools_tokens: int = 0
    pins: frozenset[int] = frozenset()
    """Positions of messages that always stay whole."""
    is_interrupted: bool = False
    batching: Batching = ONE_RESULT_PER_MESSAGE
    """How the format carries a batch of tool calls and their results."""
    max_text_chars: int | None = None
    """The longest single text that the provider accepts."""
    max_images: int | None = None
    """The most images that the provider accepts in one request."""
    binds_thinking: bool = False
    """Whether the model accepts its thinking only after the exact request that it was said in."""
    scope: str = MAIN
    """The scope of the agent that sends the request."""
    window: int | None = None
    """The model's context window, or the budget that a user or a provider names; None if both are unknown."""
    policy_limit: int | None = None
    """The largest request that the policy allows, as the provider counts; None if only the budget limits it."""
    prices: Prices | None = None
    idle_seconds: float = 0.0
    """The time since the last request, which tells whether the prompt cache has expired."""
    has_summarizer: bool = False
    """Whether a model can write summaries."""
    has_ready_summary: bool = False
    """Whether a summary that was started earlier is ready to be applied."""
    has_recall: bool = False
    """Whether the model has the recall tool: only then do markers explain how to use it."""
    refusals: int = 0
    """How often in a row the provider has refused this request as too long."""
    lowered_limits: int = 0
    """How many of these refusals named a lower limit than those before."""
    extras_tokens: int = field(init=False)
    """Tokens of the tools and of the system text outside the messages."""
    usable_tokens: int = field(init=False)
    """The budget less the margin, in tokens as our counter counts them.

    A count with the model's own vocabulary is exact, so no report of a provider raises it above the budget.
    """
    limit: int = field(init=False)
    """The size of a full request, in tokens as our counter counts them."""
    billed_limit: int = field(init=False)
    """The same limit in tokens as the provider counts them, for displays and events."""
    capacity: int = field(init=False)
    """The budget, or the policy's own limit if that is lower; how exact the counts are does not change it."""
    message_budget: int = field(init=False)
    """Tokens that the messages may take."""

    def __post_init__(self) -> None:
        budget, factor, is_exact = self.budget.tokens, self.calibration.factor, self.counter.provenance == "counted"
        usable = int(budget * (1 - self.margin) / factor)
        self.usable_tokens = limit = min(usable, budget) if is_exact else usable
        if self.policy_limit is not None:
            limit = min(limit, int(self.policy_limit / factor))
        self.capacity = budget if self.policy_limit is None else min(budget, self.policy_limit)
        self.limit, self.billed_limit = limit, -int(-limit * factor // 1)
        self.extras_tokens = self.system_tokens + self.tools_tokens
        self.message_budget = limit - self.extras_tokens - REPLY_OVERHEAD

    @property
    def margin(self) -> float:
        """The share of the budget that stays free for errors of the token count."""
        if self.calibration.samples:
            return MARGIN_CALIBRATED
        return 0.0 if self.counter.provenance == "counted" else MARGIN_ESTIMATED

    @property
    def is_limited_by_policy(self) -> bool:
        """Whether the policy's own limit is lower than what the model accepts."""
        return self.limit < self.usable_tokens

    @property
    def is_cache_cold(self) -> bool:
        """Whether the prompt cache of the last request has expired, so that a rewrite costs nothing extra."""
        ttl = self.prices.ttl_seconds if self.prices else None
        return ttl is not None and self.idle_seconds > ttl

    def billed_tokens(self, tokens: int) -> int:
        """Return tokens as the provider counts them, as far as the calibration allows."""
        return -int(-tokens * self.calibration.factor // 1)

    def billed_count(self, *, system: int, conversation: int, media: int = 0, is_counted: bool = True) -> TokenCount:
        """Return a count calibrated to the provider, with its provenance; `is_counted` is False for an estimate."""
        counted, factor = (system, self.tools_tokens, conversation, media), self.calibration.factor
        parts = counted if factor == 1 else [-int(-part * factor // 1) for part in counted]
        provenance = self.provenance
        if not is_counted or (media and provenance == "counted"):
            provenance = "estimated"
        error = self._error(provenance) if is_counted else None
        return TokenCount(sum(parts), provenance, *parts, counter=self.counter.name, counted=sum(counted), error=error)

    def request_tokens(self, message_tokens: int) -> int:
        """Return the size of a whole request with messages of this size, as `Request.tokens` counts it."""
        return self.billed_count(system=self.system_tokens, conversation=message_tokens + REPLY_OVERHEAD).total

    @property
    def provenance(self) -> Provenance:
        """Where the counts of text come from."""
        return "calibrated" if self.calibration.samples else self.counter.provenance

    @property
    def error(self) -> float:
        """The possible error of a count, as a share of it."""
        return self._error(self.provenance)

    def _error(self, provenance: Provenance) -> float:
        if provenance == "calibrated":
            return self.calibration.error
        return ERROR_COUNTED if provenance == "counted" else ERROR_ESTIMATED


def without_provider(name: str) -> str:
    """Return the model of `provider:model`. A colon after a slash belongs to the model, as in `openai/gpt-oss:free`."""
    provider, colon, model = name.partition(":")
    return model if colon and "/" not in provider else name


def last_name_part(name: str) -> str:
    """Return a model's name without the maker before it, as in `openai/gpt-oss`."""
    return name.rsplit("/", 1)[-1]
