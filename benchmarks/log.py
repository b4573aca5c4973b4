"""Measures storage: durable appends, bytes on disk, opening a session, and several writers.

    python -m benchmarks.log [--json FILE] [--quick] [--no-peers] [--only appends,size] [--folder FOLDER]

Durable appends are compared with raw SQLite, bytes on disk with LangGraph's SqliteSaver in its own virtual
environment, opening 100,000 messages with opening 1,000, and ten writers on PostgreSQL with one. Everything runs on the
disk of the folder, which should not be in memory. Each module of `benchmarks.store` explains how it measures. The exit
code is 1 if a writer's message was lost, doubled or out of order.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.reporting import print_progress, save_figures
from benchmarks.store import appends, opening, size, writers
from holdfast import govern
from holdfast.testing.sessions import generate_session


def measurements(options: argparse.Namespace) -> dict[str, Callable[[Path], dict[str, Any]]]:
    """Return the measurements by name; each gets its own folder."""
    sizes = opening.SIZES[:-1] if options.quick else opening.SIZES
    return {
        "appends": lambda folder: asyncio.run(appends.measure(folder)),
        "size": lambda folder: asyncio.run(size.measure(folder, [] if options.no_peers else ["langchain"])),
        "opening": lambda folder: asyncio.run(opening.measure(folder, sizes)),
        "writers": writers.measure,
    }


REPORTS = {"appends": appends.report, "size": size.report, "opening": opening.report, "writers": writers.report}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="skip the longest session")
    parser.add_argument("--no-peers", action="store_true", help="measure only holdfast")
    parser.add_argument("--only", default=",".join(REPORTS), help="the parts to measure (default: all)")
    parser.add_argument(
        "--folder", type=Path, help="the folder to write to (default: the system's folder for temporary files)"
    )
    options = parser.parse_args()
    wanted = options.only.split(",")
    if unknown := [name for name in wanted if name not in REPORTS]:
        parser.error(f"{', '.join(unknown)}: no such part; there are {', '.join(REPORTS)}")
    if options.folder and not options.folder.is_dir():
        parser.error(f"there is no folder {options.folder}")
    govern(generate_session(50), budget=4_000, model="gpt-5")  # loads the vocabulary
    figures: dict[str, Any] = {}
    for name, measure in measurements(options).items():
        if name in wanted:
            print_progress(f"measuring {name} …")
            with tempfile.TemporaryDirectory(prefix="holdfast-log-", dir=options.folder) as folder:
                figures[name] = measure(Path(folder))
            print(f"{REPORTS[name](figures[name])}\n", flush=True)
            save_figures(figures, options.json)
    sys.exit("writers" in figures and not writers.is_sound(figures["writers"]))


if __name__ == "__main__":
    main()
