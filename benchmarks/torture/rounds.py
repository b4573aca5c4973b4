"""What can be tortured: each round draws cases and says what must hold for every one of them.

A case is plain JSON, so one that fails can be kept in a file and looked at again by `check` alone, without the
dice that found it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import strategies as st

from benchmarks.torture import cancelled, faults, fuzzing, histories, interleavings, providers, summarisers, writers

Case: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Round:
    """One kind of torture."""

    title: str
    strategies: tuple[st.SearchStrategy[Case], ...]
    """Cases, by what they are about: batches take one after another, so that none comes short."""
    check: Callable[[Case], None]
    """Raises where a case shows that something does not hold."""
    weight: int = 1
    """How many cases of the others one of these takes as long as: so many fewer are tried."""


ROUNDS: Mapping[str, Round] = {
    "histories": Round(
        "broken histories under every preset in every format: valid, within budget, the same twice",
        histories.STRATEGIES,
        histories.check,
    ),
    "decoders": Round(
        "messages changed at random: a value or an error with a type", fuzzing.DECODING_CASES, fuzzing.check_decoding
    ),
    "importers": Round("spoiled files: a value or an error with a type", fuzzing.IMPORT_CASES, fuzzing.check_import),
    "refusals": Round(
        "answers changed at random: a value or an error with a type", fuzzing.REFUSAL_CASES, fuzzing.check_refusal
    ),
    "settings": Round(
        "spoiled settings: a value or an error with a type", fuzzing.SETTINGS_CASES, fuzzing.check_settings
    ),
    "interleavings": Round(
        "two programs do everything to the same sessions: live, stored and replayed are one",
        interleavings.STRATEGIES,
        interleavings.check,
        weight=50,
    ),
    "faults": Round(
        "a full disk, a locked or missing file, lost leases, clocks that jump: nothing is lost, and it goes on",
        faults.STRATEGIES,
        faults.check,
        weight=50,
    ),
    "cancelled": Round(
        "a task that is cancelled at each of its awaits leaves nothing half done",
        cancelled.STRATEGIES,
        cancelled.check,
        weight=100,
    ),
    "writers": Round(
        "ten processes and ten tasks write at once: all that was acknowledged is there, once and in order",
        writers.STRATEGIES,
        writers.check,
        weight=1_000,
    ),
    "summarisers": Round(
        "summarisers that hang, lie, inflate, echo, call tools or fail: sound requests, and nobody waits for ever",
        summarisers.STRATEGIES,
        summarisers.check,
        weight=50,
    ),
    "providers": Round(
        "providers that refuse, truncate, cut, never end and fall silent: it recovers, or says what to do",
        providers.STRATEGIES,
        providers.check,
        weight=50,
    ),
}
