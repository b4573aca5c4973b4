"""Replays recorded sessions under policies, and prints prefix stability, cost, growth, validity and budget.

    python -m benchmarks.replay FILE.jsonl … --policy default,copilot+summary,my.toml --budget 16000,100000 [--concat]
        [--json [FILE]]

A policy is a preset or a TOML file; with `+summary` behind it a model writes summaries, which are priced and
say nothing. Every policy is shown beside the baselines full, sliding, pair-safe, hysteresis and threshold.
Costs are in plain input tokens; "vs threshold" is the ratio to threshold compaction in the same run. A policy
that weighs prices is played once under each price model, knowing it; its other figures are those under
the first. With billed usage in the recording, the simulator says how far off it is.
"""

import argparse
import json
import sys
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from holdfast import HoldfastError, SettingsError, read_policy
from holdfast.core.planning.cost import PRICES, Prices
from holdfast.core.planning.presets import PRESETS, policy_of
from holdfast.core.planning.rules.deep import FoldDeep
from holdfast.lab.baselines import POLICIES, ReplayPolicy
from holdfast.lab.metrics import against_bills, measured
from holdfast.lab.planned import Planned
from holdfast.lab.replay import STATIC_TOKENS, Player, Session, concatenated, read_session

BASELINES = ("full", "sliding", "pair-safe", "hysteresis", "threshold")


def load(paths: list[Path]) -> list[Session]:
    """Return the sessions of files; raises ValueError that names file and line."""
    sessions: list[Session] = []
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if not line.strip():
                continue
            try:
                sessions.append(read_session(json.loads(line)))
            except (ValueError, HoldfastError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
    if not sessions:
        raise ValueError("there is no session in these files")
    return sessions


def budgets(text: str) -> list[int]:
    """Return the budgets of a list; raises ValueError for what is none."""
    numbers = [int(number) for number in text.split(",") if number.strip().isdecimal()]
    if len(numbers) != len(text.split(",")) or min(numbers) <= STATIC_TOKENS:
        raise ValueError(
            f"{text!r} is no list of budgets; give whole numbers above {STATIC_TOKENS:,}, such as 16000,100000"
        )
    return numbers


def made(name: str, prices: Prices) -> ReplayPolicy:
    """Return a policy by its name; raises SettingsError for one that is not known or not right."""
    if name in POLICIES:
        return POLICIES[name]()
    stem, _, option = name.partition("+")
    policy = read_policy(Path(stem).read_text()) if stem.endswith(".toml") else policy_of(stem)
    if option not in {"", "summary"}:
        raise SettingsError("policy", f"{option!r} is not known; write {stem}+summary for one with a summariser")
    return Planned(policy, has_summariser=bool(option), prices=prices)


def play(job: tuple[Session, str, int, int]) -> dict[str, Any]:
    session, policy, budget, static = job
    first, *others = PRICES.values()
    player = Player(session, made(policy, first), budget, static)
    row: dict[str, Any] = {
        "session": session.name,
        "policy": policy,
        "budget": budget,
        **measured(list(player.turns())),
    }
    if isinstance(player.policy, Planned) and isinstance(player.policy.policy.fold, FoldDeep):
        for prices in others:
            turns = Player(session, made(policy, prices), budget, static).turns()
            row[f"M6.{prices.name}.total"] = sum(turn.cost(prices) for turn in turns)
    if policy == "full":
        bills = against_bills(session, list(Player(session, POLICIES["full"](), budget, 0).turns()))
        row |= {f"bills.{name}": value for name, value in (bills or {}).items()}
    return row


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add each cost's ratio to that of threshold compaction for the same session and budget."""
    base = {(row["session"], row["budget"]): row for row in rows if row["policy"] == "threshold"}
    for row in rows:
        for name in PRICES:
            key = f"M6.{name}.total"
            row[f"M6.{name}.vs_threshold"] = row[key] / (base[row["session"], row["budget"]][key] or 1)
    return rows


def with_groups(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its figures by their full names, and once more grouped under each metric."""
    grouped: dict[str, Any] = {}
    for name, value in row.items():
        *path, last = name.split(".")
        place = grouped
        for step in path:
            place = place.setdefault(step, {})
        if path:
            place[last] = value
    return {**row, **grouped}


def table(rows: list[dict[str, Any]]) -> str:
    names = list(PRICES)
    head = f"{'session':22}{'budget':>8} {'policy':16}{'hit':>6}{'breaks/100':>11}{'growth':>7}{'invalid':>8}"
    lines = [head + f"{'over':>6}{'differ':>7}" + "".join(f"{name:>11}" for name in names) + "  (cost vs threshold)"]
    for row in rows:
        shares = "".join(f"{row[f'M6.{name}.vs_threshold']:>11.2f}" for name in names)
        lines.append(
            f"{row['session'][:21]:22}{row['budget']:>8,} {row['policy']:16}{row['M5.hit_share']:>6.3f}"
            f"{row['M5.breaks_per_100']:>11.1f}{row['M7.growth']:>7.2f}{row['M8.invalid']:>8.0f}{row['M9.over']:>6.0f}"
            f"{row['M14.differences']:>7.0f}{shares}"
        )
    lines += [
        f"simulator against bills, {row['session']}: prompt tokens × {row['bills.prompt_tokens']:.3f}, "
        f"hit share {row['bills.hit_share']:+.3f}"
        for row in rows
        if "bills.prompt_tokens" in row
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="sessions in OpenAI chat format, one a line")
    parser.add_argument("--policy", default="default", help="policies to show beside the baselines")
    parser.add_argument("--budget", default="16000")
    parser.add_argument("--static", type=int, default=STATIC_TOKENS, help="tokens of system text and tools")
    parser.add_argument("--concat", action="store_true", help="play all sessions as one long one")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="print the rows as JSON, or write them to a file"
    )
    options = parser.parse_args()
    try:
        for name in options.policy.split(","):
            made(name, PRICES["none"])
    except (SettingsError, OSError) as error:
        parser.error(f"{error}; presets: {', '.join(PRESETS)}; baselines: {', '.join(POLICIES)}")
    try:
        sessions, sizes = load(options.files), budgets(options.budget)
    except (OSError, ValueError, HoldfastError) as error:
        parser.error(str(error))
    sessions = [concatenated(sessions)] if options.concat else sessions
    policies = [*BASELINES, *(name for name in options.policy.split(",") if name not in BASELINES)]
    jobs = [
        (session, policy, budget, options.static) for session in sessions for budget in sizes for policy in policies
    ]
    with Pool() as pool:
        rows = with_ratios(pool.map(play, jobs, chunksize=1))
    if options.json == "-":
        print(json.dumps([*map(with_groups, rows)], indent=1))
    else:
        print(table(rows))
    if options.json and options.json != "-":
        Path(options.json).write_text(json.dumps([*map(with_groups, rows)], indent=1))
    sys.exit(any(row["M8.invalid"] or row["M9.over"] for row in rows if row["policy"] not in BASELINES))


if __name__ == "__main__":
    main()
