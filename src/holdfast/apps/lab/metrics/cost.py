"""M5 prefix stability, M6 simulated cost, M7 growth of cost, and how far the simulator is from real bills."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.apps.lab.recordings import Recording
from holdfast.apps.lab.replay import ObservedRequest, ReplayTurn
from holdfast.core.planning.situation import PROVIDER_PRICES, Prices

COMPACTED_SHARE = 0.6
"""A prompt this much smaller than the largest before it was compacted."""
CLAUDE_BILLED_RATIO, CLAUDE_CLIENT_TOKENS = 1.2, 3_300
"""What Claude's billed tokens are to o200k's, and what its client adds: for holding the simulator to account."""


@dataclass(slots=True)
class PrefixStability:
    """M5: which share of all tokens sent stands in a prefix that the request before had too, and how often that broke.

    `hit_share` is that share; `breaks_per_100` the requests, of a hundred, that the one before is not the beginning of;
    `break_depth` how many tokens such a request sends anew, on average.
    """

    turns: list[ReplayTurn] = field(default_factory=list[ReplayTurn])

    async def observe(self, observed: ObservedRequest) -> None:
        """Take in one request."""
        self.turns.append(observed.turn)

    async def figures(self) -> Mapping[str, float]:
        """Return the shares."""
        broken = [turn for turn in self.turns if not turn.is_extension]
        return {
            "M5.hit_share": sum(turn.shared_tokens for turn in self.turns)
            / max(1, sum(turn.sent_tokens for turn in self.turns)),
            "M5.breaks_per_100": 100 * len(broken) / max(1, len(self.turns)),
            "M5.break_depth": sum(turn.sent_tokens - turn.shared_tokens for turn in broken) / max(1, len(broken)),
        }


@dataclass(slots=True)
class SimulatedCost:
    """M6: what all requests, answers and summaries cost together, in plain input tokens, under price models.

    What stands in the prefix is read at the cache's price unless the gap before was longer than it keeps anything.
    M7: the mean cost of a request in the last quarter over that in the first, and the slope of tokens by turn.
    """

    prices: Sequence[Prices]
    turns: list[ReplayTurn] = field(default_factory=list[ReplayTurn])

    async def observe(self, observed: ObservedRequest) -> None:
        """Take in one request."""
        self.turns.append(observed.turn)

    async def figures(self) -> Mapping[str, float]:
        """Return the totals and the growth."""
        totals = {f"M6.{one.name}.total": sum(turn.cost(one) for turn in self.turns) for one in self.prices}
        return {
            **totals,
            "M7.growth": cost_growth(self.turns, PROVIDER_PRICES["anthropic"]),
            "M7.slope": token_slope(self.turns),
        }


def cost_growth(turns: Sequence[ReplayTurn], prices: Prices) -> float:
    """Return the mean cost of a turn in the last quarter over that in the first."""
    quarter = max(1, len(turns) // 4)
    spent = [sum(turn.cost(prices) for turn in part) for part in (turns[:quarter], turns[-quarter:])]
    return spent[1] / spent[0] if turns and spent[0] else 1.0


def token_slope(turns: Sequence[ReplayTurn]) -> float:
    """Return by how many tokens a request grows with each turn, fitted over all of them."""
    count = len(turns)
    middle, mean = (count - 1) / 2, sum(turn.sent_tokens for turn in turns) / max(1, count)
    spread = sum((at - middle) ** 2 for at in range(count))
    return sum((at - middle) * (turn.sent_tokens - mean) for at, turn in enumerate(turns)) / spread if spread else 0.0


def bill_deviation(recording: Recording, turns: Sequence[ReplayTurn]) -> Mapping[str, float] | None:
    """Return how far a replay of everything is from what was billed; None where nothing was.

    Only up to the first turn whose prompt fell: from there on the recorded client had compacted. Where nobody
    wrote down what went beside the messages, what Claude's client adds stands for it.
    """
    factor, overhead = (
        CLAUDE_BILLED_RATIO if recording.is_claude else 1.0,
        CLAUDE_CLIENT_TOKENS if recording.static is None else 0,
    )
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
