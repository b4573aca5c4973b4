"""Line and bar plots as SVG, drawn by hand: a report needs no program to be looked at."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 260, 64, 28, 10, 12
PLOT_COLORS = (
    "#2a6fdb",
    "#d9480f",
    "#2b8a3e",
    "#9c36b5",
    "#b08900",
    "#0b7285",
    "#c2255c",
    "#495057",
    "#5c940d",
    "#862e9c",
    "#e8590c",
    "#1098ad",
    "#f08c00",
    "#364fc7",
)
MAX_PLOT_POINTS = 600
TICKS = 5
TEXT_HEIGHT = 12
"""How high a line of text is."""


@dataclass(frozen=True, slots=True)
class PlotSeries:
    """One line of a plot."""

    name: str
    values: Sequence[float]
    color: str
    marks: Sequence[int] = ()
    """Where something happened."""


def assign_colors(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name: the same in every plot that is given them."""
    return {name: PLOT_COLORS[place % len(PLOT_COLORS)] for place, name in enumerate(dict.fromkeys(names))}


def line_plot(
    title: str, series: Sequence[PlotSeries], *, unit: str = "", limit: tuple[str, float] | None = None
) -> str:
    """Return lines over turns, with what is marked on them, and a limit across all by its name."""
    top = max((value for one in series for value in one.values), default=0.0) or 1.0
    top = max(top, limit[1]) if limit else top
    longest = max((len(one.values) for one in series), default=1)
    drawn = [_polyline(one, longest, top) for one in series]
    return _figure(title, [*_grid(top, unit), *_turn_labels(longest), *_limit_line(limit, top), *drawn], series)


def bar_plot(title: str, groups: Mapping[str, Sequence[PlotSeries]], *, unit: str = "") -> str:
    """Return bars, a group beside another; each series has one value."""
    every = [one for group in groups.values() for one in group]
    known = {one.name: one for one in every}
    names = list(known)
    top = max((value for one in every for value in one.values), default=0.0) or 1.0
    drawn: list[str] = list(_grid(top, unit))
    wide = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    for place, (label, group) in enumerate(groups.items()):
        start, each = LEFT + place * wide + wide * 0.1, wide * 0.8 / max(1, len(names))
        for one in group:
            high = _scaled_height(one.values[0], top)
            at = start + names.index(one.name) * each
            told = escape(f"{one.name}, {label}: {one.values[0]:,.3g}{unit}")
            drawn.append(
                f'<rect x="{at:.1f}" y="{HEIGHT - BOTTOM - high:.1f}" width="{max(1.0, each - 1):.1f}" '
                f'height="{high:.1f}" fill="{one.color}"><title>{told}</title></rect>'
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


def _turn_labels(longest: int) -> list[str]:
    wide = WIDTH - LEFT - RIGHT
    return [
        _text(LEFT + wide * number / (TICKS - 1), HEIGHT - 8, f"{(longest - 1) * number // (TICKS - 1):,}", "middle")
        for number in range(TICKS)
    ]


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
