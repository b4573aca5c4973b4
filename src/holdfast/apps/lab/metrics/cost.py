"""M5 prefix stability, M6 simulated cost, M7 growth of cost, and the deviation of the simulation from real bills."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.apps.lab.recordings import Recording
from holdfast.apps.lab.replay import ReplayTurn, TurnCollector
from holdfast.core.planning.situation import PROVIDER_PRICES, Prices

COMPACTED_SHARE = 0.6
"""A prompt below this share of the largest earlier prompt was compacted."""
CLAUDE_BILLED_RATIO, CLAUDE_CLIENT_TOKENS = 1.2, 3_300
"""To compare with bills: the ratio of Claude's tokens to those of o200k, and the tokens that its client adds."""


@dataclass(slots=True)
class PrefixStability(TurnCollector):
    """M5: the share of all sent tokens in a prefix of the previous request, and how often the prefix broke.

    `hit_share` is that share. `breaks_per_100` is how many of 100 requests do not extend the previous one.
    `break_depth` is how many tokens such a request sends outside the shared prefix, on average.
    """

    async def figures(self) -> Mapping[str, float]:
        broken = [turn for turn in self.turns if not turn.is_extension]
        return {
            "M5.hit_share": sum(turn.shared_tokens for turn in self.turns)
            / max(1, sum(turn.sent_tokens for turn in self.turns)),
            "M5.breaks_per_100": 100 * len(broken) / max(1, len(self.turns)),
            "M5.break_depth": sum(turn.sent_tokens - turn.shared_tokens for turn in broken) / max(1, len(broken)),
        }


@dataclass(slots=True)
class SimulatedCost(TurnCollector):
    """M6: the cost of all requests, answers and summaries under each price model, in plain input tokens.

    The prefix is read at the cache's price unless the cache has expired since the previous request.
    M7: the ratio of the mean cost of a request in the last quarter to that in the first, and the tokens added per turn.
    """

    prices: Sequence[Prices]

    async def figures(self) -> Mapping[str, float]:
        totals = {f"M6.{one.name}.total": sum(turn.cost(one) for turn in self.turns) for one in self.prices}
        return {
            **totals,
            "M7.growth": cost_growth(self.turns, PROVIDER_PRICES["anthropic"]),
            "M7.slope": token_slope(self.turns),
        }


def cost_growth(turns: Sequence[ReplayTurn], prices: Prices) -> float:
    """Return the ratio of the mean cost of a turn in the last quarter to that in the first."""
    quarter = max(1, len(turns) // 4)
    spent = [sum(turn.cost(prices) for turn in part) for part in (turns[:quarter], turns[-quarter:])]
    return spent[1] / spent[0] if turns and spent[0] else 1.0


def token_slope(turns: Sequence[ReplayTurn]) -> float:
    """Return by how many tokens a request grows with each turn, fitted over all turns."""
    count = len(turns)
    middle, mean = (count - 1) / 2, sum(turn.sent_tokens for turn in turns) / max(1, count)
    spread = sum((at - middle) ** 2 for at in range(count))
    return sum((at - middle) * (turn.sent_tokens - mean) for at, turn in enumerate(turns)) / spread if spread else 0.0


def bill_deviation(recording: Recording, turns: Sequence[ReplayTurn]) -> Mapping[str, float] | None:
    """Return how far a replay of the full history deviates from the bills; None without bills.

    The comparison ends at the first turn with a much smaller prompt, because the recorded client had compacted there.
    If the recording does not have the size of system text and tools, the size that Claude's client adds is assumed.
    """
    factor = CLAUDE_BILLED_RATIO if recording.is_claude else 1.0
    overhead = CLAUDE_CLIENT_TOKENS if recording.static is None else 0
    billed, read, simulated, held, largest = 0, 0, 0.0, 0.0, 0
    for turn, index in zip(turns, recording.turns, strict=True):
        usage = recording.usage[index] or {}
        prompt = usage.get("input", 0) + usage.get("cacheRead", 0) + usage.get("cacheWrite", 0)
        if not prompt:
            continue
        if prompt < largest * COMPACTED_SHARE:
            break
        largest = max(largest, prompt)
        billed += prompt
        read += usage.get("cacheRead", 0)
        simulated += turn.sent_tokens * factor + overhead
        held += turn.cached_tokens(PROVIDER_PRICES["anthropic"]) * factor + overhead
    if not billed:
        return None
    return {"bills.prompt_tokens": simulated / billed, "bills.hit_share": held / simulated - read / billed}
