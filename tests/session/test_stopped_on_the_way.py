"""What is stopped between two waits, by a task that is cancelled or a store that fails, leaves nothing in part."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from holdfast import Session
from holdfast.core.history.events import MessageAppended, ProviderSignalled
from holdfast.core.planning.policy import PRESETS
from holdfast.errors import ConcurrentWriteError, HoldfastError, StoreUnavailableError
from holdfast.session.log import records as log
from holdfast.session.log.leases import HELD_HERE
from holdfast.session.maintenance.scrub import scrub
from holdfast.session.session import Session as OpenedSession
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, user_message


class Halting(MemoryStore):
    """Fails when it is read or written to for the so-many-th time from now on."""

    def __init__(self) -> None:
        super().__init__()
        self.reads_left = self.writes_left = 1_000_000
        self.error: BaseException = StoreUnavailableError("store", "gone for a moment")

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> Any:
        self.reads_left -= 1
        if self.reads_left == 0:
            raise self.error
        return await super().read(session, start=start, limit=limit)

    async def append(self, session: str, records: Any, **rest: Any) -> int:
        self.writes_left -= 1
        if self.writes_left == 0:
            raise self.error
        return await super().append(session, records, **rest)


@pytest.mark.parametrize("error", [StoreUnavailableError("store", "gone for a moment"), asyncio.CancelledError()])
@pytest.mark.parametrize("reads", [1, 2, 3])
async def test_who_is_stopped_between_two_pages_of_news_takes_in_all_of_them_the_next_time(
    monkeypatch: pytest.MonkeyPatch, reads: int, error: BaseException
) -> None:
    monkeypatch.setattr(log, "RECORDS_PER_PAGE", 2)
    store = Halting()
    session, other = await Session.open("s", store=store), await Session.open("s", store=store)
    talk = [(assistant_message if number % 2 else user_message)(f"message {number}") for number in range(5)]
    await other.record(talk)

    store.reads_left, store.error = reads, error
    with pytest.raises(type(error)):
        await session.refresh()

    assert await session.record([assistant_message("6")]) == range(5, 6)
    assert await session.messages_at(0, 6) == [*talk, assistant_message("6")]
    assert session.damage == []


async def test_a_session_stopped_while_it_reads_a_scrubbed_log_forgets_the_secret_the_next_time() -> None:
    store = Halting()
    session = await Session.open("s", store=store)
    await session.record([user_message("the word is swordfish"), assistant_message("ok"), user_message("go on")])
    await scrub(store, "s", "swordfish", time_ms=0)

    store.reads_left = 2
    with pytest.raises(StoreUnavailableError):
        await session.refresh()
    spoken = session.history.format
    request = await session.prepare(16_000)

    assert spoken == "openai-chat"
    assert request.messages == [user_message("the word is [scrubbed]"), assistant_message("ok"), user_message("go on")]


async def test_an_agent_that_could_not_be_told_its_task_is_not_at_work_for_ever() -> None:
    store = Halting()
    session = await Session.open("s", store=store)
    await session.record([user_message("fix the build")])

    store.writes_left = 2
    with pytest.raises(StoreUnavailableError):
        async with session.delegate("tester", task="run the tests"):
            raise AssertionError
    async with session.delegate("tester", task="run the tests") as child:
        await child.answer("they pass")

    assert [one.state for one in await session.delegations()] == ["abandoned", "answered"]
    assert [owner for owner in HELD_HERE if owner in session.history.session_state.running_delegates.values()] == []


class CancelsOnce(MemoryStore):
    """Cancels its caller when a value or a record that begins with some text is written for the first time."""

    def __init__(self, beginning: str) -> None:
        super().__init__()
        self.beginning = beginning

    def _cancel_at(self, name: str) -> None:
        if self.beginning and name.startswith(self.beginning):
            self.beginning = ""
            raise asyncio.CancelledError

    async def put_value(self, key: str, value: Any) -> None:
        self._cancel_at(key)
        await super().put_value(key, value)

    async def append(self, session: str, records: Any, **rest: Any) -> int:
        self._cancel_at(str(records[0]["type"]))
        return await super().append(session, records, **rest)


@pytest.mark.parametrize("beginning", [MessageAppended.KIND, "retention:", ProviderSignalled.KIND])
async def test_a_message_recorded_again_after_its_recording_was_cancelled_is_stored_once(beginning: str) -> None:
    store = CancelsOnce(beginning)
    said = [user_message("hello"), {"role": "assistant", "content": [{"type": "compaction", "content": "so far"}]}]
    async with Session.open("s", store=store, policy=replace(PRESETS["default"], retention_days=3)) as opened:
        with pytest.raises(asyncio.CancelledError):
            await opened.record(said, format="anthropic-messages")

        assert await opened.record(said, format="anthropic-messages") == range(2)
        assert await opened.messages() == said
        assert await opened.record(said, format="anthropic-messages") == range(2, 4), "later it is said again"
    assert store.beginning == ""


class WritesLater(MemoryStore):
    """Loses the answer of an append, and carries it out only when the next one arrives, as a server may."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self._unfinished: tuple[str, Any, Any] | None = None

    async def append(self, session: str, records: Any, **rest: Any) -> int:
        if self._unfinished is not None:
            (name, late, options), self._unfinished = self._unfinished, None
            await super().append(name, late, **options)
        if self.error is not None:
            error, self.error, self._unfinished = self.error, None, (session, records, rest)
            raise error
        return await super().append(session, records, **rest)


