"""What a laboratory found, as a table for people, as rows for programs, and pooled over recordings."""

import csv
import io
import random
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from holdfast.lab.running import Entry, Row

COLUMNS: Mapping[str, tuple[str, str]] = {
    "M1.far": ("far", ".3f"),
    "M1.far_recall": ("+recall", ".3f"),
    "M2.questions": ("asked", ".3f"),
    "M2.questions_recall": ("+recall", ".3f"),
    "M5.hit_share": ("hit", ".3f"),
    "M5.breaks_per_100": ("breaks", ".1f"),
    "M7.growth": ("growth", ".2f"),
    "M8.invalid": ("invalid", ".0f"),
    "M9.over": ("over", ".0f"),
    "M10.stall_ms_max": ("stall ms", ",.0f"),
    "M11.coverage": ("covered", ".3f"),
    "M13.verbatim": ("rules", ".3f"),
    "M14.differences": ("differ", ".0f"),
}
"""The figures of the table: what they are called there, and how they are written."""
LEGEND = """\
far      identifiers needed again after 20 messages that are in view; +recall: or after one recall of 1,000 tokens (M1)
asked    questions with all their evidence in view; +recall: or in one recall, inside the budget (M2)
hit      tokens that the provider's cache already holds; breaks: requests of 100 that do not extend the last one (M5)
growth   cost of a request in the last quarter over the first (M7); invalid, over: requests (M8, M9)
stall    the longest that a request waits, with a summary that takes its time (M10); covered: of the folded text (M11)
rules    standing instructions verbatim in the request (M13); differ: requests that come out otherwise again (M14)
cost     in plain input tokens, beside threshold compaction with a model's summary in the same run (M6)"""
PAIRED = ("M1.far", "M1.far_recall", "M2.questions", "M2.questions_recall", "M5.hit_share", "M13.verbatim")
DRAWS, CONFIDENCE = 1_000, 0.95
VS = ".vs_threshold"


def rows_of(entries: Sequence[Entry]) -> list[Row]:
    """Return an object for each recording, policy and budget: each figure by its full name, and grouped by metric."""
    rows: list[Row] = []
    for entry in entries:
        row: Row = {"session": entry.session, "policy": entry.policy, "budget": entry.budget, **entry.figures}
        for name, value in entry.figures.items():
            _put(row, name.split("."), value)
        rows.append({**row, **({"problems": entry.problems} if entry.problems else {})})
    return rows


def _put(row: Row, path: Sequence[str], value: float) -> None:
    """Put a figure where its name leads."""
    place: dict[str, object] = row
    for step in path[:-1]:
        inner = place.setdefault(step, {})
        if not isinstance(inner, dict):
            return
        place = inner  # pyright: ignore[reportUnknownVariableType]
    if len(path) > 1:
        place[path[-1]] = value


def as_csv(entries: Sequence[Entry]) -> str:
    """Return the figures as comma-separated values, a row each."""
    names = sorted({name for entry in entries for name in entry.figures})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["session", "policy", "budget", *names])
    for entry in entries:
        found = [entry.figures.get(name, "") for name in names]
        writer.writerow([entry.session, entry.policy, entry.budget, *found])
    return out.getvalue()


def table(entries: Sequence[Entry]) -> tuple[list[str], list[list[str]]]:
    """Return the heading and the lines of the table that people read."""
    shown = [name for name in COLUMNS if any(name in entry.figures for entry in entries)]
    priced = _priced(entries)
    heading = ["SESSION", "BUDGET", "POLICY", *(COLUMNS[name][0].upper() for name in shown)]
    lines = [
        [entry.session[:24], f"{entry.budget:,}", entry.policy]
        + [_written(entry.figures.get(name), COLUMNS[name][1]) for name in shown]
        + [_written(entry.figures.get(f"M6.{name}{VS}"), ".2f") for name in priced]
        for entry in [*entries, *pooled(entries)]
    ]
    return [*heading, *(f"${name}" for name in priced)], lines


def _priced(entries: Sequence[Entry]) -> list[str]:
    found = [name for entry in entries for name in entry.figures if name.endswith(VS)]
    return list(dict.fromkeys(name.removeprefix("M6.").removesuffix(VS) for name in found))


def _written(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def pooled(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield a row for each policy and budget over all recordings, where there are several: means, sums of counts."""
    groups: dict[tuple[str, int], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.policy, entry.budget), []).append(entry)
    for (policy, budget), group in groups.items():
        if len(group) > 1:
            names = dict.fromkeys(name for entry in group for name in entry.figures)
            yield Entry("all", policy, budget, {name: _together(name, group) for name in names})


def _together(name: str, group: Sequence[Entry]) -> float:
    found = [entry.figures[name] for entry in group if name in entry.figures]
    if name in {"M8.invalid", "M9.over", "M14.differences", "M4.lost"}:
        return sum(found)
    return max(found) if name.endswith("_max") else mean(found)


def intervals(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield how sure the pooled shares are, where there are several recordings: 95 % by drawing recordings again."""
    groups: dict[tuple[str, int], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.policy, entry.budget), []).append(entry)
    for (policy, budget), group in groups.items():
        for name in PAIRED:
            found = [entry.figures[name] for entry in group if name in entry.figures]
            if len(found) > 1:
                low, high = _interval(found)
                yield f"{policy} at {budget:,}, {name}: {mean(found):.3f} ({low:.3f}–{high:.3f})"


def _interval(values: Sequence[float]) -> tuple[float, float]:
    chance = random.Random(1)  # noqa: S311 - the same draw every time is the point
    means = sorted(mean(chance.choices(values, k=len(values))) for _ in range(DRAWS))
    edge = int(DRAWS * (1 - CONFIDENCE) / 2)
    return means[edge], means[-edge - 1]


def bills(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield how far the simulator is from what was billed, where a recording says that."""
    said = {entry.session: entry for entry in entries if "bills.prompt_tokens" in entry.figures}
    for entry in said.values():
        yield (
            f"simulator against the bills of {entry.session}, all sent whatever the budget: prompt tokens × "
            f"{entry.figures['bills.prompt_tokens']:.3f}, hit share {entry.figures['bills.hit_share']:+.3f}"
        )
