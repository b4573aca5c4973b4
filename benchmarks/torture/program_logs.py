"""Logs of other programs that are cut, edited, mixed up or of another kind: what can be read is imported, and once.

The logs are those of the tests. Each case spoils some of their lines, imports, spoils them further or puts the sound
ones back, and imports again. No file makes an import fail with anything but an error of Holdfast; a second import of
the same files adds nothing; what was imported opens, can be sent and searched; and after the sound logs are back, the
session has every message that an import of these alone has.
"""

import asyncio
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from benchmarks.torture.fuzzing import container_slots
from benchmarks.torture.observed import differing_requests
from benchmarks.torture.odd_values import ODD_VALUES, json_bytes
from holdfast import Session, validate
from holdfast.core.history import events as log
from holdfast.errors import CannotFitError, EmptyConversationError, HoldfastError
from holdfast.importers.importing import SessionImport, import_found
from holdfast.importers.programs import SOURCE_PROGRAMS, find_sessions, program_named
from holdfast.importers.source import ReadReport
from holdfast.stores.memory import MemoryStore

LOGS = Path(__file__).parent.parent.parent / "tests" / "importers" / "logs"
LATER_MS = 4_000_000_000_000
BUDGET = 3_000
OPERATIONS = ["set", "set", "set", "remove", "cut", "swap", "double", "insert", "bytes", "empty", "replace", "delete"]
LINES = [
    b"", b"{}", b"[]", b"null", b"\0" * 40, b"\xff\xfe", b'{"type":', b'{"type": [], "payload": {"type": {}}}',
    b"9" * 5_000, b"[" * 5_000, b'"' + b"x" * 100_000 + b'"', b"SQLite format 3\0", b"\x1f\x8b\x08 gzip",
    b'{"type":"user"}' * 3,
]  # fmt: skip
EDITS = st.lists(
    st.fixed_dictionaries(
        {
            "operation": st.sampled_from(OPERATIONS),
            "file": st.integers(0, 5),
            "line": st.integers(0, 40),
            "slot": st.integers(0, 60),
            "value": ODD_VALUES,
            "raw": st.integers(0, len(LINES) - 1),
        }
    ),
    max_size=4,
)
STRATEGIES = tuple(
    st.fixed_dictionaries(
        {
            "program": st.just(name),
            "first": EDITS,
            "second": st.one_of(st.none(), EDITS),
            "is_settled": st.booleans(),
        }
    )
    for name in SOURCE_PROGRAMS
)


def check(case: Mapping[str, Any]) -> None:
    """Import spoiled logs twice."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_import_twice(Path(folder), case))


async def _import_twice(folder: Path, case: Mapping[str, Any]) -> None:
    program, store = str(case["program"]), MemoryStore()
    root = copy_logs(program, folder / "logs")
    spoil(root, case["first"])
    now_ms = LATER_MS if case["is_settled"] else 1
    first = await import_all(store, program, root, now_ms=now_ms)
    for one in first:
        await check_session(store, one)
    went_back = {one.session: await rewinds_in(store, one.session) for one in first}
    for one in await import_all(store, program, root, now_ms=now_ms):
        assert one.new_messages == 0, "imported twice"
    shutil.rmtree(root)
    copy_logs(program, root)
    spoil(root, case["second"] or [])
    for one in await import_all(store, program, root, now_ms=LATER_MS):
        await check_session(store, one)
        if case["second"] is None:
            alone = MemoryStore()
            [fresh] = [
                new for new in await import_all(alone, program, root, now_ms=LATER_MS) if new.session == one.session
            ]
            # A spoiled log may say that somebody went back, which cannot be taken back.
            if went_back.get(one.session, 0) <= await rewinds_in(alone, one.session):
                assert await said_in(store, one) == await said_in(alone, fresh), "not as if imported at once"


def copy_logs(program: str, root: Path) -> Path:
    """Return a copy of a program's logs that may be spoiled."""
    shutil.copytree(LOGS / program, root)
    if program == "opencode":
        script = root / "opencode.sql"
        with closing(sqlite3.connect(root / "opencode.db")) as database:
            database.executescript(f"BEGIN; {script.read_text()} COMMIT;")
        script.unlink()
    return root


