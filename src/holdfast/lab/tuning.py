"""What a policy's few numbers do: many versions of it on the same recordings, and what each costs and keeps.

Every version is played where `running` plays everything else. Of two versions one is better if it costs less and keeps
more; those that none is better than are what there is to choose from.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from statistics import mean
from typing import cast

from holdfast.core.planning.cost import Prices
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.policy_file import changed_policy
from holdfast.core.planning.rules.deep import FoldDeep
from holdfast.errors import SettingsError
from holdfast.lab.recordings import Recording
from holdfast.lab.running import Entry, Job, Row
from holdfast.lab.tables import VS, Table, pooled

THRESHOLD = "threshold"
"""The baseline that costs are held against."""
MOST_VERSIONS = 64
FACTORS = (0.5, 1.0, 2.0)
"""What a number is tried at, where nobody says: of a share above a half, the rest to the whole is."""
DEEP, WITH_SUMMARY, WITHOUT = ("tail_share", "summary_share"), "soft_share", "min_reuse"
"""What of the default's rule is varied where nobody says: what stays, and when it folds, with a summariser or not."""
MOST_SETTINGS = 3
"""Of any other rule the first so many numbers are."""
KEPT = ("M1.far", "M2.questions")
"""What is kept is the mean of those of these that were measured; where none was, the share of the user's messages."""
SHOWN = {"M1.far": "FAR", "M1.far_recall": "+RECALL", "M2.questions": "ASKED", "M5.hit_share": "HIT"}
LEGEND = (
    "*           no other version here costs less and keeps as much, or keeps more and costs no more",
    "▸           the policy as it is",
    "×THRESHOLD  cost as a multiple of threshold compaction's on the same recordings, at the prices of {} (M6)",
    "KEPT        in view: identifiers needed again (M1), evidence of questions (M2); else the user's messages (M13)",
)


@dataclass(frozen=True, slots=True)
class Version:
    """A policy with other numbers."""

    settings: Mapping[str, object]
    policy: Policy
    is_today: bool = False

    @property
    def name(self) -> str:
        """What its row is known by."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


@dataclass(slots=True)
class Trade:
    """What a version costs and keeps."""

    version: Version
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Over all recordings."""
    cost: float | None = None
    kept: float | None = None
    is_partial: bool = False
    is_pareto: bool = False
    """Whether none is better."""


def variations(text: Sequence[str], policy: Policy, *, has_summary: bool = False) -> dict[str, list[object]]:
    """Return the values to try settings at, from such as `fold.tail_share=0.05,0.1`; ours where none is said."""
    wanted: dict[str, list[object]] = {}
    for one in text:
        name, _, values = one.partition("=")
        try:
            listed = cast("list[object]", tomllib.loads(f"values = [{values}]")["values"])
        except ValueError:
            listed = []
        if not listed:
            raise SettingsError("--vary", f"{one!r} says no values; write such as fold.tail_share=0.05,0.1")
        wanted[name.strip()] = listed
    return wanted or _few(policy, WITH_SUMMARY if has_summary else WITHOUT)


def _few(policy: Policy, line: str) -> dict[str, list[object]]:
    """Return values around what the numbers of a fold's rule are."""
    rule = policy.fold
    numbers = [item.name for item in fields(rule) if _is_number(getattr(rule, item.name))] if rule else []
    if rule is None or not numbers:
        raise SettingsError("--vary", f"how {policy.name} folds has no numbers; say what to vary, SETTING=VALUES")
    names = (*DEEP, line) if isinstance(rule, FoldDeep) else numbers[:MOST_SETTINGS]
    return {f"fold.{name}": [_scaled(getattr(rule, name), factor) for factor in FACTORS] for name in names}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _scaled(value: float, factor: float) -> float:
    if isinstance(value, int):
        return max(1, round(value * factor))
    is_near_whole = 0.5 < value < 1  # noqa: PLR2004 - a half
    return round(1 - (1 - value) / factor if is_near_whole else value * factor, 6)


def versions_of(policy: Policy, wanted: Mapping[str, Sequence[object]]) -> tuple[list[Version], str]:
    """Return a policy as it is and with every combination of values, and why some cannot work; raises if none can."""
    today = {name: _current(policy, name) for name in wanted}
    total = 1
    for values in wanted.values():
        total *= len(values)
    if total > MOST_VERSIONS:
        raise SettingsError(
            "--vary", f"{total:,} combinations are more than {MOST_VERSIONS}; vary fewer settings or values"
        )
    found, refused = [Version(today, policy, is_today=True)], list[str]()
    for values in product(*wanted.values()):
        settings = dict(zip(wanted, values, strict=True))
        try:
            changed = changed_policy(policy, _table(settings))
        except SettingsError as error:
            refused.append(str(error))
            continue
        if settings != today:
            found.append(Version(settings, changed))
    if len(refused) == total:
        raise SettingsError("--vary", refused[0])
    left_out = f"{len(refused)} of {total} combinations cannot work and were left out: {refused[0]}" if refused else ""
    return found, left_out


