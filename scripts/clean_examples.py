"""Runs each adapter's example in a clean environment that has only its extra.

    python -m scripts.clean_examples [EXTRA …]

First the example must fail without the extra, with an error that names it; then it must run. An environment of its own
is made for each, in a temporary folder.
"""

import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLES: Mapping[str, tuple[str, str]] = {
    "pydantic-ai": ("holdfast.adapters.pydantic_ai", "examples/07_a_pydantic_ai_agent.py"),
    "langchain": ("holdfast.adapters.langchain", "examples/adapters/langchain_agent.py"),
    "openai-agents": ("holdfast.adapters.openai_agents", "examples/adapters/openai_agents_agent.py"),
    "google-adk": ("holdfast.adapters.google_adk", "examples/adapters/google_adk_agent.py"),
    "claude-agent-sdk": ("holdfast.adapters.claude_agent_sdk", "examples/adapters/claude_agent_sdk_agent.py"),
}
"""By extra, the adapter and its example."""


def run(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command, and return what it printed."""
    return subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False)


def install(python: Path, extra: str) -> None:
    """Install Holdfast from this folder, with an extra if there is one."""
    place = f"{ROOT}[{extra}]" if extra else str(ROOT)
    options = ["--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    done = run([python, "-m", "pip", "install", *options, place], ROOT)
    if done.returncode:
        raise SystemExit(f"{extra or 'holdfast'} could not be installed:\n{done.stderr[-2_000:]}")


def problem_of(extra: str, folder: Path) -> str:
    """Return what is wrong with the example of an extra in a clean environment, or nothing."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    module, example = EXAMPLES[extra]
    install(python, "")
    bare = run([python, "-c", f"import {module}"], folder)
    if bare.returncode == 0 or f"holdfast-context[{extra}]" not in bare.stderr:
        return f"without the extra, the error does not name it: {bare.stderr[-500:]}"
    install(python, extra)
    done = run([python, ROOT / example], folder)
    if done.returncode or not done.stdout.strip():
        return f"{example} ended with {done.returncode}: {done.stderr[-2_000:]}"
    return ""


def main(extras: Sequence[str]) -> int:
    """Try the examples, and return how many failed."""
    failed = 0
    for extra in extras or list(EXAMPLES):
        with tempfile.TemporaryDirectory(prefix="holdfast-example-") as folder:
            problem = problem_of(extra, Path(folder))
        print(f"{extra}: {problem or 'the example runs, and without the extra the error names it'}", flush=True)
        failed += bool(problem)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
