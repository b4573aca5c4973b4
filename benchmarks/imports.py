"""Measures the time to import a library, less that of a bare interpreter, and the number of modules it loads."""

import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

from benchmarks.peers import Peer, PeerError, failed_row, install, run_program
from benchmarks.reporting import print_progress
from benchmarks.tables import render_milliseconds, render_ratio, table_with_failures

RUNS = 9
EXPLANATION = (
    f"Median of {RUNS} fresh interpreters less as many bare ones in the same environment, bytecode written before."
)


def time_statement(python: Path | str, statement: str, environ: Mapping[str, str]) -> float:
    """Return how long a new interpreter takes to run a statement."""
    began = time.perf_counter()
    subprocess.run([python, "-c", statement], check=True, env=environ, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


async def measure(peers: Sequence[Peer]) -> list[dict[str, Any]]:
    """Return a row for each import in the environment of its peer; they alternate, so that load affects all alike."""
    rows: list[dict[str, Any]] = []
    timed: list[tuple[dict[str, Any], Peer, str]] = []
    for peer, (name, statement) in chain.from_iterable(product([peer], peer.imports.items()) for peer in peers):
        print_progress(f"imports: {name} …")
        try:
            await install(peer)
            rows.append({"name": name, "modules": await count_modules(peer, statement), "pairs": []})
            timed.append((rows[-1], peer, statement))
        except PeerError as error:
            rows.append(failed_row(name, str(error)))
    for _ in range(RUNS):
        for row, peer, statement in timed:
            both = (time_statement(peer.python, text, peer.environ) for text in (statement, "pass"))
            row["pairs"].append(tuple(both))
    return [row if "failed" in row else row_medians(row) for row in rows]


async def count_modules(peer: Peer, statement: str) -> int:
    """Return how many modules an import loads; it also writes their bytecode."""
    counting = f"import sys; before = set(sys.modules); {statement}; print(len(set(sys.modules) - before))"
    return int((await run_program([str(peer.python), "-c", counting], environ=peer.environ)).split()[-1])


def row_medians(row: dict[str, Any]) -> dict[str, Any]:
    """Return the medians of a row."""
    whole, bare = (statistics.median(column) for column in zip(*row["pairs"], strict=True))
    return {"name": row["name"], "seconds": max(0.0, whole - bare), "bare": bare, "modules": row["modules"]}


def render_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of this part."""
    head = ["", "import", "beside Holdfast", "compared with a bare interpreter", "modules"]
    ours = next((row["seconds"] for row in rows if "seconds" in row), None)

    def cells(row: Mapping[str, Any]) -> list[str]:
        beside = [render_ratio(row["seconds"], ours), render_ratio(row["seconds"], row["bare"])]
        return [row["name"], f"{render_milliseconds(row['seconds'])} ms", *beside, f"{row['modules']:,}"]

    return table_with_failures(head, rows, cells)
