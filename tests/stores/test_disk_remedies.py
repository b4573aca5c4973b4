"""What a disk or a system refuses is told with what to do about it, whichever file it is about."""

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.apps.gateway.access import create_key
from holdfast.errors import HoldfastError
from holdfast.stores import files
from holdfast.stores.files import write_private_lines
from holdfast.stores.sqlite import recover
from holdfast.stores.sqlite.recover import recover_store


def refuse(number: int) -> Callable[..., Any]:
    """Return a call that fails as on such a disk."""

    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EROFS, "choose a folder that can be written to"),
        (errno.EMFILE, "allow more open files (`ulimit -n`)"),
        (errno.EIO, None),
    ],
)
@pytest.mark.parametrize("what", ["export", "keys"])
def test_what_the_disk_refuses_comes_with_advice_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, number: int, remedy: str | None
) -> None:
    path = tmp_path / f"{what}.toml"
    calls: dict[str, Callable[[], object]] = {
        "export": lambda: write_private_lines(path, ["x"]),
        "keys": lambda: create_key(path, "alice"),
    }
    monkeypatch.setattr(files.os, "fsync", refuse(number))

    with pytest.raises(HoldfastError) as refused:
        calls[what]()

    assert str(refused.value) == f"{path}: {os.strerror(number)}; {remedy or 'check the path'}"


def test_a_recovery_that_finds_no_room_for_its_copy_names_the_folder_of_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chats.db"
    path.write_bytes(b"damaged")
    monkeypatch.setattr(recover.shutil, "copyfile", refuse(errno.ENOSPC))

    with pytest.raises(HoldfastError) as refused:
        recover_store(path)

    problem = f"{os.strerror(errno.ENOSPC)} for a copy in {tempfile.gettempdir()}; free some space there, or set TMPDIR"
    assert str(refused.value) == f"{path}: {problem}"
