"""`holdfast lab`: replay recorded conversations under any policy, without calling a provider."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.apps.cli.output import ProgressCounter, escape_control_characters, positive_number, print_json, warn
from holdfast.errors import SettingsError
from holdfast.stores.base import Store
from holdfast.stores.files import write_private_lines
from holdfast.text import pluralize

if TYPE_CHECKING:
    from holdfast.apps.lab.recordings import Recording
    from holdfast.apps.lab.runner import LabRun, PolicyResult, ReplayJob

DEFAULT_BUDGETS, DEFAULT_TUNING_BUDGET = "16000,50000", "16000"
DEFAULT_PROGRAM_BUDGETS, DEFAULT_PROGRAM_SESSIONS = "50000,100000", 10
"""For sessions of other programs, whose system text and tools alone may take 20,000 tokens."""
DEFAULT_POLICIES, DEFAULT_PRICE_LISTS = "default", "anthropic"
DEFAULT_BASELINES = "full,sliding,pair-safe,head-tail,masking,hysteresis,threshold"
DEFAULT_SUMMARY_SECONDS, MAX_BUDGET_DIGITS = 60.0, 12
MAX_SUMMARY_SECONDS = 86_400
PROGRESS_LINE_SECONDS = 5.0
"""How often progress is printed without a terminal."""
SIGNAL_EXIT_BASE = 128
"""A shell adds this to the number of a signal."""
STANDARD_OUTPUT = "-"
ZERO_FIGURES = (
    "M4.lost", "M8.invalid", "M8.elsewhere", "M8.mistral", "M9.over", "M9.over_claude", "M9.over_tekken",
    "M14.differences",
)  # fmt: skip
"""Figures that must be zero for policies of Holdfast."""


def has_session_source(args: argparse.Namespace) -> bool:
    """Return whether a source is not a file, so that it may be the id of a session of the store."""
    try:
        return args.program is None and not all(Path(source).is_file() for source in args.sources)
    except OSError:  # a name that is too long for a file
        return True


async def lab_run(args: argparse.Namespace, store: Store) -> int:
    """Replay recorded conversations, and show what each policy would have kept, lost and cost.

    No model is called. A model's summaries are simulated for a policy named with +summary.

    holdfast lab run sessions.jsonl --policy default,copilot,my.toml --budget 16000,50000 --html report.html
    holdfast lab run --from claude-code
    """
    from holdfast.apps.lab import report, tables  # noqa: PLC0415 - loaded when the command runs
    from holdfast.apps.lab.baselines import BASELINES  # noqa: PLC0415 - as above
    from holdfast.apps.lab.policies import find_policy  # noqa: PLC0415 - as above
    from holdfast.apps.lab.prices import prices_for  # noqa: PLC0415 - as above
    from holdfast.apps.lab.runner import make_jobs  # noqa: PLC0415 - as above

    policies, baselines = _split_names(args.policies), _split_names(args.baselines)
    for setting, names in (("--policy", policies), ("--baselines", baselines)):
        for name in names:
            if name not in BASELINES:
                find_policy(name, setting)
    shown = DEFAULT_PROGRAM_BUDGETS if args.program and args.budgets == DEFAULT_BUDGETS else args.budgets
    prices, budgets = prices_for(args.prices), _parse_budgets(shown, args.static)
    recordings, problems = await _load_recordings(args, store, budgets)
    played = [*(name for name in baselines if name not in policies), *policies]
    jobs = list(make_jobs(recordings, played, budgets, prices, static=args.static, seconds=args.seconds))
    run = await _run_jobs(jobs, args)
    entries = [entry for entry in run.results if entry.figures or entry.problems]
    problems += _collect_problems(entries, lambda entry: entry.problems)
    if args.json:
        print_json(tables.result_rows(run.results))
    elif entries and STANDARD_OUTPUT not in {args.csv, args.html}:
        found = tables.build_table(([*tables.pool_results(entries)] if args.program else []) or entries)
        if args.program:
            print("\n".join(tables.describe_policies(entries, prices[0].name)))
        ours = [entry for entry in entries if entry.policy in policies]
        about = [*found.legend, *tables.confidence_intervals(ours), *tables.compare_bills(entries)]
        print(escape_control_characters("\n".join([*found.render(), "", *about])))
    # After the table: replays take minutes, and a file that cannot be written must not cost their results.
    for path, text in ((args.csv, tables.render_csv(entries)), (args.html, report.render_report(entries, problems))):
        if path == STANDARD_OUTPUT:
            sys.stdout.write(text)
        elif path is not None:
            write_private_lines(Path(path), [text])
            warn(f"wrote {path}")
    wrong = _collect_problems([entry for entry in entries if entry.policy in policies], _nonzero_figures)
    return _exit_code(run, is_sound=not problems and not wrong)


async def lab_tune(args: argparse.Namespace, store: Store) -> int:
    """Vary the numbers of a policy on recorded conversations, and show what each version costs and keeps.

    holdfast lab tune sessions.jsonl --policy default --budget 16000 --vary compaction.tail_share=0.05,0.1,0.2
    """
    from holdfast.apps.lab import tuning  # noqa: PLC0415 - loaded when the command runs
    from holdfast.apps.lab.policies import find_policy  # noqa: PLC0415 - as above
    from holdfast.apps.lab.prices import prices_for  # noqa: PLC0415 - as above

    policy, has_summary = find_policy(args.tuned)
    (prices, *_), budgets = prices_for(args.prices), _parse_budgets(args.budgets, args.static)
    if len(budgets) > 1:
        raise SettingsError("--budget", f"{args.budgets!r} is more than one budget; give the one to tune for")
    versions, left_out = tuning.make_versions(
        policy, tuning.parse_variations(args.vary, policy, has_summary=has_summary)
    )
    if left_out:
        warn(left_out)
    recordings, problems = await _load_recordings(args, store, budgets)
    jobs = tuning.make_tuning_jobs(
        recordings,
        versions,
        budgets[0],
        prices,
        has_summary=has_summary,
        static=args.static,
        seconds=args.seconds,
    )
    run = await _run_jobs(jobs, args)
    problems += _collect_problems(run.results, lambda entry: entry.problems)
    tradeoffs = tuning.measure_tradeoffs(versions, run.results, prices)
    if args.json:
        print_json(tuning.tradeoff_rows(tradeoffs, budgets[0]))
    else:
        found = tuning.tradeoff_table(tradeoffs, prices)
        print(escape_control_characters("\n".join([*found.render(), "", *found.legend])))
    return _exit_code(run, is_sound=not problems)


async def _load_recordings(
    args: argparse.Namespace, store: Store, budgets: Sequence[int]
) -> "tuple[list[Recording], list[str]]":
    """Return the recordings and the problems of those that could not be read; print the problems."""
    from holdfast.apps.lab.recordings import concatenate  # noqa: PLC0415 - as above
    from holdfast.apps.lab.sources import load_program_sessions, load_recordings  # noqa: PLC0415 - as above
    from holdfast.importers.programs import describe_absence, program_named  # noqa: PLC0415 - as above

    if args.program is not None:
        program = program_named(args.program)
        found, problems = await load_program_sessions(program, args.sources, args.limit)
        if not found and not problems:
            path = Path(args.sources[0]) if args.sources else None
            raise SettingsError("--from", f"{describe_absence(program, path)}; there is nothing to replay")
    else:
        found, problems = await load_recordings(args.sources, store)
    recordings = [one for one in found if (one.static or 0) < min(budgets)]
    problems += [
        f"session {one.name!r}: its tools alone take {one.static:,} tokens; give a larger --budget"
        for one in found
        if one not in recordings
    ]
    for problem in [*problems, *(f"session {one.name!r}: {note}" for one in recordings for note in one.notes)]:
        warn(problem)
    if not recordings:
        raise SettingsError("SOURCE", "there is nothing to replay; name a file of conversations or a session")
    return [concatenate(recordings)] if args.concat else recordings, problems


async def _run_jobs(jobs: "Sequence[ReplayJob]", args: argparse.Namespace) -> "LabRun":
    """Run all replays and show the progress."""
    from holdfast.apps.lab.runner import run_jobs  # noqa: PLC0415 - as above

    progress = ProgressCounter(f"of {pluralize(len(jobs), 'replay')}", line_seconds=PROGRESS_LINE_SECONDS)
    if args.executor is None:
        found = await run_jobs(jobs, workers=args.jobs, on_progress=progress)
    else:
        from holdfast.apps.lab.dask_cluster import dask_executor  # noqa: PLC0415 - an optional extra

        with dask_executor(args.executor) as executor:
            found = await run_jobs(jobs, executor=executor, on_progress=progress)
    progress.done()
    return found


def _collect_problems(
    entries: "Sequence[PolicyResult]", problems_of: "Callable[[PolicyResult], Sequence[str]]"
) -> list[str]:
    """Return the problems of entries and print them."""
    problems = [
        f"{one.session}, {one.policy} at {one.budget:,}: {text}" for one in entries for text in problems_of(one)
    ]
    for problem in problems:
        warn(problem)
    return problems


def _nonzero_figures(entry: "PolicyResult") -> list[str]:
    """Return the figures that must be zero and are not."""
    return [f"{name} is {entry.figures[name]:.0f} and must be 0" for name in ZERO_FIGURES if entry.figures.get(name)]


def _exit_code(run: "LabRun", *, is_sound: bool) -> int:
    """Return the exit code of a run; print a last line if the run was interrupted."""
    if run.signal:
        shown = "; their results are shown" if run.done else ""
        warn(f"interrupted after {run.done:,} of {pluralize(run.total, 'replay')}{shown}")
        return SIGNAL_EXIT_BASE + run.signal
    return int(not is_sound)


def add_tuning_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `holdfast lab tune`."""
    _add_common_arguments(parser)
    policy = f"a preset or a policy file (default: {DEFAULT_POLICIES})"
    parser.add_argument("--policy", dest="tuned", default=DEFAULT_POLICIES, metavar="NAME", help=policy)
    budget = f"the largest request in tokens (default: {DEFAULT_TUNING_BUDGET})"
    parser.add_argument("--budget", dest="budgets", default=DEFAULT_TUNING_BUDGET, metavar="N", help=budget)
    vary = "values to try, such as compaction.tail_share=0.05,0.1; repeatable (default: a few numbers of the rule)"
    parser.add_argument("--vary", action="append", default=[], metavar="SETTING=LIST", help=vary)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `holdfast lab run`."""
    _add_common_arguments(parser)
    policies = f"presets or policy files, each with +summary for a summarizer (default: {DEFAULT_POLICIES})"
    parser.add_argument("--policy", dest="policies", default=DEFAULT_POLICIES, metavar="LIST", help=policies)
    baselines = f"the policies to compare with (default: {DEFAULT_BASELINES})"
    parser.add_argument("--baselines", default=DEFAULT_BASELINES, metavar="LIST", help=baselines)
    budgets = f"the largest requests in tokens (default: {DEFAULT_BUDGETS}; with --from {DEFAULT_PROGRAM_BUDGETS})"
    parser.add_argument("--budget", dest="budgets", default=DEFAULT_BUDGETS, metavar="LIST", help=budgets)
    parser.add_argument(
        "--csv", metavar="FILE", help="write the figures as comma-separated values; - to standard output"
    )
    parser.add_argument("--html", metavar="FILE", help="write a report with plots; - to standard output")


def _add_common_arguments(parser: argparse.ArgumentParser) -> None:
    sources = "a file of conversations, or the id of a session; with --from, folders or files of that program"
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help=sources)
    program = "replay the sessions that this program has left on this machine; `holdfast import --help` lists programs"
    parser.add_argument("--from", dest="program", metavar="PROGRAM", help=program)
    limit = f"with --from, replay this many sessions, the newest (default: {DEFAULT_PROGRAM_SESSIONS})"
    parser.add_argument("--limit", type=positive_number, default=DEFAULT_PROGRAM_SESSIONS, metavar="N", help=limit)
    prices = f"price lists, models or .toml files; policies plan with the first (default: {DEFAULT_PRICE_LISTS})"
    parser.add_argument("--prices", default=DEFAULT_PRICE_LISTS, metavar="LIST", help=prices)
    static = "tokens of system text and tools, if a recording does not say (default: 3000)"
    parser.add_argument("--static", type=int, default=3_000, metavar="N", help=static)
    seconds = "how long a summary takes (default: 60)"
    parser.add_argument("--seconds", type=_seconds, default=DEFAULT_SUMMARY_SECONDS, metavar="N", help=seconds)
    parser.add_argument("--concat", action="store_true", help="replay all conversations as a single one")
    executor = "replay on the workers of a Dask cluster, by the address of its scheduler: dask://HOST:PORT"
    parser.add_argument("--executor", metavar="URL", help=executor)
    jobs = "how many replays run at once (default: one per core)"
    parser.add_argument("--jobs", type=positive_number, metavar="N", help=jobs)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) <= MAX_SUMMARY_SECONDS:
            return seconds
    raise argparse.ArgumentTypeError(f"must be a number, 0 to {MAX_SUMMARY_SECONDS:,}, not {text!r:.60}")


def _split_names(text: str) -> list[str]:
    return list(dict.fromkeys(name for name in (one.strip() for one in text.split(",")) if name))


def _parse_budgets(text: str, static: int) -> list[int]:
    if static < 0:
        raise SettingsError("--static", f"must be a whole number, 0 or more, not {static}")
    numbers = [int(number) for number in _split_names(text) if number.isdecimal() and len(number) <= MAX_BUDGET_DIGITS]
    if len(numbers) != len(_split_names(text)) or not numbers or min(numbers) <= static:
        raise SettingsError(
            "--budget",
            f"{text!r:.60} is not a list of budgets above {static:,} tokens; write one such as {DEFAULT_BUDGETS}",
        )
    return numbers
