"""Bytes on disk for each byte of conversation, after an agent's run of 200 tool steps.

Ours is recorded as an agent does it, a request prepared before every step, so that the requests and the folds
are in the file as well; and as its export in lines. Beside it what peers keep of the same run, each in its own way:
LangGraph's SqliteSaver a checkpoint a step.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import chosen, rows_of
from benchmarks.reporting import progress, verdict
from benchmarks.store.files import BUDGET, MODEL, as_json, bytes_of, url_of
from benchmarks.tables import table_of, times
from holdfast import Session
from holdfast.session.transfer import bring_in, outgoing, records_of
from holdfast.stores.jsonl import export_lines, load_file
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import Json
from holdfast.testing.sessions import generated_session

STEPS = 200
AIM = 1.5
WORDS = (
    "One run of 200 tool steps, kept as each library keeps it. Haystack and litellm keep nothing; deepagents has "
    "LangGraph's checkpointers, which stand here already."
)


async def measured(folder: Path, peers: Sequence[str]) -> dict[str, Any]:
    """Return what the same run takes on disk, ours first."""
    steps = in_steps(generated_session(2, loop_steps=STEPS))
    said = sum(len(as_json(message)) for step in steps for message in step)
    rows = await ours(folder, steps)
    for peer in chosen(peers) if peers else []:
        progress(f"size: {peer.name} …")
        rows += await rows_of(peer, {"do": "keep", "peer": peer.name, "steps": steps, "folder": str(folder)})
    for row in (row for row in rows if "failed" not in row):
        row["ratio"] = row["bytes"] / said
        row["times_ours"] = row["bytes"] / rows[0]["bytes"]
    messages = sum(map(len, steps))
    return {"steps": STEPS, "messages": messages, "bytes": said, "rows": rows, "aim": AIM}


def in_steps(messages: Sequence[Json]) -> list[list[Json]]:
    """Return what comes before the first step, and then each step: a call and its results."""
    steps: list[list[Json]] = [[]]
    for message in messages:
        if message["role"] == "assistant":
            steps.append([])
        steps[-1].append(message)
    return steps


async def ours(folder: Path, steps: list[list[Json]]) -> list[dict[str, Any]]:
    """Keep the run, and return how large its file is and how many messages come back out of it."""
    path, lines = folder / "chats.db", folder / "run.jsonl"
    url = url_of(path)
    async with Session.open("run", store=url, model=MODEL) as session:
        await session.record(steps[0])
        for call, *results in steps[1:]:
            await session.prepare(BUDGET)
            await session.record([call])
            await session.record(results)
    size = bytes_of(path)
    async with Session.open("run", store=url) as session:
        kept = len(session)
        records = [record async for record in outgoing(session.store, "run")]
    lines.write_text("".join(export_lines("run", "", records)))
    again = MemoryStore()
    await bring_in(again, "run", records_of(load_file(lines).conversations[0], 0))
    async with Session.open("run", store=again) as session:
        exported = len(session)
    return [
        {"name": f"Holdfast, SQLite, prepared at {BUDGET:,} each step", "bytes": size, "messages": kept},
        {"name": "Holdfast, the same exported as JSONL", "bytes": lines.stat().st_size, "messages": exported},
    ]


def report(figures: dict[str, Any]) -> str:
    """Return the figures in lines."""
    head = f"{figures['steps']} steps, {figures['messages']} messages, {figures['bytes']:,} bytes of JSON"
    lines = [
        f"bytes on disk for each byte of conversation ({head})",
        f"  {'':48}{'bytes':>12}{'ratio':>10}{'× ours':>8}",
    ]
    for number, row in enumerate(figures["rows"]):
        if "failed" in row:
            lines.append(f"  {row['name']:48}  FAILED: {row['failed']}")
            continue
        aim = f"  (aim ≤ {figures['aim']}: {verdict(is_met=row['ratio'] <= figures['aim'])})" if not number else ""
        loss = "" if row["messages"] == figures["messages"] else f"  ONLY {row['messages']} MESSAGES"
        lines.append(f"  {row['name']:48}{row['bytes']:>12,}{row['ratio']:>10.2f}{row['times_ours']:>8.1f}{aim}{loss}")
    return "\n".join(lines)


def in_markdown(figures: dict[str, Any]) -> str:
    """Return the table of this part."""
    head = ["", "bytes on disk", "for each byte of content", "beside Holdfast", "messages that come back"]

    def cells(row: Mapping[str, Any]) -> list[str]:
        sizes = [f"{row['bytes']:,}", f"{row['ratio']:.2f}", times(row["times_ours"], 1)]
        return [row["name"], *sizes, str(row["messages"])]

    return table_of(head, figures["rows"], cells)
