"""Runs generated cases on every core until the time is over, and stores those that fail.

    python -m benchmarks.torture [ROUND…] [--seconds 120 | --hours 24 | --cases 1000000] [--seed N] [--cores N]

Each round prints its seed and its rate. Ctrl-C stops it after the running batches. A failure is shrunk and stored under
tests/corpus/found, where the test suite checks it again. The exit code is 1 if there was a failure.
"""

import argparse
import itertools
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from benchmarks.torture.batches import Batch, Failure, run_batch
from benchmarks.torture.rounds import ROUNDS

EXAMPLES, MIN_EXAMPLES = 100, 8
"""Cases in a batch, which takes about a second; slow rounds have fewer, but enough to include large cases."""
WEIGHT_OF_SINGLE_CASES = 1_000
"""From this weight on a case takes seconds by itself, and is a batch."""


MAX_CASE_CHARS = 600
"""How much of a failing case is printed; its file has all of it."""


@dataclass(slots=True)
class Limits:
    """When a round is over."""

    seconds: float
    cases: int | None
    is_interrupted: bool = False


@dataclass(slots=True)
class Tally:
    """The results of a round so far."""

    name: str
    seed: int
    cases: int = 0
    failures: list[Failure] = field(default_factory=list[Failure])
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self.began

    def __str__(self) -> str:
        rate = self.cases / max(self.seconds, 0.001)
        found = f"{len(self.failures)} failed" if self.failures else "none failed"
        return f"{self.name}: {self.cases:,} cases in {self.seconds:,.0f} s, {rate:,.0f}/s, {found} (seed {self.seed})"

    def add_batch(self, batch: Batch) -> None:
        """Count a batch, and store its failure."""
        self.cases += batch.cases
        if batch.failure:
            self.failures.append(batch.failure)
            failure = batch.failure
            print(f"  {failure.reason.splitlines()[0]} (batch seed {failure.seed})", flush=True)
            print(f"  {json.dumps(failure.case)[:MAX_CASE_CHARS]}\n  kept as {failure.save()}", flush=True)


def run_round(pool: ProcessPoolExecutor, cores: int, tally: Tally, limits: Limits) -> None:
    """Run batches on every core until the round is over."""
    waiting: set[Future[Batch]] = set()
    weight = ROUNDS[tally.name].weight
    cases = None if limits.cases is None else max(1, limits.cases // weight)
    least = MIN_EXAMPLES if weight < WEIGHT_OF_SINGLE_CASES else 1
    examples = min(max(least, EXAMPLES // weight), cases or EXAMPLES)
    shown = time.monotonic()
    for number in itertools.count():
        is_enough = tally.seconds > limits.seconds if cases is None else number * examples >= cases
        if is_enough or limits.is_interrupted:
            break
        waiting.add(pool.submit(run_batch, tally.name, number, tally.seed, examples))
        if len(waiting) > cores:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for one in done:
                tally.add_batch(one.result())
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            print(f"  {tally}", flush=True)
    for one in waiting:
        tally.add_batch(one.result())


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C, which the parent process handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torture", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rounds", nargs="*", help=f"of: {', '.join(ROUNDS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=120, help="for all rounds together (default: 120)")
    parser.add_argument("--hours", type=float, help="the same in hours, for a run of a day")
    parser.add_argument("--cases", type=int, help="cases for each round, fewer for slow ones; no time limit")
    parser.add_argument("--seed", type=int, help="seed of the first batch (default: random)")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    chosen = parser.parse_args(argv)
    if unknown := set(chosen.rounds) - set(ROUNDS):
        parser.error(f"no round is called {', '.join(sorted(unknown))}; there are: {', '.join(ROUNDS)}")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    chosen = parse_options(argv)
    names = chosen.rounds or list(ROUNDS)
    seed = secrets.randbelow(10**9) if chosen.seed is None else chosen.seed
    seconds = chosen.seconds if chosen.hours is None else chosen.hours * 3_600
    limits, end = Limits(seconds, chosen.cases), time.monotonic() + seconds

    def stop(*_: object) -> None:
        limits.is_interrupted = True
        print("  stopping after the running batches", flush=True)

    before = signal.signal(signal.SIGINT, stop)
    tallies: list[Tally] = []
    try:
        with ProcessPoolExecutor(chosen.cores, initializer=_ignore_interrupts) as pool:
            for number, name in enumerate(itertools.takewhile(lambda _: not limits.is_interrupted, names)):
                # What one round took beyond its share, all that follow give up, but each runs.
                limits.seconds = max(1.0, (end - time.monotonic()) / (len(names) - number))
                tallies.append(Tally(name, seed))
                print(f"{name}, seed {seed}: {ROUNDS[name].title}", flush=True)
                run_round(pool, chosen.cores, tallies[-1], limits)
                print(f"  {tallies[-1]}", flush=True)
    finally:
        signal.signal(signal.SIGINT, before)
    return 1 if any(tally.failures for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
