"""Messages and the request that follows them, written at once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import pytest

from holdfast import Session
from holdfast.core.history.events import MessageAppended
from holdfast.errors import ConcurrentWriteError, HoldfastError, SessionClosedError, StoreUnavailableError
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.compaction.hooks import Hooks
from holdfast.session.session import Session as OpenedSession
from holdfast.stores.base import Snapshot
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, user_message


class NotedStore(MemoryStore):
    """Notes the kinds of records in each append, and fails an append when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[list[str]] = []
        self.error: BaseException | None = None

    async def append(self, session: str, records: Any, **rest: Any) -> int:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.appends.append([str(record["type"]) for record in records])
        return await super().append(session, records, **rest)


async def said_in(session: OpenedSession) -> Sequence[object]:
    return [message["content"] for message in await session.messages()]


async def say_and_prepare(session: OpenedSession, *texts: str, budget: int | None = 16_000) -> None:
    async with session.one_write():
        await session.record([user_message(text) for text in texts])
        if budget:
            await session.prepare(budget)


async def test_messages_and_the_request_after_them_are_one_append() -> None:
    store = NotedStore()
    async with Session.open("s", store=store) as session:
        async with session.one_write():
            places = await session.record([user_message("one"), user_message("two")])
            request = await session.prepare(16_000)

        assert (places, request.messages) == (range(2), [user_message("one"), user_message("two")])
    assert store.appends == [["message.appended"] * 2 + ["session.usage_info", "request.prepared"]]


async def test_messages_are_stored_though_their_request_cannot_be_prepared() -> None:
    store = NotedStore()
    async with Session.open("s", store=store) as session:
        with pytest.raises(HoldfastError):
            await say_and_prepare(session, "one", "word " * 3_000, budget=10)

        assert await session.messages() == [user_message("one"), user_message("word " * 3_000)]
    async with Session.open("s", store=store) as reopened:
        assert len(await reopened.messages()) == 2


@pytest.mark.parametrize("error", [StoreUnavailableError("store", "full"), asyncio.CancelledError()])
@pytest.mark.parametrize("budget", [16_000, None])
async def test_what_could_not_be_written_is_not_in_the_session_and_can_be_said_again(
    error: BaseException, budget: int | None
) -> None:
    store = NotedStore()
    async with Session.open("s", store=store) as session:
        await session.record([user_message("before"), assistant_message("yes")])
        store.error = error

        with pytest.raises((StoreUnavailableError, asyncio.CancelledError)):
            await say_and_prepare(session, "one", budget=budget)

        assert await said_in(session) == ["before", "yes"]
        assert await session.record([user_message("one")]) == range(2, 3)
        assert await said_in(session) == ["before", "yes", "one"]


class LosingStore(NotedStore):
    """Fails before an append, or after it."""

    fails: Literal["before", "after"] | None = None

    async def append(self, session: str, records: Any, **rest: Any) -> int:
        fails, self.fails = self.fails, None
        if fails == "before":
            raise StoreUnavailableError("store", "away")
        length = await super().append(session, records, **rest)
        if fails == "after":
            raise StoreUnavailableError("store", "away")
        return length


async def until_done(session: OpenedSession, block: Callable[[], Awaitable[None]]) -> list[type[HoldfastError]]:
    """Do all of a block again until it succeeds, and return why it failed before."""
    failures = list[type[HoldfastError]]()
    while True:
        try:
            async with session.one_write():
                await block()
        except HoldfastError as error:
            failures.append(type(error))
        else:
            return failures


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_what_is_said_again_in_a_block_that_has_failed_is_stored_once(fails: Literal["before", "after"]) -> None:
    store = LosingStore()

    async def say_again_at_once() -> None:
        async with session.one_write():
            await session.record([user_message("one")])
            store.fails = fails
            with suppress(StoreUnavailableError):
                await session.prepare(16_000)
            await session.record([user_message("one")])

    async with Session.open("s", store=store) as session:
        with pytest.raises(StoreUnavailableError):
            await say_again_at_once()
        await say_and_prepare(session, "one")

        assert await said_in(session) == ["one"]


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_a_block_that_is_done_again_stores_once_what_an_earlier_append_of_it_has_stored(
    fails: Literal["before", "after"],
) -> None:
    store, outages = LosingStore(), list[Literal["before", "after"]]([fails])

    async def two_requests() -> None:
        await session.record([user_message("one")])
        await session.prepare(16_000)
        await session.record([assistant_message("first"), user_message("two")])
        store.fails = outages.pop() if outages else None
        await session.prepare(16_000)

    async with Session.open("s", store=store) as session:
        failures = await until_done(session, two_requests)

        assert (failures, await said_in(session)) == ([StoreUnavailableError], ["one", "first", "two"])


