"""Figures of conversations: pairs of a sum and what it is a share of, pooled with an interval by conversation."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, TypeAlias

Half: TypeAlias = Literal["tuning", "judging"]
Pair: TypeAlias = tuple[float, float]
"""What was found, and of how much."""
Figures: TypeAlias = dict[str, Pair]
RESAMPLES = 1_000
INTERVAL = (0.025, 0.975)


def half_of(record: Mapping[str, Any]) -> Half:
    """Return the half of a conversation; conversations about one repository are in the same half."""
    meta = record.get("meta") or {}
    group = str(meta.get("repository") or record["id"])
    return "judging" if sha256(group.encode()).digest()[0] % 2 else "tuning"


def add_pair(figures: Figures, name: str, found: float, total: float = 1.0) -> None:
    """Add to a figure."""
    before = figures.get(name, (0.0, 0.0))
    figures[name] = before[0] + found, before[1] + total


@dataclass(frozen=True, slots=True)
class PooledFigure:
    """One figure over several conversations."""

    share: float
    low: float
    high: float
    """The ends of the interval that holds 95 of 100 samples of as many conversations."""
    least: float
    """The smallest share of any conversation."""
    total: float
    conversations: int

    def __str__(self) -> str:
        return f"{self.share:.3f} ({self.low:.3f}–{self.high:.3f})"


def pool(conversations: Sequence[Figures], name: str) -> PooledFigure | None:
    """Return a figure over all conversations that have it, with its interval."""
    pairs = [figures[name] for figures in conversations if figures.get(name, (0, 0))[1]]
    if not pairs:
        return None
    chance = random.Random(1)
    sampled = sorted(_share(chance.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    low, high = (sampled[min(RESAMPLES - 1, int(end * RESAMPLES))] for end in INTERVAL)
    least = min(found / total for found, total in pairs)
    return PooledFigure(_share(pairs), low, high, least, sum(total for _, total in pairs), len(pairs))


def _share(pairs: Sequence[Pair]) -> float:
    return sum(found for found, _ in pairs) / sum(total for _, total in pairs)
