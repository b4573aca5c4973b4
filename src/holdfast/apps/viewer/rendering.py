"""The pages as HTML, and the plot as a picture.

Jinja escapes every value; the only text that is not escaped is what this module builds itself, from numbers.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import cast
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from holdfast.apps.viewer.pages import ContextPlot
from holdfast.core.conversation.json_values import finite_json, replace_surrogates
from holdfast.core.planning.situation import CENT, format_dollars
from holdfast.session.log.timestamps import local_time

PACKAGE = __name__.rpartition(".")[0]
STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".LICENSE": "text/plain"}
PLOT_WIDTH, PLOT_HEIGHT = 1_000, 220
AXIS_STEPS = (10, 12, 16, 20, 24, 30, 40, 50, 60, 80, 100)
"""Numbers that read well at an axis, in tenths."""
MAX_BUDGET_SHARE = 3
"""A budget is drawn unless it is this many times as large as the largest request, which would be too small to see."""
PARTS = (
    ("system", "system text"),
    ("tools", "tools"),
    ("summary", "summaries"),
    ("user", "user"),
    ("assistant", "assistant"),
    ("tool_output", "tool output"),
)
"""The parts of a request, from the bottom of the plot up."""
AGE_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"))
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that reverse the direction of the text around them."""


def render(template: str, **values: object) -> str:
    """Return a page as HTML."""
    return replace_surrogates(_environment().get_template(template).render(**values))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(PACKAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=visible_text,
    )  # fmt: skip
    environment.filters |= {
        "number": _with_separators,
        "short": short_number,
        "dollars": rounded_dollars,
        "when": format_time,
        "clock": _clock_time,
        "slug": session_slug,
        "static": static_name,
    }
    own = {"plot_picture": plot_picture, "bar_picture": bar_picture, "parts": PARTS}
    cast("dict[str, object]", environment.globals).update(own)
    return environment


def load_templates() -> None:
    """Compile every template, which takes as long as some pages, before the first page is asked for."""
    environment = _environment()
    for name in environment.list_templates():
        environment.get_template(name)


