"""The commands about sessions. The docstring of a command is its help, with examples in the last paragraph."""

import argparse
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from shlex import quote
from typing import TypeAlias

from holdfast.apps.cli.config import settings_for
from holdfast.apps.cli.output import (
    ProgressCounter,
    confirm,
    escape_line,
    indent_text,
    print_json,
    print_result,
    print_table,
    render_for_terminal,
    render_positions,
    session_age,
    warn,
)
from holdfast.apps.settings.build import delete_session_files, session_files
from holdfast.apps.threads import run_in_daemon_thread
from holdfast.errors import SettingsError, StoreError, StoreUnavailableError, UnknownSessionError
from holdfast.session.log.event_log import now_ms
from holdfast.session.maintenance.scrub import scrub, scrub_files
from holdfast.session.maintenance.transfer import export_records, import_recovered
from holdfast.session.maintenance.verify import RebuiltRequest, rebuilt_requests
from holdfast.session.request import encode_entry
from holdfast.session.session import Session
from holdfast.stores.base import (
    SessionInfo,
    Store,
    StoredRecord,
    expired_sessions,
    resolve_session_id,
    session_info,
    session_value_key,
)
from holdfast.stores.files import write_private_lines
from holdfast.stores.jsonl import export_lines
from holdfast.stores.retention import delete_remaining_files, delete_unchanged
from holdfast.stores.sqlite.recover import recover_store
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.text import pluralize

OUT_OF_REACH = (
    "out of reach: backups, exports and snapshots of the disk; of a PostgreSQL server also its write-ahead log and its "
    "replicas. Replace the secret itself where it is used."
)
CommandFunction: TypeAlias = Callable[[argparse.Namespace, Store], Coroutine[object, object, int]]


async def list_sessions(args: argparse.Namespace, store: Store) -> int:
    """List sessions, most recently changed first.

    holdfast sessions --prefix report --limit 10
    """
    found = await store.sessions(prefix=args.prefix, limit=args.limit + 1)
    infos = found[: args.limit]
    if len(found) > len(infos):
        warn(f"there are more than {args.limit:,} sessions; list more with --limit, or fewer with --prefix")
    if args.json:
        print_json([asdict(info) for info in infos])
    elif not infos:
        warn("no sessions")
    else:
        print_table(
            ("ID", "EVENTS", "AGE", "NAME"),
            [(info.id, f"{info.length:,}", session_age(info), info.name) for info in infos],
        )
    return 0


async def delete_session(args: argparse.Namespace, store: Store) -> int:
    """Delete one session permanently, with its checkpoints and attachments.

    holdfast sessions rm report-2024 --yes
    """
    session = await resolve_session_id(store, args.id)
    events = await store.length(session)
    confirm(args, f"delete session {session!r} with {pluralize(events, 'event')}?")
    # The folders first: if one cannot be deleted, the session is still there to delete again.
    folders = delete_session_files(settings_for(args, is_tolerant=True), session)
    await store.delete(session)
    lines = [
        f"deleted {escape_line(session)}: {pluralize(events, 'event')}",
        *(f"deleted {folder}" for folder in folders),
    ]
    print_result(args, "\n".join(lines), {"deleted": [session], "events": events, "folders": [*map(str, folders)]})
    return 0


async def delete_old_sessions(args: argparse.Namespace, store: Store) -> int:
    """Delete the sessions that have not changed for a number of days, with their checkpoints and attachments.

    holdfast sessions prune --days 30 --dry-run
    """
    old = await expired_sessions(store, days=args.days, now_ms=now_ms())
    gone, folders, problems = old, list[Path](), list[str]()

    def delete_files(session: str) -> None:
        try:
            folders.extend(delete_session_files(settings, session))
        except StoreUnavailableError as error:
            problems.append(f"{session} is deleted, but not all of its files: {error}")
            raise

    if not args.dry_run:
        if old:
            confirm(args, f"delete {pluralize(len(old), 'session')} older than {pluralize(args.days, 'day')}?")
        settings = settings_for(args, is_tolerant=True)
        await delete_remaining_files(store, delete_files)
        gone = list[SessionInfo]()
        for info in old:
            if await delete_unchanged(store, info, delete_files):
                gone.append(info)
            elif await store.length(info.id):
                warn(f"{info.id} has changed meanwhile, and stays")
    for problem in problems:
        warn(problem)
    verb = "would delete" if args.dry_run else "deleted"
    listed = "".join(f"\n  {escape_line(info.id)}  {session_age(info)}" for info in gone)
    also = "".join(f"\ndeleted {folder}" for folder in folders)
    facts = {verb.replace(" ", "_"): [info.id for info in gone], "folders": [*map(str, folders)]}
    print_result(args, f"{verb} {pluralize(len(gone), 'session')}{listed}{also}", facts)
    return int(bool(problems))


