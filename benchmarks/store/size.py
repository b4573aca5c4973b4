"""Bytes on disk for each byte of conversation, after an agent's run of 200 tool steps.

Ours is recorded as an agent does it, a request prepared before every step, so that the requests and the folds
are in the file as well. Beside it LangGraph's SqliteSaver for the same run, a checkpoint a step.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import SAVER, ask
from benchmarks.reporting import verdict
from benchmarks.store.files import BUDGET, MODEL, as_json, bytes_of, url_of
from holdfast import Session
from holdfast.testing.chat import Json
from holdfast.testing.sessions import generated_session

STEPS = 200
AIM = 1.5


async def measured(folder: Path, *, has_peers: bool) -> dict[str, Any]:
    """Return what the same run takes on disk, ours first."""
    steps = in_steps(generated_session(2, loop_steps=STEPS))
    said = sum(len(as_json(message)) for step in steps for message in step)
    rows: list[dict[str, Any]] = [{"name": f"holdfast, prepared at {BUDGET:,} each step", **await ours(folder, steps)}]
    if has_peers:
        task = folder / "task.json"
        task.write_text(json.dumps({"steps": steps, "folder": str(folder)}))
        rows += ask(SAVER, task)
    for row in rows:
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


async def ours(folder: Path, steps: list[list[Json]]) -> dict[str, Any]:
    """Keep the run, and return how large its file is and how many messages come back out of it."""
    path = folder / "chats.db"
    url = url_of(path)
    async with Session.open("run", store=url, model=MODEL) as session:
        await session.record(steps[0])
        for call, *results in steps[1:]:
            await session.prepare(BUDGET)
            await session.record([call])
            await session.record(results)
    size = bytes_of(path)
    async with Session.open("run", store=url) as session:
        return {"bytes": size, "messages": len(session)}


def report(figures: dict[str, Any]) -> str:
    """Return the figures in lines."""
    head = f"{figures['steps']} steps, {figures['messages']} messages, {figures['bytes']:,} bytes of JSON"
    lines = [
        f"bytes on disk for each byte of conversation ({head})",
        f"  {'':44}{'bytes':>12}{'ratio':>10}{'× ours':>8}",
    ]
    for number, row in enumerate(figures["rows"]):
        aim = f"  (aim ≤ {figures['aim']}: {verdict(is_met=row['ratio'] <= figures['aim'])})" if not number else ""
        loss = "" if row["messages"] == figures["messages"] else f"  ONLY {row['messages']} MESSAGES"
        lines.append(f"  {row['name']:44}{row['bytes']:>12,}{row['ratio']:>10.2f}{row['times_ours']:>8.1f}{aim}{loss}")
    return "\n".join(lines)
