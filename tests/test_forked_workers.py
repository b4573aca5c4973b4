"""`make test` runs the tests in forks: each of them once, and whatever happens to a fork is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the workers of pytest-xdist are used")

ROOT = Path(__file__).parent.parent
SIX_TESTS = """
import atexit, os, select, sys, pytest

KEPT = sys.stderr
PARENT = os.getpid()
READING, WRITING = os.pipe()

@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    yield tmp_path_factory.mktemp("of_the_module")
    open(f"ended-{os.getpid()}", "x").close()

@pytest.mark.parametrize("number", range(6))
def test_some(folder, number, capfd):
    assert os.getppid() == PARENT
    os.write(2, b"said by %d" % number)
    assert capfd.readouterr().err == f"said by {number}"
    print("said to what was kept", file=KEPT)
"""

END_THE_FIRST = """
    if number == 0:
        os.write(WRITING, b"%d" % os.getpid())
        os._exit(7)
    if number == 3:  # the first test of the other fork
        select.select([os.pidfd_open(int(os.read(READING, 99)))], [], [])
"""


def run_in_two_forks(folder: Path, more: str) -> tuple[int, list[str]]:
    """Run six tests of which one does more; return the exit code, and what is told of each test and at the end."""
    (folder / "test_six.py").write_text(f"{SIX_TESTS}{more}\n")
    command = [sys.executable, "-m", "pytest", "-p", "scripts.forked_workers", "--forks", "2", "-q", "-rA"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "120"}
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    told = [line for line in ran.stdout.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR", "!"))]
    return ran.returncode, sorted(line.strip("! ") for line in told)


def passed(*numbers: int) -> list[str]:
    return [f"PASSED test_six.py::test_some[{number}]" for number in numbers]


def test_each_test_runs_once_and_each_fork_ends_its_fixtures(tmp_path: Path) -> None:
    told = run_in_two_forks(tmp_path, "    assert number != 2")

    assert told == (1, ["FAILED test_six.py::test_some[2] - assert 2 != 2", *passed(0, 1, 3, 4, 5)])
    assert len([*tmp_path.glob("ended-*")]) == 2


def test_a_fork_that_ends_in_a_test_fails_it_and_the_other_one_goes_on(tmp_path: Path) -> None:
    told = run_in_two_forks(tmp_path, END_THE_FIRST)

    failed = "FAILED test_six.py::test_some[0] - the worker ended while it ran test_six.py::test_some[0]"
    assert told == (1, [failed, *passed(1, 2, 3, 4, 5)])


def test_a_fork_that_ends_badly_after_its_tests_fails_the_run(tmp_path: Path) -> None:
    told = run_in_two_forks(tmp_path, "    if number == 3: atexit.register(os._exit, 3)")

    assert told == (1, [*passed(0, 1, 2, 3, 4, 5), "the workers ended with [0, 3]; 0 tests were not run"])
