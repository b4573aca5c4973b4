"""Several stores on one database that append to one session at the same time."""

import asyncio
from collections.abc import Sequence

from holdfast.errors import SequenceConflictError
from holdfast.stores.base import Store
from holdfast.testing.store_contract import NOW_MS, message_record

TURNS = 10


async def write_at_once(stores: Sequence[Store]) -> list[str]:
    """Append ten messages with each store, again after each conflict; close the stores, and return what the log has."""

    async def write(number: int, store: Store) -> None:
        for turn in range(TURNS):
            while True:
                try:
                    after = await store.length("s")
                    await store.append("s", [message_record(f"{number}-{turn}")], after=after, time_ms=NOW_MS)
                except SequenceConflictError:
                    continue
                break

    await asyncio.gather(*(write(number, store) for number, store in enumerate(stores)))
    texts = [str(stored.record) for stored in await stores[0].read("s")]
    for store in stores:
        await store.close()
    return texts
