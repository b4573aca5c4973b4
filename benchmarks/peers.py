"""Peers, each in a virtual environment of its own."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / ".venvs"


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker script and what it needs."""

    name: str
    worker: str
    packages: tuple[str, ...]


PEERS = (
    Peer("langchain", "langchain_trim.py", ("langchain-core==1.7.2", "splintr-rs==0.22.0")),
    Peer("harness", "pydantic_harness.py", ("pydantic-ai-harness==0.62.0",)),
)
"""Who prepares requests."""
SAVER = Peer("langgraph", "langgraph_saver.py", ("langgraph==1.2.20", "langgraph-checkpoint-sqlite==3.1.2"))
"""Who keeps conversations."""


def python_of(peer: Peer) -> Path | None:
    """Return the peer's Python, installed at the first call; None where that is not possible."""
    folder = ENVIRONMENTS / peer.name
    python, stamp = folder / "bin/python", folder / "installed"
    wanted = "\n".join(peer.packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {peer.name}: {', '.join(peer.packages)} …", file=sys.stderr)
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *peer.packages], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        print(f"{peer.name} could not be installed and is left out: {error}", file=sys.stderr)
        return None
    stamp.write_text(wanted)
    return python


def ask(peer: Peer, task_file: Path) -> list[dict[str, Any]]:
    """Return what a peer made of the task; nothing where it is not there or fails."""
    python = python_of(peer)
    if python is None:
        return []
    worker = ROOT / "benchmarks/workers" / peer.worker
    answer = subprocess.run([python, worker, task_file], capture_output=True, text=True, check=False)
    if answer.returncode:
        print(f"{peer.name} failed and is left out: {answer.stderr[-500:]}", file=sys.stderr)
        return []
    return json.loads(answer.stdout)
