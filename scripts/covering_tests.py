"""Records which tests run which lines, and their processor time: a plugin of pytest, used by `make coverage`.

coverage run -m pytest -p scripts.covering_tests

The name of the running test is the context of coverage's data. A program that a test starts has no context: its lines
count as run, by no test in particular. `scripts.mutation` reads both files.
"""

import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from coverage import Coverage

TIMES = Path("build/test_times.json")
PROPERTY = "processor_seconds"
STARTED = pytest.StashKey[float]()
SESSION_STARTED = pytest.StashKey[float]()


@dataclass(frozen=True, slots=True)
class TestTimes:
    """The processor time of each test with the programs that it started, and a hash of each file whose tests ran."""

    __test__ = False  # pytest collects what is named like a test

    files: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def read_times(root: Path) -> TestTimes:
    """Return what the runs so far wrote, or nothing."""
    path = root / TIMES
    return TestTimes(**json.loads(path.read_text())) if path.exists() else TestTimes()


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def hash_of(path: Path) -> str:
    """Return a hash of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pytest_configure(config: pytest.Config) -> None:
    """Remember when the run began."""
    config.stash[SESSION_STARTED] = time.time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Attribute what runs during a test, its fixtures included, to that test."""
    measuring = Coverage.current()
    if measuring is None:
        return (yield)
    item.stash[STARTED] = _processor_seconds()
    measuring.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        measuring.switch_context("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write the time since the test began into its report, which a worker sends to the process that writes the file."""
    report = yield
    report.user_properties.append((PROPERTY, _processor_seconds() - item.stash.get(STARTED, 0.0)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Add the times of this run to those of earlier ones."""
    seconds: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent = [value for name, value in report.user_properties if name == PROPERTY]
                seconds[report.nodeid] = max(
                    [seconds[report.nodeid], *(one for one in spent if isinstance(one, float))]
                )
    files = {name.partition("::")[0] for name in seconds}
    times = read_times(config.rootpath)
    kept = {name: value for name, value in times.seconds.items() if name.partition("::")[0] not in files}
    # A file that was edited while the tests ran has to be measured again.
    unchanged = {name for name in files if (config.rootpath / name).stat().st_mtime < config.stash[SESSION_STARTED]}
    hashes = {name: hash_of(config.rootpath / name) for name in unchanged}
    known = {name: value for name, value in times.files.items() if name not in files}
    path = config.rootpath / TIMES
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(asdict(TestTimes(known | hashes, {**kept, **seconds}))))
