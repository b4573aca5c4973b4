"""A batch of one round: cases drawn from a seed, run until one fails, and the failure shrunk."""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from benchmarks.torture.rounds import ROUNDS, Case

FOUND_FOLDER = Path(__file__).parent.parent.parent / "tests" / "corpus" / "found"
"""Where failures are stored; the test suite checks each of them again."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that violates a property."""

    round: str
    seed: int
    reason: str
    case: Case

    def save(self, folder: Path = FOUND_FOLDER) -> Path:
        """Store the case where the test suite finds it, once for each case."""
        name = sha256(json.dumps(self.case, sort_keys=True).encode()).hexdigest()[:12]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.round}-{name}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        return path


@dataclass(frozen=True, slots=True)
class Batch:
    """How many cases ran, and the failure that stopped the batch, if any."""

    round: str
    cases: int
    failure: Failure | None


def run_batch(name: str, number: int, first_seed: int, examples: int) -> Batch:
    """Run a number of cases of a round; the same seed gives the same cases."""
    torture, chosen = ROUNDS[name], first_seed + number
    tried = 0
    failed: list[tuple[Case, Exception]] = []

    def attempt(case: Case) -> None:
        nonlocal tried
        tried += 1
        try:
            torture.check(case)
        except Exception as error:
            # The last that fails is the smallest: shrinking ends with it.
            failed[:] = [(case, error)]
            raise

    try:
        _draw(attempt, torture.strategies[number % len(torture.strategies)], chosen, examples)
    except Exception as error:  # noqa: BLE001 - whatever a case raises is a failure of what it was tried on
        case, reason = failed[0] if failed else ({}, error)
        return Batch(name, tried, Failure(name, chosen, _describe_error(reason), case))
    return Batch(name, tried, None)


def _describe_error(error: Exception) -> str:
    """Return what went wrong, and where."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    place = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {error}"[:2_000] + place


def _draw(attempt: Any, strategy: Any, chosen: int, examples: int) -> None:
    tuned = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        verbosity=Verbosity.quiet,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    seed(chosen)(tuned(given(strategy)(attempt)))()
