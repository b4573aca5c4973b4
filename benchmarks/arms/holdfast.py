"""Holdfast as an arm of daseinlabs/code-compression-bench: what a solved SWE-bench task costs with Claude Code.

This file is copied into `arms/` of that harness; README.md beside it says how. It needs the standard library and the
harness only. For each task it starts a gateway of its own between Claude Code and the harness's usage gateway:

    Claude Code → holdfast gateway (a store for each task) → usage gateway of the harness → model

    HOLDFAST_BIN       the program (default: `holdfast` on the path)
    HOLDFAST_BUDGET    the largest request in tokens (default: what the model accepts)
    HOLDFAST_POLICY    the policy (default: that of the program)
    HOLDFAST_BASE_URL  a gateway that runs already; it then starts none
"""

import json
import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.arm import ProxyArm, register

START_SECONDS = 60.0
STOP_SECONDS = 30.0
CHECK_SECONDS = 5.0
LISTENING = "listening on "
TOKEN = "arm"  # noqa: S105 - of a gateway on the loopback interface that lives as long as its task


@register("holdfast")
class HoldfastArm(ProxyArm):
    """A gateway for each task; the harness's usage gateway below it sees what is billed."""

    name = "holdfast"
    needs: list[str] = []  # noqa: RUF012 - as the harness declares it

    def __init__(self) -> None:
        self.holdfast_version = ""
        self.conv_id = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""
        self._ledger: Path | None = None

    def ready(self) -> tuple[bool, str]:
        """Return whether the arm can run now, and why not."""
        if url := self.model_base_url():
            is_there = _is_gateway(url)
            return is_there, "ok" if is_there else f"no holdfast gateway answers at {url}; start one: holdfast gateway"
        program = _program()
        if program is None:
            return False, "no program 'holdfast' on the path; install holdfast-context[gateway], or set HOLDFAST_BIN"
        shown = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=START_SECONDS, check=False
        )
        self.holdfast_version = shown.stdout.strip()
        if shown.returncode:
            return False, f"{program} --version ends with {shown.returncode}: {shown.stderr.strip()[-200:]}"
        return True, f"ok ({self.holdfast_version})"

    def model_base_url(self) -> str:
        """Return the gateway that runs already; empty if each task has its own, as `start_run` says."""
        return os.environ.get("HOLDFAST_BASE_URL", "").rstrip("/")

    def start_run(self, ctx: Any) -> str | None:
        """Start a gateway in front of the harness's own, and return the address for Claude Code."""
        self.conv_id = ctx.run_id
        if self.model_base_url():
            return None
        folder = Path(ctx.run_dir).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        program = _program()
        if program is None:
            raise RuntimeError("no program 'holdfast' on the path; set HOLDFAST_BIN")
        command = [program, "gateway", "--port", "0", "--store", f"sqlite:///{folder}/holdfast.db"]
        command += ["--upstream", f"anthropic={ctx.upstream_base_url.rstrip('/')}"]
        for option, name in (("--budget", "HOLDFAST_BUDGET"), ("--policy", "HOLDFAST_POLICY")):
            if value := os.environ.get(name):
                command += [option, value]
        # Settings of whoever runs this, and keys, stay out of it: the harness alone decides what is billed where.
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        environment |= {
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / ".config"),
            "HOLDFAST_CONTROL_TOKEN": TOKEN,
        }
        log = folder / "gateway.log"
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )
        self._url, self._ledger = "", folder / "holdfast-ledger.jsonl"
        self._url = self._wait_for_address(log)
        return self._url

    def end_run(self) -> None:
        """Write what the gateway did into the ledger, and stop it."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._ledger is not None and self._url:
            self._ledger.write_text("".join(f"{json.dumps(one)}\n" for one in _sessions(self._url)))
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ledger_path(self) -> str | None:
        """Return the file with one line for each conversation; the harness keeps it with its records."""
        return None if self._ledger is None else str(self._ledger)

    def ledger_summary(self, run_id: str = "") -> dict[str, Any]:
        """Return what the gateway did in a task: without a compaction, a run was like the baseline."""
        del run_id
        if self._ledger is None or not self._ledger.exists():
            return {}
        rows = [json.loads(line) for line in self._ledger.read_text().splitlines()]
        return {
            "holdfast_version": self.holdfast_version,
            "budget": os.environ.get("HOLDFAST_BUDGET", ""),
            "sessions": len(rows),
            "messages": sum(row["messages"] for row in rows),
            "compactions": sum(row["compactions"] for row in rows),
        }

    def _wait_for_address(self, log: Path) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
            for line in log.read_text(errors="replace").splitlines():
                if LISTENING in line:
                    return line.split(LISTENING)[1].split()[0]
            time.sleep(0.05)
        self.end_run()
        raise RuntimeError(f"the gateway did not start: {log.read_text(errors='replace').strip()[-300:]}")


def _program() -> str | None:
    return shutil.which(os.environ.get("HOLDFAST_BIN") or "holdfast")


def _is_gateway(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=CHECK_SECONDS) as answer:  # noqa: S310 - on loopback
            return answer.status == 200
    except (OSError, ValueError):
        return False


def _sessions(url: str) -> list[dict[str, Any]]:
    """Return the conversations of a gateway; none if it does not answer any more."""
    path = f"{url}/holdfast/v1/sessions?limit=100"
    request = urllib.request.Request(path, headers={"authorization": f"Bearer {TOKEN}"})  # noqa: S310 - on loopback
    try:
        with urllib.request.urlopen(request, timeout=CHECK_SECONDS) as answer:  # noqa: S310
            return json.load(answer)["sessions"]
    except (OSError, ValueError):
        return []
