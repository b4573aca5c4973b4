"""Bytes on disk for each byte of conversation, after an agent's run of 200 tool steps.

Holdfast records the run like an agent, with a request before every step, so that the file has the requests and the
compactions too; its export as JSON lines is measured as well. Both are compared with what peers store of the same run,
such as a checkpoint for each step in LangGraph's SqliteSaver.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import choose_peers, run_task
from benchmarks.reporting import print_progress, verdict
from benchmarks.store.files import BUDGET, MODEL, database_bytes, message_bytes, sqlite_url
from benchmarks.tables import render_ratio, table_with_failures
from holdfast import Session
from holdfast.session.maintenance.transfer import export_records, import_session, records_from_file
from holdfast.stores.jsonl import export_lines, load_file
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import JsonMessage
from holdfast.testing.sessions import generate_session

STEPS = 200
MAX_RATIO = 1.5
EXPLANATION = (
    "One run of 200 tool steps, as each library stores it. Haystack and litellm store nothing; deepagents uses "
    "LangGraph's checkpointers, which stand here already."
)


async def measure(folder: Path, peers: Sequence[str]) -> dict[str, Any]:
    """Return the bytes on disk of the same run, Holdfast first."""
    steps = split_steps(generate_session(2, loop_steps=STEPS))
    said = sum(len(message_bytes(message)) for step in steps for message in step)
    rows = await measure_holdfast(folder, steps)
    for peer in choose_peers(peers) if peers else []:
        print_progress(f"size: {peer.name} …")
        rows += await run_task(peer, {"do": "keep", "peer": peer.name, "steps": steps, "folder": str(folder)})
    for row in (row for row in rows if "failed" not in row):
        row["ratio"] = row["bytes"] / said
        row["times_ours"] = row["bytes"] / rows[0]["bytes"]
    messages = sum(map(len, steps))
    return {"steps": STEPS, "messages": messages, "bytes": said, "rows": rows, "aim": MAX_RATIO}


def split_steps(messages: Sequence[JsonMessage]) -> list[list[JsonMessage]]:
    """Return the messages before the first step, then each step: a call and its results."""
    steps: list[list[JsonMessage]] = [[]]
    for message in messages:
        if message["role"] == "assistant":
            steps.append([])
        steps[-1].append(message)
    return steps


async def measure_holdfast(folder: Path, steps: list[list[JsonMessage]]) -> list[dict[str, Any]]:
    """Store the run, and return the size of its file and how many messages can be read from it."""
    path, lines = folder / "chats.db", folder / "run.jsonl"
    url = sqlite_url(path)
    async with Session.open("run", store=url, model=MODEL) as session:
        await session.record(steps[0])
        for call, *results in steps[1:]:
            await session.prepare(BUDGET)
            await session.record([call])
            await session.record(results)
    size = database_bytes(path)
    async with Session.open("run", store=url) as session:
        kept = len(session)
        records = [record async for record in export_records(session.store, "run")]
    lines.write_text("".join(export_lines("run", "", records)))
    again = MemoryStore()
    await import_session(again, "run", records_from_file(load_file(lines).conversations[0], 0))
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


def render_markdown(figures: dict[str, Any]) -> str:
    """Return the table of this part."""
    head = ["", "bytes on disk", "for each byte of content", "relative to Holdfast", "messages read back"]

    def cells(row: Mapping[str, Any]) -> list[str]:
        sizes = [f"{row['bytes']:,}", f"{row['ratio']:.2f}", render_ratio(row["times_ours"], 1)]
        return [row["name"], *sizes, str(row["messages"])]

    return table_with_failures(head, figures["rows"], cells)
