"""What a conversation is made of now, what of it could be freed, how near the next fold is and what it will cost.

Read-only, for people: the same numbers that a plan is made of, in an order in which one can see where a window went.
"""

from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.core.conversation.tokens import ERROR_ESTIMATED, REPLY_OVERHEAD
from holdfast.core.conversation.view import Entry
from holdfast.core.history.ledger.rendering import LEDGER_FRAME
from holdfast.core.planning.breaker import loop_reason
from holdfast.core.planning.forecast import CostForecast, SummaryAuthor, cost_forecast
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.steps import PlanInput, Threshold


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