async def show_session(args: argparse.Namespace, store: Store) -> int:
    """Show the current context of a session, or the N-th request exactly as it was sent.

    holdfast show report-2024 --at 3 --json
    """
    session = await _open_session(store, args.id)
    message_format = session.history.message_format
    if args.at is None:
        state = session.history.session_state
        entries = await session.visible_messages()
        messages = [encode_entry(entry, message_format) for entry in entries]
        speakers = [entry.message.speaker for entry in entries]
        system, tools = state.system or None, list(state.tools) or None
    else:
        request = await _rebuild_request(session, args.at)
        messages, system, tools = request.messages, request.system, request.tools
        speakers = [""] * len(messages)
    if args.json:
        result = {
            "session": session.id,
            "format": message_format.name,
            "system": system,
            "tools": tools,
            "messages": messages,
        }
        print_json(result if args.at is None else {**result, "request": args.at})
        return 0
    if isinstance(system, str):
        print(f"--- system\n{indent_text(system)}\n")
    for number, (native, speaker) in enumerate(zip(messages, speakers, strict=True)):
        print(f"--- {render_for_terminal(message_format.decode(native, number), number, speaker)}\n")
    return 0


PROOF_COVERS = (
    "This covers the messages, system text and tools of every request, and not messages that no request held. Whoever "
    "may write to the store could compute all hashes again; keep the head elsewhere to notice that:"
)


async def replay_session(args: argparse.Namespace, store: Store) -> int:
    """Rebuild every request from the log; with --verify, check that each is what was sent.

    holdfast replay report-2024 --verify
    """
    session = await _open_session(store, args.id)
    progress, requests = ProgressCounter("requests"), list[RebuiltRequest]()
    for request in rebuilt_requests(await session.events()):
        requests.append(request)
        progress(len(requests))
    progress.done()
    rows = [
        {"request": one.number + 1, "messages": len(one.messages), "state": _request_state(one)} for one in requests
    ]
    first = next((row for row in rows if row["state"] in {"different", "unchained"}), None)
    heads = [one.chain_hash for one in requests if one.chain_hash is not None]
    is_head_known = args.head is None or args.head in heads
    if args.json:
        facts = {"firstDifference": first and first["request"], "damage": session.damage, "head": [None, *heads][-1]}
        print_json({"session": session.id, "requests": rows, **facts, "isHeadKnown": is_head_known})
    elif not args.verify:
        print_table(("REQUEST", "MESSAGES"), [(str(row["request"]), str(row["messages"])) for row in rows])
    else:
        option = escape_line(settings_for(args, is_tolerant=True).store_option())
        _print_proof(escape_line(quote(session.id)), option, rows, first, heads)
    if not is_head_known:
        warn(f"no request of this log has the head {args.head}: the log was changed, or it is another log")
    for problem in session.damage:
        warn(f"not loaded: {problem}")
    return int(not is_head_known or (args.verify and (first is not None or bool(session.damage))))


def _request_state(one: RebuiltRequest) -> str:
    if not one.is_same and not one.is_scrubbed:
        return "different"
    if not one.is_chained:
        return "unchained"
    return "same" if one.is_same else "scrubbed"


def _print_proof(
    session: str,
    store_option: str,
    rows: Sequence[Mapping[str, object]],
    first: Mapping[str, object] | None,
    heads: Sequence[str],
) -> None:
    """Print how many requests are what was sent, the first that is not, and what the proof covers."""
    states = [row["state"] for row in rows]
    counts = f"{states.count('same'):,} the same, {states.count('scrubbed'):,} scrubbed"
    different = states.count("different") + states.count("unchained")
    print(f"{pluralize(len(rows), 'request')}: {counts}, {different:,} different")
    if first is not None and first["state"] == "different":
        see = f"holdfast show {session} --at {first['request']}{store_option}"
        print(f"request {first['request']} is not what was sent; see: {see}")
    elif first is not None:
        print(
            f"request {first['request']} does not continue the chain: before it a request was changed together with "
            "its hash, removed or inserted"
        )
    elif heads:
        print(f"{PROOF_COVERS}\n  holdfast replay {session} --verify --head {heads[-1]}{store_option}")


