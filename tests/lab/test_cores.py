"""Work in several processes: all of it is heard of, whatever becomes of it."""

import signal

from holdfast.apps.lab.workers import WORKER_DIED, WorkerPool


async def test_what_fails_is_told_and_the_rest_is_done() -> None:
    heard: dict[int, object] = {}
    cores = WorkerPool[str, object](int, lambda problem: problem, workers=2)

    await cores.run(["1", "x", "3"], [2, 1, 0], lambda number, result: heard.update({number: result}))

    assert heard == {0: 1, 1: "ValueError: invalid literal for int() with base 10: 'x'", 2: 3}
    assert cores.signal == 0


async def test_processes_that_die_are_told_of_and_not_waited_for() -> None:
    heard: list[tuple[int, object]] = []
    cores = WorkerPool[int, object](signal.raise_signal, lambda problem: problem, workers=2)

    await cores.run([signal.SIGKILL] * 3, [0, 1, 2], lambda number, result: heard.append((number, result)))

    assert sorted(heard, key=lambda pair: pair[0]) == [(0, WORKER_DIED), (1, WORKER_DIED), (2, WORKER_DIED)]
