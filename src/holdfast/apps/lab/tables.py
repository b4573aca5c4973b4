"""The results of the lab as a table for people, as rows for programs, and pooled over recordings."""

import csv
import io
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from holdfast.apps.lab.policies import SUMMARY_OPTION
from holdfast.apps.lab.runner import JsonRow, PolicyResult
from holdfast.apps.settings.policies import set_nested
from holdfast.text import pluralize

TABLE_WIDTH = 110
"""The width of the table in characters, unless the figures need more."""
MIN_LABEL_CHARS, MAX_LABEL_CHARS = 8, 24
"""The smallest and largest width of the name of a recording."""
RATIO_SUFFIX, TOTAL_SUFFIX = ".vs_threshold", ".total"
OURS_MARK, PARTIAL_MARK = "▸ ", " …"


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """A column of the table: its title, its number format, and what it means."""

    title: str
    number_format: str
    legend: str
    is_in_terminal: bool = True
    """Whether the terminal's table has the column too, and not only the report."""


FIGURE_COLUMNS: Mapping[str, FigureColumn] = {
    "M1.far": FigureColumn("far", ".3f", "identifiers needed again after 20 messages that are in view (M1)"),
    "M1.far_recall": FigureColumn("+recall", ".3f", "FAR with one recall of 1,000 tokens (M1)"),
    "M2.questions": FigureColumn("asked", ".3f", "questions with all their evidence in view at the end (M2)"),
    "M2.questions_recall": FigureColumn("+recall", ".3f", "ASKED with one recall inside the budget (M2)"),
    "M5.hit_share": FigureColumn("hit", ".3f", "share of the tokens sent that the provider's cache already holds (M5)"),
    "M5.breaks_per_100": FigureColumn(
        "breaks", ".1f", "requests of 100 that do not extend the previous one (M5)", is_in_terminal=False
    ),
    "M7.growth": FigureColumn(
        "growth", ".2f", "cost of a request in the last quarter, divided by that in the first (M7)"
    ),
    "M8.invalid": FigureColumn("invalid", ".0f", "requests that OpenAI would reject (M8)"),
    "M9.over": FigureColumn("over", ".0f", "requests over budget (M9)"),
    "M10.stall_ms_max": FigureColumn("stall ms", ",.0f", "the longest wait of a request for a slow summary (M10)"),
    "M11.coverage": FigureColumn(
        "covered", ".3f", "share of the summarized messages that the summarizer received (M11)"
    ),
    "M13.system": FigureColumn("system", ".3f", "system text, first and newest prompt, verbatim in the request (M13)"),
    "M13.rules": FigureColumn(
        "rules", ".3f", "the user's sentences with always, never, don't or must, verbatim in the request (M13)"
    ),
    "M13.short": FigureColumn(
        "short", ".3f", "the user's messages of at most 80 tokens, verbatim in the request (M13)"
    ),
    "M16.summary": FigureColumn("own", ".3f", "names needed after the agent's own compaction, in its summary (M16)"),
    "M16.view": FigureColumn("view", ".3f", "the same names in our request at that place (M16)"),
    "M16.recall": FigureColumn("+recall", ".3f", "VIEW with one recall of 1,000 tokens (M16)"),
    "M14.differences": FigureColumn(
        "differ", ".0f", "requests that differ when they are prepared again (M14)", is_in_terminal=False
    ),
}
COST_RATIO_LEGEND = "cost as a multiple of threshold compaction's in the same run, at the prices of {} (M6)"
COST_LEGEND = "cost in plain input tokens, at the prices of {} (M6)"
INTERVAL_FIGURES = (
    "M1.far", "M1.far_recall", "M2.questions", "M2.questions_recall", "M5.hit_share", "M13.system", "M13.rules",
    "M13.short", "M16.summary", "M16.view", "M16.recall",
)  # fmt: skip
BOOTSTRAP_DRAWS, CONFIDENCE = 1_000, 0.95


def result_rows(results: Sequence[PolicyResult]) -> list[JsonRow]:
    """Return an object for each recording, policy and budget: each figure by its full name, and grouped by metric."""
    rows: list[JsonRow] = []
    for entry in results:
        row: JsonRow = {"session": entry.session, "policy": entry.policy, "budget": entry.budget, **entry.figures}
        for name, value in entry.figures.items():
            if "." in name:
                set_nested(row, name.split("."), value)
        row |= {"problems": entry.problems} if entry.problems else {}
        rows.append(row | ({"is_partial": True} if entry.missing_replays else {}))
    return rows


