"""What can be tortured: each round draws cases and says what must hold for every one of them.

A case is plain JSON, so one that fails can be kept in a file and looked at again by `check` alone, without the
dice that found it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import strategies as st

from benchmarks.torture import histories

Case: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Round:
    """One kind of torture."""

    title: str
    strategies: tuple[st.SearchStrategy[Case], ...]
    """Cases, by what they are about: batches take one after another, so that none comes short."""
    check: Callable[[Case], None]
    """Raises where a case shows that something does not hold."""


ROUNDS: Mapping[str, Round] = {
    "histories": Round(
        "broken histories under every preset in every format: valid, within budget, the same twice",
        histories.STRATEGIES,
        histories.check,
    ),
}
