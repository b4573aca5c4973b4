"""How many of the identifiers an agent needs again are still in view after compaction, with and without a ledger.

    python -m benchmarks.retention FILE.jsonl … [--budget 50000] [--ledger 2000] [--json FILE]

At every tool call of a recording: of the identifiers in its arguments that occurred before, those last seen
more than 20 messages ago are far demands; it prints the share of them that is verbatim in the request, and the
same for the first far use of each. The request is that of threshold compaction, with the ledger in place of the
summary: only its identifiers (names), or all of it, including files, commands and constraints (whole). It is compared
with ledgers of random identifiers, of the most recent ones and of the most frequent ones. No ledger repeats what is in
the part that stays. `default` is the request of the default policy at the same budget, with its own ledger.
"""

import argparse
import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from benchmarks.reporting import save_figures
from holdfast import Counter, counter_for
from holdfast.apps.lab.baselines import MessageSizes, ReplayRequest, ThresholdCompaction
from holdfast.apps.lab.identifiers import extract_identifiers
from holdfast.apps.lab.recordings import Recording, read_recording
from holdfast.apps.lab.replay import DEFAULT_STATIC_TOKENS
from holdfast.apps.lab.simulation import SimulatedSession
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.ledger.identifiers import argument_text
from holdfast.core.ledger.ledger import Ledger
from holdfast.core.ledger.names import RankedName, pack_names
from holdfast.core.ledger.render import render_ledger
from holdfast.core.planning.policy import PRESETS
from holdfast.wire.formats import format_named

FAR_MESSAGES = 20
LEDGERS = ("none", "random", "recent", "frequent", "names", "whole")
LEDGER_KINDS = (*LEDGERS, "default")


@dataclass(slots=True)
class Tally:
    """How many demands there were, and how many were met."""

    far: int = 0
    far_kept: int = 0
    first: int = 0
    first_kept: int = 0
    seen_far: set[str] = field(default_factory=set[str])


def render_ledgers(
    ledger: Ledger, counts: dict[str, int], allowance: int, counter: Counter, tail: str
) -> dict[str, str]:
    """Return the replacements of the compacted messages, by kind."""
    # By name, so that the draw does not depend on how the ledger ranks.
    items = sorted(ledger.names.ranked(), key=lambda item: item.text)

    def of(order: list[RankedName]) -> str:
        return pack_names((item.text for item in order), allowance, counter, exclude_text=tail)

    return {
        "none": "",
        "random": of(random.Random(1).sample(items, len(items))),
        "recent": of(sorted(items, key=lambda item: -item.last)),
        "frequent": of(sorted(items, key=lambda item: (-counts.get(item.text, 0), -item.last))),
        "names": ledger.names.pack(allowance, counter, exclude_text=tail),
        "whole": render_ledger(ledger, allowance, counter, exclude_text=tail),
    }


def run_job(job: tuple[Recording, int, int]) -> dict[str, Any]:
    return asyncio.run(measure_session(*job))


async def measure_session(session: Recording, budget: int, allowance: int) -> dict[str, Any]:
    async with SimulatedSession(PRESETS["default"]) as ours:
        return await measure_ledgers(session, budget, allowance, ours)