@pytest.mark.parametrize("error", [StoreUnavailableError("store", "gone for a moment"), asyncio.CancelledError()])
async def test_a_message_that_the_server_writes_only_when_it_is_recorded_again_is_stored_once(
    error: BaseException,
) -> None:
    store = WritesLater()
    async with Session.open("s", store=store) as opened:
        await opened.record([user_message("hello")])
        store.error = error
        with pytest.raises(type(error)):
            await opened.record([assistant_message("hi")])

        assert await opened.record([assistant_message("hi")]) == range(1, 2)
        assert await opened.messages() == [user_message("hello"), assistant_message("hi")]
        assert await opened.record([assistant_message("hi")]) == range(2, 3), "later it is said again"


async def test_a_message_that_was_not_stored_is_stored_each_time_it_is_recorded_from_then_on() -> None:
    store = Halting()
    async with Session.open("s", store=store) as opened:
        for record_again in (False, True):
            store.writes_left = 1
            with pytest.raises(StoreUnavailableError):
                await opened.record([user_message("hello")])
            if record_again:
                async with opened.one_write():
                    await opened.record([user_message("hello")])
            else:
                await opened.record([user_message("hello")])
            await opened.record([user_message("hello")])

        assert await opened.messages() == [user_message("hello")] * 4


async def record_at_once(session: OpenedSession, *messages: Any) -> list[range]:
    """Record each message in one write, and do all of it again as often as another writer is first."""
    while True:
        try:
            async with session.one_write():
                return [await session.record([message]) for message in messages]
        except ConcurrentWriteError:
            continue


@pytest.mark.parametrize("error", [StoreUnavailableError("store", "gone for a moment"), asyncio.CancelledError()])
@pytest.mark.parametrize("more", [[], [user_message("and one more")]])
async def test_messages_of_one_write_that_the_server_writes_only_when_they_are_recorded_again_are_stored_once(
    error: BaseException, more: list[Any]
) -> None:
    store, said = WritesLater(), [assistant_message("hi"), user_message("go on")]
    async with Session.open("s", store=store) as opened:
        await opened.record([user_message("hello")])
        store.error = error
        with pytest.raises(type(error)):
            await record_at_once(opened, *said)

        places = await record_at_once(opened, *said, *more)

        assert places == [range(number, number + 1) for number in range(1, 3 + len(more))]
        assert await opened.messages() == [user_message("hello"), *said, *more]
        assert await record_at_once(opened, *more, *said) == [
            range(number, number + 1) for number in range(3 + len(more), 5 + 2 * len(more))
        ], "later they are said again"


async def test_each_task_whose_message_was_lost_with_that_of_another_records_it_once() -> None:
    store = WritesLater()
    async with Session.open("s", store=store) as opened:
        await opened.record([user_message("hello")])
        recorded, may_end = asyncio.Event(), asyncio.Event()

        async def record_first() -> None:
            async with opened.one_write():
                await opened.record([assistant_message("of one task")])
                recorded.set()
                await may_end.wait()

        first = asyncio.create_task(record_first())
        await recorded.wait()
        store.error = StoreUnavailableError("store", "gone for a moment")
        for attempt in (opened.record([user_message("of another")]), first):
            with pytest.raises(HoldfastError, match="gone for a moment"):
                await attempt
            may_end.set()

        assert await opened.record([user_message("of another")]) == range(2, 3)
        assert await record_at_once(opened, assistant_message("of one task")) == [range(1, 2)]
        assert await opened.messages() == [
            user_message("hello"), assistant_message("of one task"), user_message("of another")
        ]  # fmt: skip


@pytest.mark.parametrize("again", [[], [assistant_message("hi")]])
async def test_what_waits_in_one_write_whose_end_is_cancelled_is_stored_once_before_what_comes_next(
    again: list[Any],
) -> None:
    store = MemoryStore()
    async with Session.open("s", store=store) as opened:
        await opened.record([user_message("hello")])
        recorded, may_end = asyncio.Event(), asyncio.Event()

        async def record_first() -> None:
            async with opened.one_write():
                await opened.record([assistant_message("hi")])
                recorded.set()
                await may_end.wait()

        first = asyncio.create_task(record_first())
        await recorded.wait()
        async with opened._log.lock:
            may_end.set()
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first

        places = await record_at_once(opened, *again, user_message("next"))

        said = [user_message("hello"), assistant_message("hi"), user_message("next")]
        assert (places[-1], await opened.messages()) == (range(2, 3), said)
    async with Session.open("s", store=store) as reopened:
        assert await reopened.messages() == said


async def test_a_message_recorded_again_after_the_end_of_its_one_write_was_cancelled_is_stored_once() -> None:
    store = CancelsOnce("retention:")
    async with Session.open("s", store=store, policy=replace(PRESETS["default"], retention_days=3)) as opened:
        with pytest.raises(asyncio.CancelledError):
            await record_at_once(opened, user_message("hello"))

        assert await record_at_once(opened, user_message("hello")) == [range(1)]
        assert await opened.messages() == [user_message("hello")]
