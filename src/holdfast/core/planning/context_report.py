"""What fills the context now, what of it could be freed, how near the next compaction is and what it will cost.

The report is for people and changes nothing; it has the numbers that a plan is made of. The forecast is of the moment
when the threshold is reached: how much there will be, what the rule leaves of it, what a model reads and writes for
that, and what is sent as new afterwards, because no cache holds it. Sizes are the most that the policy allows, or the
size of the last summary; dollars are there where prices are known. The receipt of a compaction has the real cost.
"""

from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.tokens import ERROR_ESTIMATED, REPLY_OVERHEAD
from holdfast.core.ledger.render import LEDGER_FRAME
from holdfast.core.planning.breaker import loop_reason
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import MILLION, Prices
from holdfast.core.planning.steps import PlanInput, Threshold


@dataclass(frozen=True, slots=True)
class SummaryAuthor:
    """The model that will write the next summary."""

    prices: Prices | None = None
    """None where they are unknown."""
    reuses_prefix: bool = False
    """Whether its prompt follows the last request, so that a cache holds most of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostForecast:
    """What the next compaction is expected to cost, in tokens as the provider counts them."""

    tokens_before: int
    """What the messages will take when it is made."""
    tokens_after: int
    """What they will take at most after it: all of it is sent as new."""
    read_tokens: int = 0
    """What a model reads to write the summary; 0 where that is made by rule."""
    is_cached: bool = False
    """Whether that comes from the provider's cache."""
    written_tokens: int = 0
    """What it writes at most."""
    summary_dollars: float | None = None
    rewrite_dollars: float | None = None

    @property
    def dollars(self) -> float | None:
        """What is paid for it; None where a price is not known."""
        if self.rewrite_dollars is None or (self.written_tokens and self.summary_dollars is None):
            return None
        return self.rewrite_dollars + (self.summary_dollars or 0)


def cost_forecast(
    plan_input: PlanInput, policy: Policy, threshold: Threshold | None, summary_author: SummaryAuthor | None = None
) -> CostForecast | None:
    """Return the expected cost of the compaction at a threshold; None where there will be none."""
    held = _tokens_at(threshold, plan_input.projection.tokens) if threshold is not None else 0
    leaves = policy.compaction.forecast(plan_input, held) if policy.compaction and held else None
    if leaves is None:
        return None
    factor, prices = plan_input.situation.calibration.factor, plan_input.situation.prices
    compacted = max(0, held - leaves.kept_tokens)
    # A replacement that is not smaller than what it replaces is not used.
    replacement = min(
        leaves.replacement_tokens,
        compacted,
        (_last_summary_tokens(plan_input) if leaves.by_model else 0) or leaves.replacement_tokens,
    )
    after, written = (
        min(held, leaves.kept_tokens + leaves.quoted_tokens + replacement),
        replacement if leaves.by_model else 0,
    )
    is_cached = summary_author is not None and summary_author.reuses_prefix
    read = (held + plan_input.situation.extras_tokens if is_cached else compacted) if written else 0
    sent, read, written = (_billed_tokens(tokens, factor) for tokens in (after, read, written))
    return CostForecast(
        tokens_before=_billed_tokens(held, factor),
        tokens_after=sent,
        read_tokens=read,
        is_cached=is_cached and bool(written),
        written_tokens=written,
        summary_dollars=_summary_dollars(summary_author, read, written) if summary_author and written else None,
        rewrite_dollars=prices.dollars_to_write(sent) if prices else None,
    )


def _tokens_at(threshold: Threshold, tokens: int) -> int:
    """Return the tokens of the messages when a threshold is reached; in other units, at their present size each."""
    if threshold.unit == "tokens":
        return tokens + max(0, threshold.limit - threshold.current)
    return tokens * max(threshold.limit, threshold.current) // max(1, threshold.current)


def _last_summary_tokens(plan_input: PlanInput) -> int:
    """Return the tokens of the last summary; 0 where no model has written one."""
    usages = (
        one.summary.usage for one in reversed(plan_input.projection.context.state.compactions) if one.summary.by_model
    )
    return next((usage.output_tokens for usage in usages if usage is not None), 0)


def _summary_dollars(summary_author: SummaryAuthor, read: int, written: int) -> float | None:
    if summary_author.prices is None or summary_author.prices.dollars is None:
        return None
    units = (
        read * (summary_author.prices.read if summary_author.reuses_prefix else 1)
        + summary_author.prices.output * written
    )
    return units * summary_author.prices.dollars / MILLION


