"""A session or a store that is used on another loop, thread or process says so at once, and never hangs."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Session
from holdfast.errors import WrongEventLoopError
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import user_message
from holdfast.testing.store_contract import NOW_MS, message_record

ELSEWHERE = (
    "{} was opened on another event loop, thread or process; open it again here, or run this on its own loop with "
    "asyncio.run_coroutine_threadsafe"
)
CALLS: dict[str, Callable[[Session], Any]] = {
    "record": lambda session: session.record([user_message("two")]),
    "prepare": lambda session: session.prepare(16_000),
    "compact": lambda session: session.compact(),
    "events": lambda session: session.events(),
    "messages": lambda session: session.messages(),
    "recall": lambda session: session.recall("one"),
    "undo": lambda session: session.undo(),
    "close": lambda session: session.close(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_session_used_on_the_loop_of_another_thread_says_so_at_once(call: Callable[[Session], Any]) -> None:
    session = await Session.open("s", store=MemoryStore())
    await session.record([user_message("one")])

    async def use() -> None:
        await call(session)

    with pytest.raises(WrongEventLoopError) as refusal:
        await asyncio.to_thread(asyncio.run, use())

    assert str(refusal.value) == ELSEWHERE.format("session 's'")
    assert await session.record([user_message("two")]) == range(1, 2), "where it was opened it goes on"
    await session.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgresql"])
def test_a_session_goes_on_in_the_next_run_of_a_loop_even_if_a_task_of_the_last_one_held_its_lock(
    tmp_path: Path, new_database: Callable[[], str], kind: str
) -> None:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'a.db'}", "postgresql": new_database()}
    loop = asyncio.new_event_loop()

    async def begin() -> Session:
        session = await Session.open("s", store=urls[kind])
        await session.record([user_message("one")])
        await session._log.lock.__aenter__()
        return session

    async def go_on(session: Session) -> range:
        async with asyncio.timeout(60):
            positions = await session.record([user_message("two")])
            await session.close()
        return positions

    session = loop.run_until_complete(begin())
    loop.close()

    assert asyncio.run(go_on(session)) == range(1, 2)


async def test_two_threads_that_hold_a_session_at_the_same_time_do_not_hang(tmp_path: Path) -> None:
    session = await Session.open("s", store=f"sqlite:///{tmp_path / 'a.db'}")

    async def write(number: int) -> list[str]:
        found: list[str] = []
        for turn in range(20):
            try:
                await session.record([user_message(f"{number}-{turn}")])
            except WrongEventLoopError as error:
                found.append(error.what)
        return found

    async with asyncio.timeout(60):
        own, other = await asyncio.gather(write(0), asyncio.to_thread(asyncio.run, write(1)))

    assert (own, other, len(session)) == ([], ["session 's'"] * 20, 20)
    await session.close()


async def test_a_postgres_store_may_be_used_on_several_loops(new_database: Callable[[], str]) -> None:
    store = PostgresStore(new_database())
    await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)

    async def append() -> int:
        return await store.append("s", [message_record("b")], after=1, time_ms=NOW_MS)

    assert await asyncio.to_thread(asyncio.run, append()) == 2
    assert await store.length("s") == 2
    await store.close()


def test_a_postgres_store_can_be_used_again_after_its_loop_has_ended(new_database: Callable[[], str]) -> None:
    store = PostgresStore(new_database())
    asyncio.run(store.append("s", [message_record("a")], after=0, time_ms=NOW_MS))

    assert asyncio.run(store.length("s")) == 1
    asyncio.run(store.close())


async def test_a_sqlite_store_may_be_used_on_several_loops(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)

    assert await asyncio.to_thread(asyncio.run, store.length("s")) == 1
    await store.close()


FORK = """
import asyncio, os, sys
from holdfast import Session
from holdfast.errors import WrongEventLoopError
from holdfast.stores.open import open_store
from holdfast.testing.chat import user_message

url = sys.argv[1]

async def told(waiting):
    try:
        await asyncio.wait_for(waiting, 60)
    except WrongEventLoopError as error:
        return error.what
    except TimeoutError:
        return "hung"
    return "done"

async def opened(store):
    session = await Session.open("s", store=store)
    await session.record([user_message("one")])
    return session

async def record(session):
    return await told(session.record([user_message("two")]))

async def length(store):
    return await told(store.length("s"))

async def append(store):
    return await told(store.append("s", [{"n": 1}], after=9, time_ms=1))

async def reopen():
    async with Session.open("s", store=url) as own:
        return await record(own)

loop, store = asyncio.new_event_loop(), open_store(url)
session = loop.run_until_complete(opened(store))
child = os.fork()
if child == 0:
    for use in (record(session), append(store), append(store), length(store), reopen()):
        print(asyncio.run(use), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(loop.run_until_complete(record(session)), flush=True)
loop.run_until_complete(store.close())
loop.close()
"""


@pytest.mark.parametrize(("kind", "store"), [("sqlite", "this SQLite store"), ("postgresql", "this PostgreSQL store")])
def test_a_session_or_store_used_after_a_fork_says_so_and_a_new_one_works(
    tmp_path: Path, new_database: Callable[[], str], kind: str, store: str
) -> None:
    url = new_database() if kind == "postgresql" else f"sqlite:///{tmp_path / 'a.db'}"

    done = subprocess.run([sys.executable, "-c", FORK, url], check=True, capture_output=True, text=True, timeout=60)

    assert done.stdout.splitlines() == ["session 's'", store, store, store, "done", "done"]
