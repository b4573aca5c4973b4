"""The command line, run as people run it, on a real file."""

import asyncio
import json
import os
import re
import shlex
import sqlite3
import stat
import subprocess
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.apps.cli import output
from holdfast.apps.cli.main import main
from holdfast.apps.cli.sessions import delete_old_sessions, export_session
from holdfast.core.history.codec import from_record, to_record
from holdfast.core.history.events import MessageAppended, RequestPrepared
from holdfast.core.history.history import History
from holdfast.errors import StoreUnavailableError
from holdfast.session.log.event_log import now_ms
from holdfast.session.request import chain_hash, rebuild_request
from holdfast.session.session import Session
from holdfast.stores.base import JsonRecord, SessionInfo, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import database
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.sessions import generate_session
from holdfast.testing.store_contract import NOW_MS, message_record
from holdfast.wire.formats import format_named
from tests.cli.conftest import run

CORPUS = Path(__file__).parent / "corpus"
DAY_MS = 86_400_000
T = TypeVar("T")


@pytest.fixture
def chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "chats.db"
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:///{path}")
    return path


def on(path: Path, action: Callable[[Store], Awaitable[T]]) -> T:
    """Do something to a store, and close it."""

    async def act() -> T:
        store = SqliteStore(path)
        try:
            return await action(store)
        finally:
            await store.close()

    return asyncio.run(act())


def talked(path: Path, name: str = "report-1", *, age_days: int = 0) -> None:
    """Leave a session with two requests."""

    async def talk(store: Store) -> None:
        session = await Session.open(name, store=store, clock=lambda: now_ms() - age_days * DAY_MS)
        await session.record([user_message("Why does it fail?")])
        await session.prepare(16_000, system="Be brief.")
        await session.record(
            [
                tool_call_message("a"),
                tool_result_message("a", "sk-secret12345 found"),
                assistant_message("Tabs."),
                user_message("Fix it."),
            ]
        )
        await session.prepare(16_000, system="Be brief.")

    on(path, talk)


