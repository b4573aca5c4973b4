"""Compactions that circumstances ask for: a model with a smaller window, a process with too much in its memory."""

import gc
import resource
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from holdfast.core.history import events as log
from holdfast.errors import CompactionError, ModelError, SettingsError
from holdfast.session.circumstances import RequestOptions
from holdfast.session.keeping import SessionLog
from holdfast.session.manual import ManualCompaction
from holdfast.session.preparer import RequestBuilder

STATM_PATH = Path("/proc/self/statm")


async def switch_model_and_fit(
    session_log: SessionLog, manual: ManualCompaction, builder: RequestBuilder, options: RequestOptions
) -> log.CompactionCompleted | None:
    """Let another model answer; where what stands is too long for it, a compaction comes first."""
    if not options.model or not isinstance(options.model, str):
        raise SettingsError("model", f"needs a name, not {options.model!r}")
    async with session_log.lock:
        await session_log.refresh()
        situation = builder.situation(options)
        fills = session_log.history.projection(situation.counter).tokens if session_log.history.format else 0
    done = None
    if fills > situation.message_budget:
        smaller = replace(options, budget=replace(situation.budget, source="user"))
        with suppress(CompactionError, ModelError):
            done = await manual.compact(smaller, "model_switch")
    async with session_log.lock:
        await session_log.refresh()
        await session_log.append(log.ModelSwitched(model=options.model, window=situation.window))
    return done


async def compact_above_memory_limit(
    manual: ManualCompaction, options: RequestOptions, limit_bytes: int
) -> log.CompactionCompleted | None:
    """Compact where the process holds too much even after what nobody needs was given back."""
    if resident_bytes() > limit_bytes:
        gc.collect()
    if resident_bytes() <= limit_bytes:
        return None
    with suppress(CompactionError, ModelError):
        return await manual.compact(options, "memory_pressure")
    return None


def resident_bytes() -> int:
    """Return how much memory the process holds; where the system tells only the most it ever held, that."""
    try:
        return int(STATM_PATH.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
