"""Rows on readable pages of a damaged SQLite file are recovered, and deleted ones are not."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.sqlite.recover import RecoveredStore, SqlitePages, recover_store
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.store_contract import NOW_MS, message_record


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    store = SqliteStore(tmp_path / "chats.db")
    for number in range(40):
        texts = [message_record(f"{number} " + os.urandom(number * 150).hex())]
        await store.append("s", texts, after=number, time_ms=NOW_MS + number)
    await store.rename("s", "Parser")
    await store.put_blob(b"a large piece" * 5_000)
    await store.put_value("limit", {"tokens": 1})
    await store.close()
    return store.path


def texts(found: RecoveredStore) -> list[str]:
    records = found.logs[1].records
    return [str(records[at][1]["data"]["native"]["content"]).split()[0] for at in sorted(records)]  # type: ignore[index]


async def test_everything_is_recovered_from_an_undamaged_file(path: Path) -> None:
    found = recover_store(path)

    assert texts(found) == [str(number) for number in range(40)]
    assert (found.logs[1].id, found.logs[1].name, found.logs[1].lost) == ("s", "Parser", [])
    assert list(found.blobs.values()) == [b"a large piece" * 5_000]
    assert found.values == {"limit": {"tokens": 1}}


async def test_records_that_are_only_in_the_write_ahead_log_are_recovered(path: Path, tmp_path: Path) -> None:
    store = SqliteStore(path)
    await store.append("s", [message_record("40 last")], after=40, time_ms=NOW_MS)
    copy = tmp_path / "crashed.db"
    shutil.copyfile(path, copy)
    shutil.copyfile(f"{path}-wal", f"{copy}-wal")
    await store.close()

    assert texts(recover_store(copy))[-1] == "40"


async def test_a_deleted_session_is_not_recovered(path: Path) -> None:
    store = SqliteStore(path)
    await store.append("t", [message_record("stays")], after=0, time_ms=NOW_MS)
    await store.delete("s")
    await store.close()

    assert [log.id for log in recover_store(path).logs.values()] == ["t"]


async def test_the_rest_of_a_truncated_file_is_recovered(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])

    log = recover_store(path).logs[1]

    assert log.records
    assert sorted([*log.lost, *log.records]) == list(range(40))


@given(st.binary(max_size=9_000))
def test_no_content_makes_the_page_reader_fail(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("pages") / "x.db"
    path.write_bytes(content)
    pages = SqlitePages(path)

    assert isinstance(list(pages.rows()), list)
    pages.close()
