"""`holdfast import`: read a file, or the sessions that another program has left on this machine."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from holdfast.apps.cli.output import (
    ProgressCounter,
    escape_line,
    print_json,
    print_result,
    print_table,
    typed_text,
    warn,
)
from holdfast.apps.settings.paths import display_path
from holdfast.apps.threads import run_in_daemon_thread
from holdfast.errors import HoldfastError, SettingsError
from holdfast.importers.importing import SessionImport, import_found
from holdfast.importers.programs import SOURCE_PROGRAMS, describe_absence, find_sessions, program_named
from holdfast.importers.source import FoundSession, ReadReport, SourceProgram
from holdfast.session.log.event_log import now_ms
from holdfast.session.log.timestamps import local_time
from holdfast.session.maintenance.transfer import ImportResult, import_session, records_from_file
from holdfast.stores.base import Store
from holdfast.stores.jsonl import load_bytes, load_file
from holdfast.text import pluralize

LIST_TITLES = ("DATE", "SIZE", "MODEL", "FOLDER", "TITLE", "ID")
SIZE_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
MAX_TITLE_CELL, MAX_FOLDER_CELL = 48, 40


def add_import_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `holdfast import`."""
    path = (
        "the file to read, - for standard input; with --from a folder or a file with sessions (default: where the "
        "program keeps them)"
    )
    parser.add_argument("file", type=Path, nargs="?", metavar="PATH", help=path)
    program = f"import the sessions of this program: {', '.join(SOURCE_PROGRAMS)}"
    parser.add_argument("--from", dest="program", choices=SOURCE_PROGRAMS, metavar="PROGRAM", help=program)
    parser.add_argument("--list", action="store_true", help="with --from, only list the sessions")
    name = "the id of the new session (default: the id in an export, or the name of the file, numbered if several)"
    parser.add_argument("--as", type=typed_text, dest="session", metavar="ID", help=name)


async def import_command(args: argparse.Namespace, store: Store) -> int:
    """Import a file, or with --from the sessions that another program has left on this machine.

    A file is an export, messages of a provider (JSON or JSON lines) or a pydantic-ai history. Sessions of a program are
    only read; a later import adds what is new in them, and nothing twice.

    holdfast import report.jsonl --as report-2024
    holdfast export report-2024 | holdfast import - --store sqlite:///backup.db
    holdfast import --from claude-code
    holdfast import --from codex ~/backup/sessions --list
    """
    if args.program is None:
        return await _import_file(args, store)
    if args.session is not None:
        raise SettingsError("--as", "names the session of a file; with --from, each session keeps its own id")
    return await _import_sessions(args, store, program_named(args.program))


async def _import_file(args: argparse.Namespace, store: Store) -> int:
    path: Path | None = args.file
    if path is None:
        raise SettingsError("PATH", "is missing; name a file, or a program with --from")
    if args.list:
        raise SettingsError("--list", "needs a program whose sessions to list; name one with --from")
    if args.session == "":  # as of a variable of the shell that is not set
        raise SettingsError("--as", "is empty; give the id of the new session, or leave it out")
    if str(path) == "-":
        found = load_bytes(await run_in_daemon_thread(sys.stdin.buffer.read), "standard input")
        name = args.session or found.session
        if not name:
            raise SettingsError("--as", "is missing, and standard input names no session; give the id of the new one")
    else:
        found = load_file(path)
        name = args.session or found.session or path.stem
    many = len(found.conversations) > 1
    names = [f"{name}-{number}" if many else name for number in range(1, len(found.conversations) + 1)]
    for taken in [one for one in names if await store.length(one)]:
        raise SettingsError("session", f"{taken!r} already exists; choose another id with --as")
    progress, arrived = ProgressCounter("records"), list[ImportResult]()
    for one, conversation in zip(names, found.conversations, strict=True):
        records = records_from_file(conversation, now_ms())
        arrived.append(await import_session(store, one, records, name=conversation.name, progress=progress))
    progress.done()
    refused = [f"line {line}: {problem}" for one in arrived for line, problem in one.refused]
    losses = [f"line {loss.line}: {pluralize(loss.bytes, 'byte')} not read: {loss.reason}" for loss in found.losses]
    newer = [
        f"{one.session}: a newer version of Holdfast wrote it; it is read-only" for one in arrived if one.is_read_only
    ]
    for problem in [*found.notes, *losses, *refused, *newer]:
        warn(problem)
    lines = [
        f"imported {escape_line(one.session)}: {pluralize(one.messages, 'message')}, {pluralize(one.records, 'record')}"
        for one in arrived
    ]
    facts = {"source": found.source, "sessions": list(map(asdict, arrived)), "losses": list(map(asdict, found.losses))}
    print_result(args, "\n".join(lines), {**facts, "notes": found.notes})
    return int(bool(losses or refused or found.is_text_lost))


