"""Compactions that circumstances ask for: a model with a smaller window, a process with too much in its memory."""

import gc
import resource
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from holdfast.core.history import events as log
from holdfast.errors import CompactionError, ModelError, SettingsError
from holdfast.session.circumstances import Wanted
from holdfast.session.keeping import Keeper
from holdfast.session.manual import ManualCompaction
from holdfast.session.preparer import Preparer

STATM = Path("/proc/self/statm")


async def switched(
    keeper: Keeper, manual: ManualCompaction, preparer: Preparer, wanted: Wanted
) -> log.CompactionCompleted | None:
    """Let another model answer; where what stands is too long for it, a compaction comes first."""
    if not wanted.model or not isinstance(wanted.model, str):
        raise SettingsError("model", f"needs a name, not {wanted.model!r}")
    async with keeper.turn:
        await keeper.take_in()
        situation = preparer.situation(wanted)
        fills = keeper.history.projection(situation.counter).tokens if keeper.history.format else 0
    done = None
    if fills > situation.room:
        smaller = replace(wanted, budget=replace(situation.budget, source="user"))
        with suppress(CompactionError, ModelError):
            done = await manual.compact(smaller, "model_switch")
    async with keeper.turn:
        await keeper.take_in()
        await keeper.change(log.ModelSwitched(model=wanted.model, window=situation.window))
    return done


async def relieved(manual: ManualCompaction, wanted: Wanted, limit_bytes: int) -> log.CompactionCompleted | None:
    """Compact where the process holds too much even after what nobody needs was given back."""
    if resident_bytes() > limit_bytes:
        gc.collect()
    if resident_bytes() <= limit_bytes:
        return None
    with suppress(CompactionError, ModelError):
        return await manual.compact(wanted, "memory_pressure")
    return None


def resident_bytes() -> int:
    """Return how much memory the process holds; where the system tells only the most it ever held, that."""
    try:
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
