"""What a conversation is made of now, what of it could be freed, how near the next fold is and what it will cost.

Read-only, for people: the same numbers that a plan is made of, in an order in which one can see where a window went.

What the next fold will cost, before it is made.

A fold comes when its line is reached, so the forecast is of that moment: how much there will be, what the rule leaves
of it, what a model reads and writes for that, and what is sent as new afterwards, because no cache holds it. Sizes are
what the policy allows at most, and what the last summary took where there was one; dollars are told where prices are
known. Whatever a fold really did cost is on its receipt, in the same terms.
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
    """Who will write the summary."""

    prices: Prices | None = None
    """None where nobody knows them."""
    reuses_prefix: bool = False
    """Whether it is asked behind the last request, so that a cache pays for reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostForecast:
    """What the next fold is expected to cost, in tokens as the provider counts them."""

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
    """Return what the fold at a line is expected to cost; None where there will be none."""
    held = _tokens_at(threshold, plan_input.projection.tokens) if threshold is not None else 0
    leaves = policy.fold.forecast(plan_input, held) if policy.fold and held else None
    if leaves is None:
        return None
    factor, prices = plan_input.situation.calibration.factor, plan_input.situation.prices
    folded = max(0, held - leaves.kept_tokens)
    # What is no smaller than what it stands for does not count.
    stands = min(
        leaves.replacement_tokens,
        folded,
        (_last_summary_tokens(plan_input) if leaves.by_model else 0) or leaves.replacement_tokens,
    )
    after, written = min(held, leaves.kept_tokens + leaves.quoted_tokens + stands), stands if leaves.by_model else 0
    is_cached = summary_author is not None and summary_author.reuses_prefix
    read = (held + plan_input.situation.extras_tokens if is_cached else folded) if written else 0
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
    """Return what the messages will take when a line is reached, at the size they have now where that is not tokens."""
    if threshold.unit == "tokens":
        return tokens + max(0, threshold.limit - threshold.current)
    return tokens * max(threshold.limit, threshold.current) // max(1, threshold.current)


def _last_summary_tokens(plan_input: PlanInput) -> int:
    """Return what the last summary took; 0 where no model has written one."""
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
    """What stands for folded messages, the ledger taken off."""
    turns: int = 0
    """What was said and still stands, and the beginning of an answer, which a request counts too."""
    error: float = field(default=0.0, compare=False)
    """How far off all of these may be, as a share: measured by what the provider billed where it did."""
    reclaimable: int = 0
    """What a compaction could free if nothing stood for it; `preview` says what one would free."""
    messages: int = 0
    roles: Mapping[str, int]
    """By whose word they are: roles, and apart from them what comes from memory and what agents were told."""
    characters: int = 0
    prompts: int = 0
    """How many things the user said are among them."""
    threshold: Threshold | None = None
    """Where the policy acts next; in tokens, those of all that would be sent."""
    turns_left: int | None = None
    """About how many turns it takes to get there, at the pace so far; None where nobody can say."""
    forecast: CostForecast | None = None
    """What is paid for what is done there; None where nothing will be."""
    loop_reason: str = ""
    """Why nothing will be folded there because the agent got nowhere since the last time; empty where it did."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.system + self.tools + self.pins + self.ledger + self.summary + self.turns

    @property
    def free(self) -> int:
        """What the budget leaves."""
        return max(0, self.budget - self.total)


def context_report(plan_input: PlanInput, policy: Policy, summary_author: SummaryAuthor | None = None) -> ContextReport:
    """Return what would be sent if nothing were done about it; `by` is who would write the next summary."""
    situation, shown = plan_input.situation, plan_input.projection
    sizes: Tally[str] = Tally(turns=REPLY_OVERHEAD)
    for index, (entry, size) in enumerate(zip(shown.entries, shown.entry_tokens(), strict=True)):
        ledger = _ledger_tokens(entry, plan_input)
        sizes["ledger"] += ledger
        sizes[_part_name(entry, plan_input)] += size - ledger
        if entry.position is None or (index != shown.newest_prompt and entry.position not in situation.pins):
            sizes["free"] += size if entry.message.role != "system" else 0
    line = policy.fold.threshold(plan_input) if policy.fold else None
    prompts = sum(entry.message.is_prompt and entry.position is not None for entry in shown.entries)

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
        error=ERROR_ESTIMATED if shown.media_count and not situation.calibration.samples else situation.error,
        reclaimable=billed(sizes["free"]),
        messages=len(shown),
        roles=Tally(entry.message.speaker for entry in shown.entries),
        characters=sum(_character_count(entry) for entry in shown.entries),
        prompts=prompts,
        turns_left=_turns_left(line, prompts, sizes["summary"] + sizes["ledger"]),
        forecast=cost_forecast(plan_input, policy, line, summary_author),
        loop_reason=loop_reason(plan_input) if policy.fold and policy.fold.detects_loops else "",
    )
    if line is not None and line.unit == "tokens":
        # A rule counts messages alone, or as our counter does: a reader compares with all that would be sent.
        line = Threshold(contents.total, contents.total + billed(line.limit - line.current), line.unit)
    return replace(contents, threshold=line)


def _part_name(entry: Entry, plan_input: PlanInput) -> str:
    if entry.message.role == "system":
        return "system"
    if entry.position is None:
        return "summary"
    return "pins" if entry.position in plan_input.situation.pins else "turns"


def _ledger_tokens(entry: Entry, plan_input: PlanInput) -> int:
    """Return what of a replacement is the ledger: it stands last."""
    text = entry.message.text if entry.position is None else ""
    return plan_input.situation.counter.count(text[text.index(LEDGER_FRAME) :]) if LEDGER_FRAME in text else 0


def _character_count(entry: Entry) -> int:
    message = entry.message
    return len(message.text) + sum(len(result.text) for result in message.results)


def _turns_left(threshold: Threshold | None, prompts: int, message_tokens: int) -> int | None:
    """Return how many turns like those so far reach the line; what stands for older ones does not grow."""
    grown = 0 if threshold is None else threshold.current - (message_tokens if threshold.unit == "tokens" else 0)
    if threshold is None or not prompts or grown <= 0:
        return None
    return max(0, int((threshold.limit - threshold.current) * prompts / grown))
