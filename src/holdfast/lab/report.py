"""A report on what the laboratory found: one page that needs nothing but itself."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from itertools import accumulate
from platform import machine, python_version, system

from holdfast.core.planning.cost import PRICES
from holdfast.lab import tables
from holdfast.lab.plots import Series, bars, lines
from holdfast.lab.running import Entry

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#6b7280;--line:#d9dde3;--page:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#9aa2ad;--line:#363b43;--page:#15181c}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:1100px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2.5rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px}
th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child,th:nth-child(3),td:nth-child(3){text-align:left}
figure{margin:1.5rem 0}figcaption{font-weight:600}svg{width:100%;height:auto}
svg text{font-size:11px;fill:var(--soft)}svg .grid{stroke:var(--line)}
.key{margin-right:1rem;font-size:13px}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em}
pre{color:var(--soft);font-size:12px;white-space:pre-wrap}.ours td{font-weight:600}"""


SMOOTHED = 20
"""How many requests one point of a curve stands for that would jump otherwise."""


def page(entries: Sequence[Entry], problems: Sequence[str] = ()) -> str:
    """Return the report as HTML."""
    made = f"holdfast {version('holdfast')}, Python {python_version()}, {system()} {machine()}"
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>Holdfast: laboratory</title><style>{STYLE}</style>",
        f"<h1>What each policy keeps, loses and costs</h1><p>{escape(made)}; {when}</p>",
        _table(entries),
        f"<pre>{escape(tables.LEGEND)}</pre>",
        _list(tables.intervals(entries)),
        _list(tables.bills(entries)),
        _list([*problems, *(f"{one.session}, {one.policy}: {text}" for one in entries for text in one.problems)]),
        *_plots(entries),
    ]
    return "\n".join(part for part in parts if part) + "</html>\n"


def _table(entries: Sequence[Entry]) -> str:
    heading, rows = tables.table(entries)
    head = "".join(f"<th>{escape(name)}</th>" for name in heading)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _list(items: Iterator[str] | Sequence[str]) -> str:
    told = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{told}</ul>" if told else ""


def _plots(entries: Sequence[Entry]) -> Iterator[str]:
    for session, budget in dict.fromkeys((entry.session, entry.budget) for entry in entries):
        group = [entry for entry in entries if (entry.session, entry.budget) == (session, budget) and entry.turns]
        if not group:
            continue
        yield f"<h2>{escape(session)}, {budget:,} tokens</h2>"
        yield lines(
            "Tokens sent, turn by turn; a dot is a fold or a broken prefix",
            [Series(one.policy, [turn.sent for turn in one.turns], _breaks(one)) for one in group],
        )
        prices = PRICES["anthropic"]
        yield lines(
            "Cost so far, in plain input tokens at Anthropic's ratios",
            [Series(one.policy, list(accumulate(turn.cost(prices) for turn in one.turns))) for one in group],
        )
        yield lines(
            f"Share of what is sent that the cache holds, over {SMOOTHED} requests",
            [Series(one.policy, _held(one)) for one in group],
        )
        yield from _retention(group)
        waiting = [one for one in group if one.waiting]
        if waiting:
            yield lines(
                "Seconds that each request waits, with a summary that takes its time",
                [Series(one.policy, [turn.waited_seconds for turn in one.waiting]) for one in waiting],
                unit=" s",
            )


def _retention(group: Sequence[Entry]) -> Iterator[str]:
    ages = sorted(
        {int(name.rsplit(".", 1)[1]) for one in group for name in one.figures if name.startswith("M1.by_age.")}
    )
    if ages:
        yield bars(
            "Identifiers needed again that are in view, by how many messages ago they were seen",
            {
                f"from {age}": [
                    Series(one.policy, [one.figures[f"M1.by_age.{age}"]])
                    for one in group
                    if f"M1.by_age.{age}" in one.figures
                ]
                for age in ages
            },
        )


def _held(entry: Entry) -> list[float]:
    """Return the share of the last requests, up to each, that the cache holds."""
    shared, sent = (
        [0, *accumulate(values)] for values in zip(*((turn.shared, turn.sent) for turn in entry.turns), strict=True)
    )
    places = ((max(0, at - SMOOTHED), at) for at in range(1, len(entry.turns) + 1))
    return [(shared[stop] - shared[start]) / max(1, sent[stop] - sent[start]) for start, stop in places]


def _breaks(entry: Entry) -> list[int]:
    found = [index for index, turn in enumerate(entry.turns) if turn.is_folded or not turn.is_extension]
    # A window that slides breaks every time: dots on every turn would say nothing.
    return found if len(found) * 10 <= len(entry.turns) else []
