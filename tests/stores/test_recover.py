"""Rows on readable pages of a damaged SQLite file are recovered, and deleted ones are not."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history.codec import to_record
from holdfast.core.history.events import MessageAppended
from holdfast.errors import DamagedStoreError, StoreUnavailableError
from holdfast.session.maintenance.scrub import scrub
from holdfast.session.maintenance.transfer import import_recovered
from holdfast.stores.base import JsonRecord
from holdfast.stores.encoding import compress
from holdfast.stores.sqlite.recover import RecoveredStore, SqlitePages, SqliteRow, recover_store
from holdfast.stores.sqlite.schema import POSITION_BITS
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import user_message
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


def said(text: str) -> JsonRecord:
    return to_record(MessageAppended(format="openai-chat", native=user_message(text)))


@pytest.mark.parametrize(
    ("damaged", "ids"),
    [
        ("zer\0ed", ["one", "recovered-2", "recovered-3"]),
        ("recovered-\0", ["one", "recovered-2", "recovered-3"]),
        ("", ["one", "recovered-2", "recovered-3"]),
        ("one", ["one", "recovered-2", "recovered-3"]),
        ("recovered-3", ["one", "recovered-3", "recovered-3-2"]),
    ],
)
async def test_a_session_whose_id_is_damaged_is_recovered_under_another_one_beside_all_others(
    tmp_path: Path, damaged: str, ids: list[str]
) -> None:
    store = SqliteStore(tmp_path / "chats.db")
    for name in ("one", "two", "recovered-3"):
        await store.append(name, [said(name)], after=0, time_ms=NOW_MS)
    await store.close()
    with closing(sqlite3.connect(store.path)) as owner:
        # What a damaged page says of the second session; the index that would refuse a second "one" is not read.
        owner.execute("PRAGMA writable_schema = ON")
        owner.execute("DELETE FROM sqlite_schema WHERE tbl_name = 'sessions' AND type = 'index'")
        owner.execute("UPDATE sqlite_schema SET sql = replace(sql, 'UNIQUE', '') WHERE name = 'sessions'")
        owner.commit()
    with closing(sqlite3.connect(store.path)) as owner:
        owner.execute("UPDATE sessions SET name_id = ? WHERE id = 2", (damaged,))
        owner.commit()

    new = SqliteStore(tmp_path / "saved.db")
    saved = await import_recovered(recover_store(store.path), new)

    assert [one.result.session for one in saved] == ids
    kept = [[stored.record for stored in await new.read(name)] for name in ids]
    assert kept == [[said(name)] for name in ("one", "two", "recovered-3")]
    await new.close()


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


@pytest.mark.parametrize("gone", [0, 5, 39])
async def test_a_record_that_a_damaged_file_has_lost_is_told_and_no_other_takes_its_place(
    path: Path, gone: int
) -> None:
    with closing(sqlite3.connect(path)) as owner:
        owner.execute("DELETE FROM events WHERE id & 0xFFFFFFFF = ?", (gone,))
        owner.commit()
    store, problem = SqliteStore(path), f"record {gone} of session 's' cannot be found"

    with pytest.raises(DamagedStoreError, match=problem):
        await store.read("s")
    with pytest.raises(DamagedStoreError, match=problem):
        await store.read("s", start=gone, limit=1)
    with pytest.raises(DamagedStoreError, match=problem):
        await store.read_at("s", [gone, 7])
    with pytest.raises(DamagedStoreError, match=problem):
        await store.read_from_snapshot("s")
    with pytest.raises(DamagedStoreError, match=problem):
        await scrub(store, "s", "never said", time_ms=NOW_MS)

    assert [stored.position for stored in await store.read("s", start=10, limit=3)] == [10, 11, 12]
    assert [stored.position for stored in await store.read_at("s", [7, 8, 40])] == [7, 8]
    assert recover_store(path).logs[1].lost == [gone]
    await store.close()


@pytest.mark.parametrize("value", [7, 1.5, "text", "7"])
async def test_a_value_whose_type_damage_has_changed_is_reported_as_damage(path: Path, value: object) -> None:
    with closing(sqlite3.connect(path)) as owner:
        owner.execute("UPDATE events SET data = ?", (value,))
        owner.execute("UPDATE facts SET value = ?", (value,))
        owner.commit()
    store = SqliteStore(path)

    for reading in (store.read("s"), store.read_at("s", [3]), store.get_value("limit"), store.values("")):
        with pytest.raises(DamagedStoreError):
            await reading

    await store.close()


async def test_a_length_and_a_position_that_the_file_cannot_have_had_are_no_lost_records(path: Path) -> None:
    with closing(sqlite3.connect(path)) as owner:
        owner.execute("UPDATE sessions SET length = 1 << 31")
        owner.execute("UPDATE events SET id = id + (1 << 30) WHERE (id & 0xFFFFFFFF) IN (7, 39)")
        owner.commit()

    found = recover_store(path)

    assert found.logs[1].lost == [7]
    assert texts(found) == [str(number) for number in [*range(7), *range(8, 39), 7, 39]]


@given(st.binary(max_size=9_000))
def test_no_content_makes_the_page_reader_fail(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("pages") / "x.db"
    path.write_bytes(content)
    pages = SqlitePages(path)

    assert isinstance(list(pages.rows()), list)
    pages.close()


async def test_what_is_no_record_and_what_does_not_match_its_hash_is_left_out(path: Path) -> None:
    before = recover_store(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = [((1 << POSITION_BITS) + 40, compress(b"[1]")), ((1 << POSITION_BITS) + 41, compress(b"{odd"))]
        connection.executemany("INSERT INTO events VALUES (?, 1, ?)", rows)
        connection.execute("INSERT INTO blobs VALUES (?, ?)", (b"\0" * 32, compress(b"another piece")))

    found = recover_store(path)

    assert (texts(found), found.blobs) == (texts(before), before.blobs)


def test_a_file_that_is_not_there_cannot_be_recovered(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="No such file or directory; check the path"):
        recover_store(tmp_path / "gone.db")


def test_rows_of_other_programs_are_read_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE prices (id INTEGER PRIMARY KEY, price REAL, count INTEGER)")
        connection.execute("INSERT INTO prices VALUES (-5, 1.25, 70000)")

    with closing(SqlitePages(path)) as pages:
        *_, last = pages.rows()

    assert last == SqliteRow(2**64 - 5, (None, 1.25, 70_000))


def test_a_damaged_row_hides_no_other_row_of_its_page(tmp_path: Path) -> None:
    page_bytes, whole = 512, bytes([3, 9, 2, 1, 7])
    damaged = {
        "no length": bytes([0, 1, 2, 1, 7]),
        "longer than the file": bytes([0xFF, 0xFF, 0x7F, 1, 2, 1, 7]),
        "a header that is longer than the row": bytes([3, 1, 9, 1, 7]),
        "a value that is longer than the row": bytes([3, 1, 2, 6, 7]),
        "longer than its page": bytes([100, 1, 2, 1, 7]),
    }
    cells = [whole, *damaged.values()]
    ends = [page_bytes - sum(map(len, cells[at + 1 :])) for at in range(len(cells))]
    starts = [end - len(cell) for end, cell in zip(ends, cells, strict=True)]
    head = bytes(16) + page_bytes.to_bytes(2, "big") + bytes(82)
    head += bytes([0x0D, 0, 0]) + len(cells).to_bytes(2, "big") + bytes(3)
    head += b"".join(start.to_bytes(2, "big") for start in starts)
    path = tmp_path / "page.db"
    path.write_bytes(head + bytes(starts[0] - len(head)) + b"".join(cells))

    with closing(SqlitePages(path)) as pages:
        assert list(pages.rows()) == [SqliteRow(9, (7,))]
