"""An outage of a PostgreSQL server loses nothing, and sessions continue without help."""

import asyncio
import random
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from holdfast import Session
from holdfast.core.history.events import MessageAppended
from holdfast.errors import StoreUnavailableError
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.store_contract import NOW_MS
from holdfast.testing.store_contract import message_record as record_of

GONE = r"postgresql: the server cannot be reached \(.+\); try again when it is available"


async def texts(url: str) -> list[str]:
    """Return the texts of the session, read by a new session."""
    async with Session.open("s", store=url) as session:
        assert session.damage == []
        return [entry.message.text for entry in session.history.entries]


async def stored_texts(url: str) -> list[str]:
    """Return the texts of short messages as they are stored; a session may not hold all of many in its memory."""
    async with Session.open("s", store=url) as session:
        assert session.damage == []
        records: list[Any] = [stored.record for stored in await session.store.read("s")]
    return [record["data"]["native"]["content"] for record in records if record["type"] == MessageAppended.KIND]


APPEND_OF_MANY = """
import asyncio, sys
from holdfast.errors import StoreUnavailableError
from holdfast.stores.postgres import PostgresStore

async def append():
    store = PostgresStore(sys.argv[1])
    for _ in range(20):
        try:
            await store.append("s", [{"type": "note"}] * 20, after=0, time_ms=1)
        except StoreUnavailableError as error:
            print(error)
    await store.close()

asyncio.run(append())
"""


async def test_a_program_without_logging_hears_of_a_lost_connection_only_by_the_error(
    new_database: Callable[[], str],
) -> None:
    store = PostgresStore(url := new_database())
    await store.length("s")
    await store.close()
    with psycopg.connect(url, autocommit=True) as connection:
        ending = "BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END"
        connection.execute(f"CREATE FUNCTION end_it() RETURNS trigger LANGUAGE plpgsql AS '{ending}'".encode())
        connection.execute("CREATE TRIGGER t BEFORE INSERT ON holdfast.events FOR EACH ROW EXECUTE FUNCTION end_it()")

    command = [sys.executable, "-c", APPEND_OF_MANY, url]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    # What the driver notices first, the reason or the end, depends on the moment, and so does what it logs.
    assert [bool(re.fullmatch(GONE, line)) for line in done.stdout.splitlines()] == [True] * 20


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_session_continues_after_its_server_was_restarted(own_server: Any, mode: str) -> None:
    async with Session.open("s", store=own_server.url) as session:
        await session.record([user_message("one"), assistant_message("1"), user_message("two")])
        sent = await session.prepare(16_000)

        own_server.stop(mode)
        for attempt in (
            session.record([user_message("lost")]),
            session.prepare(16_000),
            session.clear(),
            session.messages_at(0),
            session.store.get_value("one"),
        ):
            with pytest.raises(StoreUnavailableError, match=GONE):
                await attempt
        with pytest.raises(StoreUnavailableError, match=GONE):
            await Session.open("s", store=own_server.url)
        own_server.start()

        assert (await session.prepare(16_000)).messages == sent.messages
        assert await session.record([assistant_message("2")]) == range(3, 4)
        assert await texts(own_server.url) == ["one", "1", "two", "2"]


async def test_a_server_stopped_during_writes_has_everything_that_was_acknowledged(own_server: Any) -> None:
    acknowledged = list[str]()
    enough = asyncio.Event()

    async def write(session: Session) -> None:
        for number in range(1_000_000):
            await session.record([user_message(str(number))])
            acknowledged.append(str(number))
            if number == 40:
                enough.set()

    async with Session.open("s", store=own_server.url) as session:
        writing = asyncio.create_task(write(session))
        await enough.wait()
        await asyncio.to_thread(own_server.stop, "immediate")
        with pytest.raises(StoreUnavailableError, match=GONE):
            await writing
        own_server.start()
        found = await stored_texts(own_server.url)
        # Of the one that was on its way nobody knows; it may have arrived, once.
        assert found in (acknowledged, [*acknowledged, str(len(acknowledged))])

        # Whoever tells everything again neither loses nor doubles it.
        told = [user_message(text) for text in [*acknowledged, str(len(acknowledged)), "after"]]
        await session.sync(told)

    assert await stored_texts(own_server.url) == [*acknowledged, str(len(acknowledged)), "after"]


