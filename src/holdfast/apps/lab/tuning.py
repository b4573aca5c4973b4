"""Tuning: replays many versions of a policy on the same recordings and compares what each costs and keeps.

One version is better than another if it costs less and keeps more. The Pareto versions, for which no better one exists,
are the ones to choose from.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import product
from math import prod
from statistics import mean
from typing import cast

from holdfast.apps.lab.recordings import Recording
from holdfast.apps.lab.runner import JsonRow, PolicyResult, ReplayJob
from holdfast.apps.lab.tables import RATIO_SUFFIX, ReportTable, pool_results
from holdfast.apps.settings.policies import set_nested
from holdfast.core.planning.policy import Policy, with_policy_changes
from holdfast.core.planning.situation import Prices
from holdfast.core.schema import is_number
from holdfast.errors import SettingsError

COST_BASELINE = "threshold"
"""The baseline that costs are compared with."""
MAX_VERSIONS = 64
VARIATION_FACTORS = (0.5, 1.0, 2.0)
"""The factors for the default values to try; for a share above a half, they apply to the difference to 1."""
MAX_VARIED_SETTINGS = 3
"""How many of a rule's numbers are varied by default, unless the rule names some."""
KEPT_FIGURES = ("M1.far", "M2.questions")
"""A version keeps the mean of the measured ones of these; if there are none, the share of the user's messages."""
SHOWN_FIGURES = {"M1.far": "FAR", "M1.far_recall": "+RECALL", "M2.questions": "ASKED", "M5.hit_share": "HIT"}
TUNING_LEGEND = (
    "*           no other version here costs less and keeps as much, or keeps more and costs no more",
    "▸           the policy as it is",
    "×THRESHOLD  cost as a multiple of threshold compaction's on the same recordings, at the prices of {} (M6)",
    "KEPT        in view: identifiers needed again (M1), evidence of questions (M2); else the user's messages (M13)",
)


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A policy with other numbers."""

    settings: Mapping[str, object]
    policy: Policy
    is_current: bool = False

    @property
    def name(self) -> str:
        """The name of its row."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


@dataclass(slots=True)
class Tradeoff:
    """What a version costs and keeps."""

    version: PolicyVersion
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    """The figures over all recordings."""
    cost: float | None = None
    kept: float | None = None
    is_partial: bool = False
    is_pareto: bool = False
    """Whether no other version is better."""


def parse_variations(text: Sequence[str], policy: Policy, *, has_summary: bool = False) -> dict[str, list[object]]:
    """Return the values to try, from texts such as `compaction.tail_share=0.05,0.1`; without texts, default values."""
    varied: dict[str, list[object]] = {}
    for one in text:
        name, _, values = one.partition("=")
        try:
            listed = cast("list[object]", tomllib.loads(f"values = [{values}]")["values"])
        except (ValueError, RecursionError):
            listed = []
        if not listed:
            raise SettingsError("--vary", f"{one!r} has no values; write them as in compaction.tail_share=0.05,0.1")
        varied[name.strip()] = listed
    return varied or _default_variations(policy, has_summary=has_summary)


def _default_variations(policy: Policy, *, has_summary: bool) -> dict[str, list[object]]:
    """Return values around the numbers of the compaction rule."""
    rule = policy.compaction
    settings = [item.name for item in fields(rule)] if is_dataclass(rule) else []
    numbers = [name for name in settings if is_number(getattr(rule, name))]
    if rule is None or not numbers:
        raise SettingsError(
            "--vary",
            f"the compaction rule of {policy.name} has no numbers; name a setting and its values: SETTING=LIST",
        )
    names = rule.tuned_settings(has_summarizer=has_summary) or numbers[:MAX_VARIED_SETTINGS]
    return {
        f"compaction.{name}": [_scaled(getattr(rule, name), factor) for factor in VARIATION_FACTORS] for name in names
    }


def _scaled(value: float, factor: float) -> float:
    if isinstance(value, int):
        return max(1, round(value * factor))
    is_near_whole = 0.5 < value < 1  # noqa: PLR2004 - a half
    return round(1 - (1 - value) / factor if is_near_whole else value * factor, 6)


def make_versions(policy: Policy, varied: Mapping[str, Sequence[object]]) -> tuple[list[PolicyVersion], str]:
    """Return the policy unchanged and with every valid combination of values, and why other combinations failed.

    Raise if all combinations failed.
    """
    current = {name: _current_value(policy, name) for name in varied}
    total = prod(map(len, varied.values()))
    if total > MAX_VERSIONS:
        raise SettingsError(
            "--vary", f"{total:,} combinations are more than {MAX_VERSIONS}; vary fewer settings or values"
        )
    found, refused = [PolicyVersion(current, policy, is_current=True)], list[str]()
    for values in product(*varied.values()):
        settings = dict(zip(varied, values, strict=True))
        try:
            changed = with_policy_changes(policy, _nested_table(settings))
        except SettingsError as error:
            refused.append(str(error))
            continue
        if settings != current:
            found.append(PolicyVersion(settings, changed))
    if len(refused) == total:
        raise SettingsError("--vary", refused[0])
    left_out = f"{len(refused)} of {total} combinations are invalid and were skipped: {refused[0]}" if refused else ""
    return found, left_out


