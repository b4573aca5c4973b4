"""Plants facts in a long conversation and measures which reach the summarizer and which can be recalled.

    python -m benchmarks.needles [PEER …]

A third of the facts is in prompts, a third in answers, and a third inside tool results of a thousand characters or
more. The conversation grows turn by turn, with a request for each. Every summary is the same text without any of the
facts, so a fact that is in view was kept verbatim.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import Peer, measure_from_command_line, run_task
from benchmarks.reporting import print_progress
from benchmarks.tables import DASH, render_share, table_with_failures
from holdfast import counter_for
from holdfast.testing.chat import JsonMessage
from holdfast.testing.sessions import generate_session

MESSAGES, BUDGET, NEEDLES_PER_KIND = 1_000, 16_000, 20
MIN_LARGE_CHARS = 1_000
THINGS = ("berth", "call sign", "code word", "gate key", "harbour fee", "pilot", "radio channel", "warehouse")
COLORS = ("amber", "cobalt", "crimson", "indigo", "ochre", "teal", "umber", "violet")
BIRDS = ("bittern", "curlew", "dunlin", "egret", "fulmar", "gannet", "heron", "plover")
ONSETS, ENDS = (
    ("Al", "Bran", "Cor", "Del", "Fen", "Gar", "Hol", "Lin"),
    ("by", "dor", "fell", "ham", "mouth", "stad", "wick", "voe"),
)
EXPLANATION = (
    f"{3 * NEEDLES_PER_KIND} facts in {MESSAGES:,} messages, a third each in prompts, answers and large tool results. "
    "The "
    f"conversation grows step by step at {BUDGET:,} tokens, and no summary repeats a fact. The last column queries "
    "the library's own tool by the name of the fact; if there is none (marked with a star), only "
    "what is in view counts."
)


@dataclass(frozen=True, slots=True)
class Needle:
    """A fact with a name to query and a value to recognize."""

    name: str
    value: str

    @property
    def text(self) -> str:
        """The sentence that is planted."""
        return f"The {self.name} is {self.value}."


def plant_needles(
    messages: Sequence[JsonMessage], each: int = NEEDLES_PER_KIND, seed: int = 7
) -> tuple[list[JsonMessage], list[Needle]]:
    """Return the conversation with facts in it, the same number for each kind of place."""
    chance = random.Random(seed)
    places = {
        "user": [at for at, message in enumerate(messages) if message["role"] == "user"],
        "assistant": [
            at for at, message in enumerate(messages) if message["role"] == "assistant" and message["content"]
        ],
        "tool": [
            at for at, m in enumerate(messages) if m["role"] == "tool" and len(str(m["content"])) >= MIN_LARGE_CHARS
        ],
    }
    changed, needles = [dict(message) for message in messages], list[Needle]()
    for found in places.values():
        for at in sorted(chance.sample(found, each)):
            number = len(needles) + 1
            value = f"{chance.choice(COLORS)}-{chance.choice(BIRDS)}-{1000 + number}"
            place = ONSETS[number % len(ONSETS)] + ENDS[number // len(ONSETS)]
            needles.append(Needle(f"{chance.choice(THINGS)} of {place}", value))
            changed[at]["content"] = _insert_needle(str(changed[at]["content"]), needles[-1].text, chance)
    return changed, needles


def _insert_needle(text: str, needle: str, chance: random.Random) -> str:
    """Return a text with a sentence inserted between two of its words."""
    words = text.split(" ")
    at = chance.randint(1, len(words))
    return " ".join([*words[:at], needle, *words[at:]])


def split_turns(messages: Sequence[JsonMessage]) -> list[list[JsonMessage]]:
    """Return the conversation in pieces that each end where a model is called: after a prompt or a step's results."""
    turns: list[list[JsonMessage]] = [[]]
    for message, following in zip(messages, [*messages[1:], None], strict=True):
        turns[-1].append(message)
        if message["role"] in {"user", "tool"} and following and following["role"] == "assistant":
            turns.append([])
    return [turn for turn in turns if turn]


def count_needles(row: dict[str, Any], needles: Sequence[Needle]) -> dict[str, Any]:
    """Return how many needles are in view, how many others the summarizer received, and how many can be reached."""
    view = json.dumps(row["messages"], ensure_ascii=False)
    shown: list[str] | None = row["shown"]
    gone = [needle for needle in needles if needle.value not in view]
    found = {needle.value for needle, text in zip(needles, row["found"], strict=True) if text and needle.value in text}
    counter = counter_for("gpt-5")
    return {
        "name": row["name"],
        "needles": len(needles),
        "in_view": len(needles) - len(gone),
        "gone": len(gone),
        "reached": None if shown is None else sum(any(n.value in text for text in shown) for n in gone),
        "calls": None if shown is None else len(shown),
        "largest": max(map(counter.count, shown), default=0) if shown is not None else None,
        "reachable": len(needles) - len(gone) + sum(needle.value in found for needle in gone),
        "has_tool": any(text is not None for text in row["found"]),
    }


def render_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of this part."""
    head = [
        "",
        "in view",
        "of the others: the summarizer received",
        "calls",
        "largest call, tokens",
        "in view or by its own tool",
    ]
    return table_with_failures(head, rows, _cells)


def _cells(row: Mapping[str, Any]) -> list[str]:
    has_summaries = row["reached"] is not None
    seen = (
        [render_share(row["reached"], row["gone"]), str(row["calls"]), f"{row['largest']:,}"]
        if has_summaries
        else [DASH] * 3
    )
    reachable = render_share(row["reachable"], row["needles"]) + ("" if row["has_tool"] else "*")
    return [row["name"], render_share(row["in_view"], row["needles"]), *seen, reachable]


async def measure(peers: Sequence[Peer]) -> list[dict[str, Any]]:
    """Return a row for each way of each peer."""
    messages, needles = plant_needles(generate_session(MESSAGES))
    task = {
        "do": "needles",
        "budget": BUDGET,
        "turns": split_turns(messages),
        "queries": [needle.name for needle in needles],
    }
    rows: list[dict[str, Any]] = []
    for peer in peers:
        print_progress(f"needles: {peer.name} …")
        rows += [row if "failed" in row else count_needles(row, needles) for row in await run_task(peer, task)]
    return rows


if __name__ == "__main__":
    measure_from_command_line(__doc__, measure, render_table)
