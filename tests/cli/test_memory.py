"""`holdfast memory` and `holdfast consolidate`, run as people run them."""

import asyncio
import json
import sqlite3
import sys
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest

from holdfast import Session
from holdfast.session.memory.board_file import board_key, repository_of
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import assistant_message, user_message
from tests.cli.conftest import run

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with two days of memory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "memory"
    folder.mkdir(parents=True)
    (folder / "2026-11-14.md").write_text("# 2026-11-14\n\n## Cleared Context (09:00)\n\nthe keys are in the red box\n")
    (folder / "2026-11-15.md").write_text("# 2026-11-15\n\n## Ideas\n\na boat\n")
    (folder / "notes.txt").write_text("no day")
    return tmp_path / "home"


def test_the_days_are_listed_the_newest_first(capsys: Captured) -> None:
    code, out, _ = run(capsys, "memory")

    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["DAY", "2026-11-15", "2026-11-14"])
    assert run(capsys, "memory", "--json")[1] == json.dumps(["2026-11-15", "2026-11-14"], indent=2) + "\n"


def test_a_day_is_shown_as_it_is(capsys: Captured) -> None:
    assert run(capsys, "memory", "2026-11-15") == (0, "# 2026-11-15\n\n## Ideas\n\na boat\n", "")


def test_words_are_found_with_where_they_stand(capsys: Captured) -> None:
    found = run(capsys, "memory", "search", "where", "are", "the", "keys")

    assert found == (
        0,
        "--- 2026-11-14 · Cleared Context (09:00) · written by hand\nthe keys are in the red box\n\n",
        "",
    )
    assert run(capsys, "memory", "search", "zebra") == (0, "", "holdfast: nothing was found\n")
    assert json.loads(run(capsys, "memory", "search", "boat", "--json")[1])[0]["title"] == "Ideas"


