"""An import may be repeated at any time: while the program writes, after a crash, and after the log was damaged."""

import asyncio
import errno
import json
import os
import re
import shutil
import sqlite3
import stat
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.conversation.messages import Entry, Message
from holdfast.errors import SettingsError, StoreError
from holdfast.importers.importing import import_found, import_key
from holdfast.importers.programs import find_sessions, program_named
from holdfast.importers.source import FoundSession, ReadReport, read_json_lines, with_file_facts
from holdfast.session.maintenance.scrub import TOMBSTONE, is_scrubbed_copy, replace_secret, scrub
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store
from tests.importers.reading import LATER_MS, copy_of, found_in, import_all, lines_of
from tests.importers.test_programs import CLAUDE_CODE, PI, SESSIONS

LINE_FILES = {
    "claude-code": "projects/*/*.jsonl",
    "codex": "sessions/2026/03/02/*0001.jsonl",
    "copilot": "session-state/*/events.jsonl",
    "gemini": "tmp/sky/chats/session-2026-03-02T12-00-*.jsonl",
    "pi": "sessions/*/*.jsonl",
}
"""The main file of each program that writes lines."""
CLAUDE_FOLDER = "projects/-home-ada-garden/5e551000-0000-4000-8000-000000000001"
NOBODY = 65_534
PI_SESSION = "pi-01a00000-0000-7000-8000-0000000000aa"


def touch(root: Path) -> None:
    """Make files look changed, although they are not."""
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 5))


async def visible(store: Store, session: str) -> list[tuple[str, str]]:
    """Return what the model is sent next."""
    async with Session.open(session, store=store) as opened:
        return [_shown(entry) for entry in await opened.visible_messages()]


def _shown(entry: Entry) -> tuple[str, str]:
    message = entry.message
    calls = [call.id for call in message.calls] + [result.call_id for result in message.results]
    return message.role, " ".join([message.text, *calls])


@pytest.mark.parametrize("program", SESSIONS)
@pytest.mark.parametrize("is_touched", [False, True])
async def test_a_second_import_adds_nothing(program: str, tmp_path: Path, *, is_touched: bool) -> None:
    store, root = open_store(f"sqlite:///{tmp_path}/store.db"), copy_of(program, tmp_path)
    first = await import_all(store, root, program)
    if is_touched:
        touch(root)

    again = await import_all(store, root, program)

    assert [(one.new_messages, one.is_new, one.rewound_to) for one in again] == [(0, False, None)] * len(first)
    assert [(one.messages, one.agents, one.compactions) for one in again] == [
        (one.messages, one.agents, one.compactions) for one in first
    ]
    assert {one.session: await lines_of(store, one.session) for one in again} == SESSIONS[program]
    await store.close()


class KilledWhenNaming(MemoryStore):
    """A store whose process ends when it is to name a session, once for each."""

    def __init__(self) -> None:
        super().__init__()
        self.killed = set[str]()

    async def rename(self, session: str, name: str) -> None:
        if session not in self.killed:
            self.killed.add(session)
            raise asyncio.CancelledError
        await super().rename(session, name)


async def test_an_import_that_was_killed_before_it_named_a_session_names_it_when_it_is_repeated(tmp_path: Path) -> None:
    store, root = KilledWhenNaming(), copy_of("claude-code", tmp_path)
    titles = {one.session_id: one.title for one in found_in(root, "claude-code")}
    for _ in titles:
        with suppress(asyncio.CancelledError):
            await import_all(store, root, "claude-code")

    await import_all(store, root, "claude-code")

    assert store.killed
    assert {info.id: info.name for info in await store.sessions()} == titles


@pytest.mark.parametrize("program", LINE_FILES)
async def test_a_session_that_grows_gets_only_what_is_new(program: str, tmp_path: Path) -> None:
    root, whole = copy_of(program, tmp_path), MemoryStore()
    await import_all(whole, root, program)
    session, expected = next(iter(SESSIONS[program].items()))
    (path,) = root.glob(LINE_FILES[program])
    lines, store = path.read_bytes().splitlines(keepends=True), MemoryStore()

    rewinds: list[int | None] = []
    for stop in range(1, len(lines) + 1):
        path.write_bytes(b"".join(lines[:stop]))
        for one in found_in(root, program):
            if one.session_id == session:
                is_last = stop == len(lines)
                now_ms = LATER_MS if is_last else one.modified_ms
                done = await import_found(store, program_named(program), one, now_ms=now_ms)
                rewinds.append(done.rewound_to)

    assert not any(rewinds)
    # The agents' turns come in another order, so that compactions and rewinds have other positions.
    grown, whole_lines = (
        sorted(
            (line for line in lines if not any(word in line for word in ("compaction", "rewound", "started"))),
            key=lambda line: line.partition(": ")[0],
        )
        for lines in (await lines_of(store, session), expected)
    )
    assert grown == whole_lines
    assert await visible(store, session) == await visible(whole, session)


