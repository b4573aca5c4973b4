"""`holdfast memory` and `holdfast consolidate`: what was noted, and what the next conversation should know."""

import argparse
import sys
from dataclasses import asdict

from holdfast.app.build import memory_from, rem_agent_from
from holdfast.cli.configuring import settings_of
from holdfast.cli.terminal import plain, print_json, print_table, warn
from holdfast.errors import SettingsError
from holdfast.session.memory.consolidation import Consolidation, RemAgent, told, told_of_nothing
from holdfast.session.memory.daily import Found
from holdfast.session.memory.looking import source_of
from holdfast.stores.base import Store

SEARCH = "search"
SHOWN = 10
NOTHING = "nothing was noted yet"


async def look_into_memory(args: argparse.Namespace, store: Store) -> int:
    """List the days with notes, show one, or search all of them.

    holdfast memory search "red box" keys
    """
    del store
    daily = memory_from(settings_of(args))
    if daily is None:
        raise SettingsError("memory", "is off; name a folder for it: holdfast config memory ~/.holdfast/memory")
    days = await daily.days()
    if args.what[:1] == [SEARCH]:
        if not " ".join(args.what[1:]).strip():
            raise SettingsError("memory search", 'needs words to look for: holdfast memory search "red box" keys')
        _show_found(args, await daily.search(" ".join(args.what[1:]), limit=SHOWN), has_notes=bool(days))
        return 0
    if len(args.what) > 1:
        raise SettingsError("memory", "takes a day as YYYY-MM-DD, or `search` and words")
    if args.what:
        text = await daily.day(args.what[0])
        if args.json:
            print_json({"day": args.what[0], "text": text})
        elif text.strip():
            print(plain(text).rstrip())
        else:
            warn(f"nothing was noted on {args.what[0]}" if days else NOTHING)
        return 0
    if args.json:
        print_json(days)
    elif days:
        print_table(("DAY", "FILE"), [(day, str(daily.folder / f"{day}.md")) for day in days])
    else:
        warn(NOTHING)
    return 0


def _show_found(args: argparse.Namespace, found: Found, *, has_notes: bool) -> None:
    if args.json:
        print_json([asdict(section) for section in found.sections])
    for section in () if args.json else found.sections:
        print(f"--- {plain(source_of(section))}\n{plain(section.text)}\n")
    if not found.sections:
        warn("nothing was found" if has_notes else NOTHING)
    for problem in found.problems:
        warn(problem)


async def consolidate(args: argparse.Namespace, store: Store) -> int:
    """Propose what finished conversations leave for the context board of this repository and branch, and ask.

    holdfast consolidate --apply
    """
    agent = rem_agent_from(settings_of(args), store)
    if agent is None:
        raise SettingsError("boards", "are off; name a folder for them: holdfast config boards ~/.holdfast/boards")
    try:
        done = await agent.run(is_all=args.now)
    finally:
        await agent.close()
    is_agreed = await _agreed(args, agent, done)
    if args.json:
        read = {session: reading.messages for session, reading in done.read.items()}
        proposals = [proposal._asdict() for proposal in done.proposals]
        facts = {"board": str(agent.board.path), "proposals": proposals, "read": read, "applied": is_agreed}
        print_json({**facts, "notes": done.notes, "left": done.left, "recent": done.recent})
    return 0


async def _agreed(args: argparse.Namespace, agent: RemAgent, done: Consolidation) -> bool:
    """Show what is proposed and apply it where somebody agrees; return whether that was so."""
    for note in done.notes:
        warn(note)
    if not done.proposals:
        await agent.remember(done)
        warn(told_of_nothing(done, "--now reads such ones"))
        return False
    if not args.json:
        print_table(("", "ENTRY", "FROM"), told(done.proposals))
    if not args.apply and (args.json or not sys.stdin.isatty()):
        warn("nothing was changed; --apply does it")
        return False
    if not args.apply:
        print(f"change {agent.board.path}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            warn("nothing was changed")
            return False
    await agent.apply(done)
    many = len(done.proposals)
    warn(f"{many:,} change{'s are' if many != 1 else ' is'} on {agent.board.path}")
    return True
