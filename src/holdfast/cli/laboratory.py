"""`holdfast lab`: recorded conversations played again under any policy, without asking a provider."""

import argparse
from pathlib import Path

from holdfast.cli.terminal import Progress, print_json, print_table, warn
from holdfast.errors import SettingsError
from holdfast.stores.base import Store
from holdfast.stores.files import write_private

BUDGETS, POLICIES = "16000,50000", "default"
BASELINES = "full,sliding,pair-safe,head-tail,masking,hysteresis,threshold"
PRICES = "anthropic,gpt-5,gpt-4o,deepseek,none"
SECONDS = 60.0


async def lab_run(args: argparse.Namespace, store: Store) -> int:
    """Play recorded conversations again, and show what each policy would have kept, lost and cost.

    holdfast lab run sessions.jsonl --policy default,copilot,my.toml --budget 16000,50000 --html report.html
    """
    from holdfast.lab import report, tables  # noqa: PLC0415 - for this command only
    from holdfast.lab.policies import check_name  # noqa: PLC0415 - as above
    from holdfast.lab.prices import prices_for  # noqa: PLC0415 - as above
    from holdfast.lab.recordings import concatenated  # noqa: PLC0415 - as above
    from holdfast.lab.running import jobs_for, run  # noqa: PLC0415 - as above
    from holdfast.lab.sources import recordings_of  # noqa: PLC0415 - as above

    policies, baselines = _names(args.policies), _names(args.baselines)
    for setting, names in (("--policy", policies), ("--baselines", baselines)):
        for name in names:
            check_name(name, setting)
    prices, budgets = prices_for(args.prices), _budgets(args.budgets, args.static)
    recordings, problems = await recordings_of(args.sources, store)
    for problem in [*problems, *(f"{one.name}: {note}" for one in recordings for note in one.notes)]:
        warn(problem)
    if not recordings:
        raise SettingsError("SOURCE", "there is nothing to play; name a file of conversations or a session")
    recordings = [concatenated(recordings)] if args.concat else recordings
    beside = [name for name in baselines if name not in policies]
    jobs = list(jobs_for(recordings, [*beside, *policies], budgets, prices, static=args.static, seconds=args.seconds))
    progress = Progress(f"of {len(jobs):,} replays")
    entries = await run(jobs, workers=args.jobs, told=progress)
    progress.done()
    if len(done := {entry.policy for entry in entries}) < len({*beside, *policies}):
        warn(f"interrupted; what is done is shown: {', '.join(sorted(done)) or 'nothing'}")
    problems += [f"{one.session}, {one.policy} at {one.budget:,}: {text}" for one in entries for text in one.problems]
    for problem in [text for one in entries for text in one.problems]:
        warn(problem)
    for path, text in ((args.csv, tables.as_csv(entries)), (args.html, report.page(entries, problems))):
        if path is not None:
            write_private(Path(path), [text])
            warn(f"written to {path}")
    if args.json:
        print_json(tables.rows_of(entries))
    else:
        print_table(*tables.table(entries))
        ours = [entry for entry in entries if entry.policy in policies]
        print("\n".join(["", tables.LEGEND, *tables.intervals(ours), *tables.bills(entries)]))
    is_sound = all(one.figures.get(name, 0) == 0 for one in entries if one.policy in policies for name in ZERO)
    return int(not is_sound or bool(problems))


ZERO = (
    "M4.lost", "M8.invalid", "M8.elsewhere", "M8.mistral", "M9.over", "M9.over_claude", "M9.over_tekken",
    "M14.differences",
)  # fmt: skip
"""Figures of ours that have to be nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what may be said about a run."""
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="a file of conversations, or a session by its id")
    parser.add_argument(
        "--policy",
        dest="policies",
        default=POLICIES,
        metavar="LIST",
        help=f"presets or files, +summary behind ({POLICIES})",
    )
    parser.add_argument("--baselines", default=BASELINES, metavar="LIST", help="what they are held against (all seven)")
    parser.add_argument("--budget", dest="budgets", default=BUDGETS, metavar="LIST", help=f"tokens ({BUDGETS})")
    parser.add_argument(
        "--prices", default=PRICES, metavar="LIST", help="price lists, models or a .toml (five of them)"
    )
    parser.add_argument("--static", type=int, default=3_000, metavar="N", help="tokens of system text and tools (3000)")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="N", help="how long a summary takes (60)")
    parser.add_argument("--concat", action="store_true", help="play all conversations as one long one")
    parser.add_argument("--jobs", type=int, metavar="N", help="how many at once (all cores)")
    parser.add_argument("--csv", metavar="FILE", help="write the figures as comma-separated values")
    parser.add_argument("--html", metavar="FILE", help="write a report with plots")


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name for name in (one.strip() for one in text.split(",")) if name))


def _budgets(text: str, static: int) -> list[int]:
    numbers = [int(number) for number in _names(text) if number.isdecimal()]
    if len(numbers) != len(_names(text)) or not numbers or min(numbers) <= static:
        raise SettingsError("--budget", f"{text!r} is no list of tokens above {static:,}; give such as {BUDGETS}")
    return numbers
