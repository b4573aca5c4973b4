"""How much memory one process needs for each session that is open, and for each that was closed again."""

import gc
import os
from pathlib import Path

from holdfast import Session
from holdfast.stores.base import Store

SESSIONS, WARM = 300, 20
BUDGET = 16_000


def resident_bytes() -> int:
    """Return the memory of this process, after a garbage collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure_memory(store: Store, messages: int) -> dict[str, float]:
    """Return the kilobytes of a session just opened, of one with a request, and of one more that comes and goes."""
    names = [f"{messages}-{number}" for number in range(SESSIONS)]
    text = "please look at the table of totals " * 8
    said = [{"role": "assistant" if at % 2 else "user", "content": f"{at} {text}"} for at in range(messages)]
    for name in names:
        async with Session.open(name, store=store, model="gpt-5") as session:
            await session.record(said)
    opened = [await Session.open(name, store=store, model="gpt-5") for name in names[:WARM]]
    for session in opened:
        await session.prepare(BUDGET)
    before, count = resident_bytes(), SESSIONS - WARM
    opened += [await Session.open(name, store=store, model="gpt-5") for name in names[WARM:]]
    just_opened = resident_bytes()
    for session in opened[WARM:]:
        await session.prepare(BUDGET)
    used = resident_bytes()
    for session in opened:
        await session.close()
    opened.clear()
    closed = resident_bytes()
    for name in names:
        async with Session.open(name, store=store, model="gpt-5") as session:
            await session.prepare(BUDGET)
    return {
        "opened": (just_opened - before) / count / 1e3,
        "with a request": (used - before) / count / 1e3,
        # A process keeps the memory of what it has closed, and uses it again.
        "opened and closed": max(0, resident_bytes() - closed) / SESSIONS / 1e3,
    }
