"""What a laboratory found, as a table for people, as rows for programs, and pooled over recordings."""

import csv
import io
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from holdfast.lab.policies import SUMMARY
from holdfast.lab.running import Entry, Row

WIDE = 110
"""So many characters a line of the table has, where the figures let it."""
LEAST_NAME, MOST_NAME = 8, 24
"""The characters that the name of a recording gets."""
VS, TOTAL = ".vs_threshold", ".total"
OURS, PARTIAL = "▸ ", " …"


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of the table: what it is called there, how it is written, and what it is."""

    title: str
    form: str
    legend: str
    is_shown: bool = True
    """Whether it stands in the terminal's table too, and not in the report alone."""


COLUMNS: Mapping[str, Column] = {
    "M1.far": Column("far", ".3f", "identifiers needed again after 20 messages that are in view (M1)"),
    "M1.far_recall": Column("+recall", ".3f", "behind far: in view, or in one recall of 1,000 tokens (M1)"),
    "M2.questions": Column("asked", ".3f", "questions with all their evidence in view at the end (M2)"),
    "M2.questions_recall": Column("+recall", ".3f", "behind asked: in view, or in one recall, inside the budget (M2)"),
    "M5.hit_share": Column("hit", ".3f", "share of the tokens sent that the provider's cache already holds (M5)"),
    "M5.breaks_per_100": Column(
        "breaks", ".1f", "requests of 100 that do not extend the one before (M5)", is_shown=False
    ),
    "M7.growth": Column("growth", ".2f", "cost of a request in the last quarter over one in the first (M7)"),
    "M8.invalid": Column("invalid", ".0f", "requests that OpenAI would refuse (M8)"),
    "M9.over": Column("over", ".0f", "requests over budget (M9)"),
    "M10.stall_ms_max": Column(
        "stall ms", ",.0f", "the longest that a request waits, with a summary that takes its time (M10)"
    ),
    "M11.coverage": Column("covered", ".3f", "share of what summaries are about that their writer was shown (M11)"),
    "M13.system": Column("system", ".3f", "system text, first and newest prompt to the letter in the request (M13)"),
    "M13.rules": Column(
        "rules", ".3f", "sentences of the user's with always, never, don't or must, to the letter (M13)"
    ),
    "M14.differences": Column("differ", ".0f", "requests that come out otherwise again (M14)", is_shown=False),
}
COST = "cost as a multiple of threshold compaction's in the same run, at the prices of {} (M6)"
COST_ALONE = "cost in plain input tokens, at the prices of {} (M6)"
PAIRED = ("M1.far", "M1.far_recall", "M2.questions", "M2.questions_recall", "M5.hit_share", "M13.system", "M13.rules")
DRAWS, CONFIDENCE = 1_000, 0.95