async def test_a_block_that_is_done_again_after_another_writer_stores_its_first_message_once() -> None:
    store, others = NotedStore(), ["of the other"]

    async def two_requests() -> None:
        await session.record([user_message("one")])
        await session.prepare(16_000)
        if others:
            await other.record([user_message(others.pop())])
        await session.record([user_message("two")])
        await session.prepare(16_000)

    async with Session.open("s", store=store) as session, Session.open("s", store=store) as other:
        failures = await until_done(session, two_requests)

        assert (failures, await said_in(session)) == ([ConcurrentWriteError], ["one", "of the other", "two"])


async def test_a_block_after_two_outages_finds_its_message_and_no_other_writer() -> None:
    store, outages = LosingStore(), list[Literal["after"]](["after", "after"])

    async def say() -> None:
        store.fails = outages.pop() if outages else None
        await session.record([user_message("one")])
        await session.prepare(16_000)

    async with Session.open("s", store=store) as session:
        failures = await until_done(session, say)

        assert (failures, await said_in(session)) == ([StoreUnavailableError] * 2, ["one"])


async def test_a_task_that_is_cancelled_while_its_block_is_written_ends_cancelled() -> None:
    store = NotedStore()
    async with Session.open("s", store=store) as session:
        store.error = asyncio.CancelledError()
        block = asyncio.create_task(say_and_prepare(session, "one"))
        await asyncio.wait({block})

        assert block.cancelled()
        await say_and_prepare(session, "one")
        assert await said_in(session) == ["one"]


async def test_another_writer_in_between_makes_the_block_fail_and_loses_nothing() -> None:
    store = NotedStore()
    async with Session.open("s", store=store) as session, Session.open("s", store=store) as other:
        await other.record([user_message("of the other")])

        with pytest.raises(ConcurrentWriteError):
            await say_and_prepare(session, "mine")
        await say_and_prepare(session, "mine")

        assert await said_in(session) == ["of the other", "mine"]
        assert await said_in(other) == ["of the other", "mine"]
        requests = [kinds for kinds in store.appends if "request.prepared" in kinds]
        assert len(requests) == 2, "one is refused by the store, one is written; none is made without the message"


async def test_a_request_without_new_messages_is_not_prepared_after_what_another_writer_has_said() -> None:
    store = NotedStore()
    async with Session.open("s", store=store) as session, Session.open("s", store=store) as other:
        await session.record([user_message("mine")])
        await other.record([assistant_message("of the other")])

        with pytest.raises(ConcurrentWriteError):
            await say_and_prepare(session)
        await session.refresh()
        async with session.one_write():
            request = await session.prepare(16_000)

        assert request.messages[:2] == [user_message("mine"), assistant_message("of the other")]
        assert sum("request.prepared" in kinds for kinds in store.appends) == 2, "the first is refused by the store"


async def test_a_rewind_does_not_take_back_what_another_writer_has_said_meanwhile() -> None:
    store = NotedStore()
    async with Session.open("s", store=store) as session, Session.open("s", store=store) as other:
        await session.record([user_message("one"), assistant_message("first")])
        await other.record([user_message("two")])

        with pytest.raises(ConcurrentWriteError):
            async with session.one_write():
                await session.rewind(to=1)

        assert await said_in(session) == ["one", "first", "two"]


