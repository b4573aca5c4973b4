"""M4 losslessness, M10 stalls, M11 cost and coverage of summaries, M12 overhead of the engine."""

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.apps.lab.recordings import Recording
from holdfast.apps.lab.replay import TurnCollector
from holdfast.apps.lab.simulation import SimulatedSession, full_message_text
from holdfast.core.history import events as log

COVERAGE_PROBE_CHARS, COVERAGE_PROBE_STEP = 24, 400
"""The length of a text sample, and the distance between two samples."""


@dataclass(slots=True)
class Losslessness(TurnCollector):
    """M4: how many messages of the recording differ in any byte when another session reads them from the log."""

    simulated: SimulatedSession
    recording: Recording

    async def figures(self) -> Mapping[str, float]:
        known = self.recording.messages[: len(self.simulated.session)]
        return {"M4.lost": await self.simulated.count_lost_messages(known)}


@dataclass(slots=True)
class RequestStalls(TurnCollector):
    """M10: how long requests wait for a slow summary and for the engine, in milliseconds.

    The wait for a summary is measured on the recording's clock, that for the engine in processor time.
    """

    simulated: SimulatedSession

    async def figures(self) -> Mapping[str, float]:
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
class SummaryUse(TurnCollector):
    """M11: what summaries cost, and how much of the compacted text reaches the summarizer.

    `calls`, `tokens_in` and `tokens_out` count the calls and their tokens; `share` is their share of all tokens, read
    or written. `coverage` is the share of a summarized span that the summarizer received, measured by samples of the
    text; summaries that came too late for their compaction count too. `depth` is how many summaries the deepest summary
    was made from.
    """

    simulated: SimulatedSession
    recording: Recording

    async def figures(self) -> Mapping[str, float]:
        costs = [one for turn in self.turns for one in turn.summaries]
        read = sum(one.fresh_tokens + one.cached_tokens for one in costs)
        written = sum(one.output_tokens for one in costs)
        everything = sum(turn.sent_tokens + turn.output_tokens for turn in self.turns) + read + written
        figures = {
            "M11.calls": len(costs),
            "M11.tokens_in": read,
            "M11.tokens_out": written,
            "M11.share": (read + written) / max(1, everything),
        }
        summaries = await self.simulated.model_summaries()
        if not summaries or self.simulated.summarizer is None:
            return figures
        inputs = "\n".join(self.simulated.summarizer.inputs)
        found = [probe in inputs for one in summaries for probe in self._probes(one)]
        coverage = sum(found) / max(1, len(found))
        return {**figures, "M11.coverage": coverage, "M11.depth": summary_depth(summaries)}

    def _probes(self, summary: log.SummaryWritten) -> Iterator[str]:
        for native in self.recording.messages[summary.start : summary.stop]:
            for line in full_message_text(native).splitlines()[:: max(1, COVERAGE_PROBE_STEP // 80)]:
                if len(line.strip()) >= COVERAGE_PROBE_CHARS:
                    yield line.strip()[:COVERAGE_PROBE_CHARS]


def summary_depth(summaries: Sequence[log.SummaryWritten]) -> int:
    """Return the depth of the deepest summary: a summary that covers the span of another was made from it."""
    deepest = depth = 0
    previous: log.SummaryWritten | None = None
    for one in summaries:
        covers = previous is not None and one.start <= previous.start and one.stop >= previous.stop
        depth = depth + 1 if covers else 1
        deepest, previous = max(deepest, depth), one
    return deepest


@dataclass(slots=True)
class EngineOverhead(TurnCollector):
    """M12: the processor time to prepare a request, in milliseconds, and the peak memory of the process, in MB."""

    simulated: SimulatedSession

    async def figures(self) -> Mapping[str, float]:
        busy = sorted(1_000 * seconds for seconds in self.simulated.cpu_seconds) or [0.0]
        return {
            "M12.cpu_ms_p50": statistics.median(busy),
            "M12.cpu_ms_p99": busy[min(len(busy) - 1, len(busy) * 99 // 100)],
            "M12.rss_mb": _peak_megabytes(),
        }


def _peak_megabytes() -> float:
    """Return the most memory that the process has used so far; 0 where the platform does not say."""
    if sys.platform == "win32":
        return 0.0
    import resource  # noqa: PLC0415 - not on every platform

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
