"""Which programs of a benchmark use the processor, and how long they wait for it; from /proc, so only on Linux."""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLE_SECONDS = 0.5
OTHERS = "other programs of the machine"


@dataclass
class Use:
    """What programs used of the processor, in seconds."""

    running: float = 0.0
    waiting: float = 0.0
    """How long they could have run, while others had all cores."""

    def add(self, before: "Use", after: "Use") -> None:
        """Add the difference of two readings."""
        self.running += after.running - before.running
        self.waiting += after.waiting - before.waiting


@dataclass
class ProcessorTime:
    """Reads again and again what the named programs use, with the children of each.

    A child of this program that has no name is called as its program is.
    """

    programs: Callable[[], Mapping[int, str]]
    """Returns the programs that run now: the name of each process, for which others may have the same."""
    by_name: defaultdict[str, Use] = field(default_factory=lambda: defaultdict(Use))
    seconds: float = 0.0
    """How long it was read."""

    async def watch(self) -> None:
        """Read until this is cancelled. What a process used after the last reading before its end is not counted."""
        last, began, before = _busy_seconds(), time.monotonic(), self._readings()
        try:
            while True:
                await asyncio.sleep(SAMPLE_SECONDS)
                current = self._readings()
                for process, (name, use) in current.items():
                    self.by_name[name].add(before[process][1] if process in before else Use(), use)
                before = current
        finally:
            self.seconds = time.monotonic() - began
            own = sum(one.running for one in self.by_name.values())
            self.by_name[OTHERS].running = max(0.0, _busy_seconds() - last - own)

    def _readings(self) -> dict[tuple[int, str], tuple[str, Use]]:
        named, found = dict(self.programs()), dict[tuple[int, str], tuple[str, Use]]()
        for number in sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal()):
            try:
                # The name of the program stands in parentheses and may hold anything.
                begin, _, end = Path(f"/proc/{number}/stat").read_text().rpartition(")")
                fields = end.split()
                parent = int(fields[1])
                name = named.get(number) or (begin.partition("(")[2] if parent == os.getpid() else named.get(parent))
                if name is None:
                    continue
                named[number] = name
                # A thread's second number is how many nanoseconds it waited for a core.
                waits = [one.read_text().split()[1] for one in Path(f"/proc/{number}/task").glob("*/schedstat")]
            except (OSError, IndexError):
                continue  # it has ended
            use = Use((int(fields[11]) + int(fields[12])) / TICKS, sum(map(int, waits)) / 1e9)
            found[number, fields[19]] = name, use
        return found

    def lines(self) -> list[str]:
        """Return a line for each kind of program, as shares of one core."""
        return [
            f"{name}: {use.running / self.seconds:.2f} cores" + _waits(use, self.seconds)
            for name, use in self.by_name.items()
        ]


def _waits(use: Use, seconds: float) -> str:
    return f", {use.waiting / seconds:.2f} more waited for" if use.waiting else ""


def _busy_seconds() -> float:
    """Return how long all cores together were busy so far."""
    user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + soft) / TICKS