def test_what_cannot_be_is_refused_with_what_would_do(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    yesterday = run(capsys, "memory", "yesterday")
    no_day = run(capsys, "memory", "2026-13-45")
    both = run(capsys, "memory", "2026-11-14", "2026-11-15")
    monkeypatch.setenv("HOLDFAST_MEMORY", "off")
    off = run(capsys, "memory")

    assert no_day == (2, "", "holdfast: day: '2026-13-45' is no day; write it as YYYY-MM-DD\n")
    assert yesterday == (2, "", "holdfast: day: 'yesterday' is no day; write it as YYYY-MM-DD\n")
    assert both == (2, "", "holdfast: memory: takes a day as YYYY-MM-DD, or `search` and a text\n")
    assert off == (
        2,
        "",
        "holdfast: memory: is off; choose a folder for it: holdfast config memory ~/.holdfast/memory\n",
    )


def test_a_preset_without_memory_has_one_where_the_user_names_a_folder(
    home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_PRESET", "co-cli")
    without = run(capsys, "memory")[0]
    monkeypatch.setenv("HOLDFAST_MEMORY", str(home / "memory"))

    assert (without, run(capsys, "memory")[0]) == (2, 0)


RULE = "Always run the tests with make test."


@pytest.fixture
def earlier(home: Path, tmp_path: Path) -> Path:
    """A conversation about this folder that is over; returns the board's folder."""

    async def held() -> None:
        store = SqliteStore(home / "chats.db")
        async with Session.open("earlier", store=store, clock=lambda: 1_700_000_000_000) as session:
            await store.put_value(board_key("earlier"), {"board": repository_of(tmp_path).key})
            await session.record([user_message(RULE), assistant_message("Yes.")])
        await store.close()

    asyncio.run(held())
    return home / "boards"


@pytest.mark.seed("C-55")
def test_consolidate_shows_what_it_would_do_and_does_it_when_told(
    earlier: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SUMMARIZATION_MODEL", "none")

    shown = run(capsys, "consolidate")
    untouched = [*earlier.glob("*.md")]
    facts = json.loads(run(capsys, "consolidate", "--json", "--apply")[1])
    (board,) = earlier.glob("*.md")
    again = run(capsys, "consolidate", "--apply")

    assert shown[0] == 0
    assert shown[1].splitlines()[1].split("  ") == ["add", RULE, "earlier #0"]
    assert shown[2] == "holdfast: nothing was changed; --apply applies the proposals\n"
    assert untouched == []
    assert (facts["applied"], facts["read"], facts["proposals"][0]["text"]) == (True, {"earlier": 2}, RULE)
    assert RULE in board.read_text()
    assert again == (0, "", "holdfast: nothing to propose; 0 finished conversations read\n")


def test_a_conversation_without_anything_for_the_board_is_read_once(
    home: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SUMMARIZATION_MODEL", "none")

    async def held() -> None:
        store = SqliteStore(home / "chats.db")
        async with Session.open("earlier", store=store, clock=lambda: 1_700_000_000_000) as session:
            await store.put_value(board_key("earlier"), {"board": repository_of(tmp_path).key})
            await session.record([user_message("What is a tide?"), assistant_message("The sea, rising.")])
        await store.close()

    asyncio.run(held())

    first, second = run(capsys, "consolidate"), run(capsys, "consolidate")

    assert first == (0, "", "holdfast: nothing to propose; 1 finished conversation read\n")
    assert second == (0, "", "holdfast: nothing to propose; 0 finished conversations read\n")


def test_a_conversation_that_may_go_on_is_told_of_and_read_when_told(
    home: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SUMMARIZATION_MODEL", "none")

    async def held() -> None:
        store = SqliteStore(home / "chats.db")
        async with Session.open("just-now", store=store) as session:
            await store.put_value(board_key("just-now"), {"board": repository_of(tmp_path).key})
            await session.record([user_message(RULE), assistant_message("Yes.")])
        await store.close()

    asyncio.run(held())

    left_alone = run(capsys, "consolidate")
    read = run(capsys, "consolidate", "--now", "--apply")

    assert left_alone == (
        0,
        "",
        "holdfast: nothing to propose; 0 finished conversations read; 1 was changed less than 10 minutes ago, "
        "--now includes them\n",
    )
    assert read[0] == 0
    assert RULE in read[1]
    assert read[2].startswith("holdfast: applied 1 change to ")


def test_consolidate_says_that_boards_are_off(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_BOARDS", "off")

    code, _, problem = run(capsys, "consolidate")

    assert (code, "boards: are off" in problem) == (2, True)


def test_a_search_without_words_is_refused_with_an_example(capsys: Captured) -> None:
    code, out, err = run(capsys, "memory", "search")

    assert (code, out) == (2, "")
    assert err == 'holdfast: memory search: needs a text to search for: holdfast memory search "red box" keys\n'


def test_who_looks_where_nothing_was_noted_is_told_so(
    capsys: Captured, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_day = run(capsys, "memory", "2020-01-01")
    monkeypatch.setenv("HOLDFAST_HOME", str(home / "another"))

    nothing = [run(capsys, "memory", *what) for what in ((), ("2020-01-01",), ("search", "keys"))]

    assert other_day == (0, "", "holdfast: there are no notes for 2020-01-01\n")
    assert nothing == [(0, "", "holdfast: there are no notes yet\n")] * 3


class Terminal(StringIO):
    """What somebody types at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "is_applied"), [("no\n", False), ("Yes\n", True)])
def test_consolidate_asks_at_a_terminal(
    answer: str, earlier: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, *, is_applied: bool
) -> None:
    monkeypatch.setenv("HOLDFAST_SUMMARIZATION_MODEL", "none")
    monkeypatch.setattr(sys, "stdin", Terminal(answer))

    code, out, told = run(capsys, "consolidate")

    boards = [path.read_text() for path in earlier.glob("*.md")]
    question, _, done = told.partition("? [y/N] ")
    assert (code, question) == (0, f"change {earlier / repository_of(Path()).key}.md")
    assert RULE in out
    assert [RULE in board for board in boards] == [True] * is_applied
    assert done.startswith("holdfast: applied 1 change to" if is_applied else "holdfast: nothing was changed\n")


def test_a_file_or_a_conversation_that_cannot_be_read_is_told(
    home: Path, earlier: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SUMMARIZATION_MODEL", "none")
    (home / "memory" / "2026-11-16.md").mkdir()
    with closing(sqlite3.connect(home / "chats.db")) as database, database:
        database.execute("UPDATE events SET data = x'00'")

    _, found, unread = run(capsys, "memory", "search", "keys")
    _, _, told = run(capsys, "consolidate")

    assert "the keys are in the red box" in found
    assert "2026-11-16.md" in unread
    assert told.startswith("holdfast: earlier could not be read: ")
    assert [*earlier.glob("*.md")] == []
