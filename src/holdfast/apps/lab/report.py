"""The report on the results of the lab: one HTML page without external files.

The line and bar plots are inline SVG, so a browser is enough to view a report.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape
from itertools import accumulate
from platform import machine, python_version, system

from holdfast import __version__
from holdfast.apps.lab import tables
from holdfast.apps.lab.runner import PolicyResult
from holdfast.core.planning.situation import PROVIDER_PRICES

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 260, 64, 28, 10, 12
PLOT_COLORS = (
    "#2a6fdb", "#d9480f", "#2b8a3e", "#9c36b5", "#b08900", "#0b7285", "#c2255c", "#495057", "#5c940d", "#862e9c",
    "#e8590c", "#1098ad", "#f08c00", "#364fc7",
)  # fmt: skip
MAX_PLOT_POINTS = 600
TICKS = 5
TEXT_HEIGHT = 12
"""The height of a line of text."""


@dataclass(frozen=True, slots=True)
class PlotSeries:
    """One line of a plot."""

    name: str
    values: Sequence[float]
    color: str
    marks: Sequence[int] = ()
    """The indices of the points that have a dot."""


def line_plot(
    title: str, series: Sequence[PlotSeries], *, unit: str = "", limit: tuple[str, float] | None = None
) -> str:
    """Return a plot of lines over turns with their dots, and a dashed line at a named limit."""
    top = max((value for one in series for value in one.values), default=0.0) or 1.0
    top = max(top, limit[1]) if limit else top
    longest = max((len(one.values) for one in series), default=1)
    labels = [
        _text(
            LEFT + (WIDTH - LEFT - RIGHT) * number / (TICKS - 1),
            HEIGHT - 8,
            f"{(longest - 1) * number // (TICKS - 1):,}",
            "middle",
        )
        for number in range(TICKS)
    ]
    drawn = [_polyline(one, longest, top) for one in series]
    return _figure(title, [*_grid(top, unit), *labels, *_limit_line(limit, top), *drawn], series)


def bar_plot(title: str, groups: Mapping[str, Sequence[PlotSeries]]) -> str:
    """Return a plot of bars in groups; each series has one value."""
    every = [one for group in groups.values() for one in group]
    known = {one.name: one for one in every}
    names = list(known)
    top = max((value for one in every for value in one.values), default=0.0) or 1.0
    drawn: list[str] = list(_grid(top, ""))
    wide = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    for place, (label, group) in enumerate(groups.items()):
        start, each = LEFT + place * wide + wide * 0.1, wide * 0.8 / max(1, len(names))
        for one in group:
            high = _scaled_height(one.values[0], top)
            at = start + names.index(one.name) * each
            label_text = escape(f"{one.name}, {label}: {one.values[0]:,.3g}")
            drawn.append(
                f'<rect x="{at:.1f}" y="{HEIGHT - BOTTOM - high:.1f}" width="{max(1.0, each - 1):.1f}" '
                f'height="{high:.1f}" fill="{one.color}"><title>{label_text}</title></rect>'
            )
        drawn.append(_text(start + wide * 0.4, HEIGHT - 8, label, "middle"))
    return _figure(title, drawn, list(known.values()))


def _limit_line(limit: tuple[str, float] | None, top: float) -> list[str]:
    """Return a dashed line at a limit, with its name."""
    if limit is None:
        return []
    at = HEIGHT - BOTTOM - _scaled_height(limit[1], top)
    line = f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
    return [line, _text(LEFT + 4, at - 4 if at > TOP + TEXT_HEIGHT else at + TEXT_HEIGHT, limit[0], "start")]


def _polyline(series: PlotSeries, longest: int, top: float) -> str:
    step = max(1, len(series.values) // MAX_PLOT_POINTS)
    wide = (WIDTH - LEFT - RIGHT) / max(1, longest - 1)

    def place(index: int) -> tuple[float, float]:
        return LEFT + index * wide, HEIGHT - BOTTOM - _scaled_height(series.values[index], top)

    points = " ".join("{:.1f},{:.1f}".format(*place(index)) for index in range(0, len(series.values), step))
    marks = "".join(
        '<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"/>'.format(*place(index), series.color)
        for index in series.marks
    )
    name = escape(series.name)
    return (
        f'<g><title>{name}</title><polyline points="{points}" fill="none" stroke="{series.color}" stroke-width="1.5"/>'
        f"{marks}</g>"
    )


def _scaled_height(value: float, top: float) -> float:
    return max(0.0, value) / top * (HEIGHT - BOTTOM - TOP)


def _grid(top: float, unit: str) -> list[str]:
    drawn: list[str] = []
    for number in range(TICKS):
        value = top * number / (TICKS - 1)
        at = HEIGHT - BOTTOM - _scaled_height(value, top)
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        drawn.append(_text(LEFT - 6, at + 4, f"{_short_number(value)}{unit}", "end"))
    return drawn


def _short_number(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _figure(title: str, drawn: Sequence[str], series: Sequence[PlotSeries]) -> str:
    key = "".join(
        f'<span class="key"><i style="background:{one.color}"></i>{escape(one.name)}</span>' for one in series
    )
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title, quote=True)}">{"".join(drawn)}</svg><p>{key}</p></figure>'
    )


REPORT_CSS = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#6b7280;--line:#d9dde3;--page:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#9aa2ad;--line:#363b43;--page:#15181c}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:1200px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2.5rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:12.5px}
th,td{padding:.2rem .4rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child,th:nth-child(3),td:nth-child(3){text-align:left}
figure{margin:1.5rem 0}figcaption{font-weight:600}svg{width:100%;height:auto}
svg text{font-size:11px;fill:var(--soft)}svg .grid{stroke:var(--line)}
svg .limit{stroke:var(--soft);stroke-dasharray:5 4}
.key{margin-right:1rem;font-size:13px}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em}
pre{color:var(--soft);font-size:12px;white-space:pre-wrap}.ours td{font-weight:600}"""