def test_sessions_are_listed_for_people_and_for_programs(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talked(chats)
    talked(chats, "other", age_days=3)

    code, out, _ = run(capsys, "sessions")
    lines = [line.split() for line in out.splitlines()]

    assert code == 0
    assert [line[:2] for line in lines] == [["ID", "EVENTS"], ["report-1", "10"], ["other", "10"]]
    assert lines[2][2:] == ["3", "d"]
    assert [row["id"] for row in json.loads(run(capsys, "sessions", "--json", "--prefix", "rep")[1])] == ["report-1"]
    assert len(json.loads(run(capsys, "sessions", "--json", "--limit", "1")[1])) == 1


def test_a_list_of_sessions_that_is_not_whole_says_so(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talked(chats)
    talked(chats, "other", age_days=3)

    code, out, err = run(capsys, "sessions", "--limit", "1")

    assert (code, len(out.splitlines())) == (0, 2)
    assert err == "holdfast: there are more than 1 sessions; list more with --limit, or fewer with --prefix\n"
    assert run(capsys, "sessions", "--limit", "2")[2] == ""


def test_a_machine_without_sessions_says_so_and_makes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)

    assert run(capsys, "sessions") == (0, "", "holdfast: no sessions\n")
    assert list(tmp_path.iterdir()) == []
    assert run(capsys, "sessions", "--store", f"sqlite:///{tmp_path}/typo.db")[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_a_conversation_is_shown_as_it_stands_and_as_it_was_sent(
    chats: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talked(chats)

    now = run(capsys, "show", "report-1")[1]
    then = json.loads(run(capsys, "show", "rep", "--at", "1", "--json")[1])

    assert "--- system\n  Be brief." in now
    assert "→ read_file" in now
    assert "Fix it." in now
    assert (then["request"], then["system"], then["messages"]) == (1, "Be brief.", [user_message("Why does it fail?")])
    code, _, problem = run(capsys, "show", "rep", "--at", "9")
    assert (code, problem) == (2, "holdfast: --at: session 'report-1' has requests 1 to 2, not 9\n")


def test_what_was_said_cannot_steer_the_terminal(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def talk(store: Store) -> None:
        await (await Session.open("c1", store=store)).record([user_message("a\x1b[2Jb\u202ec")])

    on(chats, talk)

    out = run(capsys, "show", "c1")[1]

    assert "a\\x1b[2Jb\\u202ec" in out


def test_a_command_that_is_told_can_be_pasted_whatever_the_name_is(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talked(chats, "my $(report)")
    damaged = tmp_path / "it's damaged.db"
    damaged.write_bytes(b"garbage")

    _, proof, _ = run(capsys, "replay", "my $(report)", "--verify")
    _, _, problem = run(capsys, "sessions", "--store", f"sqlite:///{damaged}")

    assert shlex.split(proof.splitlines()[-1])[:4] == ["holdfast", "replay", "my $(report)", "--verify"]
    assert shlex.split(problem.split("`")[1]) == ["holdfast", "recover", str(damaged)]


def test_a_command_that_is_told_reaches_the_store_that_the_command_line_names(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talked(chats)
    monkeypatch.delenv("HOLDFAST_STORE")
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))

    _, proof, _ = run(capsys, "replay", "report-1", "--verify", "--store", f"sqlite:///{chats}")
    told = shlex.split(proof.splitlines()[-1])

    assert told[-2:] == ["--store", f"sqlite:///{chats}"]
    assert run(capsys, *told[1:]) == (0, proof, "")


def test_a_log_is_proved_and_a_changed_one_is_caught(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talked(chats)
    code, out, _ = run(capsys, "replay", "report-1", "--verify")
    head = out.split()[-1]
    assert (code, out.splitlines()) == (
        0,
        [
            "2 requests: 2 the same, 0 scrubbed, 0 different",
            "This covers the messages, system text and tools of every request, and not messages that no request held. "
            "Whoever may write to the store could compute all hashes again; keep the head elsewhere to notice that:",
            f"  holdfast replay report-1 --verify --head {head}",
        ],
    )
    assert run(capsys, "replay", "report-1", "--verify", "--head", head)[0] == 0

    async def forge(store: Store) -> None:
        records = [stored.record for stored in await store.read("report-1")]
        native = user_message("Why does it work?")
        forged = {**records[0], "data": {"format": "openai-chat", "native": native}}
        unknown = {"type": "x.y", "schema": 1, "data": {}}
        await store.rewrite("report-1", {0: forged}, tombstone=unknown, after=len(records), time_ms=now_ms())

    on(chats, forge)
    code, out, _ = run(capsys, "replay", "report-1", "--verify")

    assert code == 1
    assert out.splitlines() == [
        "2 requests: 0 the same, 0 scrubbed, 2 different",
        "request 1 is not what was sent; see: holdfast show report-1 --at 1",
    ]
    assert json.loads(run(capsys, "replay", "report-1", "--verify", "--json")[1])["firstDifference"] == 1


async def forge_message(store: Store, *, with_chain: bool) -> None:
    """Change the first message, and the hash of every request so that they fit together."""
    stored = [one.record for one in await store.read("report-1")]
    forged: dict[int, JsonRecord] = {
        0: to_record(MessageAppended(format="openai-chat", native=user_message("Why does it work?")))
    }
    history, chain = History(format_named), ""
    for at, record in enumerate(stored):
        event = from_record(forged.get(at, record))
        if isinstance(event, RequestPrepared):
            event = replace(event, payload_hash=rebuild_request(event, history)[1])
            chain = chain_hash(chain, event.payload_hash)
            event = replace(event, chain_hash=chain) if with_chain else event
            forged[at] = to_record(event)
        history.append(event)
    tombstone: JsonRecord = {"type": "x.y", "schema": 1, "data": {}}
    await store.rewrite("report-1", forged, tombstone=tombstone, after=len(stored), time_ms=now_ms())


def test_a_message_and_its_hash_that_were_changed_together_are_noticed_by_the_chain(
    chats: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talked(chats)
    on(chats, partial(forge_message, with_chain=False))

    code, out, _ = run(capsys, "replay", "report-1", "--verify")

    assert (code, out.splitlines()) == (
        1,
        [
            "2 requests: 0 the same, 0 scrubbed, 2 different",
            "request 1 does not continue the chain: before it a request was changed together with its hash, removed or "
            "inserted",
        ],
    )


def test_a_head_that_was_kept_elsewhere_shows_that_every_hash_was_computed_again(
    chats: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talked(chats)
    head = run(capsys, "replay", "report-1", "--verify")[1].split()[-1]
    on(chats, partial(forge_message, with_chain=True))

    assert run(capsys, "replay", "report-1", "--verify")[0] == 0, "the log alone cannot show it"
    code, out, problems = run(capsys, "replay", "report-1", "--verify", "--head", head, "--json")

    assert (code, json.loads(out)["isHeadKnown"]) == (1, False)
    assert problems == (
        f"holdfast: no request of this log has the head {head}: the log was changed, or it is another log\n"
    )


def test_a_scrubbed_secret_is_gone_and_is_not_called_damage(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talked(chats)
    talked(chats, "other")

    code, out, problems = run(capsys, "scrub", "report-1", "sk-secret12345")

    assert (code, out) == (0, "replaced 1 time in 1 record\n")
    assert problems == (
        "holdfast: session other also contains it; scrub that session too\n"
        "holdfast: out of reach: backups, exports and snapshots of the disk; of a PostgreSQL server also its "
        "write-ahead log and its replicas. Replace the secret itself where it is used.\n"
    )
    assert "[scrubbed] found" in run(capsys, "show", "report-1")[1]
    code, out, _ = run(capsys, "replay", "report-1", "--verify")
    assert (code, out.splitlines()[0]) == (0, "2 requests: 1 the same, 1 scrubbed, 0 different")
    assert run(capsys, "scrub", "report-1", "sk-secret12345") == (
        1,
        "replaced 0 times in 0 records\n",
        "holdfast: session other also contains it; scrub that session too\n"
        "holdfast: the secret was not found in this session; "
        "what an earlier scrub replaced is gone from the store too\n",
    )


def test_a_scrub_reaches_the_files_beside_a_session(
    chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    talked(chats)
    files = {
        "checkpoints/report-1/001-keys.md": "The key sk-secret12345 was tried.\n",
        "attachments/report-1/paste-1.txt": "sk-secret12345\nand more\n",
        "memory/2026-11-15.md": "## Trimmed Context (14:03)\n\nThe key is sk-secret12345.\n",
        "boards/0a1b/main.jsonl": '{"text": "the key is sk-secret12345"}\n',
        "prompts": "# now\n+use sk-secret12345\n",
        "checkpoints/other/001-keys.md": "sk-secret12345 is another conversation's\n",
    }
    for name, text in files.items():
        path = tmp_path / "home" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    code, out, _ = run(capsys, "scrub", "report-1", "sk-secret12345")

    kept = {name: (tmp_path / "home" / name).read_text() for name in files}
    changed = [tmp_path / "home" / name for name in files][:5]
    assert (code, out.splitlines()) == (
        0,
        ["replaced 1 time in 1 record", *(f"replaced in {path}" for path in changed)],
    )
    assert [name for name, text in kept.items() if "sk-secret12345" in text] == ["checkpoints/other/001-keys.md"]


def test_a_scrub_leaves_alone_the_folder_that_a_session_is_named_after(
    chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    talked(chats)
    private = tmp_path / "private"
    private.mkdir()
    (private / "config.ini").write_text("key = sk-secret12345\n")
    gift = tmp_path / "gift.jsonl"
    run(capsys, "export", "report-1", "-o", str(gift))
    run(capsys, "import", str(gift), "--as", str(private))

    code, out, _ = run(capsys, "scrub", str(private), "sk-secret12345")

    assert (code, out) == (0, "replaced 1 time in 1 record\n")
    assert (private / "config.ini").read_text() == "key = sk-secret12345\n"


def test_an_export_comes_back_as_another_session(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talked(chats)
    file = tmp_path / "out.jsonl"

    assert run(capsys, "export", "report-1", "-o", str(file))[0] == 0
    assert run(capsys, "export", "report-1")[1] == file.read_text()
    assert run(capsys, "export", "report-1", "-o", "-")[1] == file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run(capsys, "import", str(file))[0] == 2
    assert run(capsys, "import", str(file), "--as", "copy")[:2] == (0, "imported copy: 5 messages, 10 records\n")
    assert run(capsys, "replay", "copy", "--verify")[0] == 0


def test_a_count_of_one_has_no_plural(chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    on(chats, lambda store: store.append("one", [message_record("a")], after=0, time_ms=NOW_MS))
    file = tmp_path / "out.jsonl"

    said = [
        run(capsys, *command)[1]
        for command in (
            ("export", "one", "-o", str(file)),
            ("import", str(file), "--as", "two"),
            ("recover", str(chats), "-o", str(tmp_path / "new.db")),
            ("sessions", "rm", "two", "--yes"),
            ("sessions", "prune", "--days", "1", "--dry-run"),
            ("replay", "one", "--verify"),
        )
    ]

    assert [text.partition("\n")[0] for text in said] == [
        f"wrote 1 record to {file}",
        "imported two: 1 message, 1 record",
        f"saved 2 sessions with 2 records to {tmp_path / 'new.db'}",
        "deleted two: 1 event",
        "would delete 1 session",
        "0 requests: 0 the same, 0 scrubbed, 0 different",
    ]


@pytest.mark.parametrize(
    "file", sorted(path for path in CORPUS.rglob("*.json*") if path.parent.name != "found"), ids=lambda file: file.name
)
def test_every_log_of_the_corpus_comes_in_and_opens(
    file: Path, chats: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del chats
    code, out, problems = run(capsys, "import", str(file), "--as", "c1", "--json")
    facts = json.loads(out)

    assert code == int(bool(facts["losses"]))
    assert all(f"line {loss['line']}: {loss['bytes']:,} bytes not read" in problems for loss in facts["losses"])
    for session in facts["sessions"]:
        assert run(capsys, "show", session["session"])[0] == 0


def test_old_sessions_go_when_asked(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talked(chats, "young")
    talked(chats, "old", age_days=40)

    assert "would delete 1 session\n  old" in run(capsys, "sessions", "prune", "--days", "30", "--dry-run")[1]
    assert run(capsys, "sessions", "prune", "--days", "30")[0] == 2
    pruned = run(capsys, "sessions", "prune", "--days", "30", "--yes", "--json")[1]
    assert json.loads(pruned) == {"deleted": ["old"], "folders": []}
    assert run(capsys, "sessions", "rm", "you", "--yes")[:2] == (0, "deleted young: 10 events\n")
    assert json.loads(run(capsys, "sessions", "--json")[1]) == []


class SlowAnswer(StringIO):
    """A terminal whose user says yes, after something else has happened."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__("y\n")
        self._meanwhile = meanwhile

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:
        with ThreadPoolExecutor() as others:
            others.submit(self._meanwhile).result()
        return super().readline(-1 if size is None else size)


def test_an_old_session_stays_if_somebody_goes_on_with_it_while_prune_asks(
    chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    attached = [tmp_path / "home" / "attachments" / name for name in ("gone", "resumed")]
    for folder in attached:
        folder.mkdir(parents=True)
    talked(chats, "gone", age_days=40)
    talked(chats, "resumed", age_days=40)
    monkeypatch.setattr("sys.stdin", SlowAnswer(lambda: talked(chats, "resumed")))

    code, out, problems = run(capsys, "sessions", "prune", "--days", "30", "--json")

    assert (code, json.loads(out)) == (0, {"deleted": ["gone"], "folders": [str(attached[0])]})
    assert "resumed has changed meanwhile, and stays" in problems
    assert [one["id"] for one in json.loads(run(capsys, "sessions", "--json")[1])] == ["resumed"]
    assert [folder.exists() for folder in attached] == [False, True]


class GoesOnAtTheLastMoment(MemoryStore):
    """Has a new message in a session when it is about to be deleted, as from another process."""

    async def delete(self, session: str, *, length: int | None = None) -> bool:
        after = await self.length(session)
        await self.append(session, [message_record("still here")], after=after, time_ms=now_ms())
        return await super().delete(session, length=length)


async def test_a_session_that_goes_on_in_the_moment_it_is_pruned_keeps_its_attachments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "attachments" / "old").mkdir(parents=True)
    store = GoesOnAtTheLastMoment()
    await store.append("old", [message_record("look at this")], after=0, time_ms=1)

    code = await delete_old_sessions(Namespace(days=30, dry_run=False, yes=True, json=True), store)

    said = capsys.readouterr()
    assert (code, json.loads(said.out)) == (0, {"deleted": [], "folders": []})
    assert "old has changed meanwhile, and stays" in said.err
    assert (await store.length("old"), (tmp_path / "home" / "attachments" / "old").is_dir()) == (2, True)


def test_prune_says_which_folder_stays_and_goes_on_with_the_other_sessions(
    chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    attached = [tmp_path / "home" / "attachments" / name for name in ("kept", "gone")]
    for folder in attached:
        folder.mkdir(parents=True)
        (folder / "text.md").write_text("words")
    for folder in attached:
        talked(chats, folder.name, age_days=40)
    attached[0].rename(tmp_path / "elsewhere")
    attached[0].symlink_to(tmp_path / "elsewhere")

    code, out, problems = run(capsys, "sessions", "prune", "--days", "30", "--yes", "--json")

    facts = json.loads(out)
    assert (code, sorted(facts["deleted"]), facts["folders"]) == (1, ["gone", "kept"], [str(attached[1])])
    assert f"kept is deleted, but not all of its files: {attached[0]}: " in problems
    assert [*map(Path.exists, attached)] == [True, False]


def test_prune_deletes_the_files_that_an_earlier_one_could_not_delete(
    chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    attached, elsewhere = tmp_path / "home" / "attachments" / "old", tmp_path / "elsewhere"
    elsewhere.mkdir()
    attached.parent.mkdir(parents=True)
    attached.symlink_to(elsewhere)
    talked(chats, "old", age_days=40)

    codes = [run(capsys, "sessions", "prune", "--days", "30", "--yes")[0]]
    attached.unlink()
    elsewhere.rename(attached)
    codes.append(run(capsys, "sessions", "prune", "--days", "30", "--dry-run")[0])
    was_there = attached.is_dir()
    code, out, _ = run(capsys, "sessions", "prune", "--days", "30", "--yes", "--json")

    assert ([*codes, code], json.loads(out)) == ([1, 0, 0], {"deleted": [], "folders": [str(attached)]})
    assert (was_there, attached.exists()) == (True, False)


def test_a_deleted_session_takes_its_checkpoints_and_attachments_along_and_says_so(
    chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOLDFAST_HOME", str(home))
    own = [home / kind / name for name in ("report-1", "old") for kind in ("checkpoints", "attachments")]
    kept = [home / "checkpoints" / "other", home / "attachments" / "other", home / "memory"]
    for folder in (*own, *kept):
        folder.mkdir(parents=True)
        (folder / "text.md").write_text("words")
    talked(chats)
    talked(chats, "old", age_days=40)

    code, out, _ = run(capsys, "sessions", "rm", "report-1", "--yes")
    assert (code, out.splitlines()) == (0, ["deleted report-1: 10 events", *(f"deleted {one}" for one in own[:2])])
    _, dry, _ = run(capsys, "sessions", "prune", "--days", "30", "--dry-run", "--json")
    assert (json.loads(dry), own[2].exists()) == ({"would_delete": ["old"], "folders": []}, True)
    _, pruned, _ = run(capsys, "sessions", "prune", "--days", "30", "--yes", "--json")

    assert json.loads(pruned) == {"deleted": ["old"], "folders": [*map(str, own[2:])]}
    assert [folder for folder in (*own, *kept) if folder.exists()] == kept


def test_a_damaged_file_is_saved_as_far_as_it_can_be_read(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def talk(store: Store) -> None:
        for name in ("a", "b"):
            session = await Session.open(name, store=store)
            for message in generate_session(60):
                await session.record([message])
            await session.record([user_message(os.urandom(30_000).hex())])

    on(chats, talk)
    content = bytearray(chats.read_bytes())
    page = 4096
    for number in range(6, len(content) // page, 5):
        content[number * page : (number + 1) * page] = os.urandom(page)
    content[:16] = bytes(16)
    chats.write_bytes(content)

    assert run(capsys, "sessions")[0] == 2
    code, out, problems = run(capsys, "recover", str(chats), "-o", str(tmp_path / "new.db"), "--json")
    facts = json.loads(out)

    assert code == 1
    assert "could not be read" in problems
    assert bytes(content) == chats.read_bytes()
    assert sum(one["records"] for one in facts["sessions"]) > 20
    new = f"sqlite:///{tmp_path / 'new.db'}"
    for one in facts["sessions"]:
        assert run(capsys, "show", one["session"], "--store", new)[0] == 0
    assert run(capsys, "recover", str(chats), "-o", str(tmp_path / "new.db"))[0] == 2


def test_a_whole_file_is_recovered_whole(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talked(chats)
    fresh = chats.with_name("chats.recovered.db")

    assert run(capsys, "recover", str(chats)) == (0, f"saved 1 session with 10 records to {fresh}\n", "")
    assert run(capsys, "replay", "report-1", "--verify", "--store", f"sqlite:///{fresh}")[0] == 0


def test_a_recovery_that_breaks_off_leaves_no_file_that_looks_whole(
    chats: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talked(chats)
    fresh = chats.with_name("chats.recovered.db")

    async def write_a_part(self: SqliteStore, *_: object, **__: object) -> int:
        await self.put_value("one", {"of": "many"})
        raise StoreUnavailableError(str(self.path), "the disk is full; free some space and try again")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "append", write_a_part)
        code, _, problem = run(capsys, "recover", str(chats))
    left = sorted(chats.parent.glob("*chats.recovered*"))

    assert (code, problem) == (2, f"holdfast: {fresh}: the disk is full; free some space and try again\n")
    assert left == []
    assert run(capsys, "recover", str(chats))[0] == 0


def test_a_recovered_file_has_its_name_only_when_it_is_whole(
    chats: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talked(chats)
    fresh, written = chats.with_name("chats.recovered.db"), list[bool]()
    close = SqliteStore.close

    async def note(store: SqliteStore) -> None:
        if "recovered" in store.path.name:
            written.append(fresh.exists())
        await close(store)

    monkeypatch.setattr(SqliteStore, "close", note)
    code, _, _ = run(capsys, "recover", str(chats))

    assert (code, written, fresh.exists()) == (0, [False], True)
    assert sorted(one.name for one in chats.parent.glob("*recovered*")) == [fresh.name]


@pytest.mark.parametrize("folder", ["/", ".", ""])
def test_a_folder_is_no_file_to_recover(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "recover", folder) == (2, "", f"holdfast: {Path(folder)}: Is a directory; check the path\n")


@pytest.mark.parametrize("folder", ["/", "."])
def test_an_export_into_a_folder_says_what_is_wrong(
    folder: str, chats: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talked(chats)

    code, _, problem = run(capsys, "export", "report-1", "-o", folder)

    assert (code, problem) == (2, f"holdfast: {Path(folder)}: Is a directory; check the path\n")


@pytest.mark.parametrize("command", [("export", "report-1", "-o"), ("view", "report-1", "--export")])
def test_what_a_command_writes_never_replaces_a_store(
    command: tuple[str, ...], chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talked(chats)
    link = tmp_path / "out.txt"
    link.symlink_to(chats)

    found = [run(capsys, *command, str(path)) for path in (chats, link)]

    problem = f"{chats}: it is a SQLite file, which may hold sessions; choose another path\n"
    assert [(code, errors.endswith(problem)) for code, _, errors in found] == [(2, True), (2, True)]
    assert run(capsys, "replay", "report-1", "--verify")[0] == 0


@pytest.mark.parametrize("content", [b"", b"no database at all " * 500])
def test_a_file_with_nothing_to_save_is_called_so(
    content: bytes, chats: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chats.write_bytes(content)

    code, _, problem = run(capsys, "recover", str(chats))

    assert code == 2
    assert problem.count("\n") == 1
    assert not chats.with_name("chats.recovered.db").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["show", "nobody"], "session 'nobody' is not known; `holdfast sessions` lists what is there"),
        (["show", ""], "session '' is not known; `holdfast sessions` lists what is there"),
        (["show", "report"], "session 'report' could be any of report-2, report-1; give a longer prefix"),
        (["import", "/nowhere/x.jsonl"], "/nowhere/x.jsonl: No such file or directory; check the path"),
        (["sessions", "--store", "mysql://u:hunter2@h/d"], "--store: must be one of memory://, sqlite:///file"),
        (["scrub", "report-1", "ab"], "text: give at least 4 characters of the secret"),
    ],
)
def test_what_goes_wrong_is_one_line_and_no_traceback(
    arguments: list[str], problem: str, chats: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talked(chats)
    talked(chats, "report-2")

    code, out, problems = run(capsys, *arguments)

    assert (code, out) == (2, "")
    assert problems.startswith(f"holdfast: {problem}")
    assert problems.count("\n") == 1


@pytest.mark.parametrize(
    "command", [[], ["sessions"], ["sessions", "rm"], ["show"], ["replay"], ["scrub"], ["recover"]]
)
def test_help_teaches_with_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])

    assert end.value.code == 0
    assert not command or f"example:\n  holdfast {command[0]}" in capsys.readouterr().out


def test_a_reader_that_has_seen_enough_is_no_error(chats: Path) -> None:
    async def talk(store: Store) -> None:
        await (await Session.open("c1", store=store)).record(generate_session(2_000))

    on(chats, talk)
    program = [
        sys.executable,
        "-c",
        "import sys; from holdfast.apps.cli.main import main; sys.exit(main(['show', 'c1']))",
    ]

    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr is not None
        problems = process.stderr.read()

    assert (process.returncode, problems) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no device that is always full")
@pytest.mark.parametrize("arguments", [["export", "report-1"], ["--version"], []])
def test_a_full_disk_below_standard_output_is_one_line_and_not_done(chats: Path, arguments: list[str]) -> None:
    talked(chats)
    command = f"import sys; from holdfast.apps.cli.main import main; sys.exit(main({arguments}))"

    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    problem = "holdfast: standard output: No space left on device; what it has got is not whole\n"
    assert (done.returncode, done.stderr) == (2, problem)


def test_an_interrupt_ends_cleanly(
    chats: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talked(chats)

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Terminal())

    assert run(capsys, "sessions", "rm", "report-1")[0] == 130
    assert run(capsys, "show", "report-1")[0] == 0


class Terminal(StringIO):
    """A terminal, with what somebody types."""

    def isatty(self) -> bool:
        return True


def test_whoever_does_not_agree_deletes_nothing(
    chats: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talked(chats)
    monkeypatch.setattr(sys, "stdin", Terminal("no\n"))
    kept = run(capsys, "sessions", "rm", "report-1")
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    deleted = run(capsys, "sessions", "rm", "report-1")

    assert kept == (130, "", "delete session 'report-1' with 10 events? [y/N] holdfast: interrupted\n")
    assert deleted[0] == 0
    assert run(capsys, "sessions", "--json")[1] == "[]\n"


def test_a_replay_lists_requests_and_names_what_was_not_loaded(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talked(chats)

    sound = run(capsys, "replay", "report-1")
    on(
        chats,
        lambda store: store.append(
            "report-1", [{"type": "message.appended", "schema": 1, "data": 7}], after=10, time_ms=now_ms()
        ),
    )
    damaged = run(capsys, "replay", "report-1", "--verify")

    assert (sound[0], [line.split() for line in sound[1].splitlines()]) == (
        0,
        [["REQUEST", "MESSAGES"], ["1", "1"], ["2", "5"]],
    )
    assert damaged[0] == 1
    assert damaged[2].startswith("holdfast: not loaded: ")


def test_a_session_without_requests_has_nothing_to_prove(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def talk(store: Store) -> None:
        await (await Session.open("quiet", store=store)).record([user_message("Hello")])

    on(chats, talk)

    assert run(capsys, "replay", "quiet", "--verify") == (
        0,
        "0 requests: 0 the same, 0 scrubbed, 0 different\n",
        "",
    )


class ChangesWhileListed(MemoryStore):
    """A message arrives in the session `s` while the first page of a list is read."""

    async def sessions(self, **options: Any) -> list[SessionInfo]:
        page = await super().sessions(**options)
        if await self.length("s") == 1:
            await self.append("s", [message_record("more")], after=1, time_ms=NOW_MS + 100)
        return page


async def test_a_session_that_changes_while_sessions_are_listed_is_exported_with_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = ChangesWhileListed()
    await store.append("s", [message_record("first")], after=0, time_ms=NOW_MS)
    await store.rename("s", "Quarterly report")
    for number in range(60):
        await store.append(f"s{number}", [message_record("x")], after=0, time_ms=NOW_MS + 1)

    assert await export_session(Namespace(id="s", output=None, json=False), store) == 0

    header, *records = map(json.loads, capsys.readouterr().out.splitlines())
    assert header["data"] == {"session": "s", "name": "Quarterly report"}
    assert records == [
        {"timeMs": NOW_MS, **message_record("first")},
        {"timeMs": NOW_MS + 100, **message_record("more")},
    ]


def test_a_message_that_the_store_has_lost_is_named_in_an_export(
    chats: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def talk(store: Store) -> None:
        await (await Session.open("large", store=store)).record([user_message("heron " * 40_000)])

    on(chats, talk)
    with closing(sqlite3.connect(chats)) as connection, connection:
        assert connection.execute("DELETE FROM blobs").rowcount == 1

    code, _, told = run(capsys, "export", "large")

    assert code == 1
    assert re.fullmatch(
        r"holdfast: record \d+: the store has lost this message; the export has a notice in its place\n", told
    )


def test_a_scrub_says_where_the_secret_still_is(
    chats: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(database, "BUSY_MS", 50)
    talked(chats)
    with closing(sqlite3.connect(chats)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM events").fetchone()
        _, _, told = run(capsys, "scrub", "report-1", "sk-secret12345")

    assert f"holdfast: not finished: {chats}-wal still holds what was replaced" in told


def test_progress_is_shown_in_place_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, seconds = Terminal(), 0.0
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(output.time, "monotonic", lambda: seconds)
    progress = output.ProgressCounter("records")

    for count in (1, 1_000, 2_000):
        progress(count)
        seconds += 0.7
    progress.done()

    assert screen.getvalue() == "\r2,000 records\r\x1b[K"


@pytest.mark.parametrize(
    "option",
    [
        ["sessions", "--limit", "0"],
        ["sessions", "--limit", "9" * 20],
        ["view", "--port", "65536"],
        ["gateway", "--port", "x"],
        ["wrap", "claude", "--port", "65536"],
    ],
)
def test_a_number_that_cannot_be_is_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(option)

    form = "a whole number, 1 to 999,999,999" if "--limit" in option else "a port from 0 to 65535"
    assert (ended.value.code, f"must be {form}, not {option[-1]!r}" in capsys.readouterr().err) == (2, True)
