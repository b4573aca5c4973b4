"""Peers, each in a virtual environment of its own under `.peers`, with the versions that `peers.toml` pins.

A task goes to a peer's worker as JSON and comes back as rows. A peer that cannot be installed, or whose worker fails,
is one row that says why; nothing else stops. After the installation nobody reaches a network: proxies lead nowhere,
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
    """A peer that cannot be asked. Its row says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker script and what it needs; one without packages runs where we run."""

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
        """What its processes see: nothing that leads outside, and of ours no more than a path and a home."""
        ours = ("PATH", "HOME", "TMPDIR", "LANG", *(() if self.packages else ("PYTHONPATH",)))
        return {**{name: os.environ[name] for name in ours if name in os.environ}, **OFFLINE}


def all_peers(path: Path = PINS) -> dict[str, Peer]:
    """Return everybody by name, Holdfast first."""
    return {name: Peer(name, **settings) for name, settings in tomllib.loads(path.read_text()).items()}


def choose_peers(names: Sequence[str]) -> list[Peer]:
    """Return Holdfast and the peers of those names; all of them where none is named."""
    everybody = all_peers()
    if unknown := [name for name in names if name not in everybody]:
        raise PeerError(f"{', '.join(unknown)}: no such peer; there are {', '.join(list(everybody)[1:])}")
    return [peer for name, peer in everybody.items() if not names or name in names or not peer.packages]


async def install(peer: Peer) -> None:
    """Make a peer's environment, unless it stands as it should; raise `PeerError` where that is not possible."""
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
    """Return what a peer made of a task: a row for each of its ways, or one that says why there is none."""
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
    """Measure the peers that the command line names, all where it names none, and print the table of it."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*")
    print(table(asyncio.run(measure(choose_peers(parser.parse_args().peers)))))


def failed_row(name: str, reason: str) -> dict[str, Any]:
    """Return the row of somebody who could not be measured."""
    return {"name": name, "failed": reason}


async def run_program(command: list[str], stdin_text: str = "", environ: Mapping[str, str] | None = None) -> str:
    """Return what a program printed; it ends when we do, and `PeerError` says what it last complained about."""
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
    """Return the last line that says what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR") or "Error" in line]
    return (errors or lines or [""])[-1][:300]