async def export_session(args: argparse.Namespace, store: Store) -> int:
    """Write the log of a session as JSON lines, including large messages.

    holdfast export report-2024 -o report.jsonl
    """
    session = await resolve_session_id(store, args.id)
    info = await session_info(store, session)
    if info is None:
        raise UnknownSessionError(session)
    progress, records, lost = ProgressCounter("records"), list[StoredRecord](), list[int]()
    async for stored in export_records(store, session, lost):
        records.append(stored)
        progress(len(records))
    progress.done()
    for position in lost:
        warn(f"record {position}: the store has lost this message; the export has a notice in its place")
    lines = export_lines(session, info.name, records)
    if args.output is None or args.output == Path("-"):
        sys.stdout.writelines(lines)
    else:
        write_private_lines(args.output, lines)
        facts = {"records": len(records), "file": str(args.output)}
        print_result(args, f"wrote {pluralize(len(records), 'record')} to {args.output}", facts)
    return int(bool(lost))


async def recover_file(args: argparse.Namespace, store: Store) -> int:
    """Save what can be read of a damaged SQLite file into a new one; the damaged file is not changed.

    holdfast recover chats.db -o saved.db
    """
    del store
    output: Path = args.output or args.file.parent / f"{args.file.stem}.recovered.db"
    if os.path.exists(output):  # noqa: ASYNC240, PTH110 - nothing else runs meanwhile; False if it cannot be checked
        raise StoreUnavailableError(str(output), "it already exists; choose another file with -o")
    progress = ProgressCounter("rows")
    salvage = recover_store(args.file, progress)
    if not salvage.logs:
        progress.done()
        raise StoreUnavailableError(str(args.file), "nothing in it can be read; restore it from a copy")
    # A part of it would be taken for everything, and be in the way of the next attempt.
    part = output.with_name(f".{output.name}.{token_hex(8)}.part")
    new = SqliteStore(part)
    try:
        rescued = await import_recovered(salvage, new, progress)
        await new.close()
        part.rename(output)
    except BaseException as error:
        with suppress(StoreError):
            await new.close()
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):  # what is read-only says so even of a file that is not there
                Path(f"{part}{suffix}").unlink(missing_ok=True)  # noqa: ASYNC240 - nothing else runs meanwhile
        if isinstance(error, StoreUnavailableError):
            raise StoreUnavailableError(str(output), error.problem) from error
        raise
    finally:
        progress.done()
    lost = [
        f"{one.result.session}: records {render_positions(one.lost)} could not be read" for one in rescued if one.lost
    ]
    lost += [f"{one.result.session}: record {at}: {why}" for one in rescued for at, why in one.result.refused]
    for problem in lost:
        warn(problem)
    kept = sum(one.result.records for one in rescued)
    facts = {"file": str(output), "sessions": [{**asdict(one.result), "lost": one.lost} for one in rescued]}
    saved = f"saved {pluralize(len(rescued), 'session')} with {pluralize(kept, 'record')} to {output}"
    print_result(args, saved, facts)
    return int(bool(lost))


async def scrub_session(args: argparse.Namespace, store: Store) -> int:
    """Remove a leaked secret permanently from a session and from files outside the store.

    holdfast scrub report-2024 - < leaked.txt
    """
    session = await resolve_session_id(store, args.id)
    secret = (await run_in_daemon_thread(sys.stdin.read)).rstrip("\r\n") if args.text == "-" else args.text
    done = await scrub(store, session, secret, time_ms=now_ms())
    files = scrub_files(session_files(settings_for(args, is_tolerant=True), session), secret)
    for other in done.elsewhere:
        warn(f"session {other} also contains it; scrub that session too")
    for place in done.remaining:
        warn(f"not finished: {place}")
    if done.count or files:
        warn(OUT_OF_REACH)
        source = (await store.get_value(session_value_key(session, "import")) or {}).get("path")
        if isinstance(source, str):
            warn(f"the session was imported from {escape_line(source)}; remove the secret there too")
    elif not done.remaining:
        warn("the secret was not found in this session; what an earlier scrub replaced is gone from the store too")
    text = f"replaced {pluralize(done.count, 'time')} in {pluralize(len(done.positions), 'record')}"
    print_result(
        args,
        "\n".join([text, *(f"replaced in {path}" for path in files)]),
        {**asdict(done), "files": [*map(str, files)]},
    )
    return int(bool(done.remaining) or (done.count == 0 and not files))


async def _open_session(store: Store, prefix: str) -> Session:
    return await Session.open(await resolve_session_id(store, prefix), store=store)


async def _rebuild_request(session: Session, number: int) -> RebuiltRequest:
    count = 0
    for count, request in enumerate(rebuilt_requests(await session.events()), start=1):
        if count == number:
            return request
    has = f"requests 1 to {count:,}, not {number:,}" if count else "no requests yet"
    raise SettingsError("--at", f"session {session.id!r} has {has}")
