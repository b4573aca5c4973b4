"""How long the pages of a long session take on the server, and how large they are.

    python -m benchmarks.viewer                      # a generated session of 100,000 messages
    python -m benchmarks.viewer --messages 20000 --json viewer.json

Each page is asked for in the process of the server, so that no network is measured. The first page is that of a viewer
that has just been started; the others are asked for in random order when the log has been read. Processor time is that
of all threads of the process; a page also waits for the disk, which the time on the clock includes.
"""

import argparse
import asyncio
import gc
import json
import random
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx

from holdfast import Session
from holdfast.apps.viewer.access import ViewerAccess
from holdfast.apps.viewer.app import viewer_app
from holdfast.apps.viewer.rendering import load_templates
from holdfast.errors import PendingToolCallsError
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.sessions import generate_session

ADDRESS = "http://127.0.0.1:8788"
SESSION = "long"
MESSAGES_PER_REQUEST, BUDGET = 40, 200_000
PAGES_OF_A_KIND = 12


class PageTime(NamedTuple):
    """One page: milliseconds on the clock and of the processor, and its size."""

    kind: str
    clock_ms: float
    processor_ms: float
    kilobytes: float


async def record_session(store: SqliteStore, count: int) -> int:
    """Record a generated session with its requests, and return the number of requests."""
    messages, requests = generate_session(count, seed=3), 0
    async with Session.open(SESSION, store=store, model="gpt-5") as session:
        for start in range(0, len(messages), MESSAGES_PER_REQUEST):
            await session.record(messages[start : start + MESSAGES_PER_REQUEST])
            try:
                await session.prepare(BUDGET)
                requests += 1
            except PendingToolCallsError:
                await session.interrupt()
    return requests


async def get_page(client: httpx.AsyncClient, kind: str, path: str) -> PageTime:
    """Return what one page takes."""
    clock, processor = time.perf_counter(), time.process_time()
    answer = await client.get(path)
    answer.raise_for_status()
    ended = time.perf_counter(), time.process_time()
    return PageTime(kind, (ended[0] - clock) * 1e3, (ended[1] - processor) * 1e3, len(answer.content) / 1e3)


async def measure(path: Path, count: int, requests: int) -> list[PageTime]:
    """Return what the pages of a recorded session take: the first one, then some of each kind."""
    store, access, chance = SqliteStore(path), ViewerAccess(), random.Random(1)
    some_request = partial(chance.randint, 1, requests)
    app = viewer_app(store, access=access)
    load_templates()
    gc.freeze()  # as `holdfast view` does, both, while the browser starts
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=ADDRESS, follow_redirects=True, timeout=600) as client:
        await client.get("/static/viewer.css", params={"token": access.new_token()})
        await client.get("/no-page", params={"token": access.new_token()})
        found = [await get_page(client, "session, just started", f"/s/{SESSION}")]
        found.append(await get_page(client, "last messages, just started", f"/s/{SESSION}?from={count - 60}"))
        await client.get(f"/s/{SESSION}/plot")  # waits until the log has been read
        changes = len((await client.get(f"/s/{SESSION}", params={"format": "json"})).json()["changes"])
        paths = [
            (kind, address)
            for _ in range(PAGES_OF_A_KIND)
            for kind, address in (
                ("sessions", "/"),
                ("session", f"/s/{SESSION}?from={chance.randrange(count)}"),
                ("beside a request", f"/s/{SESSION}?from={chance.randrange(count)}&request={some_request()}"),
                ("request", f"/s/{SESSION}/requests/{some_request()}"),
                ("change", f"/s/{SESSION}/changes/{chance.randint(1, max(1, changes))}"),
                ("message", f"/s/{SESSION}/messages/{chance.randrange(count)}"),
                ("plot", f"/s/{SESSION}/plot"),
                ("search", f"/?q=turn%20{chance.randrange(count // 8)}"),
            )
        ]
        found += [await get_page(client, kind, address) for kind, address in paths]
    await app.state.close()
    await store.close()
    return found


def main() -> None:
    """Record a session, ask for its pages, and print a row for each kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.db"
        store = SqliteStore(path)

        async def record() -> int:
            requests = await record_session(store, args.messages)
            await store.close()
            return requests

        requests = asyncio.run(record())
        print(f"{args.messages:,} messages, {requests:,} requests, {path.stat().st_size / 1e6:.0f} MB")
        found = asyncio.run(measure(path, args.messages, requests))
    kinds = list(dict.fromkeys(one.kind for one in found))
    print(f"{'page':28}{'pages':>7}{'median ms':>11}{'most ms':>9}{'processor ms':>14}{'largest KB':>12}")
    for kind in kinds:
        rows = [one for one in found if one.kind == kind]
        clock, processor = [one.clock_ms for one in rows], [one.processor_ms for one in rows]
        print(
            f"{kind:28}{len(rows):>7}{statistics.median(clock):>11.0f}{max(clock):>9.0f}"
            f"{statistics.median(processor):>14.0f}{max(one.kilobytes for one in rows):>12.0f}"
        )
    if args.json:
        args.json.write_text(json.dumps([one._asdict() for one in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