def find_importable(program: SourceProgram, path: Path | None) -> list[FoundSession]:
    """Return the sessions of a program, and warn of what the search for them did not read."""
    search = ReadReport()
    found = find_sessions(program, path, search)
    for problem in search.search_problems:
        warn(problem)
    if not found:
        warn(describe_absence(program, path))
    return found


async def import_all(
    store: Store, program: SourceProgram, found: Sequence[FoundSession]
) -> tuple[list[SessionImport], list[str]]:
    """Import what is new in the sessions of a program; return what was done, and what could not be imported."""
    done, problems = list[SessionImport](), list[str]()
    progress = ProgressCounter(f"of {pluralize(len(found), 'session')}")
    for number, one in enumerate(found, start=1):
        try:
            done.append(await import_found(store, program, one, now_ms=now_ms()))
        except (HoldfastError, OSError) as error:
            problems.append(f"{one.id}: {error}")
        progress(number)
    progress.done()
    return done, problems


async def _import_sessions(args: argparse.Namespace, store: Store, program: SourceProgram) -> int:
    """Import the sessions of a program, and show each of them."""
    found = find_importable(program, args.file)
    done, problems = await import_all(store, program, [] if args.list else found)
    for problem in [*problems, *(text for one in done for text in describe_report(one))]:
        warn(problem)
    if args.json:
        shown = [_facts(one) for one in found] if args.list else [_import_facts(one) for one in done]
        print_json({"program": program.name, "sessions": shown, "problems": problems})
    elif args.list and found:
        print_table(LIST_TITLES, [_row(one) for one in found])
    elif done:
        rows = [(f"{one.new_messages:,}", f"{one.messages:,}", *_row(one.found)) for one in done]
        print_table(("NEW", "MESSAGES", *LIST_TITLES), rows)
        print(_total(program, done))
    return int(bool(problems) or any(one.report.damaged for one in done))


def describe_report(done: SessionImport) -> Iterator[str]:
    """Yield what was not imported of a session, and why."""
    report = done.report
    for reason, count in report.damaged.items():
        yield f"{done.session}: {pluralize(count, 'line')} not read: {reason}"
    if report.unknown:
        kinds = ", ".join(f"{kind} ({count:,})" for kind, count in report.unknown.most_common())
        versions = f" ({done.found.program} {', '.join(sorted(report.versions))})" if report.versions else ""
        yield f"{done.session}: {pluralize(report.unknown.total(), 'line')} of a kind not known{versions}: {kinds}"
    if report.is_unfinished:
        yield f"{done.session}: the last line is not complete; the next import reads it"
    if done.waiting:
        yield f"{done.session}: an answer that may still be written was left for the next import"
    if done.rewound_to is not None:
        yield f"{done.session}: its log was changed from message {done.rewound_to:,} on; the session was rewound there"


def _row(found: FoundSession) -> tuple[str, ...]:
    title, folder = _shortened(found.title, MAX_TITLE_CELL), display_path(Path(found.folder)) if found.folder else ""
    date = f"{local_time(found.modified_ms):%Y-%m-%d %H:%M}"
    folder = folder if len(folder) <= MAX_FOLDER_CELL else f"…{folder[1 - MAX_FOLDER_CELL :]}"
    return date, _size(found.size), found.model, folder, title, found.session_id


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _size(size: int) -> str:
    return next((f"{size / unit:.1f} {name}" for unit, name in SIZE_UNITS if size >= unit), f"{size} B")


def _total(program: SourceProgram, done: Sequence[SessionImport]) -> str:
    new, grown = sum(one.is_new for one in done), sum(bool(one.new_messages) and not one.is_new for one in done)
    messages = pluralize(sum(one.new_messages for one in done), "message")
    counts = f"{pluralize(new, 'new session')}, {grown:,} with new messages, {len(done) - new - grown:,} unchanged"
    return f"{program.title}: {counts}; {messages} imported"


def _facts(found: FoundSession) -> dict[str, object]:
    return {
        "session": found.session_id,
        "title": found.title,
        "folder": found.folder,
        "model": found.model,
        "modified_ms": found.modified_ms,
        "size": found.size,
        "path": str(found.path),
    }


def _import_facts(done: SessionImport) -> dict[str, object]:
    return {
        **_facts(done.found),
        "is_new": done.is_new,
        "new_messages": done.new_messages,
        "messages": done.messages,
        "agents": done.agents,
        "compactions": done.compactions,
        "waiting": done.waiting,
        "rewound_to": done.rewound_to,
        "versions": sorted(done.report.versions),
        "unknown": dict(done.report.unknown),
        "damaged": dict(done.report.damaged),
    }