def _current_value(policy: Policy, name: str) -> object:
    """Return the value of a setting, None if its rule is off; raise `SettingsError` for an unknown setting."""
    place: object = policy
    for step in name.split("."):
        if place is not None and not hasattr(place, step):
            try:
                with_policy_changes(policy, _nested_table({name: 0}))
            except SettingsError as error:
                raise SettingsError("--vary", str(error)) from error
        place = getattr(place, step, None)
    return place


def _nested_table(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings with dotted names as the nested table of a policy file."""
    table: dict[str, object] = {}
    for name, value in settings.items():
        set_nested(table, name.split("."), value)
    return table


def make_tuning_jobs(
    recordings: Sequence[Recording],
    versions: Sequence[PolicyVersion],
    budget: int,
    prices: Prices,
    *,
    has_summary: bool,
    static: int,
    seconds: float,
) -> list[ReplayJob]:
    """Return the replays: threshold compaction once for each recording, and every version."""
    jobs: list[ReplayJob] = []
    for recording in recordings:
        static_tokens = static if recording.static is None else recording.static
        first = ReplayJob(
            recording=recording,
            policy=COST_BASELINE,
            budget=budget,
            static=static_tokens,
            prices=(prices,),
            seconds=seconds,
        )
        jobs.append(first)
        for one in versions:
            job = replace(first, policy=one.name, rules=(one.policy, has_summary), aspect="trade")
            jobs += [job, *([replace(job, aspect="evidence")] if recording.probes else [])]
    return jobs


def measure_tradeoffs(
    versions: Sequence[PolicyVersion], results: Sequence[PolicyResult], prices: Prices
) -> list[Tradeoff]:
    """Return what each version costs and keeps over all recordings, the cheapest first."""
    by_policy = {entry.policy: entry for entry in results} | {entry.policy: entry for entry in pool_results(results)}
    tradeoffs = [_measure_tradeoff(version, by_policy[version.name], prices) for version in versions]
    measured = [(one, one.cost, one.kept) for one in tradeoffs if one.cost is not None and one.kept is not None]
    for one, cost, kept in measured:
        one.is_pareto = not any(
            other_cost <= cost and other_kept >= kept and (other_cost, other_kept) != (cost, kept)
            for _, other_cost, other_kept in measured
        )
    return sorted(
        tradeoffs, key=lambda one: (one.cost is None, one.cost or 0.0, -(one.kept or 0.0), not one.version.is_current)
    )


def _measure_tradeoff(version: PolicyVersion, result: PolicyResult, prices: Prices) -> Tradeoff:
    if result.missing_replays or not result.figures:
        return Tradeoff(version, result.figures, is_partial=True)
    shares = [result.figures[name] for name in KEPT_FIGURES if name in result.figures]
    kept = mean(shares) if shares else result.figures.get("M13.users")
    return Tradeoff(version, result.figures, result.figures.get(f"M6.{prices.name}{RATIO_SUFFIX}"), kept)


def tradeoff_rows(tradeoffs: Sequence[Tradeoff], budget: int) -> list[JsonRow]:
    """Return an object for each version."""
    return [
        {
            "settings": dict(one.version.settings),
            "budget": budget,
            "cost": one.cost,
            "kept": one.kept,
            "is_pareto": one.is_pareto,
            "is_today": one.version.is_current,
            **one.figures,
            **({"is_partial": True} if one.is_partial else {}),
        }
        for one in tradeoffs
    ]


def tradeoff_table(tradeoffs: Sequence[Tradeoff], prices: Prices) -> ReportTable:
    """Return the table for people, the cheapest first."""
    names = list(tradeoffs[0].version.settings) if tradeoffs else []
    shown = [name for name in SHOWN_FIGURES if any(name in one.figures for one in tradeoffs)]
    lines = [
        [f"{'*' if one.is_pareto else ' '}{'▸' if one.version.is_current else ' '}{'…' if one.is_partial else ''}"]
        + [str(one.version.settings[name]) for name in names]
        + ["" if one.cost is None else f"{one.cost:.3f}", "" if one.kept is None else f"{one.kept:.3f}"]
        + [f"{one.figures[name]:.3f}" if name in one.figures else "" for name in shown]
        for one in tradeoffs
    ]
    heading = ["", *names, "×THRESHOLD", "KEPT", *(SHOWN_FIGURES[name] for name in shown)]
    legend = [line.format(prices.name) for line in TUNING_LEGEND]
    return ReportTable(heading, lines, legend, [one.version.is_current for one in tradeoffs], text_columns=(0,))
