"""The rounds: each draws cases and checks a property of every case.

A case is plain JSON, so a failing one can be stored in a file and checked again by `check` alone, without random
numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import strategies as st

from benchmarks.torture import (
    adapters,
    blocking_threads,
    cancelled,
    faults,
    fuzzing,
    gateway,
    histories,
    hostile_text,
    interleavings,
    jobs,
    pages,
    program_logs,
    providers,
    summarizers,
    thinking,
    thresholds,
    usage,
    writers,
)

Case: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Round:
    """One kind of test."""

    title: str
    strategies: tuple[st.SearchStrategy[Case], ...]
    """The kinds of cases; batches take one kind after another, so that each gets its share."""
    check: Callable[[Case], None]
    """Raises if a case violates the property."""
    weight: int = 1
    """How many times longer a case takes than usual; that many times fewer run."""


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
        "two programs act on the same sessions: live, stored and replayed state agree",
        interleavings.STRATEGIES,
        interleavings.check,
        weight=50,
    ),
    "faults": Round(
        "a full disk, a locked or missing file, lost leases, jumping clocks: nothing is lost, the session continues",
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
    "summarizers": Round(
        "summarizers that hang, lie, inflate, echo, call tools or fail: valid requests, and no endless wait",
        summarizers.STRATEGIES,
        summarizers.check,
        weight=50,
    ),
    "hostile_text": Round(
        "hostile text in every field under every preset: none of it passes for a line of ours",
        hostile_text.STRATEGIES,
        hostile_text.check,
        weight=10,
    ),
    "providers": Round(
        "providers that reject, truncate, cut, never end or stop: recovery, or an error with a remedy",
        providers.STRATEGIES,
        providers.check,
        weight=50,
    ),
    "thresholds": Round(
        "every model, calibration, budget and preset: one limit everywhere, and compaction before anything is dropped",
        thresholds.STRATEGIES,
        thresholds.check,
        weight=10,
    ),
    "thinking": Round(
        "thinking after changed prefixes under every preset: removed where it must be, and nowhere else",
        thinking.STRATEGIES,
        thinking.check,
        weight=20,
    ),
    "usage": Round(
        "usage reports and limits of every provider, true and false: within budget, and no effect elsewhere",
        usage.STRATEGIES,
        usage.check,
        weight=20,
    ),
    "gateway": Round(
        "clients that edit their lists and send odd bodies, providers that break off: no word lost, no byte changed",
        gateway.STRATEGIES,
        gateway.check,
        weight=100,
    ),
    "pages": Round(
        "addresses of every kind at the viewer, the control API and MCP: no failure of the server, nothing injected",
        pages.STRATEGIES,
        pages.check,
        weight=200,
    ),
    "program_logs": Round(
        "spoiled logs of other programs: what can be read is imported, once, and goes on",
        program_logs.STRATEGIES,
        program_logs.check,
        weight=200,
    ),
    "adapters": Round(
        "histories of three frameworks, edited between turns: valid requests, and every prompt in the log",
        adapters.STRATEGIES,
        adapters.check,
        weight=100,
    ),
    "blocking_threads": Round(
        "threads that share sessions without an event loop: nothing lost, and no endless wait",
        blocking_threads.STRATEGIES,
        blocking_threads.check,
        weight=100,
    ),
    "jobs": Round(
        "workers on DBOS that are killed: another one ends their work, and no word is lost",
        jobs.STRATEGIES,
        jobs.check,
        weight=5_000,
    ),
}
