"""`holdfast lab`: recorded conversations played again under any policy, without asking a provider."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.terminal import Progress, plain, print_json, warn
from holdfast.errors import SettingsError
from holdfast.stores.base import Store
from holdfast.stores.files import write_private

if TYPE_CHECKING:
    from holdfast.lab.recordings import Recording
    from holdfast.lab.running import Entry, Job, Run

BUDGETS, BUDGET, POLICIES, PRICES = "16000,50000", "16000", "default", "anthropic"
BASELINES = "full,sliding,pair-safe,head-tail,masking,hysteresis,threshold"
SECONDS, MOST_DIGITS = 60.0, 12
LINE_SECONDS = 5.0
"""How often it is said how far a run is, where there is no terminal."""
STOPPED = 128
"""What a shell adds to the number of a signal."""
ZERO = (
    "M4.lost", "M8.invalid", "M8.elsewhere", "M8.mistral", "M9.over", "M9.over_claude", "M9.over_tekken",
    "M14.differences",
)  # fmt: skip
"""Figures of ours that have to be nothing."""


async def lab_run(args: argparse.Namespace, store: Store) -> int:
    """Play recorded conversations again, and show what each policy would have kept, lost and cost.

    holdfast lab run sessions.jsonl --policy default,copilot,my.toml --budget 16000,50000 --html report.html
    """
    from holdfast.lab import report, tables  # noqa: PLC0415 - for this command only
    from holdfast.lab.policies import check_name  # noqa: PLC0415 - as above
    from holdfast.lab.prices import prices_for  # noqa: PLC0415 - as above
    from holdfast.lab.running import jobs_for  # noqa: PLC0415 - as above

    policies, baselines = _names(args.policies), _names(args.baselines)
    for setting, names in (("--policy", policies), ("--baselines", baselines)):
        for name in names:
            check_name(name, setting)
    prices, budgets = prices_for(args.prices), _budgets(args.budgets, args.static)
    recordings, problems = await _recordings(args, store, budgets)
    played = [*(name for name in baselines if name not in policies), *policies]
    jobs = list(jobs_for(recordings, played, budgets, prices, static=args.static, seconds=args.seconds))
    run = await _run(jobs, args.jobs)
    entries = [entry for entry in run.entries if entry.figures or entry.problems]
    problems += _told(entries, lambda entry: entry.problems)
    for path, text in ((args.csv, tables.as_csv(entries)), (args.html, report.page(entries, problems))):
        if path is not None:
            write_private(Path(path), [text])
            warn(f"written to {path}")
    if args.json:
        print_json(tables.rows_of(run.entries))
    elif entries:
        found = tables.table(entries)
        ours = [entry for entry in entries if entry.policy in policies]
        about = [*found.legend, *tables.intervals(ours), *tables.bills(entries)]
        print(plain("\n".join([*found.written(), "", *about])))
    wrong = _told([entry for entry in entries if entry.policy in policies], _unsound)
    return _ended(run, is_sound=not problems and not wrong)


async def lab_tune(args: argparse.Namespace, store: Store) -> int:
    """Vary a policy's few numbers on recorded conversations, and show what each version costs and keeps.

    holdfast lab tune sessions.jsonl --policy default --budget 16000 --vary fold.tail_share=0.05,0.1,0.2
    """
    from holdfast.lab import tuning  # noqa: PLC0415 - for this command only
    from holdfast.lab.policies import rules_of  # noqa: PLC0415 - as above
    from holdfast.lab.prices import prices_for  # noqa: PLC0415 - as above

    policy, has_summary = rules_of(args.tuned)
    (prices, *_), budgets = prices_for(args.prices), _budgets(args.budgets, args.static)
    if len(budgets) > 1:
        raise SettingsError("--budget", f"{args.budgets!r} is more than one; give the one to tune for")
    versions, left_out = tuning.versions_of(policy, tuning.variations(args.vary, policy, has_summary=has_summary))
    if left_out:
        warn(left_out)
    recordings, problems = await _recordings(args, store, budgets)
    how = {"has_summary": has_summary, "static": args.static, "seconds": args.seconds}
    run = await _run(tuning.tuning_jobs(recordings, versions, budgets[0], prices, **how), args.jobs)
    problems += _told(run.entries, lambda entry: entry.problems)
    trades = tuning.trades_of(versions, run.entries, prices)
    if args.json:
        print_json(tuning.trade_rows(trades, budgets[0]))
    else:
        found = tuning.trade_table(trades, prices)
        print(plain("\n".join([*found.written(), "", *found.legend])))
    return _ended(run, is_sound=not problems)


async def _recordings(
    args: argparse.Namespace, store: Store, budgets: Sequence[int]
) -> "tuple[list[Recording], list[str]]":
    """Return what is to be played, and what could not be read, which is told."""
    from holdfast.lab.recordings import concatenated  # noqa: PLC0415 - as above
    from holdfast.lab.sources import recordings_of  # noqa: PLC0415 - as above

    found, problems = await recordings_of(args.sources, store)
    recordings = [one for one in found if (one.static or 0) < min(budgets)]
    problems += [
        f"session {one.name!r}: its tools alone take {one.static:,} tokens; give a larger --budget"
        for one in found
        if one not in recordings
    ]
    for problem in [*problems, *(f"session {one.name!r}: {note}" for one in recordings for note in one.notes)]:
        warn(problem)
    if not recordings:
        raise SettingsError("SOURCE", "there is nothing to play; name a file of conversations or a session")
    return [concatenated(recordings)] if args.concat else recordings, problems


async def _run(jobs: "Sequence[Job]", workers: int | None) -> "Run":
    """Play everything, and say how far it is."""
    from holdfast.lab.running import run  # noqa: PLC0415 - as above

    progress = Progress(f"of {len(jobs):,} replays", line_seconds=LINE_SECONDS)
    found = await run(jobs, workers=workers, told=progress)
    progress.done()
    return found


def _told(entries: "Sequence[Entry]", wrong: "Callable[[Entry], Sequence[str]]") -> list[str]:
    """Return what is wrong with entries, and say it."""
    problems = [f"{one.session}, {one.policy} at {one.budget:,}: {text}" for one in entries for text in wrong(one)]
    for problem in problems:
        warn(problem)
    return problems


def _unsound(entry: "Entry") -> list[str]:
    """Return which figures are not nothing and have to be."""
    return [f"{name} is {entry.figures[name]:.0f} and has to be 0" for name in ZERO if entry.figures.get(name)]


def _ended(run: "Run", *, is_sound: bool) -> int:
    """Return the exit code of a run, and say as the last thing if it was interrupted."""
    if run.signal:
        found = ", and what they found is shown" if run.done else ""
        warn(f"interrupted: {run.done:,} of {run.total:,} replays were played{found}")
        return STOPPED + run.signal
    return int(not is_sound)


def add_tuning_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what may be said about the tuning of a policy."""
    _add_common(parser)
    parser.add_argument(
        "--policy", dest="tuned", default=POLICIES, metavar="NAME", help=f"a preset or a file ({POLICIES})"
    )
    parser.add_argument("--budget", dest="budgets", default=BUDGET, metavar="N", help=f"tokens ({BUDGET})")
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="SETTING=LIST",
        help="values to try, such as fold.tail_share=0.05,0.1; may be said again (some of its numbers)",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what may be said about a run."""
    _add_common(parser)
    parser.add_argument(
        "--policy",
        dest="policies",
        default=POLICIES,
        metavar="LIST",
        help=f"presets or files, +summary behind ({POLICIES})",
    )
    parser.add_argument(
        "--baselines", default=BASELINES, metavar="LIST", help=f"what they are held against ({BASELINES})"
    )
    parser.add_argument("--budget", dest="budgets", default=BUDGETS, metavar="LIST", help=f"tokens ({BUDGETS})")
    parser.add_argument("--csv", metavar="FILE", help="write the figures as comma-separated values")
    parser.add_argument("--html", metavar="FILE", help="write a report with plots")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="a file of conversations, or a session by its id")
    parser.add_argument(
        "--prices",
        default=PRICES,
        metavar="LIST",
        help=f"price lists, models or a .toml, the first to plan with ({PRICES})",
    )
    parser.add_argument("--static", type=int, default=3_000, metavar="N", help="tokens of system text and tools (3000)")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="N", help="how long a summary takes (60)")
    parser.add_argument("--concat", action="store_true", help="play all conversations as one long one")
    parser.add_argument("--jobs", type=int, metavar="N", help="how many at once (all cores)")


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name for name in (one.strip() for one in text.split(",")) if name))


def _budgets(text: str, static: int) -> list[int]:
    numbers = [int(number) for number in _names(text) if number.isdecimal() and len(number) <= MOST_DIGITS]
    if len(numbers) != len(_names(text)) or not numbers or min(numbers) <= static:
        raise SettingsError("--budget", f"{text!r:.60} is no list of tokens above {static:,}; give such as {BUDGETS}")
    return numbers
