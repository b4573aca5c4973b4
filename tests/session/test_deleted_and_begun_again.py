"""A session that was deleted, and begun again under the same id, is not mixed with the one that is still in memory."""

import asyncio
from collections.abc import Sequence
from itertools import count

import pytest

from holdfast import Session
from holdfast.errors import StoreUnavailableError
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.stores.base import Store, StoredRecord
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import JsonMessage, assistant_message, user_message
from holdfast.testing.models import ScriptedModel
from holdfast.testing.store_contract import NOW_MS
from tests.support import wait_until

BUDGET = 8_000
ticks = count(NOW_MS)


def talk(said: str, length: int) -> list[JsonMessage]:
    """Return a conversation of so many messages."""
    make = user_message, assistant_message
    return [make[number % 2](f"{said} {number}") for number in range(length)]


async def opened(store: Store, summarizer: ScriptedModel | None = None) -> Session:
    return await Session.open("s", store=store, model="gpt-5", summarizer=summarizer, clock=lambda: next(ticks))


async def recorded(store: Store, messages: list[JsonMessage]) -> Session:
    session = await opened(store)
    for message in messages:
        await session.record([message])
    return session


@pytest.mark.parametrize("length", [1, 3, 11, 12, 40])
@pytest.mark.parametrize("is_reopened", [False, True], ids=["recorded here", "read from the store"])
async def test_what_was_deleted_is_not_sent_with_what_another_process_has_begun_under_the_same_id(
    store: Store, length: int, *, is_reopened: bool
) -> None:
    session = await recorded(store, talk("deleted", 10))
    if is_reopened:
        await session.close()
        session = await opened(store)
    await store.delete("s")
    other = await recorded(store, talk("new", length))

    await session.record([user_message("go on")])
    request = await session.prepare(BUDGET)

    assert request.messages == await session.messages() == [*talk("new", length), user_message("go on")]
    assert (await other.prepare(BUDGET)).messages == request.messages
    assert [one.is_same and one.is_chained for one in rebuilt_requests(await other.events())] == [True, True]


async def test_a_session_of_as_many_events_is_recognized_as_soon_as_others_go_on_with_it(store: Store) -> None:
    session = await recorded(store, talk("deleted", 10))
    await store.delete("s")
    other = await recorded(store, talk("new", 10))

    await session.record([user_message("go on")])
    await other.record([assistant_message("yes")])

    said = [*talk("new", 10), user_message("go on"), assistant_message("yes")]
    assert (await session.refresh(), await session.messages()) == (12, said)


class LookedAtStore(MemoryStore):
    """Counts who looks at single records, and fails at each look while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.fails = False

    async def read_at(self, session: str, positions: Sequence[int]) -> list[StoredRecord]:
        self.looks += 1
        if self.fails:
            raise StoreUnavailableError("memory", "away for a moment")
        return await super().read_at(session, positions)


async def test_news_that_came_while_the_store_could_not_say_whose_they_are_come_with_the_next_refresh() -> None:
    store = LookedAtStore()
    session = await recorded(store, talk("said", 4))
    other = await opened(store)
    await other.record([user_message("more")])

    store.fails = True
    with pytest.raises(StoreUnavailableError):
        await session.refresh()
    store.fails = False

    assert (await session.refresh(), await session.messages()) == (1, [*talk("said", 4), user_message("more")])


async def test_without_news_of_others_no_session_looks_at_records_that_it_knows() -> None:
    store = LookedAtStore()
    session = await recorded(store, talk("said", 4))
    await session.prepare(BUDGET)
    await session.record([assistant_message("more")])
    await session.refresh()

    assert store.looks == 0


async def test_a_summary_of_what_was_deleted_does_not_enter_what_was_begun_again() -> None:
    gate, store = asyncio.Event(), MemoryStore()

    async def held(_: float) -> None:
        await gate.wait()

    model = ScriptedModel(["Intent: keep the deleted words [#0]."], seconds=60, sleep=held)
    session = await opened(store, model)
    await session.record([*talk("deleted " + "word " * 100, 66), user_message("next?")])
    await session.prepare(BUDGET)
    await wait_until(lambda: bool(model.prompts))
    await store.delete("s")
    other = await recorded(store, talk("new", 91))

    gate.set()
    await session._compactor.wait()

    assert (await other.prepare(BUDGET)).messages == talk("new", 91)
    assert await session.messages() == talk("new", 91)