def _with_separators(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def rounded_dollars(value: float | None) -> str:
    """Return an amount as people read it: $1.50; below a cent its first two digits that are not zero, $0.0013."""
    if value is None:
        return "–"
    return format_dollars(value if value >= CENT or not value else float(f"{value:.2g}"))


def _clock_time(time_ms: int | None) -> str:
    return "" if not time_ms else local_time(time_ms).strftime("%H:%M:%S")


def visible_text(value: object) -> object:
    """Return what a page shows for a value: of a text, each control character as its code."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", value.replace("\r\n", "\n"))


def session_slug(session: str) -> str:
    """Return a session id as one segment of a path."""
    if session in {".", ".."}:  # a browser takes these segments out of a path
        return session.replace(".", "~2E")
    return quote(session.replace("~", "~7E"), safe="~").replace("%", "~")


def session_of_slug(slug: str) -> str:
    """Return the session id of a segment; raises `ValueError` if there is none."""
    pieces = slug.split("~")
    encoded = pieces[0].encode() + b"".join(bytes.fromhex(one[:2]) + one[2:].encode() for one in pieces[1:])
    return encoded.decode()


class SessionLinks:
    """The addresses of what belongs to a session."""

    def __init__(self, base: str, session: str) -> None:
        self.session = f"{base}/s/{session_slug(session)}"

    def message(self, position: int) -> str:
        """Return the page of a message."""
        return f"{self.session}/messages/{position}"

    def place(self, position: int) -> str:
        """Return the place of a message in the transcript."""
        return f"{self.session}?from={position}#m-{position}"

    def change(self, number: int) -> str:
        """Return the page of a change of context."""
        return f"{self.session}/changes/{number}"

    def request(self, number: int) -> str:
        """Return the page of a request."""
        return f"{self.session}/requests/{number}"


class ExportLinks:
    """The same within one file."""

    session = ""

    def message(self, position: int) -> str:
        """Return the place of a message."""
        return f"#m-{position}"

    place = message

    def change(self, number: int) -> str:
        """Return the place of a change of context."""
        return f"#change-{number}"

    def request(self, number: int) -> str:
        """Return the place where a request was made."""
        return f"#r-{number}"


def short_number(value: int | None) -> str:
    """Return a number in a few characters: 980, 15.4k, 1.2M."""
    if value is None:
        return "–"
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            # A log may hold any number, and one that is wrong may be too large for a float.
            shown = f"{value / size:.1f}" if value < 100 * size else str((value + size // 2) // size)
            return f"{shown.removesuffix('.0')}{unit}"
    return str(value)


def format_time(time_ms: int | None) -> str:
    """Return a time of this machine's zone, to the minute."""
    return "" if not time_ms else local_time(time_ms).strftime("%Y-%m-%d %H:%M")


def format_age(time_ms: int, now_ms: int) -> str:
    """Return how long ago something was."""
    seconds = max(0, now_ms - time_ms) // 1_000
    return next((f"{seconds // size} {unit} ago" for size, unit in AGE_STEPS if seconds >= size), "now")


def as_json(value: object) -> object:
    """Return a page as JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: as_json(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in cast("Sequence[object]", value)]
    return finite_json(value)


# Files.


@cache
def static_file(name: str) -> tuple[bytes, str] | None:
    """Return the content and the type of a static file, by its name with or without the hash of its content."""
    folder = files(PACKAGE) / "static"
    for known in sorted(one.name for one in folder.iterdir()):
        if name in {known, static_name(known)}:
            kind = next((kind for ending, kind in STATIC_TYPES.items() if known.endswith(ending)), None)
            return None if kind is None else ((folder / known).read_bytes(), kind)
    return None


@cache
def static_name(name: str) -> str:
    """Return the name of a static file with the hash of its content, so that browsers keep it until it changes."""
    content = (files(PACKAGE) / "static" / name).read_bytes()
    stem, _, ending = name.rpartition(".")
    return f"{stem}.{sha256(content).hexdigest()[:10]}.{ending}"


# Pictures.


def plot_picture(plot: ContextPlot) -> Markup:
    """Return the context over time as an SVG picture with its axes: steps for each part, the budget, marks at drops.

    A step is as wide as the request is in force: from its place to that of the next.
    """
    count = len(plot.requests)
    if not count:
        return Markup("")
    totals = [sum(values) for values in zip(*plot.parts.values(), strict=True)]
    budget, top = max(plot.budget), max([*totals, 1])
    top = round_up(max(top, budget) if budget < MAX_BUDGET_SHARE * top else top)
    width = PLOT_WIDTH / count

    def steps(values: Sequence[int]) -> list[str]:
        heights = [PLOT_HEIGHT - min(max(0, value), top) * PLOT_HEIGHT / top for value in values]
        corners = ((number, number + 1) for number in range(count))
        return [f"{at * width:.1f},{y:.1f}" for pair, y in zip(corners, heights, strict=True) for at in pair]

    def area(name: str, low: Sequence[int], high: Sequence[int]) -> str:
        return f'<polygon class="part-{name}" points="{" ".join([*steps(high), *reversed(steps(low))])}"/>'

    low = [0] * count
    pieces: list[str] = []
    for name, _ in PARTS:
        high = [base + value for base, value in zip(low, plot.parts[name], strict=True)]
        if any(plot.parts[name]):
            pieces.append(area(name.replace("_", "-"), low, high))
        low = high
    budgets = [min(top, one) for one in plot.budget]
    if budget:
        pieces.append(area("free", low, [max(pair) for pair in zip(low, budgets, strict=True)]))
        pieces.append(f'<polyline class="budget" points="{" ".join(steps(budgets))}"/>' if budget <= top else "")
    numbers = {request: number for number, request in enumerate(plot.requests)}
    pieces += [
        f'<line class="drop" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{PLOT_HEIGHT}"/>'
        for at in (numbers[request] * width for request, _ in plot.drops)
    ]
    what = "answers" if plot.is_billed else "requests"
    label = f"Tokens of {plot.total:,} {what}; the largest has {max(totals):,}, the last {totals[-1]:,}."
    rows = "".join(f"<span>{short_number(value)}</span>" for value in (top, top // 2, 0))
    columns = f"<span>{plot.requests[0]}</span><span>{what[:-1]}</span><span>{plot.requests[-1]}</span>"
    return Markup(  # noqa: S704 - built from numbers and constants
        f'<div class="plot-frame"><span class="y-title" aria-hidden="true">tokens</span>'
        f'<div class="y-axis" aria-hidden="true">{rows}</div>'
        f'<svg class="plot-picture" role="img" aria-label="{label}" viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT}" '
        f'preserveAspectRatio="none">{"".join(pieces)}</svg>'
        f'<div class="x-axis" aria-hidden="true">{columns}</div></div>'
    )


def round_up(value: int) -> int:
    """Return the next number that reads well at an axis, such as 6,000 for 5,371."""
    size = 10 ** (len(str(value)) - 1)
    return next(one for step in AXIS_STEPS if (one := -(-size * step // 10)) >= value)


def bar_picture(parts: Mapping[str, int], budget: int) -> Markup:
    """Return the parts of one request as a bar; what is free of the budget stays empty."""
    total = sum(parts.values())
    whole = max(1, total, budget)
    pieces: list[str] = []
    at = 0.0
    for name, _ in PARTS:
        width = min(max(0, parts[name]), whole) * 1_000 / whole
        pieces.append(
            f'<rect class="part-{name.replace("_", "-")}" x="{at:.1f}" y="0" width="{width:.1f}" height="16"/>'
        )
        at += width
    label = f"{total:,} of {budget:,} tokens"
    return Markup(  # noqa: S704 - built from numbers and constants
        f'<svg class="bar" role="img" aria-label="{label}" viewBox="0 0 1000 16" preserveAspectRatio="none">'
        f"{''.join(pieces)}</svg>"
    )


def plot_columns(plot: ContextPlot) -> Sequence[Sequence[int]]:
    """Return the columns that the interactive plot draws: numbers of requests, then the parts, stacked."""
    columns: list[Sequence[int]] = [plot.requests]
    low = [0] * len(plot.requests)
    for name, _ in PARTS:
        low = [base + value for base, value in zip(low, plot.parts[name], strict=True)]
        columns.append(tuple(low))
    return [*columns, plot.budget]
