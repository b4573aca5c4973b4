"""The figures a replay gives, each defined once.

M5 prefix stability, M6 simulated cost, M7 growth of cost, M8 validity, M9 budget, M14 determinism.
"""

from collections.abc import Mapping, Sequence

from holdfast.core.planning.cost import PRICES, Prices
from holdfast.lab.replay import Session, Turn

FELL = 0.6
"""A prompt this much smaller than the largest before it was compacted."""
FACTOR, OVERHEAD = 1.2, 3_300
"""What Claude's billed tokens are to o200k's, and what its client adds: for holding the simulator to account."""


def measured(turns: Sequence[Turn]) -> dict[str, float]:
    """Return the named numbers of one replay."""
    sent = sum(turn.sent for turn in turns)
    breaks = sum(not turn.is_extension for turn in turns)
    figures: dict[str, float] = {
        "turns": len(turns),
        "M5.hit_share": sum(turn.shared for turn in turns) / max(1, sent),
        "M5.breaks_per_100": 100 * breaks / max(1, len(turns)),
    }
    for name, prices in PRICES.items():
        figures[f"M6.{name}.total"] = sum(turn.cost(prices) for turn in turns)
    figures["M7.growth"] = growth(turns, PRICES["anthropic"])
    figures["M8.invalid"] = sum(turn.is_invalid for turn in turns)
    figures["M9.over"] = sum(turn.is_over for turn in turns)
    figures["M14.differences"] = sum(turn.is_different for turn in turns)
    return figures


def growth(turns: Sequence[Turn], prices: Prices) -> float:
    """Return the mean cost of a turn in the last quarter over that in the first."""
    quarter = max(1, len(turns) // 4)
    first, last = turns[:quarter], turns[-quarter:]
    spent = [sum(turn.cost(prices) for turn in part) / len(part) for part in (first, last) if part]
    return spent[1] / spent[0] if len(spent) > 1 and spent[0] else 1.0


def against_bills(session: Session, turns: Sequence[Turn]) -> Mapping[str, float] | None:
    """Return how far a replay of everything is from what was billed; None where nothing was.

    Only up to the first turn whose prompt fell: from there on the recorded client had compacted.
    """
    asked = [index for index, message in enumerate(session.messages) if message["role"] == "assistant" and index]
    billed, read, simulated, held, largest = 0, 0, 0.0, 0.0, 0
    for turn, index in zip(turns, asked, strict=True):
        usage = session.usage[index] or {}
        prompt = usage.get("input", 0) + usage.get("cacheRead", 0) + usage.get("cacheWrite", 0)
        if not prompt:
            continue
        if prompt < largest * FELL:
            break
        largest = max(largest, prompt)
        billed += prompt
        read += usage.get("cacheRead", 0)
        simulated += turn.sent * FACTOR + OVERHEAD
        held += turn.held(PRICES["anthropic"]) * FACTOR + OVERHEAD
    if not billed:
        return None
    return {"prompt_tokens": simulated / billed, "hit_share": held / simulated - read / billed}