async def test_what_another_task_learns_of_another_writer_makes_the_block_fail() -> None:
    store = NotedStore()
    async with Session.open("s", store=store) as session, Session.open("s", store=store) as other:
        await session.record([user_message("one")])

        async def prepare_too_late() -> None:
            async with session.one_write():
                await other.record([assistant_message("first")])
                await asyncio.create_task(session.refresh())
                await session.prepare(16_000)

        with pytest.raises(ConcurrentWriteError):
            await prepare_too_late()

        assert await said_in(session) == ["one", "first"]


async def test_a_block_that_looks_for_another_writer_ends_where_it_finds_one() -> None:
    store, reached = NotedStore(), list[str]()
    async with Session.open("s", store=store) as session, Session.open("s", store=store) as other:
        await session.record([user_message("one")])

        async def look_and_go_on() -> None:
            async with session.one_write():
                reached.append(f"{await session.refresh()} of others")
                await other.record([assistant_message("first")])
                await session.refresh()
                reached.append("decided on an old history")

        with pytest.raises(ConcurrentWriteError):
            await look_and_go_on()

        assert reached == ["0 of others"]
        assert await said_in(session) == ["one", "first"]


async def test_what_another_task_records_meanwhile_is_stored_when_it_returns() -> None:
    store = NotedStore()
    async with Session.open("s", store=store) as session:
        async with session.one_write():
            await session.record([user_message("waits")])
            places = await asyncio.create_task(session.record([user_message("does not wait")]))
            stored = await store.length("s")

        assert (places, stored) == (range(1, 2), 2)
        assert await said_in(session) == ["waits", "does not wait"]


async def test_what_waits_is_written_by_a_close_and_no_snapshot_holds_what_the_log_lacks() -> None:
    store = MemoryStore()
    session = await Session.open("s", store=store)
    said = [user_message(f"message {number}") for number in range(150)]
    await session.record(said)

    async with session.one_write():
        await session.record([user_message("the last words")])
        await asyncio.create_task(session.close())

    async with Session.open("s", store=store) as reopened:
        assert await reopened.messages() == [*said, user_message("the last words")]
        assert await reopened.record([user_message("next")]) == range(151, 152)


async def test_a_close_that_cannot_write_what_waits_makes_the_block_fail_and_closes_nevertheless() -> None:
    store = NotedStore()
    session = await Session.open("s", store=store)
    said = [user_message(f"message {number}") for number in range(150)]
    await session.record(said)

    async def record_and_close() -> None:
        async with session.one_write():
            await session.record([user_message("the last words")])
            store.error = StoreUnavailableError("store", "full")
            await session.close()

    with pytest.raises(StoreUnavailableError, match="full"):
        await record_and_close()
    with pytest.raises(SessionClosedError):
        await session.messages()
    async with Session.open("s", store=store) as reopened:
        assert await reopened.messages() == said


async def test_a_snapshot_that_holds_more_messages_than_the_log_is_not_used() -> None:
    store, shorter = MemoryStore(), MemoryStore()
    said = [user_message(f"message {number}") for number in range(150)]
    for where, messages in ((store, said), (shorter, said[:99])):
        async with Session.open("s", store=where) as session:
            await session.record(messages)
    longer = await store.get_snapshot("s")
    assert longer is not None
    await shorter.put_snapshot("s", Snapshot(99, longer.data))

    async with Session.open("s", store=shorter) as reopened:
        assert await reopened.messages() == said[:99]
        assert await reopened.record([user_message("next")]) == range(99, 100)


async def test_events_are_published_once_they_are_stored() -> None:
    store, seen = NotedStore(), list[object]()
    async with Session.open("s", store=store) as session:
        session.on(lambda event: seen.append(type(event)))
        async with session.one_write():
            await session.record([user_message("one")])
            before = [*seen]

        assert (before, seen) == ([], [MessageAppended])