def _billed_tokens(tokens: int, factor: float) -> int:
    return -int(-tokens * factor // 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextReport:
    """Tokens are as the provider counts them, as far as its reports have taught us."""

    budget: int
    """The most that may be sent."""
    system: int = 0
    tools: int = 0
    pins: int = 0
    ledger: int = 0
    summary: int = 0
    """What replaces compacted messages, without the ledger."""
    turns: int = 0
    """Visible messages, and the opening of the answer, which a request counts too."""
    error: float = field(default=0.0, compare=False)
    """How far off all of these may be, as a share: measured by what the provider billed where it did."""
    reclaimable: int = 0
    """What a compaction could free without a replacement; `preview` says what one would free."""
    messages: int = 0
    roles: Mapping[str, int]
    """How many by role; messages from memory and tasks of agents are counted apart."""
    characters: int = 0
    prompts: int = 0
    """How many of them are prompts of the user."""
    threshold: Threshold | None = None
    """Where the policy acts next; in tokens, those of all that would be sent."""
    turns_left: int | None = None
    """About how many turns it takes to get there, at the pace so far; None where that is unknown."""
    forecast: CostForecast | None = None
    """What the compaction there costs; None where there will be none."""
    loop_reason: str = ""
    """Why there will be no compaction because the agent is in a loop; empty where it is not."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.system + self.tools + self.pins + self.ledger + self.summary + self.turns

    @property
    def free(self) -> int:
        """What the budget leaves."""
        return max(0, self.budget - self.total)


def context_report(plan_input: PlanInput, policy: Policy, summary_author: SummaryAuthor | None = None) -> ContextReport:
    """Return what would be sent now; `summary_author` is the model that would write the next summary."""
    situation, projection = plan_input.situation, plan_input.projection
    sizes: Tally[str] = Tally(turns=REPLY_OVERHEAD)
    for index, (entry, size) in enumerate(zip(projection.entries, projection.entry_tokens(), strict=True)):
        ledger = _ledger_tokens(entry, plan_input)
        sizes["ledger"] += ledger
        sizes[_part_name(entry, plan_input)] += size - ledger
        if entry.position is None or (index != projection.newest_prompt and entry.position not in situation.pins):
            sizes["free"] += size if entry.message.role != "system" else 0
    threshold = policy.compaction.threshold(plan_input) if policy.compaction else None
    prompts = sum(entry.message.is_prompt and entry.position is not None for entry in projection.entries)

    def billed(tokens: int) -> int:
        return -int(-tokens * situation.calibration.factor // 1)

    contents = ContextReport(
        budget=situation.budget.tokens,
        system=billed(situation.system_tokens + sizes["system"]),
        tools=billed(situation.tools_tokens),
        pins=billed(sizes["pins"]),
        ledger=billed(sizes["ledger"]),
        summary=billed(sizes["summary"]),
        turns=billed(sizes["turns"]),
        error=ERROR_ESTIMATED if projection.media_count and not situation.calibration.samples else situation.error,
        reclaimable=billed(sizes["free"]),
        messages=len(projection),
        roles=Tally(entry.message.speaker for entry in projection.entries),
        characters=sum(_character_count(entry) for entry in projection.entries),
        prompts=prompts,
        turns_left=_turns_left(threshold, prompts, sizes["summary"] + sizes["ledger"]),
        forecast=cost_forecast(plan_input, policy, threshold, summary_author),
        loop_reason=loop_reason(plan_input) if policy.compaction and policy.compaction.detects_loops else "",
    )
    if threshold is not None and threshold.unit == "tokens":
        # A rule counts messages alone, or as our counter does; a reader compares with the whole request.
        limit = contents.total + billed(threshold.limit - threshold.current)
        threshold = Threshold(contents.total, limit, threshold.unit)
    return replace(contents, threshold=threshold)


def _part_name(entry: Entry, plan_input: PlanInput) -> str:
    if entry.message.role == "system":
        return "system"
    if entry.position is None:
        return "summary"
    return "pins" if entry.position in plan_input.situation.pins else "turns"


def _ledger_tokens(entry: Entry, plan_input: PlanInput) -> int:
    """Return the tokens of the ledger at the end of a replacement."""
    text = entry.message.text if entry.position is None else ""
    return plan_input.situation.counter.count(text[text.index(LEDGER_FRAME) :]) if LEDGER_FRAME in text else 0


def _character_count(entry: Entry) -> int:
    message = entry.message
    return len(message.text) + sum(len(result.text) for result in message.results)


def _turns_left(threshold: Threshold | None, prompts: int, message_tokens: int) -> int | None:
    """Return how many turns like those so far reach the threshold; replacements do not grow."""
    grown = 0 if threshold is None else threshold.current - (message_tokens if threshold.unit == "tokens" else 0)
    if threshold is None or not prompts or grown <= 0:
        return None
    return max(0, int((threshold.limit - threshold.current) * prompts / grown))
