"""All sessions of a process that name the same URL share one store, which is closed with the last of them."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from holdfast import Session
from holdfast.errors import SettingsError, StoreError
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import SHARED_STORES, SharedStores, open_store
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import assistant_message, user_message


def writer_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "holdfast-sqlite"}


async def take_turn(session: Session) -> int:
    await session.record([user_message("Hello")])
    await session.prepare(16_000)
    return (await session.record([assistant_message("Hi")])).stop


async def test_many_sessions_of_a_sqlite_url_share_one_thread_and_one_file(tmp_path: Path) -> None:
    url, before = f"sqlite:///{tmp_path / 'a.db'}", writer_threads()
    sessions = [await Session.open(f"s{number}", store=url) for number in range(100)]

    assert await asyncio.gather(*map(take_turn, sessions)) == [2] * 100
    assert len({id(session.store) for session in sessions}) == 1
    assert len(writer_threads() - before) == 1

    store = sessions[0].store
    assert isinstance(store, SqliteStore)
    for session in sessions[1:]:
        await session.close()
        await session.close()
    assert store._database is not None, "one session still uses it"
    assert await take_turn(sessions[0]) == 4
    await sessions[0].close()
    assert store._database is None


async def test_many_sessions_of_a_postgres_url_share_a_few_connections(new_database: Callable[[], str]) -> None:
    url = new_database()
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast' AND datname = current_database()"

    def connections() -> int:
        with psycopg.connect(url, autocommit=True) as other:
            row = other.execute(query.encode()).fetchone()
        return row[0] if row else 0

    def wait_until_closed() -> None:
        while connections():
            pass

    sessions = await asyncio.gather(*(Session.open(f"s{number}", store=url) for number in range(100)))

    assert await asyncio.gather(*map(take_turn, sessions)) == [2] * 100
    assert 1 <= connections() <= 4
    for session in sessions:
        await session.close()
    await asyncio.wait_for(asyncio.to_thread(wait_until_closed), 60)


async def test_a_relative_and_an_absolute_path_name_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with (
        Session.open("a", store="sqlite:///a.db") as one,
        Session.open("b", store=f"sqlite:///{tmp_path / 'a.db'}") as other,
        Session.open("c", store="sqlite:///b.db") as third,
    ):
        assert one.store is other.store
        assert one.store is not third.store


async def test_each_session_in_memory_has_a_store_of_its_own() -> None:
    async with Session.open("s", store="memory://") as one, Session.open("s", store="memory://") as other:
        await one.record([user_message("Hello")])

        assert (len(one), await other.refresh(), len(other)) == (1, 0, 0)


async def test_after_the_last_close_the_url_opens_another_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with Session.open("s", store=url) as session:
        first = session.store
        await take_turn(session)
    async with Session.open("s", store=url) as session:
        assert session.store is not first
        assert await take_turn(session) == 4


async def test_a_session_that_cannot_be_opened_does_not_keep_its_store_though_its_error_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.db").write_bytes(b"no database " * 1_000)
    url, opened = f"sqlite:///{tmp_path / 'a.db'}", list[Store]()

    def note_store(given: str) -> Store:
        opened.append(open_store(given))
        return opened[-1]

    monkeypatch.setattr("holdfast.stores.open.open_store", note_store)
    with pytest.raises(StoreError) as refusal:
        await Session.open("s", store=url)
    store = SHARED_STORES.share(url, note_store)
    await SHARED_STORES.release(store, note_store)

    assert (len(opened), store is opened[1], refusal.value.__traceback__ is None) == (2, True, False)


async def test_a_session_that_is_never_closed_does_not_keep_its_store(tmp_path: Path) -> None:
    url, before = f"sqlite:///{tmp_path / 'a.db'}", writer_threads()
    session = await Session.open("s", store=url)
    await take_turn(session)
    [thread] = writer_threads() - before
    del session
    gc.collect()
    thread.join(timeout=60)
    assert not thread.is_alive()

    async with Session.open("s", store=url) as session:
        assert await take_turn(session) == 4


async def test_a_session_opened_after_the_file_was_replaced_has_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with Session.open("s", store=f"sqlite:///{path}") as old:
        await take_turn(old)
        for file in tmp_path.iterdir():
            file.unlink()
        async with Session.open("s", store=f"sqlite:///{path}") as new:
            assert await take_turn(new) == 2


async def test_sessions_on_the_loops_of_several_threads_share_a_store(
    tmp_path: Path, new_database: Callable[[], str]
) -> None:
    for url in (f"sqlite:///{tmp_path / 'a.db'}", new_database()):
        async with Session.open("s", store=url) as session:

            async def elsewhere(name: str, url: str = url, own: Session = session) -> tuple[bool, int]:
                async with Session.open(name, store=url) as other:
                    return other.store is own.store, await take_turn(other)

            runs = (asyncio.to_thread(asyncio.run, elsewhere(f"t{number}")) for number in range(4))
            assert await asyncio.gather(*runs) == [(True, 2)] * 4
            assert await take_turn(session) == 2


FORK = """
import asyncio, os, sys
from holdfast import Session
from holdfast.testing.chat import user_message

async def turn(session):
    return (await session.record([user_message("Hello")])).stop

async def in_child():
    async with Session.open("s", store=sys.argv[1]) as session:
        return await turn(session)

loop = asyncio.new_event_loop()
session = loop.run_until_complete(Session.open("s", store=sys.argv[1]).__aenter__())
print(loop.run_until_complete(turn(session)), flush=True)
if (child := os.fork()) == 0:
    print(asyncio.run(asyncio.wait_for(in_child(), 30)), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(loop.run_until_complete(turn(session)), flush=True)
loop.run_until_complete(session.close())
loop.close()
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_forked_process_opens_a_store_of_its_own(tmp_path: Path, new_database: Callable[[], str], kind: str) -> None:
    url = new_database() if kind == "postgresql" else f"sqlite:///{tmp_path / 'a.db'}"

    done = subprocess.run([sys.executable, "-c", FORK, url], check=True, capture_output=True, text=True, timeout=60)

    assert done.stdout.splitlines() == ["1", "2", "3"]


async def test_a_store_is_closed_once_by_the_last_who_releases_it(tmp_path: Path) -> None:
    shared, url = SharedStores(), f"sqlite:///{tmp_path / 'a.db'}"
    users = [object.__new__(SharedStores) for _ in range(2)]
    store = shared.share(url, users[0])
    assert shared.share(url, users[1]) is store
    await store.length("s")
    assert isinstance(store, SqliteStore)

    await shared.release(store, users[0])
    await shared.release(store, users[0])
    assert store._database is not None
    await shared.release(store, users[1])
    assert store._database is None
    assert SHARED_STORES is not shared


def test_a_store_of_the_users_own_that_lacks_methods_is_refused_with_their_names() -> None:
    methods = {name: getattr(MemoryStore, name) for name in dir(MemoryStore) if not name.startswith("_")}
    partial: Any = type(
        "Partial", (), {name: each for name, each in methods.items() if name not in {"purge", "values"}}
    )

    with pytest.raises(SettingsError) as refused:
        open_store(partial())

    assert str(refused.value) == "store: Partial lacks purge, values; holdfast.storage.Store says what a store does"


def test_the_class_of_a_store_is_no_store() -> None:
    with pytest.raises(SettingsError, match=r"^store: must be the URL of a store, or a store, not <class "):
        open_store(cast("Any", MemoryStore))
