"""Runs the tests in forks of the process that collected them: a plugin of pytest, used by `make test`.

pytest -p scripts.forked_workers --forks 3

Each worker of pytest-xdist imports and collects everything for itself; a fork has it already. The tests are shared out
as by its `--dist worksteal`: a worker begins with an equal part of them, in their order, and takes half of what the
slowest has left when it is done. It goes on as pytest itself would, to the end of the session and of its process, but
its reports go to the process that forked it.
"""

import os
from collections import deque
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from tempfile import TemporaryFile
from typing import Any

import pytest
from _pytest.capture import FDCapture

Link = Any
"""A connection of `multiprocessing`: its type has another name on each system."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the number of workers be chosen."""
    parser.addoption("--forks", type=int, default=0, help="run the tests in so many forks of this process")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forks; without forks, or where something could not be collected, pytest goes on by itself."""
    count = min(session.config.option.forks, len(session.items))
    if not count or session.testsfailed or session.config.option.collectonly:
        return None
    workers: list[_Worker] = []
    for number in range(count):
        ours, theirs = Pipe()
        pid = os.fork()
        if not pid:
            # A worker notices that the process which forked it has ended only if no other worker keeps its link open.
            for link in (ours, *(worker.link for worker in workers)):
                link.close()
            _run_told_tests(session, theirs)
            return True
        theirs.close()
        first, end = (len(session.items) * part // count for part in (number, number + 1))
        workers.append(_Worker(pid, ours, deque(range(first, end))))
    try:
        _hand_out_tests(session, workers)
    finally:
        for worker in workers:
            worker.link.close()
        codes = [os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1]) for worker in workers]
    not_run = sum(len(worker.share) for worker in workers)
    if not_run or (any(codes) and not session.testsfailed):
        session.shouldfail = f"the workers ended with {codes}; {not_run} tests were not run"
        raise session.Failed(session.shouldfail)
    return True


class _Worker:
    """A worker, as the process that forked it sees it."""

    def __init__(self, pid: int, link: Link, share: deque[int]) -> None:
        self.pid = pid
        self.link = link
        self.share = share
        """The tests that it is to run, if no other takes them."""
        self.told: deque[int | None] = deque()
        """The test that it runs and the next one, or None: which fixtures end with a test depends on what follows."""

    def tell_next(self, workers: list["_Worker"]) -> None:
        """Tell it what to run next, or that there is nothing more."""
        if not self.share:
            slowest = max(workers, key=lambda worker: len(worker.share))
            taken = [slowest.share.pop() for _ in range((len(slowest.share) + 1) // 2)]
            self.share.extend(reversed(taken))
        self.told.append(self.share.popleft() if self.share else None)
        with suppress(ConnectionError):  # it has ended, which is noticed when it is listened to
            self.link.send(self.told[-1])


def _hand_out_tests(session: pytest.Session, workers: list[_Worker]) -> None:
    """Tell each worker what to run, and report on it, until all have ended."""
    config: Any = session.config
    base = config._tmp_path_factory.getbasetemp()  # noqa: SLF001 - as pytest-xdist does
    for number, worker in enumerate(workers):
        worker.link.send(base / f"worker-{number}")
        worker.tell_next(workers)
        worker.tell_next(workers)
    running: dict[Any, _Worker] = {worker.link: worker for worker in workers}
    while running:
        for link in wait(list(running)):
            worker = running[link]
            reports: list[dict[str, Any]] | None = None
            try:
                reports = worker.link.recv()
            except (EOFError, ConnectionError):
                del running[link]
                worker.share.extendleft(index for index in [*worker.told][1:] if index is not None)
            else:
                if worker.told[-1] is not None:
                    worker.tell_next(workers)
            index = worker.told.popleft()
            if index is not None:
                _report(session, session.items[index], reports)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)


def _report(session: pytest.Session, item: pytest.Item, reports: list[dict[str, Any]] | None) -> None:
    """Tell the plugins of this process about a test, as if it had run here."""
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    if reports is None:
        message = f"the worker ended while it ran {item.nodeid}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", message, "call")
        hook.pytest_runtest_logreport(report=report)
    for data in reports or ():
        report = hook.pytest_report_from_serializable(config=session.config, data=data)
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


class _Reports:
    """Collects what a worker has to say about a test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.said: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.said.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


def _run_told_tests(session: pytest.Session, link: Link) -> None:
    """Run in a worker what it is told to."""
    config: Any = session.config
    config.workerinput = {}  # by this plugins know a worker: the process that forked it writes the files of the run
    config.pluginmanager.unregister(name="terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")._global_capturing  # noqa: SLF001
    for stream in (capture.out, capture.err):
        if isinstance(stream, FDCapture):
            # Its file is one for all processes. It stays open, because a module may have kept it as `sys.stderr`.
            with TemporaryFile() as own:
                os.dup2(own.fileno(), stream.tmpfile.fileno(), inheritable=False)
    reports = _Reports(config)
    config.pluginmanager.register(reports)
    try:
        config._tmp_path_factory._given_basetemp = link.recv()  # noqa: SLF001 - as `--basetemp` does
        index, following = link.recv(), link.recv()
        while index is not None:
            nextitem = None if following is None else session.items[following]
            config.hook.pytest_runtest_protocol(item=session.items[index], nextitem=nextitem)
            link.send(reports.said)
            reports.said.clear()
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            index = following
            following = link.recv() if index is not None else None
    except (EOFError, ConnectionError) as error:
        raise session.Interrupted("the process that says which tests to run has ended") from error