async def import_all(store: MemoryStore, program: str, root: Path, *, now_ms: int) -> list[SessionImport]:
    """Import every session that is found; an error of Holdfast is an answer."""
    done: list[SessionImport] = []
    with suppress(HoldfastError):
        for found in find_sessions(program_named(program), root, ReadReport()):
            with suppress(HoldfastError):
                done.append(await import_found(store, program_named(program), found, now_ms=now_ms))
    return done


async def check_session(store: MemoryStore, imported: SessionImport) -> None:
    """Check that an imported session opens, can be sent and searched."""
    if not await store.length(imported.session):
        return
    async with Session.open(imported.session, store=store, model="gpt-5") as session:
        assert session.damage == [], f"damaged: {session.damage[:1]}"
        assert len(session) == imported.messages, "another number of messages"
        await session.recall("garden")
        with suppress(CannotFitError, EmptyConversationError):
            await session.interrupt()
            request = await session.prepare(BUDGET)
            assert request.tokens.total <= BUDGET, "over budget"
            assert validate(request.messages, session.history.format or "openai-chat") == [], "not valid"
        assert differing_requests(await session.events()) == [], "a request differs when it is rebuilt"


async def said_in(store: MemoryStore, imported: SessionImport) -> list[Mapping[str, object]]:
    """Return what was said in a session, also what was compacted; without what was rewound."""
    async with Session.open(imported.session, store=store) as session:
        return await session.messages()


async def rewinds_in(store: MemoryStore, session: str) -> int:
    """Return how often a session went back."""
    async with Session.open(session, store=store) as opened:
        return sum(isinstance(event, log.Rewound) for event in await opened.events())


def spoil(root: Path, edits: list[Mapping[str, Any]]) -> None:
    """Apply edits to the files of a folder."""
    for edit in edits:
        files = sorted(path for path in root.rglob("*") if path.is_file())
        if not files:
            return
        path = files[edit["file"] % len(files)]
        if path.suffix == ".db" and edit["operation"] in {"set", "remove", "insert", "double"}:
            _spoil_rows(path, edit)
        else:
            _spoil_lines(path, edit)


def _spoil_lines(path: Path, edit: Mapping[str, Any]) -> None:
    lines, raw = path.read_bytes().split(b"\n"), LINES[edit["raw"]]
    at = edit["line"] % len(lines)
    match edit["operation"]:
        case "set":
            lines[at] = _edited(lines[at], edit)
        case "remove":
            del lines[at]
        case "cut":
            lines[at:] = [lines[at][: edit["slot"]]]
        case "swap":
            lines[at:] = reversed(lines[at:])
        case "double":
            lines[at:at] = lines[at:]
        case "insert":
            lines[at:at] = [raw]
        case "bytes":
            lines[at] = lines[at][: edit["slot"]] + raw[:20] + lines[at][edit["slot"] + 3 :]
        case "empty":
            lines = []
        case "replace":
            lines = [raw]
        case _:
            path.unlink()
            return
    path.write_bytes(b"\n".join(lines))


def _edited(line: bytes, edit: Mapping[str, Any]) -> bytes:
    """Return a line of JSON with one of its values replaced."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if slots := container_slots(value):
        container, key = slots[edit["slot"] % len(slots)]
        container[key] = edit["value"]
    return json_bytes(value)


def _spoil_rows(path: Path, edit: Mapping[str, Any]) -> None:
    """Replace a value in a row of a database, or remove the row; a file that is none stays."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as database:
        tables = [
            "message",
            *(str(name) for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")),
        ]
        table = tables[edit["line"] % len(tables)]
        columns = [str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")]
        rows = list(database.execute(f"SELECT rowid, * FROM {table}"))  # noqa: S608 - names of its own tables
        if not rows:
            return
        row, column = rows[edit["slot"] % len(rows)], edit["slot"] % len(columns)
        if edit["operation"] == "remove":
            database.execute(f"DELETE FROM {table} WHERE rowid = ?", (row[0],))  # noqa: S608
        else:
            old = row[1 + column]
            new: object = _edited(old.encode(), edit).decode() if isinstance(old, str) else LINES[edit["raw"]]
            database.execute(f"UPDATE {table} SET {columns[column]} = ? WHERE rowid = ?", (new, row[0]))  # noqa: S608
        database.commit()
