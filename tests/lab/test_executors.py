"""Replays run wherever an executor runs them: in threads, or on a Dask cluster, with the same results in one table."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.apps.cli.main import main
from holdfast.apps.lab.prices import prices_for
from holdfast.apps.lab.workers import WorkerPool
from holdfast.lab import Recording, make_jobs, run_jobs
from holdfast.testing.sessions import generate_session

TIMES = "M10", "M12"
"""Figures that are times, which differ from run to run."""
CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    options = {{"processes": False, "protocol": "tcp", "dashboard_address": None}}
    with LocalCluster(n_workers={workers}, threads_per_worker=1, **options) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.readline()
"""


async def test_any_executor_does_the_work_and_what_fails_is_told() -> None:
    heard: dict[int, object] = {}
    with ThreadPoolExecutor(2) as executor:
        pool = WorkerPool[str, object](int, lambda problem: problem, executor=executor)
        await pool.run(["1", "x", "3"], [2, 1, 0], lambda number, result: heard.update({number: result}))

    assert heard == {0: 1, 1: "ValueError: invalid literal for int() with base 10: 'x'", 2: 3}
    assert pool.signal == 0


class CancellingExecutor(Executor):
    """Does nothing of what it is told, as a cluster that is shut down."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        del fn, args, kwargs
        future = Future[Any]()
        future.cancel()
        return future


async def test_work_that_an_executor_cancels_has_failed_and_is_no_interrupt() -> None:
    heard: dict[int, object] = {}
    pool = WorkerPool[str, object](int, lambda problem: problem, executor=CancellingExecutor())

    await pool.run(["1", "2"], [0, 1], lambda number, result: heard.update({number: result}))

    assert (heard, pool.signal) == (dict.fromkeys((0, 1), "the executor has cancelled it"), 0)


async def test_an_interrupt_leaves_what_an_executor_has_not_done() -> None:
    heard, first, may_end = dict[int, object](), asyncio.Event(), threading.Event()

    def work(text: str) -> int:
        return int(text) if text == "1" else may_end.wait(60)

    def hear(number: int, result: object) -> None:
        heard[number] = result
        first.set()

    with ThreadPoolExecutor(1) as executor:
        pool = WorkerPool[str, object](work, lambda problem: problem, executor=executor)
        running = asyncio.create_task(pool.run(["1", "2", "3"], [0, 1, 2], hear))
        await first.wait()
        running.cancel()
        await running
        may_end.set()

    assert (heard, pool.signal, running.cancelling()) == ({0: 1}, signal.SIGINT, 0)


async def test_replays_run_in_an_executor_of_the_caller() -> None:
    messages = generate_session(24)
    recording = Recording("one", messages, [None] * len(messages), [None] * len(messages))
    jobs = list(make_jobs([recording], ["sliding"], [16_000], prices_for("anthropic"), static=3_000, seconds=60.0))
    with ThreadPoolExecutor(1) as executor:
        run = await run_jobs(jobs, executor=executor, on_progress=lambda _: None)

    [result] = run.results
    assert (run.done, result.problems, result.figures["M8.invalid"]) == (1, [], 0.0)


@pytest.fixture
def scheduler(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a Dask cluster of two workers, or as many as a test says, and yield the address of its scheduler."""
    pytest.importorskip("distributed", reason="there is no Dask here: the extra dask")
    program = tmp_path / "cluster.py"
    program.write_text(CLUSTER.format(workers=getattr(request, "param", 2)))
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-W", "ignore", program], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout
    yield process.stdout.readline().strip().replace("tcp://", "dask://")
    process.communicate("end\n")


@pytest.mark.filterwarnings("ignore")  # of Dask, about versions and ports
def test_a_dask_cluster_of_two_workers_gives_the_same_table(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    path = tmp_path / "sessions.jsonl"
    path.write_text("".join(json.dumps({"id": name, "messages": generate_session(12)}) + "\n" for name in "ab"))
    command = ["lab", "run", str(path), "--policy", "sliding", "--baselines", "full", "--budget", "16000", "--json"]

    def rows(*options: str) -> list[dict[str, object]]:
        assert main([*command, *options]) == 0
        found = json.loads(capsys.readouterr().out)
        return [{name: value for name, value in row.items() if not name.startswith(TIMES)} for row in found]

    assert rows("--executor", scheduler) == rows("--jobs", "1")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ray://there", "does not name a cluster; write dask://HOST or dask://HOST:PORT"),
        ("dask://", "does not name a cluster"),
        ("dask://[::1", "does not name a cluster"),
        ("dask://127.0.0.1:1", "no scheduler answers at 127.0.0.1:1; start one with `dask scheduler`"),
    ],
)
def test_a_cluster_that_is_not_there_is_told_in_a_line(
    url: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed", reason="there is no Dask here: the extra dask")
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("holdfast.apps.lab.dask_cluster.DASK_CONNECT_SECONDS", 0.2)
    path = tmp_path / "sessions.jsonl"
    path.write_text(json.dumps({"id": "a", "messages": generate_session(8)}) + "\n")

    assert main(["lab", "run", str(path), "--executor", url]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")  # of Dask, about versions and ports
@pytest.mark.parametrize("scheduler", [0], indirect=True)
def test_a_cluster_without_workers_is_told_and_not_waited_for(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("holdfast.apps.lab.dask_cluster.DASK_CONNECT_SECONDS", 2)
    path = tmp_path / "sessions.jsonl"
    path.write_text(json.dumps({"id": "a", "messages": generate_session(8)}) + "\n")

    code = main(["lab", "run", str(path), "--executor", scheduler])

    address = scheduler.removeprefix("dask://")
    [line] = [one for one in capsys.readouterr().err.splitlines() if one.startswith("holdfast: ")]
    assert (code, line) == (
        2,
        f"holdfast: --executor: the scheduler at {address} has no workers; start some: dask worker tcp://{address}",
    )
