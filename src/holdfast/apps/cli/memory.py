"""`holdfast memory` shows daily notes; `holdfast consolidate` updates the context board from conversations."""

import argparse
import sys
from dataclasses import asdict

from holdfast.apps.cli.config import settings_for
from holdfast.apps.cli.output import escape_control_characters, print_json, print_table, warn, write_notice
from holdfast.apps.settings.build import memory_from, rem_agent_from
from holdfast.errors import SettingsError
from holdfast.session.memory.consolidation import ConsolidationResult, RemAgent, describe_no_proposals, proposal_rows
from holdfast.session.memory.daily import MemorySearchResult
from holdfast.session.memory.search_tool import section_source
from holdfast.stores.base import Store
from holdfast.text import pluralize

SEARCH_SUBCOMMAND = "search"
MAX_SHOWN_NOTES = 10
NO_NOTES_TEXT = "there are no notes yet"


async def show_memory(args: argparse.Namespace, store: Store) -> int:
    """List the days with notes, show one, or search all of them.

    holdfast memory search "red box" keys
    """
    del store
    daily = memory_from(settings_for(args))
    if daily is None:
        raise SettingsError("memory", "is off; choose a folder for it: holdfast config memory ~/.holdfast/memory")
    days = await daily.days()
    if args.what[:1] == [SEARCH_SUBCOMMAND]:
        if not " ".join(args.what[1:]).strip():
            raise SettingsError("memory search", 'needs a text to search for: holdfast memory search "red box" keys')
        _show_found(args, await daily.search(" ".join(args.what[1:]), limit=MAX_SHOWN_NOTES), has_notes=bool(days))
        return 0
    if len(args.what) > 1:
        raise SettingsError("memory", "takes a day as YYYY-MM-DD, or `search` and a text")
    if args.what:
        text = await daily.read_day(args.what[0])
        if args.json:
            print_json({"day": args.what[0], "text": text})
        elif text.strip():
            print(escape_control_characters(text).rstrip())
        else:
            warn(f"there are no notes for {args.what[0]}" if days else NO_NOTES_TEXT)
        return 0
    if args.json:
        print_json(days)
    elif days:
        print_table(("DAY", "FILE"), [(day, str(daily.folder / f"{day}.md")) for day in days])
    else:
        warn(NO_NOTES_TEXT)
    return 0


def _show_found(args: argparse.Namespace, found: MemorySearchResult, *, has_notes: bool) -> None:
    if args.json:
        print_json([asdict(section) for section in found.sections])
    for section in () if args.json else found.sections:
        print(f"--- {escape_control_characters(section_source(section))}\n{escape_control_characters(section.text)}\n")
    if not found.sections:
        warn("nothing was found" if has_notes else NO_NOTES_TEXT)
    for problem in found.problems:
        warn(problem)


async def consolidate_sessions(args: argparse.Namespace, store: Store) -> int:
    """Propose what to note of finished sessions on the context board of this repository and branch, and ask.

    holdfast consolidate --apply
    """
    agent = rem_agent_from(settings_for(args), store)
    if agent is None:
        raise SettingsError("boards", "are off; choose a folder for them: holdfast config boards ~/.holdfast/boards")
    try:
        done = await agent.run(include_active=args.now)
    finally:
        await agent.close()
    is_agreed = await _confirm_and_apply(args, agent, done)
    if args.json:
        read = {session: reading.messages for session, reading in done.read_progress.items()}
        proposals = [proposal._asdict() for proposal in done.proposals]
        facts = {"board": str(agent.board.path), "proposals": proposals, "read": read, "applied": is_agreed}
        print_json({**facts, "notes": done.notes, "left": done.remaining, "recent": done.still_active})
    return 0


async def _confirm_and_apply(args: argparse.Namespace, agent: RemAgent, done: ConsolidationResult) -> bool:
    """Show the proposals and apply them if the user agrees; return whether they were applied."""
    for note in done.notes:
        warn(note)
    if not done.proposals:
        await agent.record_progress(done)
        warn(describe_no_proposals(done, "--now includes them"))
        return False
    if not args.json:
        print_table(("", "ENTRY", "FROM"), proposal_rows(done.proposals))
    if not args.apply and (args.json or not sys.stdin.isatty()):
        warn("nothing was changed; --apply applies the proposals")
        return False
    if not args.apply:
        write_notice(f"change {agent.board.path}? [y/N] ", end="")
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            warn("nothing was changed")
            return False
    await agent.apply(done)
    warn(f"applied {pluralize(len(done.proposals), 'change')} to {agent.board.path}")
    return True
