"""What it costs to load a library: a fresh interpreter that imports it, less a bare one, and the modules it brings."""

import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

from benchmarks.peers import Peer, PeerError, failed_row, install, run
from benchmarks.reporting import progress
from benchmarks.tables import milliseconds, table_of, times

RUNS = 9
WORDS = f"Median of {RUNS} fresh interpreters less as many bare ones in the same environment, bytecode written before."


def seconds_of(python: Path | str, statement: str, environ: Mapping[str, str]) -> float:
    """Return how long an interpreter takes for a statement, from its start to its end."""
    began = time.perf_counter()
    subprocess.run([python, "-c", statement], check=True, env=environ, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


async def measured(peers: Sequence[Peer]) -> list[dict[str, Any]]:
    """Return a row for each thing to import, in the environment of its peer; all in turns, so that all wait alike."""
    rows: list[dict[str, Any]] = []
    timed: list[tuple[dict[str, Any], Peer, str]] = []
    for peer, (name, statement) in chain.from_iterable(product([peer], peer.imports.items()) for peer in peers):
        progress(f"imports: {name} …")
        try:
            await install(peer)
            rows.append({"name": name, "modules": await modules_of(peer, statement), "pairs": []})
            timed.append((rows[-1], peer, statement))
        except PeerError as error:
            rows.append(failed_row(name, str(error)))
    for _ in range(RUNS):
        for row, peer, statement in timed:
            both = (seconds_of(peer.python, text, peer.environ) for text in (statement, "pass"))
            row["pairs"].append(tuple(both))
    return [row if "failed" in row else judged(row) for row in rows]


async def modules_of(peer: Peer, statement: str) -> int:
    """Return how many modules an import brings; bytecode is there after it."""
    counting = f"import sys; before = set(sys.modules); {statement}; print(len(set(sys.modules) - before))"
    return int((await run([str(peer.python), "-c", counting], environ=peer.environ)).split()[-1])


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """Return the medians of a row."""
    whole, bare = (statistics.median(column) for column in zip(*row["pairs"], strict=True))
    return {"name": row["name"], "seconds": max(0.0, whole - bare), "bare": bare, "modules": row["modules"]}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of this part."""
    head = ["", "import", "beside Holdfast", "beside a bare interpreter", "modules"]
    ours = next((row["seconds"] for row in rows if "seconds" in row), None)

    def cells(row: Mapping[str, Any]) -> list[str]:
        beside = [times(row["seconds"], ours), times(row["seconds"], row["bare"])]
        return [row["name"], f"{milliseconds(row['seconds'])} ms", *beside, f"{row['modules']:,}"]

    return table_of(head, rows, cells)