def rows_of(entries: Sequence[Entry]) -> list[Row]:
    """Return an object for each recording, policy and budget: each figure by its full name, and grouped by metric."""
    rows: list[Row] = []
    for entry in entries:
        row: Row = {"session": entry.session, "policy": entry.policy, "budget": entry.budget, **entry.figures}
        for name, value in entry.figures.items():
            _put(row, name.split("."), value)
        row |= {"problems": entry.problems} if entry.problems else {}
        rows.append(row | ({"is_partial": True} if entry.missing else {}))
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
    partial = ["is_partial"] if any(entry.missing for entry in entries) else []
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["session", "policy", "budget", *partial, *names])
    for entry in entries:
        found = [entry.figures.get(name, "") for name in names]
        writer.writerow([entry.session, entry.policy, entry.budget, *(bool(entry.missing) for _ in partial), *found])
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Table:
    """What people read: everything together first, then each recording."""

    heading: list[str]
    lines: list[list[str]]
    legend: list[str]
    ours: list[bool]
    """Which lines are of policies of ours."""
    texts: Collection[int] = (0, 2)
    """Which columns are words, and stand to the left."""

    def written(self) -> list[str]:
        """Return the table as lines of text, names to the left and figures to the right."""
        cells = [self.heading, *self.lines]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return [
            " ".join(
                cell.ljust(width) if place in self.texts else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]


def table(entries: Sequence[Entry], *, is_whole: bool = False) -> Table:
    """Return the table; all columns of it where it is to be whole, and else those that fit a terminal."""
    rows = [*pooled(entries), *entries]
    shown = [
        name
        for name, column in COLUMNS.items()
        if (is_whole or column.is_shown) and any(_cell(entry, name) for entry in rows)
    ]
    costs = _costs(entries)
    heading = ["BUDGET", "POLICY", *(cost.title for cost in costs.values())]
    heading += [COLUMNS[name].title.upper() for name in shown]
    lines = [
        [f"{entry.budget:,}", f"{OURS if entry.is_ours else '  '}{entry.policy}{PARTIAL if entry.missing else ''}"]
        + [_written(entry.figures.get(name), cost.form) for name, cost in costs.items()]
        + [_cell(entry, name) for name in shown]
        for entry in rows
    ]
    taken = sum(max(map(len, column)) + 1 for column in zip(heading, *lines, strict=True))
    room = MOST_NAME if is_whole else max(LEAST_NAME, min(MOST_NAME, WIDE - taken))
    names = shortened([entry.session for entry in rows], room)
    return Table(
        ["SESSION", *heading],
        [[names[entry.session], *line] for entry, line in zip(rows, lines, strict=True)],
        _legend([*costs.values(), *(COLUMNS[name] for name in shown)], entries),
        [entry.is_ours for entry in rows],
    )


def _legend(columns: Sequence[Column], entries: Sequence[Entry]) -> list[str]:
    """Return what the columns that are there mean, a line each."""
    said = [(column.title.upper() if column.title.islower() else column.title, column.legend) for column in columns]
    said.append((OURS.strip(), "a policy of Holdfast's; the others are baselines"))
    if len({entry.session for entry in entries}) > 1:
        said.append(
            ("all", "all recordings: the sum of requests that went wrong, the longest wait, the mean of the rest")
        )
    if any(entry.missing for entry in entries):
        said.append((PARTIAL.strip(), "not all of its replays were played"))
    width = max(len(title) for title, _ in said) + 2
    return [f"{title.ljust(width)}{text}" for title, text in said]


def _cell(entry: Entry, name: str) -> str:
    """Return a figure as it is written; of summaries only where somebody asked for them."""
    if name.startswith("M11.") and not entry.policy.endswith(f"+{SUMMARY}"):
        return ""
    return _written(entry.figures.get(name), COLUMNS[name].form)


def shortened(names: Sequence[str], most: int) -> dict[str, str]:
    """Return names of so many characters at most, by the whole ones; all are cut alike, and no two become one."""
    whole, half = list(dict.fromkeys(names)), most // 2
    numbers = {name: f"…{number}" for number, name in enumerate(whole, start=1)}
    cuts: tuple[Callable[[str], str], ...] = (
        lambda name: f"{name[: most - 1]}…",
        lambda name: f"{name[: most - half - 1]}…{name[-half:]}",
        lambda name: f"{name[: most - len(numbers[name])]}{numbers[name]}",
    )
    tried = ({name: name if len(name) <= most else cut(name) for name in whole} for cut in cuts)
    return next(found for found in tried if len({*found.values()}) == len(whole))


def _costs(entries: Sequence[Entry]) -> dict[str, Column]:
    """Return the columns of costs: beside threshold compaction's, or in tokens where that was not played."""
    found = dict.fromkeys(name for entry in entries for name in entry.figures if name.startswith("M6."))
    ratios = [name.removeprefix("M6.").removesuffix(VS) for name in found if name.endswith(VS)]
    if ratios:
        titles = ["×THRESHOLD"] if len(ratios) == 1 else [f"×THR {name}" for name in ratios]
        return {
            f"M6.{name}{VS}": Column(title, ".2f", COST.format(name))
            for name, title in zip(ratios, titles, strict=True)
        }
    totals = [name.removeprefix("M6.").removesuffix(TOTAL) for name in found if name.endswith(TOTAL)]
    return {f"M6.{name}{TOTAL}": Column(f"COST {name}", ",.0f", COST_ALONE.format(name)) for name in totals}


def _written(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def pooled(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield a row for each policy and budget over all recordings, where there are several: means, sums of counts."""
    groups: dict[tuple[str, int], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.policy, entry.budget), []).append(entry)
    for (policy, budget), group in groups.items():
        if len(group) > 1 and any(entry.figures for entry in group):
            names = dict.fromkeys(name for entry in group for name in entry.figures)
            figures = {name: _together(name, group) for name in names}
            yield Entry("all", policy, budget, figures, missing=sum(entry.missing for entry in group))


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
                yield f"{policy} at {budget:,}, {name}: {mean(found):.3f} (95 %: {low:.3f}–{high:.3f})"


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
