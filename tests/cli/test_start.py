"""The command line starts without what it does not need."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import __version__

VENDORS = (
    "pydantic_ai",
    "pydantic",
    "openai",
    "anthropic",
    "httpx",
    "psycopg",
    "xllamacpp",
    "splintr",
    "rich",
    "mcp",
    "tomlkit",
)
SCRIPT = """
import sys
from holdfast.apps.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
sys.stderr.write(" ".join(name for name in {vendors!r} if name in sys.modules))
"""


@pytest.mark.parametrize("command", ["", "--help", "config", "models gpt-4o-mini", "sessions", "doctor"])
def test_no_vendors_library_is_loaded_before_it_is_needed(command: str, tmp_path: Path) -> None:
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path)}
    program = [sys.executable, "-c", SCRIPT.format(vendors=VENDORS), *command.split()]

    done = subprocess.run(program, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert [line for line in done.stderr.splitlines() if not line.startswith("holdfast: ")] == []


def test_commands_run_without_docstrings(tmp_path: Path) -> None:
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path)}
    program = [sys.executable, "-OO", "-c", SCRIPT.format(vendors=()), "sessions"]

    done = subprocess.run(program, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "holdfast: no sessions\n")


def test_the_package_can_be_run_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"holdfast {__version__}\n", "")


INTERRUPTED_AT_EXIT = """
import atexit, os, signal, sys
from holdfast.apps.cli.main import main
atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.argv = ["holdfast", "--version"]
sys.exit(main())
"""
INTERRUPTED_TWICE = """
import io, os, signal, sys
from holdfast.apps.cli.main import main

class Terminal(io.StringIO):
    def flush(self):
        os.kill(os.getpid(), signal.SIGINT)

class Errors(io.StringIO):
    def write(self, text):
        sys.__stderr__.write(text)
        sys.__stderr__.flush()
        os.kill(os.getpid(), signal.SIGINT)

sys.argv, sys.stdout, sys.stderr = ["holdfast", "--version"], Terminal(), Errors()
sys.exit(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize(
    ("program", "said"),
    [(INTERRUPTED_AT_EXIT, (f"holdfast {__version__}\n", "")), (INTERRUPTED_TWICE, ("", "holdfast: interrupted"))],
    ids=["at exit", "twice"],
)
def test_ctrl_c_while_the_program_ends_leaves_no_traceback(program: str, said: tuple[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, (done.stdout, done.stderr)) == (-signal.SIGINT, said)


def test_a_command_that_another_program_calls_leaves_interrupts_to_it() -> None:
    script = "import signal\nfrom holdfast.apps.cli.main import main\nmain(['--version'])\nsignal.raise_signal(2)"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr.splitlines()[-1]) == (f"holdfast {__version__}\n", "KeyboardInterrupt")
