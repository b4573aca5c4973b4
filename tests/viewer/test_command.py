"""`holdfast view` on the command line."""

import asyncio
import json
import socket
import stat
from pathlib import Path

import pytest

from holdfast.stores.sqlite.store import SqliteStore
from tests.cli.conftest import run
from tests.viewer.visiting import record_conversation


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    path = tmp_path / "chats.db"

    async def record() -> None:
        store = SqliteStore(path)
        await record_conversation(store, turns=3)
        await store.close()

    asyncio.run(record())
    return f"sqlite:///{path}"


def test_an_export_is_one_private_file(store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"

    code, out, _ = run(capsys, "view", "rep", "--store", store_url, "--export", str(page), "--json")

    assert (code, json.loads(out)) == (0, {"session": "report", "file": str(page)})
    assert "question 2" in page.read_text(encoding="utf-8")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--export", "page.html"], "needs the id of a session: holdfast view ID --export page.html"),
        (["unknown"], "unknown"),
        (["--from", "notepad"], "'notepad' is not known"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    arguments: list[str], problem: str, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = run(capsys, "view", "--store", store_url, *arguments)

    assert code == 2
    assert len(errors.splitlines()) == 1
    assert problem in errors


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "typo.db"

    code, _, errors = run(capsys, "view", "--store", f"sqlite:///{path}")

    assert code == 2
    assert "there is no such file" in errors
    assert not path.exists()


def test_a_port_in_use_is_told(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, errors = run(capsys, "view", "--store", store_url, "--port", str(port), "--no-open")

    assert code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in errors
    assert errors.rstrip().endswith("choose another with --port, or 0 for any")
