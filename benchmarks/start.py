"""Measures the time until the chat shows its first input line, compared with a bare interpreter in the same run.

    python -m benchmarks.start --json start.json

Each start is a real process in a pseudo-terminal with an empty home folder; the clock stops when the input line shows.
Bytecode is reused from start to start, as in normal use; the first start is not timed.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pexpect

from benchmarks.imports import time_statement

PROMPT_MARK = "›".encode()
UNREACHABLE_MODEL = "http://127.0.0.1:9/v1#nobody"
"""The chat loads the model in the background; a model with a server would still be starting at the next start."""
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))


def first_line_seconds(env: dict[str, str]) -> float:
    """Return the seconds until the input line appears."""
    began = time.perf_counter()
    child = pexpect.spawn(HOLDFAST, ["chat", "--model", UNREACHABLE_MODEL], env=env, timeout=30, dimensions=(24, 80))
    seen = b""
    while PROMPT_MARK not in seen:
        seen += child.read_nonblocking(65_536, timeout=30)
        for _ in range(seen.count(b"\x1b[6n")):
            child.send("\x1b[1;1R")
            seen = seen.replace(b"\x1b[6n", b"", 1)
    took = time.perf_counter() - began
    child.close(force=True)
    while child.isalive():
        child.wait()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "HOLDFAST_HOME": home, "TERM": "xterm-256color", "PYTHONPYCACHEPREFIX": f"{home}/bytecode"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        first_line_seconds(env)
        pairs = [(first_line_seconds(env), time_statement(sys.executable, "pass", env)) for _ in range(args.runs)]
    ours, pythons = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"to the first prompt line   {ours * 1000:6.0f} ms   ({min(one for one, _ in pairs) * 1000:.0f} at best)")
    print(f"python -c pass             {pythons * 1000:6.0f} ms")
    print(f"ratio                      {ours / pythons:6.1f}")
    if args.json:
        args.json.write_text(json.dumps({"seconds": ours, "python": pythons, "ratio": ours / pythons}))


if __name__ == "__main__":
    main()