async def measure_ledgers(session: Recording, budget: int, allowance: int, ours: SimulatedSession) -> dict[str, Any]:
    counter, reader = counter_for("gpt-5"), format_named("openai-chat")
    sizes = MessageSizes(Transcript(session.messages, reader, counter), DEFAULT_STATIC_TOKENS)
    policy = ThresholdCompaction()
    ledger, counts, folded = Ledger(), dict[str, int](), 0
    packed: dict[str, str] = dict.fromkeys(LEDGERS, "")
    tallies = {kind: Tally() for kind in LEDGER_KINDS}
    last_seen: dict[str, int] = {}
    for index, entry in enumerate(sizes.transcript.entry(i) for i in range(len(session.messages))):
        calls = entry.message.calls
        if calls and index:
            await policy.prepare(ReplayRequest(session.messages[:index], sizes, budget - allowance))
            for position in range(folded, policy.start):
                observed = sizes.transcript.entry(position)
                ledger.observe(observed)
                for name in entry_identifiers(observed):
                    counts[name] = counts.get(name, 0) + 1
            is_new_fold, folded = policy.start > folded, policy.start
            tail = "\n".join(entry_text(sizes.transcript.entry(i)) for i in range(folded, index))
            if is_new_fold:
                packed = render_ledgers(ledger, counts, allowance, counter, tail)
            wanted = {
                name
                for call in calls
                for name in extract_identifiers(argument_text(call.arguments))
                if name in last_seen
            }
            sent = (await ours.prepare(ReplayRequest(session.messages[:index], sizes, budget))).messages
            view = "\n".join(entry_text(Entry(reader.decode(native, at))) for at, native in enumerate(sent))
            texts = {kind: (tail, text) for kind, text in packed.items()} | {"default": (view, "")}
            count_kept({name for name in wanted if index - last_seen[name] > FAR_MESSAGES}, texts, tallies)
        for name in entry_identifiers(entry):
            last_seen[name] = index
    return {"session": session.name, **{kind: retention_figures(tally) for kind, tally in tallies.items()}}


def count_kept(far: set[str], texts: dict[str, tuple[str, str]], tallies: dict[str, Tally]) -> None:
    for kind, tally in tallies.items():
        for name in far:
            is_kept = any(name in text for text in texts[kind])
            tally.far += 1
            tally.far_kept += is_kept
            if name not in tally.seen_far:
                tally.seen_far.add(name)
                tally.first += 1
                tally.first_kept += is_kept


def entry_identifiers(entry: Entry) -> Iterator[str]:
    yield from extract_identifiers(entry_text(entry))


def entry_text(entry: Entry) -> str:
    message = entry.message
    pieces = [message.text, *(result.text for result in message.results)]
    return "\n".join([*pieces, *(argument_text(call.arguments) for call in message.calls)])


def retention_figures(tally: Tally) -> dict[str, float]:
    return {
        "far": tally.far_kept / max(1, tally.far),
        "first": tally.first_kept / max(1, tally.first),
        "demands": tally.far,
        "identifiers": tally.first,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--budget", type=int, default=50_000)
    parser.add_argument("--ledger", type=int, default=2_000, help="the largest ledger in tokens")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sessions = [read_recording(json.loads(line)) for path in options.files for line in path.read_text().splitlines()]
    with Pool() as pool:
        rows = pool.map(run_job, [(session, options.budget, options.ledger) for session in sessions], chunksize=1)
    rows = [row for row in rows if row["whole"]["demands"]]
    print(
        f"{'session':26}{'demands':>8}" + "".join(f"{kind:>20}" for kind in LEDGER_KINDS) + "   (far / first far use)"
    )
    for row in [*rows, pool_rows(rows)]:
        shares = "".join(f"{row[kind]['far']:>13.3f} /{row[kind]['first']:.3f}" for kind in LEDGER_KINDS)
        print(f"{row['session'][:25]:26}{row['whole']['demands']:>8.0f}{shares}")
    save_figures(rows, options.json)


def pool_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    pool: dict[str, Any] = {"session": "all"}
    for kind in LEDGER_KINDS:
        demands, first = sum(row[kind]["demands"] for row in rows), sum(row[kind]["identifiers"] for row in rows)
        pool[kind] = {
            "far": sum(row[kind]["far"] * row[kind]["demands"] for row in rows) / max(1, demands),
            "first": sum(row[kind]["first"] * row[kind]["identifiers"] for row in rows) / max(1, first),
            "demands": demands,
            "identifiers": first,
        }
    return pool


if __name__ == "__main__":
    main()
