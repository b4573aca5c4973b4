"""`holdfast memory`: what was noted of earlier conversations, by day and by search."""

import argparse
from dataclasses import asdict

from holdfast.app.build import memory_from
from holdfast.cli.configuring import settings_of
from holdfast.cli.terminal import plain, print_json, print_table, warn
from holdfast.errors import SettingsError
from holdfast.session.memory.looking import source_of
from holdfast.stores.base import Store

SEARCH = "search"
SHOWN = 10


async def look_into_memory(args: argparse.Namespace, store: Store) -> int:
    """List the days with notes, show one, or search all of them.

    holdfast memory search "red box" keys
    """
    del store
    daily = memory_from(settings_of(args))
    if daily is None:
        raise SettingsError("memory", "is off; name a folder for it: holdfast config memory ~/.holdfast/memory")
    if args.what[:1] == [SEARCH]:
        found = await daily.search(" ".join(args.what[1:]), limit=SHOWN)
        if args.json:
            print_json([asdict(section) for section in found.sections])
        for section in () if args.json else found.sections:
            print(f"--- {plain(source_of(section))}\n{plain(section.text)}\n")
        if not found.sections:
            warn("nothing was found")
        return 0
    if len(args.what) > 1:
        raise SettingsError("memory", "takes a day as YYYY-MM-DD, or `search` and words")
    if args.what:
        text = await daily.day(args.what[0])
        print_json({"day": args.what[0], "text": text}) if args.json else print(plain(text).rstrip())
        return 0
    days = await daily.days()
    if args.json:
        print_json(days)
    elif days:
        print_table(("DAY", "FILE"), [(day, str(daily.folder / f"{day}.md")) for day in days])
    else:
        warn("nothing was noted yet")
    return 0