async def test_what_a_program_compacted_is_left_out_of_its_list_and_recalled(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("claude-code", tmp_path)
    (done,) = await import_all(store, root, "claude-code")

    async with Session.open(done.session, store=store) as session:
        answer = str(await session.recall("tulips in bed 1"))
        shown = [entry.message.text for entry in await session.visible_messages()]

    assert "Twelve in bed 1" in answer
    assert shown == [
        "This session is being continued. Summary: twelve tulips, four roses.",
        "Four roses. I did not look for lilies.",
        "<local-command-caveat>The command below was run directly.</local-command-caveat>",
        "<command-name>/compact</command-name>",
        "<local-command-stdout>Compacted</local-command-stdout>",
        "<system-reminder>\nResult of calling the Read tool:\ntwelve tulips\n</system-reminder>",
        "How many flowers?",
        "Sixteen.",
    ]


@pytest.mark.parametrize("program", LINE_FILES)
async def test_damaged_and_unknown_lines_are_counted_and_the_rest_is_imported(program: str, tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of(program, tmp_path)
    (path,) = root.glob(LINE_FILES[program])
    first, *others = path.read_bytes().splitlines(keepends=True)
    bad = [
        b'{"type": "teapot", "payload": {}}\n',
        b"\xff\xfe garbage\n",
        b"[1, 2]\n",
        b"\x00\x00\x00\n",
        b"[" * 5_000,
        b"\n",
    ]
    path.write_bytes(b"".join([first, *bad, *others, b'{"type": "assist']))

    (done, *_) = await import_all(store, root, program)

    session, expected = next(iter(SESSIONS[program].items()))
    kind = "type" if program == "gemini" else "teapot"
    assert (dict(done.report.unknown), dict(done.report.damaged)) == (
        {kind: 1},
        {"not JSON": 2, "not a JSON object": 1},
    )
    assert done.report.is_unfinished
    assert await lines_of(store, session) == expected


@pytest.mark.parametrize("program", LINE_FILES)
async def test_any_line_may_be_damaged_also_the_first(program: str, tmp_path: Path) -> None:
    root = copy_of(program, tmp_path)
    (path,) = root.glob(LINE_FILES[program])
    lines = path.read_bytes().splitlines(keepends=True)

    for number, line in enumerate(lines):
        path.write_bytes(b"".join([*lines[:number], line[: len(line) // 2], b"\n", *lines[number + 1 :]]))
        store = MemoryStore()
        done = await import_all(store, root, program)

        # A fork reads the first lines of its parent too, and one more to see that they are all.
        times = 2 if program == "codex" and number <= 15 else 1
        assert sum(one.report.damaged["not JSON"] for one in done) == times
        assert all(one.messages > 1 for one in done)
        assert await visible(store, done[0].session)


async def test_damaged_rows_of_a_database_are_counted_and_the_rest_is_imported(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("opencode", tmp_path)
    database = sqlite3.connect(root / "opencode.db")
    database.execute("INSERT INTO part VALUES ('prt_000', 'msg_03', 'ses_1', 1, 1, '{\"type\": \"teapot\"}')")
    database.execute("INSERT INTO part VALUES ('prt_999', 'msg_03', 'ses_1', 1, 1, '{')")
    database.execute("INSERT INTO message VALUES ('msg_99', 'ses_1', 1, 1, 'null')")
    database.commit()
    database.close()

    (done,) = await import_all(store, root, "opencode")

    assert (dict(done.report.unknown), dict(done.report.damaged)) == ({"teapot": 1}, {"not JSON": 2})
    assert await lines_of(store, done.session) == SESSIONS["opencode"][done.session]


async def test_a_database_is_not_changed_and_gets_no_files_beside_it(tmp_path: Path) -> None:
    root = copy_of("opencode", tmp_path)
    database = sqlite3.connect(root / "opencode.db")
    database.execute("PRAGMA journal_mode=WAL")
    database.close()
    before = (root / "opencode.db").read_bytes()

    await import_all(MemoryStore(), root, "opencode")

    assert [path.name for path in root.iterdir()] == ["opencode.db"]
    assert (root / "opencode.db").read_bytes() == before


async def test_a_database_that_a_program_has_open_is_read_with_its_newest_messages(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("opencode", tmp_path)
    writer = sqlite3.connect(root / "opencode.db")
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("INSERT INTO message VALUES ('msg_11', 'ses_1', 1772460030000, 1, '{\"role\": \"user\"}')")
    writer.execute(
        "INSERT INTO part VALUES ('prt_100', 'msg_11', 'ses_1', 1, 1, '{\"type\": \"text\", \"text\": \"One more\"}')"
    )
    writer.commit()

    (done,) = await import_all(store, root, "opencode")

    assert await lines_of(store, done.session) == [*SESSIONS["opencode"][done.session], "main: user: One more"]
    writer.close()


async def test_an_answer_that_is_being_written_waits_for_the_next_import(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("claude-code", tmp_path)
    (path,) = root.glob(LINE_FILES["claude-code"])
    lines = path.read_text().splitlines(keepends=True)
    stop = next(number for number, line in enumerate(lines) if '"toolu_1", "name": "Read"' in line)
    path.write_text("".join(lines[:stop]))
    (found,) = found_in(root, "claude-code")

    early = await import_found(store, program_named("claude-code"), found, now_ms=found.modified_ms)

    assert early.waiting == 1
    assert (await lines_of(store, early.session))[:3] == CLAUDE_CODE[:3]
    path.write_text("".join(lines))
    await import_all(store, root, "claude-code")
    shown = [line for line in await lines_of(store, early.session) if line.startswith("main: ")]
    assert shown[:4] == CLAUDE_CODE[:4]


async def test_a_log_that_was_rewritten_rewinds_the_session_to_the_first_difference(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("pi", tmp_path)
    await import_all(store, root, "pi")
    (path,) = root.glob(LINE_FILES["pi"])
    path.write_text(path.read_text().replace("A fine boat.", "A fine old boat."))

    (done,) = await import_all(store, root, "pi")
    again = await import_all(store, root, "pi")
    touch(root)
    once_more = await import_all(store, root, "pi")

    assert (done.rewound_to, done.new_messages) == (12, 1)
    assert [one.new_messages for one in (*again, *once_more)] == [0, 0]
    assert await lines_of(store, PI_SESSION) == [
        *PI,
        "rewound to 12",
        "main: assistant: A fine old boat. [100+7→5]",
    ]


async def test_a_session_that_went_on_in_the_store_is_left_alone(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("pi", tmp_path)
    await import_all(store, root, "pi")
    async with Session.open(PI_SESSION, store=store) as session:
        await session.record([{"role": "user", "content": "Go on here"}])
    touch(root)

    with pytest.raises(SettingsError, match="went on in this store since its import"):
        await import_all(store, root, "pi")

    assert (await lines_of(store, PI_SESSION))[-1] == "main: user: Go on here"


async def test_a_session_of_the_same_name_that_was_not_imported_is_left_alone(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("pi", tmp_path)
    async with Session.open(PI_SESSION, store=store) as session:
        await session.record([{"role": "user", "content": "Mine"}])

    with pytest.raises(SettingsError, match="exists already and was not imported"):
        await import_all(store, root, "pi")


async def test_an_import_that_was_interrupted_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, root = MemoryStore(), copy_of("claude-code", tmp_path)
    monkeypatch.setattr("holdfast.importers.importing.BATCH_RECORDS", 7)
    append, calls = store.append, list[int]()

    async def failing_append(*args: object, **options: object) -> int:
        calls.append(1)
        if len(calls) == 3:
            raise OSError("the disk is full")
        return await append(*args, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(store, "append", failing_append)
    with pytest.raises(OSError, match="the disk is full"):
        await import_all(store, root, "claude-code")

    (done,) = await import_all(store, root, "claude-code")

    assert await lines_of(store, done.session) == CLAUDE_CODE


class StopsAtAppend(MemoryStore):
    """Fails at the so-many-th append from now on."""

    appends_left = 0

    async def append(self, session: str, records: Any, **rest: Any) -> int:
        self.appends_left -= 1
        if self.appends_left == 0:
            raise KeyboardInterrupt
        return await super().append(session, records, **rest)


async def test_an_import_of_a_rewritten_log_that_was_interrupted_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.importers.importing.BATCH_RECORDS", 3)
    store, root = StopsAtAppend(), copy_of("pi", tmp_path)
    await import_all(store, root, "pi")
    (path,) = root.glob(LINE_FILES["pi"])
    path.write_text(path.read_text().replace("Check the sails", "Check all the sails"))
    store.appends_left = 3
    with pytest.raises(KeyboardInterrupt):
        await import_all(store, root, "pi")

    await import_all(store, root, "pi")

    expected = ["model: m", "main: user: Check all the sails", *PI[2:]]
    expected = [line.replace("rewound to 4", "rewound to 17") for line in expected]
    expected = [line.replace("0–11, kept [9, 10]", "0–24, kept [22, 23]") for line in expected]
    assert await lines_of(store, PI_SESSION) == [*PI, "rewound to 0", *expected]


class ImportsMeanwhile(MemoryStore):
    """Has another process import everything once this one knows that the store does not have it."""

    root: Path | None = None

    async def length(self, session: str) -> int:
        length, root, self.root = await super().length(session), self.root, None
        if root is not None:
            await import_all(self, root, "pi")
        return length


async def test_two_processes_that_import_a_session_at_once_leave_it_as_one_does(tmp_path: Path) -> None:
    store, root = ImportsMeanwhile(), copy_of("pi", tmp_path)
    store.root = root

    (second,) = await import_all(store, root, "pi")
    assert (second.is_new, second.new_messages, second.messages) == (False, 0, 13)
    (path,) = root.glob(LINE_FILES["pi"])
    path.write_text(path.read_text().replace("A fine boat.", "A fine old boat."))
    (done,) = await import_all(store, root, "pi")

    assert (done.rewound_to, done.new_messages) == (12, 1)
    assert await lines_of(store, PI_SESSION) == [*PI, "rewound to 12", "main: assistant: A fine old boat. [100+7→5]"]


async def test_of_two_copies_of_a_session_the_one_that_was_changed_last_is_imported(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("pi", tmp_path)
    (path,) = root.glob(LINE_FILES["pi"])
    copied = path.parent.with_name("zz-backup") / path.name
    shutil.copytree(path.parent, copied.parent)
    lines = copied.read_text().splitlines(keepends=True)
    copied.write_text("".join(lines[:4]))
    os.utime(copied, (1, 1))

    await import_all(store, root, "pi")

    assert await lines_of(store, PI_SESSION) == PI


async def test_what_opencode_has_taken_back_and_restored_is_in_force_again(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("opencode", tmp_path)
    path, shown = root / "opencode.db", list[list[str]]()
    for number, revert in enumerate(['{"messageID": "msg_09"}', None, '{"messageID": "msg_10"}', None]):
        database = sqlite3.connect(path)
        changed = 1_772_460_090_000 + number
        database.execute("UPDATE session SET revert = ?, time_updated = ? WHERE id = 'ses_1'", (revert, changed))
        database.commit()
        database.close()
        whole = MemoryStore()
        for one in (store, whole):
            await import_all(one, root, "opencode")
        assert await visible(store, "opencode-ses_1") == await visible(whole, "opencode-ses_1")
        shown.append([text for _, text in await visible(store, "opencode-ses_1")])

    (again,) = await import_all(store, root, "opencode")

    before, both = ["Nine fish; the depth is unknown.", "I cannot say."], ["Continue if you have next steps.", "Done."]
    assert shown == [before, [*before, *both], [*before, both[0]], [*before, *both]]
    assert (again.new_messages, again.rewound_to) == (0, None)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no named pipes")
def test_links_out_of_the_folder_pipes_and_unreadable_files_are_not_followed(tmp_path: Path) -> None:
    root, elsewhere = copy_of("pi", tmp_path), tmp_path / "elsewhere.jsonl"
    (path,) = root.glob(LINE_FILES["pi"])
    elsewhere.write_text('{"type": "session", "id": "secret"}\n')
    (path.parent / "link.jsonl").symlink_to(elsewhere)
    (path.parent / "folder").symlink_to(tmp_path)
    os.mkfifo(path.parent / "pipe.jsonl")
    (path.parent / "gone.jsonl").symlink_to(path.parent / "nothing.jsonl")
    (path.parent / "loop.jsonl").symlink_to("loop.jsonl")
    report = ReadReport()

    found = find_sessions(program_named("pi"), root, report)

    assert [one.id for one in found] == ["01a00000-0000-7000-8000-0000000000aa"]
    assert sorted(report.outside) == [str(path.parent / "folder"), str(path.parent / "link.jsonl")]
    assert report.unreadable == [f"{path.parent / 'loop.jsonl'}: {os.strerror(errno.ELOOP)}"]


@contextmanager
def without_rights() -> Generator[None]:
    """Act as a user whom permissions restrict: they do not restrict root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize(
    ("program", "locked", "mode", "unreadable"),
    [
        ("claude-code", "projects/other", 0o444, ["projects/other/more.jsonl", "projects/other/folder"]),
        ("claude-code", CLAUDE_FOLDER, 0, [CLAUDE_FOLDER]),
        ("copilot", "session-state/c0910700-0000-4000-8000-000000000001/workspace.yaml", 0, []),
        ("gemini", "tmp/sky/.project_root", 0, []),
        ("gemini", "tmp/sky/chats/session-more.json", 0, ["tmp/sky/chats/session-more.json"]),
        ("opencode", "storage/session/other/more.json", 0, ["storage/session/other/more.json"]),
    ],
)
def test_a_file_or_a_folder_that_cannot_be_read_hides_no_session(
    program: str, locked: str, mode: int, unreadable: list[str]
) -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = copy_of(program, Path(folder))
        for one in (root, *root.rglob("*")):
            one.chmod(0o755)  # a checkout under a strict umask is for its owner only
        everything = [one.id for one in found_in(root, program)]
        path, report = root / locked, ReadReport()
        if path.suffix and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
        elif not path.exists():
            (path / "folder").mkdir(parents=True)
            (path / "more.jsonl").write_text("{}")
        path.chmod(mode)

        with without_rights():
            found = [one.id for one in found_in(root, program, report)]

        path.chmod(0o755)

    assert found == everything
    assert sorted({problem.removesuffix(f": {os.strerror(errno.EACCES)}") for problem in report.unreadable}) == sorted(
        str(root / one) for one in unreadable
    )


def test_a_session_that_goes_while_the_sessions_are_listed_stops_nothing(tmp_path: Path) -> None:
    gone = FoundSession(program="pi", id="one", path=tmp_path / "one", files=(tmp_path / "one",), modified_ms=5)

    assert with_file_facts(gone) == gone


def test_a_line_that_is_too_long_is_skipped_without_being_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.importers.source.MAX_LINE_BYTES", 100)
    path, report = tmp_path / "log.jsonl", ReadReport()
    path.write_text("\n".join(['{"n": 1}', json.dumps({"n": "x" * 1_000}), '{"n": 2}', '{"n": 3}']))

    assert [line["n"] for line in read_json_lines(path, report)] == [1, 2, 3]
    assert dict(report.damaged) == {"longer than 64 MiB": 1}


def test_half_a_character_and_a_byte_order_mark_are_no_part_of_a_line(tmp_path: Path) -> None:
    path, report = tmp_path / "log.jsonl", ReadReport()
    path.write_bytes(b'\xef\xbb\xbf{"n": "cut \\ud83d"}\r\n{"n": "whole \\ud83d\\ude00", "list": ["\\uDE00"]}\r\n')

    assert list(read_json_lines(path, report)) == [{"n": "cut \ufffd"}, {"n": "whole 😀", "list": ["\ufffd"]}]
    assert dict(report.damaged) == {}


async def test_a_summary_that_a_program_cut_within_a_character_can_be_counted(tmp_path: Path) -> None:
    said = [
        {"sessionId": "9e31", "startTime": "2026-03-02T12:00:00Z"},
        {"id": "1", "type": "user", "content": "Look at the sky"},
        {"id": "2", "type": "gemini", "content": "It is blue"},
        {"$set": {"messages": [{"id": "3", "type": "user", "content": "A summary \ud83d"}]}},
    ]
    path = tmp_path / "sky" / "chats" / "session-1.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in said))
    store = MemoryStore()
    await import_all(store, tmp_path, "gemini")

    async with Session.open("gemini-9e31", store=store) as session:
        request = await session.prepare(16_000)

    assert "A summary \ufffd" in str(request.messages)


async def test_an_entry_that_claude_code_repeats_does_not_end_the_import(tmp_path: Path) -> None:
    def said(uuid: str, parent: str | None, role: str, text: str) -> str:
        message = {"role": role, "content": [{"type": "text", "text": text}], "id": uuid, "stop_reason": "end_turn"}
        entry = {"type": role, "uuid": uuid, "parentUuid": parent, "sessionId": "5e55", "message": message}
        return f"{json.dumps(entry)}\n"

    first, answer = said("a", None, "user", "Hello"), said("b", "a", "assistant", "Good day")
    (tmp_path / "5e55.jsonl").write_text(first + answer + first + said("c", "b", "user", "And now?"))
    store = MemoryStore()

    (done,) = await import_all(store, tmp_path, "claude-code")

    assert await lines_of(store, done.session) == [
        "main: user: Hello",
        "main: assistant: Good day",
        "main: user: Hello",
        "rewound to 2",
        "main: user: And now?",
    ]


def test_the_end_of_a_file_may_be_a_line_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.importers.source.MAX_LINE_BYTES", 100)
    path, report = tmp_path / "log.jsonl", ReadReport()
    path.write_text('{"n": 1}\n' + json.dumps({"n": "x" * 3_000_000}))

    assert [line["n"] for line in read_json_lines(path, report)] == [1]
    assert (report.lines, dict(report.damaged)) == (1, {"longer than 64 MiB": 1})


def test_a_file_that_is_cut_while_it_is_read_ends_there(tmp_path: Path) -> None:
    path, report = tmp_path / "log.jsonl", ReadReport()
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(100_000)))
    lines = read_json_lines(path, report)
    read = [next(lines)["n"]]
    os.truncate(path, 0)

    read += [line["n"] for line in lines]

    assert 0 < len(read) < 100_000
    assert (read, report.is_unfinished, dict(report.damaged)) == (list(range(len(read))), True, {})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no named pipes")
async def test_a_file_that_became_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    root = copy_of("pi", tmp_path)
    (path,) = root.glob(LINE_FILES["pi"])
    (found,) = found_in(root, "pi")
    path.unlink()
    os.mkfifo(path)

    with pytest.raises(OSError, match="is not a regular file"):
        await import_found(MemoryStore(), program_named("pi"), found, now_ms=LATER_MS)


async def test_hostile_text_stays_text(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("pi", tmp_path)
    (path,) = root.glob(LINE_FILES["pi"])
    hostile = "\x1b]0;owned\x07 \ud800 <script>alert(1)</script>"
    path.write_text(path.read_text().replace('"Sails"', json.dumps(hostile)).replace('"Sold."', json.dumps(hostile)))

    (done,) = await import_all(store, root, "pi")

    assert done.found.title == "]0;owned <script>alert(1)</script>"
    (info,) = await store.sessions()
    assert info.name.isprintable()
    assert (await lines_of(store, PI_SESSION))[
        6
    ] == "main: assistant: \x1b]0;owned\x07 � <script>alert(1)</script> [100+7→5]"
    touch(root)
    assert [one.new_messages for one in await import_all(store, root, "pi")] == [0]


def test_logs_are_only_read(tmp_path: Path) -> None:
    root = copy_of("claude-code", tmp_path)
    for path in root.rglob("*"):
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))

    (found,) = found_in(root, "claude-code")

    assert found.size > 0
    for path in [root, *root.rglob("*")]:
        path.chmod(stat.S_IRWXU)


@settings(max_examples=25, deadline=None)
@given(
    program=st.sampled_from(sorted(LINE_FILES)),
    edits=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=12), st.integers(0, 400)), max_size=6),
)
def test_whatever_happens_to_the_bytes_an_import_works_and_a_second_one_adds_nothing(
    program: str, edits: list[tuple[float, bytes, int]]
) -> None:
    async def import_twice(root: Path) -> None:
        store = MemoryStore()
        first = await import_all(store, root, program)
        touch(root)
        again = await import_all(store, root, program)
        assert [(one.new_messages, one.rewound_to) for one in again] == [(0, None)] * len(first)
        for one in first:
            if one.messages:
                async with Session.open(one.session, store=store) as session:
                    assert session.damage == []

    with TemporaryDirectory() as folder:
        root = copy_of(program, Path(folder))
        (path,) = root.glob(LINE_FILES[program])
        content = path.read_bytes()
        for place, added, removed in edits:
            at = int(place * len(content))
            content = content[:at] + added + content[at + removed :]
        path.write_bytes(content)
        asyncio.run(import_twice(root))


@pytest.mark.parametrize("kind", [[], {}, 7, None])
@pytest.mark.parametrize("program", LINE_FILES)
async def test_a_line_whose_kind_is_no_text_is_counted_and_the_rest_imported(
    program: str, kind: object, tmp_path: Path
) -> None:
    sound, spoiled = MemoryStore(), MemoryStore()
    await import_all(sound, copy_of(program, tmp_path / "sound"), program)
    root = copy_of(program, tmp_path / "spoiled")
    for path in root.rglob("*.jsonl"):
        path.write_text(path.read_text() + json.dumps({"type": kind, "payload": {"type": kind}}) + "\n")

    done = await import_all(spoiled, root, program)

    assert [await lines_of(spoiled, one.session) for one in done] == [
        await lines_of(sound, one.session) for one in done
    ]


async def test_a_message_that_cannot_be_read_is_left_out_by_every_import_alike(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("codex", tmp_path)
    [path] = root.glob(LINE_FILES["codex"])
    lines = path.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if '"role": "user"' in line or '"role":"user"' in line)
    broken = json.loads(lines[at])
    broken["payload"]["content"] = 7
    lines.insert(at, json.dumps(broken))
    path.write_text("\n".join(lines) + "\n")
    first = await import_all(store, root, "codex")
    touch(root)

    again = await import_all(store, root, "codex")

    damaged = [{"a message that its format does not allow": 1}] * len(first)  # the second one continues the first
    assert [one.new_messages > 0 for one in first] == [True] * len(first)
    assert [(one.new_messages, one.rewound_to) for one in again] == [(0, None)] * len(first)
    assert [one.report.damaged for one in first] == damaged
    assert [one.report.damaged for one in again] == damaged


async def test_a_rewind_may_name_a_message_that_was_left_out(tmp_path: Path) -> None:
    store, path = MemoryStore(), tmp_path / "5e55.jsonl"

    def said(uuid: str, parent: str, content: object, role: str = "user") -> str:
        message = {"role": role, "content": content, "id": uuid}
        return json.dumps({"type": role, "uuid": uuid, "parentUuid": parent, "sessionId": "5e55", "message": message})

    lines = [
        said("u1", "", "Hello"),
        said("a1", "u1", [{"type": "text", "text": "Good day."}], "assistant"),
        said("u2", "a1", [7]),
        said("a2", "u2", [{"type": "text", "text": "I cannot read that."}], "assistant"),
        said("u3", "a1", "How are you?"),
    ]
    path.write_text("\n".join(lines) + "\n")
    first, *_ = await import_all(store, path, "claude-code")
    with path.open("a") as file:
        file.write(said("a3", "u3", [{"type": "text", "text": "Well."}], "assistant") + "\n")
    again, *_ = await import_all(store, path, "claude-code")

    assert await lines_of(store, first.session) == [
        "main: user: Hello",
        "main: assistant: Good day.",
        "main: assistant: I cannot read that.",
        "rewound to 2",
        "main: user: How are you?",
        "main: assistant: Well.",
    ]
    assert (again.new_messages, again.rewound_to) == (1, None)


async def test_a_summary_of_messages_that_the_log_does_not_hold_is_a_message(tmp_path: Path) -> None:
    store, path = MemoryStore(), tmp_path / "2026-03-02T13-00-00-000Z_01bb.jsonl"
    lines: list[object] = [
        {"type": "session", "id": "01bb"},
        {"type": "compaction", "id": "p1", "parentId": "", "summary": "The sails are fine."},
        {"type": "message", "id": "p2", "parentId": "p1", "message": {"role": "user", "content": "Sell the boat"}},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    first, *_ = await import_all(store, path, "pi")
    touch(tmp_path)
    again, *_ = await import_all(store, path, "pi")

    expected = ["main: memory: The sails are fine.", "main: user: Sell the boat"]
    assert await lines_of(store, first.session) == expected
    assert (first.new_messages, first.compactions, again.new_messages, again.rewound_to) == (2, 0, 0, None)


async def test_a_database_that_is_damaged_further_in_is_reported_as_such(tmp_path: Path) -> None:
    root = copy_of("opencode", tmp_path)
    path = root / "opencode.db"
    content = bytearray(path.read_bytes())
    content[5_000:] = b"\xff" * (len(content) - 5_000)
    path.write_bytes(content)

    with pytest.raises(StoreError, match="cannot be read as a database of opencode"):
        await import_all(MemoryStore(), root, "opencode")


async def test_an_answer_that_turns_out_to_be_a_summary_is_taken_back_and_its_compaction_is_imported(
    tmp_path: Path,
) -> None:
    root, whole, store = copy_of("codex", tmp_path), MemoryStore(), MemoryStore()
    await import_all(whole, root, "codex")
    session = next(iter(SESSIONS["codex"]))
    (path,) = root.glob(LINE_FILES["codex"])
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if b'"type": "compacted"' in line)
    path.write_bytes(b"".join(lines[:at]))
    before, *_ = await import_all(store, root, "codex")
    path.write_bytes(b"".join(lines))

    after, *_ = await import_all(store, root, "codex")
    touch(root)
    again, *_ = await import_all(store, root, "codex")

    assert (before.compactions, after.compactions, again.compactions) == (0, 1, 1)
    assert (after.rewound_to, again.rewound_to, again.new_messages) == (before.messages - 1, None, 0)
    assert await visible(store, session) == await visible(whole, session)


async def test_a_compaction_that_keeps_something_else_than_before_is_imported_again(tmp_path: Path) -> None:
    root, whole, store = copy_of("codex", tmp_path), MemoryStore(), MemoryStore()
    await import_all(whole, root, "codex")
    session = next(iter(SESSIONS["codex"]))
    (path,) = root.glob(LINE_FILES["codex"])
    sound = path.read_text()
    lines = [json.loads(line) for line in sound.splitlines()]
    for line in lines:
        if line["type"] == "compacted":
            line["payload"]["replacement_history"] = []
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    await import_all(store, root, "codex")
    path.write_text(sound)

    after, *_ = await import_all(store, root, "codex")
    touch(root)
    again, *_ = await import_all(store, root, "codex")

    assert (after.rewound_to, again.rewound_to, again.new_messages) == (0, None, 0)
    assert (after.compactions, again.compactions) == (1, 1)
    assert await visible(store, session) == await visible(whole, session)


@pytest.mark.parametrize("program", SESSIONS)
async def test_a_scrubbed_secret_does_not_come_back_with_the_next_import(program: str, tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of(program, tmp_path)
    sessions = [one.session for one in await import_all(store, root, program)]
    scrubbed = 0
    for session in sessions:
        said = " ".join([message.text async for message in _messages(store, session)])
        for secret in sorted({*re.findall(r"[A-Za-z]{4,}", said)}):
            scrubbed += (await scrub(store, session, secret, time_ms=LATER_MS)).count
    before = [await store.read(session) for session in sessions]
    touch(root)

    again = await import_all(store, root, program)

    assert scrubbed > 10
    assert [(one.new_messages, one.rewound_to) for one in again] == [(0, None)] * len(sessions)
    assert [await store.read(session) for session in sessions] == before


async def test_the_title_of_an_import_is_scrubbed_everywhere_and_stays_so(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("claude-code", tmp_path)
    (first,) = await import_all(store, root, "claude-code")
    title = (await store.sessions())[0].name
    secret = title.split()[0]

    await scrub(store, first.session, secret, time_ms=LATER_MS)
    touch(root)
    await import_all(store, root, "claude-code")

    assert (await store.sessions())[0].name == title.replace(secret, TOMBSTONE)
    assert secret not in json.dumps(await store.get_value(import_key(first.session)))


@given(
    pieces=st.lists(st.text('ab"\\\n1', max_size=4), max_size=5),
    secret=st.text("xyz1", min_size=4, max_size=6),
    number=st.integers(),
)
def test_what_a_scrub_has_made_is_recognized_and_nothing_else(pieces: list[str], secret: str, number: int) -> None:
    text = secret.join(pieces)
    original = {"text": text, "json": json.dumps({secret: [text]}), "rest": [number, None, {secret: text}]}

    copy, _ = replace_secret(original, secret)

    assert is_scrubbed_copy(copy, original)
    assert not is_scrubbed_copy(copy, {**original, "more": None})
    assert not is_scrubbed_copy({"n": f"a {TOMBSTONE}, {TOMBSTONE} b"}, {"n": f"a {secret} b"})
    assert not is_scrubbed_copy(original, {**original, "rest": [number, None]})
    assert is_scrubbed_copy({"n": TOMBSTONE}, {"n": number})


async def _messages(store: Store, session: str) -> AsyncIterator[Message]:
    async with Session.open(session, store=store) as opened:
        for entry in opened.history.entries:
            yield entry.message
