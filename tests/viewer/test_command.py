"""`holdfast view` on the command line."""

import asyncio
import gc
import json
import os
import re
import signal
import socket
import stat
import webbrowser
from pathlib import Path

import httpx
import pytest

from holdfast import Session
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import user_message
from tests.cli.conftest import run
from tests.importers.reading import copy_of
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


def test_an_export_to_a_dash_is_written_to_standard_output(
    store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    code, out, errors = run(capsys, "view", "rep", "--store", store_url, "--export", "-")

    assert (code, errors) == (0, "")
    assert (out.splitlines()[0], out.splitlines()[-1]) == ("<!doctype html>", "</html>")
    assert "question 2" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chats.db"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--export", "page.html"], "needs the id of a session: holdfast view ID --export page.html"),
        (["unknown"], "unknown"),
        (["--from", "notepad"], "'notepad' is not known"),
        (["--path", "backup"], "--path: needs --from, which names the program whose sessions these are"),
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


def test_sessions_of_another_program_are_imported_first_and_what_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, url, page = copy_of("pi", tmp_path), f"sqlite:///{tmp_path}/new.db", str(tmp_path / "page.html")
    (path,) = root.glob("sessions/*/*.jsonl")
    (tmp_path / "empty").mkdir()
    from_pi = ["view", "--store", url, "--from", "pi"]

    shown = run(capsys, *from_pi, "--path", str(root), "pi-01a", "--export", page)
    empty = run(capsys, *from_pi, "--path", str(tmp_path / "empty"), "pi-01a", "--export", page)
    path.write_text(path.read_text().replace("Check the sails", "Check the oars"))
    asyncio.run(go_on(url))
    again = run(capsys, *from_pi, "--path", str(root), "pi-01a", "--export", page)

    assert (shown[0], shown[2]) == (0, "")
    assert "Two holes were mended." in Path(page).read_text(encoding="utf-8")
    assert (empty[0], empty[2]) == (0, f"holdfast: there are no sessions of pi in {tmp_path}/empty\n")
    assert (again[0], "went on in this store since its import" in again[2]) == (0, True)


async def go_on(url: str) -> None:
    """Continue the imported session in the store."""
    async with Session.open("pi-01a00000-0000-7000-8000-0000000000aa", store=url) as session:
        await session.record([user_message("And now?")])


def test_lines_of_another_program_that_cannot_be_read_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = copy_of("claude-code", tmp_path)
    (log,) = sessions.glob("projects/*/*.jsonl")
    log.write_text(log.read_text() + "{no json\n")
    from_copy = ["--store", f"sqlite:///{tmp_path / 'new.db'}", "--from", "claude-code", "--path", str(sessions)]

    code, _, errors = run(capsys, "view", "claude-code-5e55", *from_copy, "--export", str(tmp_path / "page.html"))

    name = "claude-code-5e551000-0000-4000-8000-000000000001"
    assert (code, errors) == (0, f"holdfast: {name}: 1 line not read: not JSON\n")


@pytest.mark.parametrize("has_browser", [True, False])
def test_a_browser_is_opened_at_the_page_with_a_token_and_a_signal_ends_the_viewer(
    store_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, has_browser: bool
) -> None:
    visited: list[tuple[str, int]] = []

    def browse(url: str) -> bool:
        with httpx.Client(follow_redirects=True) as client:
            visited.append((url, client.get(url).status_code))
        os.kill(os.getpid(), signal.SIGINT)
        return has_browser

    monkeypatch.setattr(webbrowser, "open", browse)
    thresholds = gc.get_threshold()
    try:
        code, out, errors = run(capsys, "view", "rep", "--store", store_url, "--port", "0")
    finally:
        gc.set_threshold(*thresholds)

    url, stop = out.splitlines()
    assert (code, visited, stop) == (0, [(url, 200)], "Ctrl-C stops the viewer.")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/s/report\?token=\S+", url)
    assert errors == ("" if has_browser else "holdfast: no browser could be started; open the address above\n")