async def block_that_waits(session: Session) -> tuple[asyncio.Task[None], asyncio.Event]:
    """Record "first" in a block of `one_write`, and return its task, and what lets the block end."""
    entered, may_end = asyncio.Event(), asyncio.Event()

    async def waiting() -> None:
        async with session.one_write():
            await session.record([user_message("first")])
            entered.set()
            await may_end.wait()

    task = asyncio.create_task(waiting())
    await entered.wait()
    return task, may_end


async def test_two_blocks_at_once_lose_nothing_and_each_hears_of_its_own_failure() -> None:
    store = NotedStore()
    async with Session.open("s", store=store) as session:
        first, may_end = await block_that_waits(session)
        store.error = StoreUnavailableError("store", "full")
        with pytest.raises(StoreUnavailableError):
            await say_and_prepare(session, "second")
        may_end.set()
        with pytest.raises(StoreUnavailableError):
            await first

        await say_and_prepare(session, "third")
        assert await said_in(session) == ["third"]


async def test_a_block_whose_messages_another_task_was_cancelled_in_writing_is_to_be_done_again() -> None:
    store = NotedStore()
    async with Session.open("s", store=store) as session:
        first, may_end = await block_that_waits(session)
        store.error = asyncio.CancelledError()
        stopped = asyncio.create_task(session.record([user_message("second")]))
        await asyncio.wait([stopped])
        may_end.set()
        with pytest.raises(ConcurrentWriteError):
            await first

        assert stopped.cancelled()
        await say_and_prepare(session, "first")
        assert await said_in(session) == ["first"]


LONG = "about many words " * 60


async def test_a_compaction_is_written_with_the_request_that_needs_it() -> None:
    store = NotedStore()
    async with Session.open("s", store=store, model="gpt-5") as session:
        for number in range(12):
            await say_and_prepare(session, f"question {number} {LONG}", budget=1_500)
            await session.record([assistant_message(f"answer {number}")])
        receipts = await session.receipts()

    requests = [kinds for kinds in store.appends if "request.prepared" in kinds]
    compacted = [kinds for kinds in requests if "session.compaction_complete" in kinds]
    whole = ["message.appended", "session.compaction_complete", "session.usage_info", "request.prepared"]
    assert len(requests) == 12
    assert len(store.appends) == 24  # one for each prompt with its request, one for each answer
    assert compacted == [whole] * len(receipts)
    assert len(receipts) > 2


async def test_a_compaction_that_could_not_be_written_has_not_happened() -> None:
    store = NotedStore()
    async with Session.open("s", store=store, model="gpt-5") as session:
        for number in range(10):
            await session.record([user_message(f"question {number} {LONG}"), assistant_message(f"answer {number}")])
        before = await session.messages()
        store.error = StoreUnavailableError("store", "full")

        with pytest.raises(StoreUnavailableError):
            await say_and_prepare(session, "one", budget=1_500)

        assert await session.messages() == before
        assert await session.receipts() == []
        await say_and_prepare(session, "one", budget=1_500)
        assert await session.messages() == [*before, user_message("one")]
        assert len(await session.receipts()) == 1
    async with Session.open("s", store=store, model="gpt-5") as reopened:
        assert await reopened.messages() == [*before, user_message("one")]
        assert len(await reopened.receipts()) == 1


async def test_a_compaction_of_which_a_hook_is_told_is_written_first() -> None:
    store = NotedStore()
    told: list[int] = []

    async def hook(_call: object) -> None:
        told.append(sum(kinds.count("session.compaction_complete") for kinds in store.appends))

    options = CompactionOptions(hooks=Hooks(post_compact=(hook,)))
    async with Session.open("s", store=store, model="gpt-5", compaction=options) as session:
        for number in range(10):
            await session.record([user_message(f"question {number} {LONG}"), assistant_message(f"answer {number}")])
        await say_and_prepare(session, "one", budget=1_500)
    assert told == [1]
