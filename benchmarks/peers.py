"""Runs peers, each in its own virtual environment under `.peers`, with the versions that `peers.toml` pins.

A worker receives a task as JSON and returns rows. A peer that cannot be installed, or whose worker fails, gets one row
with the reason, and the others continue. After the installation no worker has network access: proxies lead nowhere,
and telemetry is off.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.reporting import print_progress

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / ".peers"
PINS = ROOT / "benchmarks/peers.toml"
WORKERS = ROOT / "benchmarks/workers"
TASK_SECONDS = 1_800
UNREACHABLE_PROXY = "http://127.0.0.1:9"
OFFLINE = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), UNREACHABLE_PROXY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
    **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "DO_NOT_TRACK", "LITELLM_LOCAL_MODEL_COST_MAP"), "True"),
    **dict.fromkeys(
        ("HAYSTACK_TELEMETRY_ENABLED", "AGNO_TELEMETRY", "LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"), "false"
    ),
    "OTEL_SDK_DISABLED": "true",
    "OPENAI_API_KEY": "none",
}


class PeerError(Exception):
    """Raised when a peer cannot be measured. Its row shows the reason."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker script and its packages; without packages, it runs in the environment of this process."""

    name: str
    worker: str
    packages: Sequence[str] = ()
    imports: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return ENVIRONMENTS / self.name / "bin/python" if self.packages else Path(sys.executable)

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables of its processes: no network, and only the path and home folder of this process."""
        ours = ("PATH", "HOME", "TMPDIR", "LANG", *(() if self.packages else ("PYTHONPATH",)))
        return {**{name: os.environ[name] for name in ours if name in os.environ}, **OFFLINE}


def all_peers(path: Path = PINS) -> dict[str, Peer]:
    """Return all peers by name, Holdfast first."""
    return {name: Peer(name, **settings) for name, settings in tomllib.loads(path.read_text()).items()}


def choose_peers(names: Sequence[str]) -> list[Peer]:
    """Return Holdfast and the named peers; all peers if none is named."""
    everybody = all_peers()
    if unknown := [name for name in names if name not in everybody]:
        raise PeerError(f"{', '.join(unknown)}: no such peer; there are {', '.join(list(everybody)[1:])}")
    return [peer for name, peer in everybody.items() if not names or name in names or not peer.packages]


async def install(peer: Peer) -> None:
    """Create the environment of a peer unless it is up to date; raise `PeerError` if that fails."""
    folder = ENVIRONMENTS / peer.name
    stamp, wanted = folder / "installed", "\n".join(peer.packages)
    if not peer.packages or (stamp.exists() and stamp.read_text() == wanted):
        return
    print_progress(f"installing {peer.name}: {', '.join(peer.packages)} …")
    shutil.rmtree(folder, ignore_errors=True)
    if uv := shutil.which("uv"):
        await _run_checked([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
        await _run_checked([uv, "pip", "install", "--quiet", "--python", str(peer.python), *peer.packages])
    else:
        await _run_checked([sys.executable, "-m", "venv", str(folder)])
        await _run_checked([str(peer.python), "-m", "pip", "install", "--quiet", *peer.packages])
    stamp.write_text(wanted)


async def _run_checked(command: list[str]) -> None:
    try:
        await run_program(command)
    except PeerError as error:
        raise PeerError(f"cannot be installed: {error}") from error


async def run_task(peer: Peer, task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a peer for a task: one for each of its methods, or one with the reason of a failure."""
    try:
        await install(peer)
        answer = await run_program([str(peer.python), str(WORKERS / peer.worker)], json.dumps(task), peer.environ)
        return json.loads(answer)
    except PeerError as error:
        return [failed_row(peer.name, str(error))]


def measure_from_command_line(
    about: str | None,
    measure: Callable[[Sequence[Peer]], Coroutine[Any, Any, list[dict[str, Any]]]],
    table: Callable[[list[dict[str, Any]]], str],
) -> None:
    """Measure the peers that the command line names, by default all, and print the table."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*")
    print(table(asyncio.run(measure(choose_peers(parser.parse_args().peers)))))


def failed_row(name: str, reason: str) -> dict[str, Any]:
    """Return the row of a peer that could not be measured."""
    return {"name": name, "failed": reason}


async def run_program(command: list[str], stdin_text: str = "", environ: Mapping[str, str] | None = None) -> str:
    """Return the output of a program, which ends with this process; `PeerError` has its last error message."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ)
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin_text.encode()), TASK_SECONDS)
    except TimeoutError as error:
        raise PeerError(f"not finished after {TASK_SECONDS} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise PeerError(_last_error_line(err.decode(errors="replace")) or f"ended with {process.returncode}")
    return out.decode()


def _last_error_line(text: str) -> str:
    """Return the last line of an error message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR") or "Error" in line]
    return (errors or lines or [""])[-1][:300]