def render_csv(results: Sequence[PolicyResult]) -> str:
    """Return the figures as comma-separated values, a row each."""
    names = sorted({name for entry in results for name in entry.figures})
    partial = ["is_partial"] if any(entry.missing_replays for entry in results) else []
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["session", "policy", "budget", *partial, *names])
    for entry in results:
        found = [entry.figures.get(name, "") for name in names]
        writer.writerow(
            [entry.session, entry.policy, entry.budget, *(bool(entry.missing_replays) for _ in partial), *found]
        )
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table for people: first all recordings together, then each one."""

    heading: list[str]
    rows: list[list[str]]
    legend: list[str]
    ours_flags: list[bool]
    """Which rows are policies of Holdfast."""
    text_columns: Collection[int] = (0, 2)
    """Which columns are text, aligned to the left."""

    def render(self) -> list[str]:
        """Return the lines of the table, names to the left and figures to the right."""
        cells = [self.heading, *self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return [
            " ".join(
                cell.ljust(width) if place in self.text_columns else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]


def build_table(results: Sequence[PolicyResult], *, is_complete: bool = False) -> ReportTable:
    """Return the table with all columns, or with those that fit a terminal."""
    rows = [*pool_results(results), *results]
    shown = [
        name
        for name, column in FIGURE_COLUMNS.items()
        if (is_complete or column.is_in_terminal) and any(_cell(entry, name) for entry in rows)
    ]
    costs = _cost_columns(results)
    heading = ["BUDGET", "POLICY", *(cost.title for cost in costs.values())]
    heading += [FIGURE_COLUMNS[name].title.upper() for name in shown]
    lines = [
        [
            f"{entry.budget:,}",
            f"{OURS_MARK if entry.is_ours else '  '}{entry.policy}{PARTIAL_MARK if entry.missing_replays else ''}",
        ]
        + [_format_figure(entry, name, cost.number_format) for name, cost in costs.items()]
        + [_cell(entry, name) for name in shown]
        for entry in rows
    ]
    taken = sum(max(map(len, column)) + 1 for column in zip(heading, *lines, strict=True))
    room = MAX_LABEL_CHARS if is_complete else max(MIN_LABEL_CHARS, min(MAX_LABEL_CHARS, TABLE_WIDTH - taken))
    names = shorten_names([entry.session for entry in rows], room)
    return ReportTable(
        ["SESSION", *heading],
        [[names[entry.session], *line] for entry, line in zip(rows, lines, strict=True)],
        _legend([*costs.values(), *(FIGURE_COLUMNS[name] for name in shown)], results),
        [entry.is_ours for entry in rows],
    )


def _legend(columns: Sequence[FigureColumn], results: Sequence[PolicyResult]) -> list[str]:
    """Return what the columns mean, a line each."""
    lines = [(column.title.upper() if column.title.islower() else column.title, column.legend) for column in columns]
    lines.append((OURS_MARK.strip(), "a policy of Holdfast; the others are baselines"))
    if len({entry.session for entry in results}) > 1:
        lines.append(("all", "all recordings: the sum of failed requests, the longest wait, the mean of the rest"))
    if any(entry.missing_replays for entry in results):
        lines.append((PARTIAL_MARK.strip(), "some of its replays did not run"))
    width = max(len(title) for title, _ in lines) + 2
    return [f"{title.ljust(width)}{text}" for title, text in lines]


def _cell(result: PolicyResult, name: str) -> str:
    """Return a formatted figure; those of summaries only for policies with a summarizer."""
    if name.startswith("M11.") and not result.policy.endswith(f"+{SUMMARY_OPTION}"):
        return ""
    return _format_figure(result, name, FIGURE_COLUMNS[name].number_format)


def shorten_names(names: Sequence[str], max_chars: int) -> dict[str, str]:
    """Return short names by full name, of at most `max_chars` characters; all are cut alike and stay distinct."""
    whole, half = list(dict.fromkeys(names)), max_chars // 2
    numbers = {name: f"…{number}" for number, name in enumerate(whole, start=1)}
    cuts: tuple[Callable[[str], str], ...] = (
        lambda name: f"{name[: max_chars - 1]}…",
        lambda name: f"{name[: max_chars - half - 1]}…{name[-half:]}",
        lambda name: f"{name[: max_chars - len(numbers[name])]}{numbers[name]}",
    )
    tried = ({name: name if len(name) <= max_chars else cut(name) for name in whole} for cut in cuts)
    return next(found for found in tried if len({*found.values()}) == len(whole))


def _cost_columns(results: Sequence[PolicyResult]) -> dict[str, FigureColumn]:
    """Return the cost columns: relative to threshold compaction, or in tokens if that was not replayed."""
    found = dict.fromkeys(name for entry in results for name in entry.figures if name.startswith("M6."))
    ratios = [name.removeprefix("M6.").removesuffix(RATIO_SUFFIX) for name in found if name.endswith(RATIO_SUFFIX)]
    if ratios:
        titles = ["×THRESHOLD"] if len(ratios) == 1 else [f"×THR {name}" for name in ratios]
        return {
            f"M6.{name}{RATIO_SUFFIX}": FigureColumn(title, ".2f", COST_RATIO_LEGEND.format(name))
            for name, title in zip(ratios, titles, strict=True)
        }
    totals = [name.removeprefix("M6.").removesuffix(TOTAL_SUFFIX) for name in found if name.endswith(TOTAL_SUFFIX)]
    return {
        f"M6.{name}{TOTAL_SUFFIX}": FigureColumn(f"COST {name}", ",.0f", COST_LEGEND.format(name)) for name in totals
    }


def _format_figure(result: PolicyResult, name: str, number_format: str) -> str:
    return format(result.figures[name], number_format) if name in result.figures else ""


def _by_policy(results: Sequence[PolicyResult]) -> dict[tuple[str, int], list[PolicyResult]]:
    groups: dict[tuple[str, int], list[PolicyResult]] = {}
    for entry in results:
        groups.setdefault((entry.policy, entry.budget), []).append(entry)
    return groups


def pool_results(results: Sequence[PolicyResult]) -> Iterator[PolicyResult]:
    """Yield a row for each policy and budget over all recordings, if there are several: means, sums of counts."""
    for (policy, budget), group in _by_policy(results).items():
        if len(group) > 1 and any(entry.figures for entry in group):
            names = dict.fromkeys(name for entry in group for name in entry.figures)
            figures = {name: _pool_figure(name, group) for name in names}
            yield PolicyResult(
                "all", policy, budget, figures, missing_replays=sum(entry.missing_replays for entry in group)
            )


def _pool_figure(name: str, group: Sequence[PolicyResult]) -> float:
    found = [entry.figures[name] for entry in group if name in entry.figures]
    if name in {"M8.invalid", "M9.over", "M14.differences", "M4.lost"}:
        return sum(found)
    return max(found) if name.endswith("_max") else mean(found)


def describe_policies(results: Sequence[PolicyResult], prices: str) -> Iterator[str]:
    """Yield in words what each policy would have cost, broken and forgotten, over all recordings."""
    groups = _by_policy(results)
    for budget in dict.fromkeys(budget for _, budget in groups):
        played = {policy: group for (policy, at), group in groups.items() if at == budget}
        whole = played.get("full", [])
        requests = max(sum(len(entry.turns) for entry in group) for group in played.values())
        sessions = len({entry.session for entry in results})
        yield (
            f"At {budget:,} tokens, {pluralize(requests, 'request')} of {pluralize(sessions, 'session')} would have:"
        )
        width = max(map(len, played)) + 2
        for policy, group in played.items():
            yield f"  {policy.ljust(width)}{', '.join(_consequences(group, whole, prices))}"
        if whole and not _sum(whole, "M9.over"):
            yield "  Every request fits whole, so no policy had to leave anything out; try a smaller --budget."
        yield ""


def _consequences(group: Sequence[PolicyResult], whole: Sequence[PolicyResult], prices: str) -> Iterator[str]:
    cost, full_cost = (_sum(one, f"M6.{prices}{TOTAL_SUFFIX}") for one in (group, whole))
    if full_cost and group is not whole:
        yield f"cost {cost / full_cost:.0%} of the full history"
    else:
        yield f"cost as much as {cost:,.0f} plain input tokens"
    yield f"broken {pluralize(round(_sum(group, 'M8.invalid')), 'request')}"
    if over := round(_sum(group, "M9.over")):
        yield f"sent {over:,} over the budget"
    demands = _sum(group, "M1.demands")
    if not demands:
        yield "been asked for nothing old"
        return
    lost, after_recall = (
        sum((1 - one.figures[name]) * one.figures["M1.demands"] for one in group if name in one.figures) / demands
        for name in ("M1.far", "M1.far_recall")
    )
    recall = f" ({after_recall:.0%} after a recall)" if any("M1.far_recall" in one.figures for one in group) else ""
    yield f"forgotten {lost:.0%} of the names that were needed again{recall}"


def _sum(group: Sequence[PolicyResult], name: str) -> float:
    return sum(entry.figures.get(name, 0.0) for entry in group)


def confidence_intervals(results: Sequence[PolicyResult]) -> Iterator[str]:
    """Yield 95 % intervals of the pooled shares, if there are several recordings, by bootstrap over recordings."""
    for (policy, budget), group in _by_policy(results).items():
        for name in INTERVAL_FIGURES:
            found = [entry.figures[name] for entry in group if name in entry.figures]
            if len(found) > 1:
                low, high = _bootstrap_interval(found)
                yield f"{policy} at {budget:,}, {name}: {mean(found):.3f} (95 %: {low:.3f}–{high:.3f})"


def _bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    generator = random.Random(1)  # noqa: S311 - the intervals must be reproducible
    means = sorted(mean(generator.choices(values, k=len(values))) for _ in range(BOOTSTRAP_DRAWS))
    edge = int(BOOTSTRAP_DRAWS * (1 - CONFIDENCE) / 2)
    return means[edge], means[-edge - 1]


def compare_bills(results: Sequence[PolicyResult]) -> Iterator[str]:
    """Yield how far the simulation deviates from the bills, for recordings that have them."""
    billed = {entry.session: entry for entry in results if "bills.prompt_tokens" in entry.figures}
    for entry in billed.values():
        yield (
            f"full history, simulated, compared with the bills of {entry.session}: prompt tokens × "
            f"{entry.figures['bills.prompt_tokens']:.3f}, hit share {entry.figures['bills.hit_share']:+.3f}"
        )
