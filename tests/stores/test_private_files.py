"""Files and folders of a store are readable by their owner only, whatever the umask, and nobody can redirect them."""

import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import DamagedStoreError, StoreUnavailableError, WorkspaceUnavailableError
from holdfast.session.memory import locked_files
from holdfast.stores import files
from holdfast.stores.encoding import compress, decompress
from holdfast.stores.files import try_lock, write_private_lines
from holdfast.stores.sqlite.store import SqliteStore


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


@pytest.mark.usefixtures("open_umask")
async def test_the_new_parents_of_a_store_are_private_under_any_umask(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a" / "b" / "chats.db")
    await store.length("s")

    assert modes(tmp_path) == {
        "a": 0o700, "a/b": 0o700, "a/b/chats.db": 0o600, "a/b/chats.db-wal": 0o600, "a/b/chats.db-shm": 0o600,
    }  # fmt: skip
    await store.close()


def test_a_link_planted_under_the_name_of_a_temporary_file_is_not_written_through(tmp_path: Path) -> None:
    victim, target = tmp_path / "victim", tmp_path / "export.jsonl"
    victim.write_text("mine")
    (tmp_path / "export.jsonl.part").symlink_to(victim)
    names = set[str]()

    def lines() -> Iterator[str]:
        names.update(path.name for path in tmp_path.iterdir())
        yield "text\n"

    for _ in range(2):
        write_private_lines(target, lines())

    assert (target.read_text(), victim.read_text()) == ("text\n", "mine")
    temporary = {name for name in names if name.startswith(".export.jsonl.")}
    assert len(temporary) == 2, "each time another name"
    assert modes(tmp_path) == {"victim": modes(tmp_path)["victim"], "export.jsonl": 0o600, "export.jsonl.part": 0o644}


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    write_private_lines(pipe, ["one\n", "two\n"])

    assert (os.read(reader, 100), pipe.is_fifo()) == (b"one\ntwo\n", True)
    os.close(reader)


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path) -> None:
    link, target = tmp_path / "link.jsonl", tmp_path / "elsewhere" / "target.jsonl"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)

    write_private_lines(link, ["new\n"])

    assert (link.is_symlink(), target.read_text(), stat.S_IMODE(target.stat().st_mode)) == (True, "new\n", 0o600)


async def test_a_device_or_a_pipe_is_no_store_and_keeps_its_permissions(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pipe.chmod(0o666)

    with pytest.raises(StoreUnavailableError, match="it is a device or a pipe, and not a file"):
        await SqliteStore(pipe).length("s")

    assert stat.S_IMODE(pipe.stat().st_mode) == 0o666


def test_a_folder_that_another_program_has_locked_for_too_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_TIMEOUT_SECONDS", 0.0)
    second = locked_files.folder_lock(tmp_path)
    said = "another process has held the lock for 0 s"
    with locked_files.folder_lock(tmp_path), pytest.raises(WorkspaceUnavailableError, match=said):
        second.__enter__()

    with locked_files.folder_lock(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [locked_files.LOCK_FILE]


def test_a_file_that_cannot_be_locked_at_all_is_no_file_that_somebody_else_has_locked(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "a", os.O_CREAT | os.O_RDWR)
    os.close(descriptor)

    with pytest.raises(OSError, match="Bad file descriptor"):
        try_lock(descriptor)


@pytest.mark.parametrize(
    "content", [b"", b"short", b"a" * 5_000, *map(random.Random(1).randbytes, (5_000, 200_000))], ids=len
)
def test_content_is_stored_in_no_more_bytes_than_it_has_and_one(content: bytes) -> None:
    stored = compress(content)

    assert (decompress(stored, "a store"), len(stored) <= len(content) + 1) == (content, True)


@pytest.mark.parametrize("stored", [b"\x7fabc", b""])
def test_content_that_is_stored_in_an_unknown_way_is_damaged(stored: bytes) -> None:
    with pytest.raises(DamagedStoreError, match="a piece is kept in an unknown way"):
        decompress(stored, "a store")
