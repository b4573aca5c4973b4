"""Compares Holdfast with its peers in one run: speed, input of the summarizer, a long tool loop, disk, imports.

    python -m benchmarks.beside [PEER …] [--only prepare,needles,loop,size,imports] [--json FILE]

Creates an environment for each peer under `.peers`, once, and runs its worker there. A run of all parts with all peers
writes `benchmarks/RESULTS.md`; any other run prints to standard output only.
"""

import argparse
import asyncio
import os
import platform
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import imports, loop, needles, prepare
from benchmarks.peers import ROOT, Peer, PeerError, choose_peers
from benchmarks.reporting import print_progress, save_figures
from benchmarks.store import size
from holdfast import __version__

RESULTS = ROOT / "benchmarks/RESULTS.md"
GATEWAYS_HEADING = "## Recorded coding sessions through gateways"
SIZES, BUDGET, REPEATS, SECONDS = [100, 1_000, 4_000], 16_000, 7, 4.0
SAME_RUN_NOTE = "Compare figures only within one run: the speed of the machine changes from run to run."
INTERRUPTED_EXIT = 130


async def measure_prepare(peers: Sequence[Peer]) -> Any:
    names = [peer.name for peer in peers]
    return await prepare.measure(prepare.make_cases(SIZES), BUDGET, names, repeats=REPEATS, seconds=SECONDS)


def render_prepare(rows: list[dict[str, Any]]) -> str:
    return prepare.render_markdown(rows, SIZES)


async def measure_size(peers: Sequence[Peer]) -> Any:
    with tempfile.TemporaryDirectory(prefix="holdfast-size-") as folder:
        return await size.measure(Path(folder), [peer.name for peer in peers])


@dataclass(frozen=True, slots=True)
class Part:
    """A measurement: its title, its table, and an explanation."""

    title: str
    measure: Callable[[Sequence[Peer]], Awaitable[Any]]
    table: Callable[[Any], str]
    explanation: str


PARTS = {
    "prepare": Part("Preparing the next request", measure_prepare, render_prepare, prepare.EXPLANATION),
    "needles": Part("What reaches the summarizer", needles.measure, needles.render_table, needles.EXPLANATION),
    "loop": Part("One prompt, many tool calls", loop.measure, loop.render_table, loop.EXPLANATION),
    "size": Part("Bytes on disk", measure_size, size.render_markdown, size.EXPLANATION),
    "imports": Part("Loading", imports.measure, imports.render_table, imports.EXPLANATION),
}


def gateways_section(text: str) -> str:
    """Return the part of RESULTS.md that `benchmarks.gateways` has written; empty if there is none."""
    found = text.partition(GATEWAYS_HEADING)
    return found[1] + found[2]


def describe_machine() -> str:
    """Describe the machine."""
    names = [line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")]
    facts = [
        names[0] if names else platform.machine(),
        f"{os.cpu_count()} cores",
        platform.system(),
        f"Python {platform.python_version()}",
        f"load {os.getloadavg()[0]:.1f} at the beginning",
    ]
    return ", ".join(facts)


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def render_document(figures: dict[str, Any], peers: Sequence[Peer], machine_text: str) -> str:
    """Return the whole report."""
    versions = [f"Holdfast {__version__}", *(", ".join(peer.packages) for peer in peers if peer.packages)]
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    pieces = [
        "# Comparison with peers",
        f"Written by `make bench-peers` on {day}, and never by hand.\n{machine_text}.\n{SAME_RUN_NOTE}",
        "\n".join(f"- {line}" for line in versions),
    ]
    for name, found in figures.items():
        part = PARTS[name]
        pieces += [f"## {part.title}", part.explanation, part.table(found)]
    return "\n\n".join(pieces) + "\n"


async def measure_parts(peers: Sequence[Peer], parts: Sequence[str]) -> dict[str, Any]:
    """Return the figures of each part."""
    return {name: await part.measure(peers) for name, part in PARTS.items() if name in parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", help="the peers to compare with (default: all)")
    parser.add_argument("--only", default=",".join(PARTS), help="the parts to measure (default: all)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := [name for name in parts if name not in PARTS]:
        parser.error(f"{', '.join(unknown)}: no such part; there are {', '.join(PARTS)}")
    try:
        peers = choose_peers(options.peers)
        where = describe_machine()
        figures = asyncio.run(measure_parts(peers, parts))
    except PeerError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print_progress("\ninterrupted; nothing was written")
        sys.exit(INTERRUPTED_EXIT)
    save_figures(figures, options.json)
    text = render_document(figures, peers, where)
    print(text)
    if not options.peers and len(figures) == len(PARTS):
        RESULTS.write_text(f"{text.rstrip()}\n\n{gateways_section(RESULTS.read_text())}".rstrip() + "\n")
        print_progress(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
