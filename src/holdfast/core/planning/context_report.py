"""The context report: what fills the context, what could be freed, and when the next compaction comes at what cost.

The report is for people and changes nothing. It uses the same numbers as a plan. The forecast describes the compaction
at the threshold: how many tokens there will be, how many the rule keeps, how many the summarizer reads and writes, and
how many the next request sends uncached. Sizes are the most that the policy allows, or the size of the last summary.
Dollars are present if prices are known. The receipt of a compaction has the real cost.
"""

from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import field, replace
from itertools import accumulate, pairwise

from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.tokens import ERROR_ESTIMATED, REPLY_OVERHEAD, Provenance
from holdfast.core.ledger.render import LEDGER_FRAME
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import MILLION, Prices
from holdfast.core.planning.steps import PlanInput, Threshold
from holdfast.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SummaryAuthor:
    """The model that will write the next summary."""

    prices: Prices | None = None
    """None if they are unknown."""
    reuses_prefix: bool = False
    """Whether its prompt extends the last request, so that the prompt cache holds most of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostForecast:
    """The expected cost of the next compaction, in tokens as the provider counts them."""

    tokens_before: int
    """The size of the messages when the compaction starts."""
    tokens_after: int
    """Their largest size afterwards: the next request sends all of it uncached."""
    read_tokens: int = 0
    """What the summarizer reads; 0 if a rule makes the digest."""
    is_cached: bool = False
    """Whether the summarizer reads it from the prompt cache."""
    written_tokens: int = 0
    """The most that the summarizer writes."""
    summary_dollars: float | None = None
    rewrite_dollars: float | None = None

    @property
    def dollars(self) -> float | None:
        """The total price; None if a price is unknown."""
        if self.rewrite_dollars is None or (self.written_tokens and self.summary_dollars is None):
            return None
        return self.rewrite_dollars + (self.summary_dollars or 0)


def cost_forecast(
    plan_input: PlanInput, policy: Policy, threshold: Threshold | None, summary_author: SummaryAuthor | None = None
) -> CostForecast | None:
    """Return the expected cost of the compaction at a threshold; None if there will be no compaction."""
    held = _tokens_at(threshold, plan_input.projection.tokens) if threshold is not None else 0
    leaves = policy.compaction.forecast(plan_input, held) if policy.compaction and held else None
    if leaves is None:
        return None
    situation, prices = plan_input.situation, plan_input.situation.prices
    compacted = max(0, held - leaves.kept_tokens)
    # A replacement that is not smaller than the messages is not used.
    replacement = min(
        leaves.replacement_tokens,
        compacted,
        (_last_summary_tokens(plan_input) if leaves.by_model else 0) or leaves.replacement_tokens,
    )
    after = min(held, leaves.kept_tokens + leaves.quoted_tokens + replacement)
    written = replacement if leaves.by_model else 0
    is_cached = summary_author is not None and summary_author.reuses_prefix
    read = (held + situation.extras_tokens if is_cached else compacted) if written else 0
    sent, read, written = map(situation.billed_tokens, (after, read, written))
    return CostForecast(
        tokens_before=situation.billed_tokens(held),
        tokens_after=sent,
        read_tokens=read,
        is_cached=is_cached and bool(written),
        written_tokens=written,
        summary_dollars=_summary_dollars(summary_author, read, written) if summary_author and written else None,
        rewrite_dollars=prices.dollars_to_write(sent) if prices else None,
    )


def _tokens_at(threshold: Threshold, tokens: int) -> int:
    """Return the tokens of the messages at a threshold; other units are converted at their present average size."""
    if threshold.unit == "tokens":
        return tokens + max(0, threshold.limit - threshold.current)
    return tokens * max(threshold.limit, threshold.current) // max(1, threshold.current)


def _last_summary_tokens(plan_input: PlanInput) -> int:
    """Return the tokens of the last summary; 0 if no model has written one."""
    usages = (
        one.summary.usage for one in reversed(plan_input.projection.context.state.compactions) if one.summary.by_model
    )
    return next((usage.output_tokens for usage in usages if usage is not None), 0)


def _summary_dollars(summary_author: SummaryAuthor, read: int, written: int) -> float | None:
    prices = summary_author.prices
    if prices is None or prices.dollars is None:
        return None
    units = read * (prices.read if summary_author.reuses_prefix else 1) + prices.output * written
    return units * prices.dollars / MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextReport:
    """What fills the context, in tokens as the provider counts them, as far as the calibration allows."""

    budget: int
    """The size of a full request: thresholds are shares of it, and longer requests are shortened."""
    reserved: int = 0
    """Kept free for errors of the token count; less, once the provider has reported how it counts."""
    system: int = 0
    tools: int = 0
    pins: int = 0
    ledger: int = 0
    summary: int = 0
    """The replacements of compacted messages, without the ledger."""
    turns: int = 0
    """Visible messages, and the start of the answer, which counts as part of the request."""
    provenance: Provenance = field(default="estimated", compare=False)
    """Where these counts come from."""
    error: float = field(default=0.0, compare=False)
    """The possible error of these counts, as a share; measured if the provider has reported usage."""
    reclaimable: int = 0
    """What a compaction could free at most, without a replacement; `preview` returns what it would free."""
    messages: int = 0
    roles: Mapping[str, int]
    """The number of messages by role; messages from memory and tasks of agents count separately."""
    characters: int = 0
    prompts: int = 0
    """How many messages are prompts of the user."""
    threshold: Threshold | None = None
    """Where the policy acts next; if the unit is tokens, those of the whole request."""
    turns_left: int | None = None
    """About how many turns remain until the threshold, at the present pace; None if that is unknown."""
    forecast: CostForecast | None = None
    """The cost of the compaction at the threshold; None if there will be no compaction."""
    loop_reason: str = ""
    """Why a loop of the agent prevents a compaction; empty if there is no loop."""

    @property
    def total(self) -> int:
        """The size of the whole request."""
        return self.system + self.tools + self.pins + self.ledger + self.summary + self.turns

    @property
    def free(self) -> int:
        """The part of the budget that is not used."""
        return max(0, self.budget - self.total)

    @property
    def capacity(self) -> int:
        """The budget with what is reserved: as the user or the model's window sets it, or the policy's own limit."""
        return self.budget + self.reserved


def context_report(plan_input: PlanInput, policy: Policy, summary_author: SummaryAuthor | None = None) -> ContextReport:
    """Return the report on the next request; `summary_author` is the model that would write the next summary."""
    situation, projection, prompt = plan_input.situation, plan_input.projection, plan_input.prompt
    sizes: Tally[str] = Tally(turns=REPLY_OVERHEAD)
    for index, (entry, size) in enumerate(zip(projection.entries, projection.entry_tokens(), strict=True)):
        ledger = _ledger_tokens(entry, plan_input)
        sizes["ledger"] += ledger
        sizes[_part_name(entry, plan_input)] += size - ledger
        if entry.position is None or (index not in prompt and entry.position not in situation.pins):
            sizes["free"] += size if entry.message.role != "system" else 0
    threshold = policy.compaction.threshold(plan_input) if policy.compaction else None
    is_estimate = projection.media_count > 0 and not situation.calibration.samples
    prompts = sum(entry.message.is_prompt and entry.position is not None for entry in projection.entries)
    billed = situation.billed_tokens
    # Round the sum of these parts, not each of them, so that the total is that of `Request.tokens`.
    ends = [0, *map(billed, accumulate(sizes[name] for name in ("pins", "ledger", "summary", "turns")))]
    pins, ledger, summary, turns = (end - start for start, end in pairwise(ends))
    contents = ContextReport(
        budget=situation.billed_limit,
        reserved=max(0, situation.capacity - situation.billed_limit),
        system=billed(situation.system_tokens + sizes["system"]),
        tools=billed(situation.tools_tokens),
        pins=pins,
        ledger=ledger,
        summary=summary,
        turns=turns,
        provenance="estimated" if is_estimate else situation.provenance,
        error=ERROR_ESTIMATED if is_estimate else situation.error,
        reclaimable=billed(sizes["free"]),
        messages=len(projection),
        roles=Tally(entry.message.speaker for entry in projection.entries),
        characters=sum(
            len(entry.message.text) + sum(len(result.text) for result in entry.message.results)
            for entry in projection.entries
        ),
        prompts=prompts,
        turns_left=_turns_left(
            threshold, prompts, sizes["summary"] + sizes["ledger"] + situation.extras_tokens + REPLY_OVERHEAD
        ),
        forecast=cost_forecast(plan_input, policy, threshold, summary_author),
        loop_reason=policy.compaction.loop_reason(plan_input) if policy.compaction else "",
    )
    if threshold is not None and threshold.unit == "tokens":
        # A rule counts as our counter does; a reader compares with what the provider counts.
        threshold = Threshold(contents.total, billed(threshold.limit), threshold.unit)
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


def _turns_left(threshold: Threshold | None, prompts: int, fixed_tokens: int) -> int | None:
    """Return how many more turns of the present average size reach the threshold; the fixed tokens do not grow."""
    grown = 0 if threshold is None else threshold.current - (fixed_tokens if threshold.unit == "tokens" else 0)
    if threshold is None or not prompts or grown <= 0:
        return None
    return max(0, int((threshold.limit - threshold.current) * prompts / grown))
