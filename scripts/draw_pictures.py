"""Draws the pictures of the documentation from real runs: docs/images/survives.svg and docs/images/default.svg.

python -m scripts.draw_pictures docs/images

Both runs use a generated coding session, a real `Session` and a budget of 16,000 tokens, and take about a minute.
`survives.svg` is animated: the requests of a long conversation, and a recall of its second message at the end.
`default.svg` compares what two policies send.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from holdfast import Session, counter_for
from holdfast.testing.chat import JsonMessage, assistant_message, user_message
from holdfast.testing.sessions import generate_session

BUDGET = 16_000
MESSAGES = 1_197
"""How long the generated session is; three messages are added."""
FACT = "The staging database is called heron-42."
QUESTION = "What is the staging database called?"
FONT = "font-family='ui-sans-serif,system-ui,Segoe UI,Helvetica,Arial,sans-serif'"
SECONDS = 9.0
"""How long the animated picture takes to draw itself."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What one request was made of."""

    said: int
    """How many messages had been said."""
    tokens: int
    shared: int
    """The tokens of its prefix that the request before had too."""
    compactions: int


@dataclass(frozen=True, slots=True)
class Run:
    """A whole conversation under one policy."""

    sent: list[Sent]
    full: list[int]
    """The tokens of the whole history at each request."""
    found: str
    """What recall answered at the end."""


def shared_tokens(before: Sequence[JsonMessage], now: Sequence[JsonMessage], sizes: Sequence[int]) -> int:
    """Return the tokens of the messages that two requests begin with."""
    total = 0
    for old, new, size in zip(before, now, sizes, strict=False):
        if old != new:
            break
        total += size
    return total


async def run_default(messages: Sequence[JsonMessage]) -> Run:
    """Let the default policy prepare a request before each answer, and ask for the fact at the end."""
    count = counter_for("gpt-5").count
    sent: list[Sent] = []
    full: list[int] = []
    total, before, waiting = 0, list[JsonMessage](), list[JsonMessage]()
    async with Session.open("survives", store="memory://", model="gpt-5") as session:
        for said, message in enumerate(messages):
            if message["role"] == "assistant":
                await session.record(waiting)
                waiting = []
                request = await session.prepare(BUDGET)
                sizes = [count(str(one)) for one in request.messages]
                scale = request.tokens.total / max(1, sum(sizes))
                shared = int(shared_tokens(before, request.messages, sizes) * scale)
                compactions = len(await session.receipts())
                sent.append(Sent(said, request.tokens.total, shared, compactions))
                full.append(total)
                before = list(request.messages)
            waiting.append(message)
            total += count(str(message.get("content") or message.get("tool_calls")))
        await session.record(waiting)
        found = await session.recall(QUESTION)
        return Run(sent, full, next(one.text for one in found.excerpts if "heron-42" in one.text))


def run_sliding(messages: Sequence[JsonMessage]) -> list[Sent]:
    """Send the newest messages that fit, as a sliding window does."""
    count = counter_for("gpt-5").count
    sizes = [count(str(one)) for one in messages]
    sent: list[Sent] = []
    before: list[JsonMessage] = []
    for said, message in enumerate(messages):
        if message["role"] == "assistant":
            first, total = said, 0
            while first > 0 and total + sizes[first - 1] <= BUDGET:
                first -= 1
                total += sizes[first]
            now = list(messages[first:said])
            sent.append(Sent(said, total, shared_tokens(before, now, sizes[first:said]), 0))
            before = now
    return sent


def draw_survives(run: Run) -> str:
    """Return the animated picture."""
    width, height, left, top, bottom = 860, 380, 64, 70, 300
    plot = width - left - 28
    limit = top + 60
    unit = (bottom - limit) / BUDGET
    step = plot / len(run.sent)
    x = [left + number * step for number in range(len(run.sent))]
    bars = "".join(
        f"<rect x='{at:.1f}' y='{bottom - one.tokens * unit:.1f}' width='{max(step - 0.4, 0.6):.2f}' "
        f"height='{one.tokens * unit:.1f}' class='new'/>"
        f"<rect x='{at:.1f}' y='{bottom - one.shared * unit:.1f}' width='{max(step - 0.4, 0.6):.2f}' "
        f"height='{one.shared * unit:.1f}' class='old'/>"
        for at, one in zip(x, run.sent, strict=True)
    )
    whole = " ".join(
        f"{at:.1f},{max(top + 8.0, bottom - tokens * unit):.1f}" for at, tokens in zip(x, run.full, strict=True)
    )
    last = run.sent[-1]
    marks = "".join(
        f"<circle cx='{at:.1f}' cy='{limit - 8}' r='3.2' class='mark'/>"
        for at, one, before in zip(x[1:], run.sent[1:], run.sent, strict=False)
        if one.compactions > before.compactions
    )
    captions = "".join(caption_steps(run))
    hold = SECONDS + 5
    share = SECONDS / hold
    return f"""<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' role='img'>
<title>A conversation of {last.said:,} messages in a window of {BUDGET:,} tokens</title>
<style>
.back{{fill:#0f1b1e}}.new{{fill:#6fb7ae}}.old{{fill:#1f6f6b}}.mark{{fill:#ffb454}}.small{{fill:#9fb3b5;font-size:13px}}
.text{{fill:#e8f1f0;font-size:15px}}.big{{fill:#ffffff;font-size:19px;font-weight:600}}.limit{{stroke:#ff7a70;stroke-width:1.5;stroke-dasharray:5 4}}
.whole{{fill:none;stroke:#7c8b8d;stroke-width:1.6}}
</style>
<rect class='back' width='{width}' height='{height}' rx='10'/>
<g {FONT}>
<text x='{left}' y='34' class='big'>{last.said:,} messages in a window of {BUDGET:,} tokens</text>
<text x='{left}' y='55' class='small'>each bar is one request: dark = read from the provider's cache, light = new, dots = compactions</text>
<line x1='{left}' x2='{width - 20}' y1='{limit}' y2='{limit}' class='limit'/>
<text x='{left - 8}' y='{limit + 4}' text-anchor='end' class='small'>16k</text>
<text x='{left - 8}' y='{bottom + 4}' text-anchor='end' class='small'>0</text>
<clipPath id='drawn'><rect x='0' y='0' width='{width}' height='{height}'>
<animate attributeName='width' dur='{hold}s' repeatCount='indefinite' keyTimes='0;{share:.3f};1' values='{left};{width};{width}'/>
</rect></clipPath>
<g clip-path='url(#drawn)'>{bars}<polyline class='whole' points='{whole}'/>{marks}</g>
<text x='{left + plot * 0.13:.0f}' y='{top + 22}' class='small'>the whole history</text>
{captions}
<g opacity='1'><animate attributeName='opacity' dur='{hold}s' repeatCount='indefinite' keyTimes='0;{share:.3f};{min(share + 0.03, 0.99):.3f};1' values='0;0;1;1'/>
<text x='{left}' y='{bottom + 56}' class='text'>{escape(QUESTION)} <tspan fill='#ffb454'>recall: “{escape(run.found)}”</tspan> <tspan class='small'>(message #1, {last.said:,} messages ago)</tspan></text></g>
</g></svg>
"""