def _current(policy: Policy, name: str) -> object:
    """Return what a setting is, None for one of a rule that is not there; raises `SettingsError` for an unknown one."""
    place: object = policy
    for step in name.split("."):
        if place is not None and not hasattr(place, step):
            try:
                changed_policy(policy, _table({name: 0}))
            except SettingsError as error:
                raise SettingsError("--vary", str(error)) from error
        place = getattr(place, step, None)
    return place


def _table(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings by their dotted names as the table that a policy file would have."""
    table: dict[str, object] = {}
    for name, value in settings.items():
        place, (*steps, last) = table, name.split(".")
        for step in steps:
            place = cast("dict[str, object]", place.setdefault(step, {}))
        place[last] = value
    return table


def tuning_jobs(
    recordings: Sequence[Recording],
    versions: Sequence[Version],
    budget: int,
    prices: Prices,
    *,
    has_summary: bool,
    static: int,
    seconds: float,
) -> list[Job]:
    """Return all that is to be played: threshold compaction once, and each version."""
    jobs: list[Job] = []
    for recording in recordings:
        beside = static if recording.static is None else recording.static
        first = Job(
            recording=recording, policy=THRESHOLD, budget=budget, static=beside, prices=(prices,), seconds=seconds
        )
        jobs.append(first)
        for one in versions:
            job = replace(first, policy=one.name, rules=(one.policy, has_summary), aspect="trade")
            jobs += [job, *([replace(job, aspect="evidence")] if recording.probes else [])]
    return jobs


def trades_of(versions: Sequence[Version], entries: Sequence[Entry], prices: Prices) -> list[Trade]:
    """Return what each version costs and keeps over all recordings, the cheapest first."""
    together = {entry.policy: entry for entry in entries} | {entry.policy: entry for entry in pooled(entries)}
    trades = [_trade(version, together[version.name], prices) for version in versions]
    whole = [(one, one.cost, one.kept) for one in trades if one.cost is not None and one.kept is not None]
    for one, cost, kept in whole:
        one.is_pareto = not any(
            other_cost <= cost and other_kept >= kept and (other_cost, other_kept) != (cost, kept)
            for _, other_cost, other_kept in whole
        )
    return sorted(
        trades, key=lambda one: (one.cost is None, one.cost or 0.0, -(one.kept or 0.0), not one.version.is_today)
    )


def _trade(version: Version, entry: Entry, prices: Prices) -> Trade:
    if entry.missing or not entry.figures:
        return Trade(version, entry.figures, is_partial=True)
    shares = [entry.figures[name] for name in KEPT if name in entry.figures]
    kept = mean(shares) if shares else entry.figures.get("M13.users")
    return Trade(version, entry.figures, entry.figures.get(f"M6.{prices.name}{VS}"), kept)


def trade_rows(trades: Sequence[Trade], budget: int) -> list[Row]:
    """Return an object for each version."""
    return [
        {
            "settings": dict(one.version.settings),
            "budget": budget,
            "cost": one.cost,
            "kept": one.kept,
            "is_pareto": one.is_pareto,
            "is_today": one.version.is_today,
            **one.figures,
            **({"is_partial": True} if one.is_partial else {}),
        }
        for one in trades
    ]


def trade_table(trades: Sequence[Trade], prices: Prices) -> Table:
    """Return the table that people read, the cheapest first."""
    names = list(trades[0].version.settings) if trades else []
    shown = [name for name in SHOWN if any(name in one.figures for one in trades)]
    lines = [
        [f"{'*' if one.is_pareto else ' '}{'▸' if one.version.is_today else ' '}{'…' if one.is_partial else ''}"]
        + [str(one.version.settings[name]) for name in names]
        + ["" if one.cost is None else f"{one.cost:.3f}", "" if one.kept is None else f"{one.kept:.3f}"]
        + [f"{one.figures[name]:.3f}" if name in one.figures else "" for name in shown]
        for one in trades
    ]
    heading = ["", *names, "×THRESHOLD", "KEPT", *(SHOWN[name] for name in shown)]
    legend = [line.format(prices.name) for line in LEGEND]
    return Table(heading, lines, legend, [one.version.is_today for one in trades], texts=(0,))
