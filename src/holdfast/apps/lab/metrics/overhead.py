"""M4 losslessness, M10 stalls, M11 what summaries take and see, M12 what the engine itself takes."""

import resource
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.apps.lab.recordings import Recording
from holdfast.apps.lab.replay import ObservedRequest, ReplayTurn
from holdfast.apps.lab.simulation import SimulatedSession, full_message_text
from holdfast.core.history import events as log

COVERAGE_PROBE_CHARS, COVERAGE_PROBE_STEP = 24, 400
"""How much of a text is looked for, and how far apart."""


@dataclass(slots=True)
class Losslessness:
    """M4: how many messages of the recording do not come back from the log byte for byte, read by another session."""

    simulated: SimulatedSession
    recording: Recording

    async def observe(self, observed: ObservedRequest) -> None:
        """Take in one request; what counts is the end."""

    async def figures(self) -> Mapping[str, float]:
        """Return the count."""
        known = self.recording.messages[: len(self.simulated.session)]
        return {"M4.lost": await self.simulated.count_lost_messages(known)}


@dataclass(slots=True)
class RequestStalls:
    """M10: how long requests wait, for a summary that takes its time and for the engine, in milliseconds.

    The time of the summary is that of the recording's clock, the engine's is the processor's.
    """

    simulated: SimulatedSession
    turns: list[ReplayTurn] = field(default_factory=list[ReplayTurn])

    async def observe(self, observed: ObservedRequest) -> None:
        """Take in one request."""
        self.turns.append(observed.turn)

    async def figures(self) -> Mapping[str, float]:
        """Return the waits."""
        waits = [
            1_000 * (turn.waited_seconds + busy)
            for turn, busy in zip(self.turns, self.simulated.cpu_seconds, strict=False)
        ]
        return {
            "M10.stall_ms_max": max(waits, default=0.0),
            "M10.stall_ms_p50": statistics.median(waits) if waits else 0.0,
            "M10.stalls": sum(turn.waited_seconds > 0 for turn in self.turns),
        }


@dataclass(slots=True)
class SummaryUse:
    """M11: what summaries take, and how much of what is folded reaches them.

    `calls`, `tokens_in` and `tokens_out` are those of the calls; `share` is their part of all tokens, read or written;
    `coverage` is the share of the text that a summary is about that its writer was shown, by samples of it, whether it
    came in time for its fold or is kept for the next; `depth` how many summaries went into the deepest one.
    """

    simulated: SimulatedSession
    recording: Recording
    turns: list[ReplayTurn] = field(default_factory=list[ReplayTurn])

    async def observe(self, observed: ObservedRequest) -> None:
        """Take in one request."""
        self.turns.append(observed.turn)

    async def figures(self) -> Mapping[str, float]:
        """Return what they took."""
        spent = [one for turn in self.turns for one in turn.summaries]
        taken = sum(one.fresh_tokens + one.cached_tokens for one in spent), sum(one.output_tokens for one in spent)
        everything = sum(turn.sent_tokens + turn.output_tokens for turn in self.turns) + sum(taken)
        figures = {
            "M11.calls": len(spent),
            "M11.tokens_in": taken[0],
            "M11.tokens_out": taken[1],
            "M11.share": sum(taken) / max(1, everything),
        }
        written = await self.simulated.model_summaries()
        if not written or self.simulated.summarizer is None:
            return figures
        return {**figures, "M11.coverage": self._coverage(written), "M11.depth": summary_depth(written)}

    def _coverage(self, summaries: Sequence[log.SummaryWritten]) -> float:
        shown = "\n".join(self.simulated.summarizer.inputs) if self.simulated.summarizer else ""
        found = [probe in shown for one in summaries for probe in self._probes(one)]
        return sum(found) / max(1, len(found))

    def _probes(self, summary: log.SummaryWritten) -> Iterator[str]:
        for native in self.recording.messages[summary.start : summary.stop]:
            for line in full_message_text(native).splitlines()[:: max(1, COVERAGE_PROBE_STEP // 80)]:
                if len(line.strip()) >= COVERAGE_PROBE_CHARS:
                    yield line.strip()[:COVERAGE_PROBE_CHARS]


def summary_depth(summaries: Sequence[log.SummaryWritten]) -> int:
    """Return how many summaries went into the deepest: one that stands for another's span was made of it."""
    deepest = here = 0
    last: log.SummaryWritten | None = None
    for one in summaries:
        is_made_of = last is not None and one.start <= last.start and one.stop >= last.stop
        here = here + 1 if is_made_of else 1
        deepest, last = max(deepest, here), one
    return deepest


@dataclass(slots=True)
class EngineOverhead:
    """M12: what preparing a request takes of the processor, in milliseconds; and the largest the process was, in MB."""

    simulated: SimulatedSession

    async def observe(self, observed: ObservedRequest) -> None:
        """Take in one request; the time is taken elsewhere."""

    async def figures(self) -> Mapping[str, float]:
        """Return the times."""
        busy = sorted(1_000 * seconds for seconds in self.simulated.cpu_seconds) or [0.0]
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return {
            "M12.cpu_ms_p50": statistics.median(busy),
            "M12.cpu_ms_p99": busy[min(len(busy) - 1, len(busy) * 99 // 100)],
            "M12.rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit,
        }