SMOOTHED_REQUESTS = 20
"""How many requests one point of a smoothed curve averages."""
MAX_DOT_SHARE = 0.1
"""No dots are drawn if a larger share of turns has them: a sliding window changes its prefix every time."""


def render_report(results: Sequence[PolicyResult], problems: Sequence[str] = ()) -> str:
    """Return the report as HTML."""
    made = f"holdfast {__version__}, Python {python_version()}, {system()} {machine()}"
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>Holdfast lab</title><style>{REPORT_CSS}</style>",
        f"<h1>What each policy keeps, loses and costs</h1><p>{escape(made)}; {when}</p>",
        _table(results),
        _list(tables.confidence_intervals([entry for entry in results if entry.is_ours])),
        _list(tables.compare_bills(results)),
        _list([*problems, *(f"{one.session}, {one.policy}: {text}" for one in results for text in one.problems)]),
        *_plots(results),
    ]
    return "\n".join(part for part in parts if part) + "</html>\n"


def _table(results: Sequence[PolicyResult]) -> str:
    found = tables.build_table(results, is_complete=True)
    head = "".join(f"<th>{escape(name)}</th>" for name in found.heading)
    body = "".join(
        f"<tr{' class=ours' if is_ours else ''}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for row, is_ours in zip(found.rows, found.ours_flags, strict=True)
    )
    legend = escape("\n".join(found.legend))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div><pre>{legend}</pre>'


def _list(items: Iterator[str] | Sequence[str]) -> str:
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""


def _plots(results: Sequence[PolicyResult]) -> Iterator[str]:
    names = dict.fromkeys(entry.policy for entry in results)
    colors = {name: PLOT_COLORS[place % len(PLOT_COLORS)] for place, name in enumerate(names)}
    for session, budget in dict.fromkeys((entry.session, entry.budget) for entry in results):
        group = [entry for entry in results if (entry.session, entry.budget) == (session, budget) and entry.turns]
        if group:
            yield f"<h2>{escape(session)}, {budget:,} tokens</h2>"
            yield from _group_plots(group, colors, budget)


def _group_plots(group: Sequence[PolicyResult], colors: Mapping[str, str], budget: int) -> Iterator[str]:
    """Yield the plots of one recording at one budget."""

    def series(drawn: Sequence[PolicyResult], values: Callable[[PolicyResult], Sequence[float]]) -> list[PlotSeries]:
        return [PlotSeries(one.policy, values(one), colors[one.policy]) for one in drawn]

    dots = [
        replace(line, marks=_prefix_breaks(one, MAX_DOT_SHARE))
        for one, line in zip(group, series(group, lambda one: [turn.sent_tokens for turn in one.turns]), strict=True)
    ]
    yield line_plot(_dots_caption(group), dots, limit=(f"budget: {budget:,}", budget))
    prices = PROVIDER_PRICES["anthropic"]
    yield line_plot(
        "Cost so far, in plain input tokens at Anthropic's ratios",
        series(group, lambda one: list(accumulate(turn.cost(prices) for turn in one.turns))),
    )
    yield line_plot(
        f"Share of the sent tokens that the cache holds, over {SMOOTHED_REQUESTS} requests",
        series(group, _cache_hit_shares),
    )
    ages = {int(name.rsplit(".", 1)[1]) for one in group for name in one.figures if name.startswith("M1.by_age.")}
    if ages:
        by_age = {age: [one for one in group if f"M1.by_age.{age}" in one.figures] for age in sorted(ages)}
        yield bar_plot(
            "Identifiers needed again that are in view, by how many messages ago they last occurred",
            {
                f"from {age}": series(found, lambda one, age=age: [one.figures[f"M1.by_age.{age}"]])
                for age, found in by_age.items()
            },
        )
    waiting = [one for one in group if one.summary_turns]
    if waiting:
        yield line_plot(
            "Seconds that each request waits for a slow summary",
            series(waiting, lambda one: [turn.waited_seconds for turn in one.summary_turns]),
            unit=" s",
        )


def _dots_caption(group: Sequence[PolicyResult]) -> str:
    """Return the caption of the first plot, which names the policies without dots."""
    title = "Tokens sent, turn by turn; a dot is a turn whose prefix was compacted or otherwise changed"
    crowded = [one.policy for one in group if len(_prefix_breaks(one)) != len(_prefix_breaks(one, MAX_DOT_SHARE))]
    return f"{title}; no dots where that is more than one turn in ten: {', '.join(crowded)}" if crowded else title


def _cache_hit_shares(result: PolicyResult) -> list[float]:
    """Return for each request the share of sent tokens in the shared prefix, over the last requests."""
    shared, sent = (
        [0, *accumulate(values)]
        for values in zip(*((turn.shared_tokens, turn.sent_tokens) for turn in result.turns), strict=True)
    )
    places = ((max(0, at - SMOOTHED_REQUESTS), at) for at in range(1, len(result.turns) + 1))
    return [(shared[stop] - shared[start]) / max(1, sent[stop] - sent[start]) for start, stop in places]


def _prefix_breaks(result: PolicyResult, max_share: float = 1.0) -> list[int]:
    """Return the turns with a new prefix; none if their share of all turns is above `max_share`."""
    found = [index for index, turn in enumerate(result.turns) if turn.is_compacted or not turn.is_extension]
    return found if len(found) <= max_share * len(result.turns) else []