def caption_steps(run: Run) -> Iterator[str]:
    """Yield the line of figures, which changes while the picture is drawn."""
    hold, count = SECONDS + 5, 24
    for number in range(count):
        one = run.sent[(len(run.sent) - 1) * (number + 1) // count]
        whole = run.full[(len(run.full) - 1) * (number + 1) // count]
        start, stop = SECONDS * number / count / hold, SECONDS * (number + 1) / count / hold
        is_last = number == count - 1
        times = f"0;{start:.4f};1" if is_last else f"0;{start:.4f};{stop:.4f};1"
        values = "0;1;1" if is_last else "0;1;0;0"
        text = (
            f"{one.said:,} messages said ({whole:,} tokens)  ·  this request {one.tokens:,}  ·  "
            f"{one.compactions} compactions"
        )
        opacity = 1 if is_last else 0
        yield (
            f"<text x='64' y='328' class='text' opacity='{opacity}'>{text}"
            f"<animate attributeName='opacity' calcMode='discrete' dur='{hold}s' repeatCount='indefinite' "
            f"keyTimes='{times}' values='{values}'/></text>\n"
        )


def draw_default(sliding: Sequence[Sent], run: Run) -> str:
    """Return the picture of two policies, one above the other."""
    width, left, plot, high = 860, 60, 780, 130
    parts: list[str] = []
    for row, (title, sent) in enumerate((("A sliding window", sliding), ("The default", run.sent))):
        top = 52 + row * (high + 62)
        bottom, unit, step = top + high, high / BUDGET, plot / len(sent)
        read = sum(one.shared for one in sent) / sum(one.tokens for one in sent)
        parts.append(
            f"<text x='{left}' y='{top - 10}' class='head'>{title}: {read:.0%} of all tokens read from the cache</text>"
            f"<line x1='{left}' x2='{left + plot}' y1='{top}' y2='{top}' class='limit'/>"
            f"<text x='{left - 8}' y='{top + 4}' text-anchor='end' class='small'>16k</text>"
        )
        for number, one in enumerate(sent):
            at = left + number * step
            parts.append(
                f"<rect x='{at:.1f}' y='{bottom - one.tokens * unit:.1f}' width='{max(step - 0.4, 0.6):.2f}' "
                f"height='{one.tokens * unit:.1f}' class='new'/><rect x='{at:.1f}' y='{bottom - one.shared * unit:.1f}' "
                f"width='{max(step - 0.4, 0.6):.2f}' height='{one.shared * unit:.1f}' class='old'/>"
            )
    height = 52 + 2 * (high + 62) - 20
    return f"""<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' role='img'>
<title>What two policies send</title>
<style>.back{{fill:#fbfdfc}}.new{{fill:#7cc4bb}}.old{{fill:#1f6f6b}}.head{{fill:#1b2b2d;font-size:15px;font-weight:600}}.small{{fill:#5b6b6d;font-size:12px}}
.limit{{stroke:#d9534a;stroke-width:1.2;stroke-dasharray:5 4}}</style>
<rect class='back' width='{width}' height='{height}' rx='8'/><g {FONT}>
<text x='{left}' y='22' class='small'>each bar is one request; dark: the prefix that it shares with the request before; light: sent as new</text>
{"".join(parts)}</g></svg>
"""


def conversation() -> list[JsonMessage]:
    """Return a generated coding session whose second message states the fact."""
    first, *rest = generate_session(MESSAGES)
    return [first, user_message(FACT), assistant_message("Noted."), *rest]


def main(folder: Path) -> None:
    """Run both policies and write the pictures."""
    messages = conversation()
    run, sliding = asyncio.run(run_default(messages)), run_sliding(messages)
    (folder / "survives.svg").write_text(draw_survives(run), encoding="utf-8")
    shown = next(number for number, one in enumerate(run.sent) if one.said > MESSAGES // 2)
    (folder / "default.svg").write_text(
        draw_default(sliding[:shown], Run(run.sent[:shown], run.full[:shown], run.found)), encoding="utf-8"
    )
    last = run.sent[-1]
    print(f"{last.said} messages, {run.full[-1]} tokens, {last.compactions} compactions; recall: {run.found}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