def end_who_waits(url: str) -> None:
    """Wait until a connection waits for a lock, and terminate that connection."""
    query = (
        b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        b"WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        while not connection.execute(query).fetchall():
            pass


async def test_a_connection_lost_during_an_append_leaves_the_log_unchanged(own_server: Any) -> None:
    url = own_server.url
    store = PostgresStore(url)
    await store.append("s", [record_of("a")], after=0, time_ms=NOW_MS)
    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.execute("SELECT 1 FROM holdfast.sessions FOR UPDATE")
        appending = asyncio.create_task(store.append("s", [record_of("b")], after=1, time_ms=NOW_MS))
        await asyncio.to_thread(end_who_waits, url)

        with pytest.raises(StoreUnavailableError, match=GONE):
            await appending

    assert [stored.record for stored in await store.read("s")] == [record_of("a")]
    assert await store.append("s", [record_of("b")], after=1, time_ms=NOW_MS) == 2
    await store.close()


class Between:
    """A proxy that cuts the connection after a write has arrived and before it is acknowledged."""

    def __init__(self, url: str, folder: Path) -> None:
        server, _, self._behind = url.partition("?host=")
        self.url = f"{server}?host={folder}"
        self._path = folder / ".s.PGSQL.5432"
        self.cuts = 0
        """How many writes it will still cut off."""
        self.is_down = False
        """Whether it rejects all connections after that."""
        self._lines: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._connected, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.append(asyncio.ensure_future(self._let_through(reader, writer)))

    async def _let_through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            if not self.is_down:
                answers, orders = await asyncio.open_unix_connection(f"{self._behind}/.s.PGSQL.5432")
                ends.append(orders)
                cut = asyncio.Event()
                ways = {
                    asyncio.ensure_future(self._ordered(reader, orders, cut)),
                    asyncio.ensure_future(self._answered(answers, writer, cut)),
                }
                _, others = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in others:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            for end in ends:
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _ordered(self, reader: asyncio.StreamReader, orders: asyncio.StreamWriter, cut: asyncio.Event) -> None:
        while data := await reader.read(65_536):
            if (b"COMMIT" in data or b"INSERT INTO holdfast.events" in data) and self.cuts:
                self.cuts -= 1
                cut.set()
            orders.write(data)

    async def _answered(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event) -> None:
        while data := await answers.read(65_536):
            if cut.is_set():
                self.is_down = bool(self.cuts)
                return
            writer.write(data)


async def test_a_committed_append_succeeds_even_if_its_acknowledgement_was_lost(
    own_server: Any, tmp_path: Path
) -> None:
    async with Between(own_server.url, tmp_path) as line:
        store = PostgresStore(line.url)
        await store.append("s", [record_of("a")], after=0, time_ms=NOW_MS)
        line.cuts = 1

        assert await store.append("s", [record_of("b")], after=1, time_ms=NOW_MS) == 2

        assert [stored.record for stored in await store.read("s")] == [record_of("a"), record_of("b")]
        await store.close()


async def test_a_message_recorded_again_after_an_outage_is_stored_once(own_server: Any, tmp_path: Path) -> None:
    async with Between(own_server.url, tmp_path) as line:
        session = await Session.open("s", store=line.url)
        await session.record([user_message("one")])
        line.cuts = 2
        with pytest.raises(StoreUnavailableError, match=GONE):
            await session.record([assistant_message("1"), user_message("two")])
        line.cuts, line.is_down = 0, False

        await session.prepare(16_000)
        assert await session.record([assistant_message("1"), user_message("two")]) == range(1, 3)
        assert await session.record([assistant_message("1"), user_message("two")]) == range(3, 5), (
            "later it is said again"
        )

        await session.close()
    assert await texts(own_server.url) == ["one", "1", "two", "1", "two"]


async def test_a_wrong_password_is_reported_without_the_password(own_server: Any) -> None:
    own_server.ask_for_passwords()
    with psycopg.connect(own_server.url, autocommit=True) as owner:
        owner.execute("CREATE ROLE writer LOGIN PASSWORD 'right'")
        owner.execute(f"GRANT CREATE ON DATABASE {owner.info.dbname} TO writer".encode())
    url = own_server.url.replace("postgres:@", "writer:{}@")

    with pytest.raises(StoreUnavailableError) as refusal:
        await Session.open("s", store=url.format("hunter2"))

    assert str(refusal.value) == "postgresql: user or password is wrong; check the URL"
    async with Session.open("s", store=url.format("right")) as session:
        assert await session.record([user_message("one")]) == range(1)


async def test_a_server_with_a_full_disk_is_reported_and_works_again_when_there_is_space(
    new_disk: Callable[[int], Path], own_server: Any
) -> None:
    disk, noise, acknowledged = new_disk(16_000_000), random.Random(1), list[str]()
    own_server.use_disk(disk)
    (disk / "ballast").write_bytes(bytes(2_000_000))

    async def fill(session: Session) -> None:
        for _ in range(100):
            text = noise.randbytes(200_000).hex()
            await session.record([user_message(text)])
            acknowledged.append(text)

    async with Session.open("s", store=own_server.url) as session:
        with pytest.raises(StoreUnavailableError) as refusal:
            await fill(session)

        assert refusal.value.problem == "the disk of the server is full; free some space and try again"
        assert await texts(own_server.url) == acknowledged
        (disk / "ballast").unlink()
        await session.record([user_message("after")])

    assert await texts(own_server.url) == [*acknowledged, "after"]
