"""What an import wrote, as lines that a test can state in full."""

import json
import shutil
import sqlite3
from pathlib import Path

from holdfast.core.history import events as log
from holdfast.core.history.codec import from_record
from holdfast.importers.importing import SessionImport, import_found
from holdfast.importers.programs import find_sessions, program_named
from holdfast.importers.source import FoundSession, ReadReport
from holdfast.session.maintenance.transfer import export_records
from holdfast.stores.base import Store
from holdfast.wire.formats import format_named

LOGS = Path(__file__).parent / "logs"
LATER_MS = 4_000_000_000_000
"""A time at which no log is being written any more."""


def copy_of(program: str, folder: Path) -> Path:
    """Return a copy of a program's sessions that a test may change."""
    root = folder / program
    shutil.copytree(LOGS / program, root)
    if program == "opencode":
        script = root / "opencode.sql"
        database = sqlite3.connect(root / "opencode.db")
        database.executescript(f"BEGIN; {script.read_text()} COMMIT;")
        database.close()
        script.unlink()
    return root


def found_in(root: Path, program: str, report: ReadReport | None = None) -> list[FoundSession]:
    """Return the sessions below a folder, the oldest first."""
    found = find_sessions(program_named(program), root, report or ReadReport())
    return sorted(found, key=lambda one: one.id)


async def import_all(store: Store, root: Path, program: str, *, now_ms: int = LATER_MS) -> list[SessionImport]:
    """Import every session below a folder."""
    named = program_named(program)
    return [await import_found(store, named, one, now_ms=now_ms) for one in found_in(root, program)]


async def lines_of(store: Store, session: str) -> list[str]:
    """Return a log as lines, one for each event."""
    return [_line(from_record(stored.record)) async for stored in export_records(store, session)]


def _line(event: log.Event) -> str:
    match event:
        case log.MessageAppended():
            return _message_line(event)
        case log.CompactionCompleted(span=span):
            where = f"{span.start}–{span.stop}, kept {list(span.kept)}"
            return f"{event.scope}: {event.trigger} compaction of {where}: {' / '.join(event.replacement)}"
        case log.DelegationStarted():
            return f"{event.scope}: started by {event.parent} as {event.agent}: {event.task}"
        case log.DelegationFinished():
            return f"{event.scope}: {event.state}: {event.answer}"
        case _:
            return _other_line(event)


def _other_line(event: log.Event) -> str:
    match event:
        case log.SystemChanged():
            return f"{event.scope}: system: {event.text}"
        case log.ToolsChanged():
            return f"{event.scope}: tools: {', '.join(str(tool['name']) for tool in event.tools)}"
        case log.ModelSwitched():
            return f"model: {event.model}"
        case log.SideCallRecorded():
            return f"side call of {event.model} for a {event.purpose}: {event.answer}{_billed(event.usage)}"
        case log.Rewound():
            return f"rewound to {event.to}"
        case log.Forked():
            return f"forked from {event.parent} at {event.at}"
        case _:
            return type(event).__name__


def _message_line(event: log.MessageAppended) -> str:
    message = format_named(event.format).decode(event.native, 0)
    said = [message.text] if message.text else []
    said += [f"→ {call.id} {call.name} {call.arguments}" for call in message.calls]
    said += [f"← {result.call_id} {result.text}" for result in message.results]
    speaker = event.trust or message.role
    return f"{event.scope}: {speaker}: {' '.join(said)}{_billed(event.usage)}".replace("\n", "⏎")


def _billed(usage: log.Usage | None) -> str:
    return f" [{usage.input_tokens}+{usage.cache_read_tokens}→{usage.output_tokens}]" if usage else ""


def write_as_files(database: Path, storage: Path, *, is_first_layout: bool = False) -> None:
    """Write what a database of opencode holds as the files of an earlier version, and delete the database."""
    root = storage / "session" if is_first_layout else storage
    connection = sqlite3.connect(database)
    for session, project, parent, folder, title, version, revert, created, updated in connection.execute(
        "SELECT id, project_id, parent_id, directory, title, version, revert, time_created, time_updated FROM session"
    ):
        value = {"id": session, "version": version, "projectID": project, "directory": folder, "title": title}
        value |= {"parentID": parent} if parent else {}
        value |= {"revert": json.loads(revert)} if revert else {}
        place = "session/info" if is_first_layout else f"session/{project}"
        _write_json(storage / place / f"{session}.json", {**value, "time": {"created": created, "updated": updated}})
    for message, session, data in connection.execute("SELECT id, session_id, data FROM message"):
        value = {"id": message, "sessionID": session, **json.loads(data)}
        _write_json(root / f"message/{session}/{message}.json", value)
    for part, message, session, data in connection.execute("SELECT id, message_id, session_id, data FROM part"):
        value = {"id": part, "messageID": message, "sessionID": session, **json.loads(data)}
        folder = f"part/{session}/{message}" if is_first_layout else f"part/{message}"
        _write_json(root / folder / f"{part}.json", value)
    connection.close()
    database.unlink()


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2))
