"""Hooks are told before and after a compaction, and nothing they do can hurt the session."""

import asyncio
import inspect
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, get_args

import pytest

from holdfast.core.history.events import CompactionTrigger, TokenBreakdown
from holdfast.errors import SettingsError
from holdfast.session.compaction import hooks as hooks_module
from holdfast.session.compaction.hooks import HookCall, HookCommand, Hooks, run_hooks
from tests.support import wait_until

TOKENS = TokenBreakdown(system_tokens=10, conversation_tokens=900, tool_definitions_tokens=90)
BEFORE = HookCall(name="preCompact", session="c1", trigger="manual", focus="the parser", tokens=TOKENS)
AFTER = HookCall(
    name="postCompact",
    session="c1",
    trigger="threshold",
    tokens=TOKENS,
    success=True,
    summary="# Parser\nDone: \ud83d half a pair, ünïcode",
    checkpoint_path="/work/checkpoints/001-parser.md",
)


def shell(script: str, *words: object) -> HookCommand:
    return HookCommand(("sh", "-c", script, "sh", *map(str, words)))


def before(*hooks: Any, timeout_seconds: float = 30.0) -> Hooks:
    return Hooks(pre_compact=hooks, timeout_seconds=timeout_seconds)


def refuse(error: BaseException) -> Callable[[HookCall], None]:
    def refusing(_: HookCall) -> None:
        raise error

    return refusing


@pytest.mark.seed("C-5", "C-13b")
@pytest.mark.parametrize("trigger", get_args(CompactionTrigger))
async def test_every_hook_is_told_in_order_whatever_began_the_compaction(
    trigger: CompactionTrigger, tmp_path: Path
) -> None:
    told: list[object] = []

    async def later(call: HookCall) -> None:
        await asyncio.sleep(0)
        told.append(("later", call))

    call = HookCall(name="preCompact", session="c1", trigger=trigger)
    written = tmp_path / "told.json"

    def first(call: HookCall) -> None:
        told.append(("first", call))

    hooks = before(first, later, shell('cat > "$1"', written))

    assert await run_hooks(hooks, call) == []
    assert told == [("first", call), ("later", call)]
    assert json.loads(written.read_text())["trigger"] == trigger


async def test_hooks_for_before_and_after_are_told_apart() -> None:
    told: list[str] = []
    hooks = Hooks(
        pre_compact=(lambda call: told.append(f"before: {call.name}"),),
        post_compact=(lambda call: told.append(f"after: {call.name}"),),
    )

    assert [await run_hooks(hooks, call) for call in (BEFORE, AFTER)] == [[], []]
    assert told == ["before: preCompact", "after: postCompact"]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (BEFORE, {"hookEventName": "preCompact", "trigger": "manual", "customInstructions": "the parser"}),
        (
            AFTER,
            {
                "hookEventName": "postCompact",
                "trigger": "threshold",
                "customInstructions": "",
                "success": True,
                "summary": "# Parser\nDone: \ud83d half a pair, ünïcode",
                "error": None,
                "checkpointPath": "/work/checkpoints/001-parser.md",
            },
        ),
    ],
    ids=["before", "after"],
)
async def test_a_command_reads_one_json_object(call: HookCall, expected: dict[str, object], tmp_path: Path) -> None:
    written = tmp_path / "told.json"
    hook = shell('cat > "$1"', written)

    assert await run_hooks(Hooks(pre_compact=(hook,), post_compact=(hook,)), call) == []
    assert json.loads(written.read_text()) == {
        "sessionId": "c1",
        "tokens": {"systemTokens": 10, "conversationTokens": 900, "toolDefinitionsTokens": 90},
        **expected,
    }


async def test_a_command_runs_without_a_shell_where_it_is_told_to_and_with_no_more_environment(tmp_path: Path) -> None:
    script = "import json, os, sys; json.dump([sys.argv[1:], os.getcwd(), sorted(os.environ)], open('seen', 'w'))"
    command = HookCommand((sys.executable, "-c", script, "$HOME; echo *"), cwd=str(tmp_path))

    assert await run_hooks(before(command), BEFORE) == []

    words, folder, names = json.loads((tmp_path / "seen").read_text())
    assert (words, folder) == (["$HOME; echo *"], str(tmp_path.resolve()))
    assert set(names) - {"LC_CTYPE", "COLUMNS", "LINES"} <= set(os.environ)  # set by interpreters and terminals


class Unprintable(Exception):  # noqa: N818 - a hook's own
    def __str__(self) -> str:
        raise ValueError


async def fails(_: HookCall) -> None:
    raise LookupError("nobody listens")


async def leaves(_: HookCall) -> None:
    sys.exit(3)


async def gives_up(_: HookCall) -> None:
    raise asyncio.CancelledError


async def runs_out_of_time(_: HookCall) -> None:
    raise TimeoutError("its own")


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        (refuse(KeyError("x")), "'refuse.<locals>.refusing' raised KeyError: 'x'"),
        (refuse(SystemExit(3)), "'refuse.<locals>.refusing' raised SystemExit: 3"),
        (refuse(StopIteration()), "'refuse.<locals>.refusing' raised StopIteration"),
        (refuse(KeyboardInterrupt()), "'refuse.<locals>.refusing' raised KeyboardInterrupt"),
        (refuse(Unprintable()), "'refuse.<locals>.refusing' raised Unprintable"),
        (refuse(ValueError("a\n\x1b[31mb\0")), "'refuse.<locals>.refusing' raised ValueError: a [31mb"),
        (fails, "'fails' raised LookupError: nobody listens"),
        (leaves, "'leaves' raised SystemExit: 3"),
        (gives_up, "'gives_up' was cancelled"),
        (runs_out_of_time, "'runs_out_of_time' raised TimeoutError: its own"),
        (HookCommand(("/no/such/program",)), "'/no/such/program' could not be started: No such file or directory"),
        (HookCommand(("true",), cwd="/no/such/place"), "'true' could not be started: No such file or directory"),
        (HookCommand(("false",)), "'false' exited with 1"),
        (shell("echo one >&2; echo two >&2; exit 3"), "'sh' exited with 3: two"),
        (shell("kill -SEGV $$"), "'sh' was killed by SIGSEGV"),
        (shell("kill -40 $$"), "'sh' was killed by signal 40"),
        (shell("printf '\\377\\000\\033[2J bad \\r\\n\\n' >&2; exit 2"), "'sh' exited with 2: \ufffd [2J bad"),
        (shell("echo key sk-abcdefghijklmnop >&2; exit 2"), "'sh' exited with 2: key sk-[redacted]"),
    ],
)
async def test_what_goes_wrong_is_one_plain_line_and_the_next_hook_is_told_all_the_same(
    hook: Any, problem: str
) -> None:
    told: list[HookCall] = []

    assert await run_hooks(before(hook, told.append), BEFORE) == [f"preCompact hook {problem}"]
    assert told == [BEFORE]


async def test_what_is_printed_is_not_read_however_much_it_is() -> None:
    flood = "head -c 3000000 /dev/zero | tr '\\0' x"

    assert await run_hooks(before(shell(f"{flood}; {flood} >&2")), BEFORE) == []
    assert await run_hooks(before(shell(f"{flood}; {flood} >&2; exit 1")), BEFORE) == [
        "preCompact hook 'sh' exited with 1"
    ]
    assert await run_hooks(before(shell(f"{flood} >&2; echo >&2; echo last words >&2; exit 1")), BEFORE) == [
        "preCompact hook 'sh' exited with 1: last words"
    ]
    [long] = await run_hooks(before(shell("head -c 2000 /dev/zero | tr '\\0' x >&2; exit 1")), BEFORE)
    assert (len(long), long[-2:]) == (300, "x…")


async def test_a_command_need_not_read_what_it_is_told() -> None:
    call = HookCall(name="postCompact", session="c1", trigger="manual", summary="x" * 3_000_000)

    assert await run_hooks(Hooks(post_compact=(HookCommand(("true",)),)), call) == []


@pytest.mark.parametrize(("ending", "problems"), [("exit 0", []), ("echo why >&2; exit 4", ["exited with 4: why"])])
async def test_a_child_that_a_command_leaves_running_keeps_nobody_waiting(
    ending: str, problems: list[str], tmp_path: Path
) -> None:
    idle = tmp_path / "idle"
    os.mkfifo(idle)

    found = await run_hooks(before(shell(f'cat "$1" & {ending}', idle)), BEFORE)

    assert found == [f"preCompact hook 'sh' {problem}" for problem in problems]
    await asyncio.to_thread(idle.write_bytes, b"")  # the child is there, and may go


class Group:
    """A command that hangs together with a child; both hold a pipe whose end tells that both are gone."""

    def __init__(self, folder: Path) -> None:
        self.alive, idle = folder / "alive", folder / "idle"
        os.mkfifo(self.alive)
        os.mkfifo(idle)
        self.command = shell('exec 3> "$1"; cat "$2" & echo ready >&3; cat "$2"', self.alive, idle)

    async def heard(self, started: asyncio.Event) -> bytes:
        """Return all that comes through the pipe until its last holder is gone."""

        def read() -> bytes:
            with self.alive.open("rb", buffering=0) as pipe:
                heard = pipe.read(64)
                loop.call_soon_threadsafe(started.set)
                while select.select([pipe], [], [], 20)[0]:
                    if not (more := pipe.read(64)):
                        return heard
                    heard += more
                return heard + b"and still running"

        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(read)

    def release(self) -> None:
        """Let the reader go where nobody has come."""
        with suppress(OSError):
            os.close(os.open(self.alive, os.O_WRONLY | os.O_NONBLOCK))


async def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    heard, problems = b"", list[str]()

    while not heard:  # on a busy machine, the time is over before the command has begun
        group = Group(Path(mkdtemp(dir=tmp_path)))
        hearing = asyncio.create_task(group.heard(asyncio.Event()))
        problems = await run_hooks(before(group.command, timeout_seconds=2), BEFORE)
        group.release()
        heard = await hearing

    assert problems == ["preCompact hook 'sh' did not finish within 2 s and was killed"]
    assert heard == b"ready\n"


async def test_a_cancellation_kills_a_running_command_with_all_that_it_started(tmp_path: Path) -> None:
    group, started = Group(tmp_path), asyncio.Event()
    heard = asyncio.create_task(group.heard(started))
    running = asyncio.create_task(run_hooks(before(group.command), BEFORE))
    await started.wait()

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert await heard == b"ready\n"


async def test_a_cancellation_while_a_command_is_being_started_leaves_nothing_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, processes = asyncio.create_subprocess_exec, list[asyncio.subprocess.Process]()

    async def starting(*words: str, **settings: Any) -> asyncio.subprocess.Process:
        running.cancel()
        processes.append(await start(*words, **settings))
        return processes[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", starting)
    running = asyncio.create_task(run_hooks(before(HookCommand(("cat", "/dev/zero"))), BEFORE))

    with pytest.raises(asyncio.CancelledError):
        await running
    assert [process.returncode for process in processes] == [-signal.SIGKILL]


async def test_an_asynchronous_hook_that_hangs_is_cancelled() -> None:
    ended: list[str] = []

    async def hang(_: HookCall) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    assert await run_hooks(before(hang, timeout_seconds=0.05), BEFORE) == [
        "preCompact hook 'test_an_asynchronous_hook_that_hangs_is_cancelled.<locals>.hang' "
        "did not finish within 0.05 s and was cancelled"
    ]
    assert ended == ["cleaned up"]


async def test_a_hook_that_does_not_let_itself_be_cancelled_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks_module, "KILL_GRACE_SECONDS", 0.05)
    release, ended = asyncio.Event(), asyncio.Event()

    class Stubborn:
        async def __call__(self, _: HookCall) -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            ended.set()
            raise ValueError("nobody is told any more")

    assert await run_hooks(before(Stubborn(), timeout_seconds=0.05), BEFORE) == [
        "preCompact hook 'Stubborn' did not finish within 0.05 s and was abandoned"
    ]
    release.set()
    await ended.wait()


async def test_a_synchronous_hook_cannot_block_the_loop_and_is_left_behind_when_it_hangs() -> None:
    release, freed = threading.Event(), threading.Event()

    def waits_for_the_loop(_: HookCall) -> None:
        assert release.wait(timeout=60)
        freed.set()

    asyncio.get_running_loop().call_later(0.01, release.set)
    assert await run_hooks(before(waits_for_the_loop), BEFORE) == []

    release.clear()
    freed.clear()
    [problem] = await run_hooks(before(waits_for_the_loop, timeout_seconds=0.05), BEFORE)
    assert problem.endswith("did not finish within 0.05 s and was abandoned")
    release.set()
    assert await asyncio.to_thread(freed.wait, 30)


async def test_what_a_hook_returns_too_late_is_not_awaited_any_more() -> None:
    release, returned = threading.Event(), list[Coroutine[Any, Any, None]]()

    async def later() -> None:
        """Say nothing, because nobody listens."""

    def too_late(_: HookCall) -> Awaitable[None]:
        assert release.wait(timeout=60)
        returned.append(later())
        return returned[0]

    [problem] = await run_hooks(before(too_late, timeout_seconds=0.05), BEFORE)
    release.set()
    await wait_until(lambda: bool(returned) and inspect.getcoroutinestate(returned[0]) == inspect.CORO_CLOSED)

    assert problem.endswith("did not finish within 0.05 s and was abandoned")


async def test_what_a_callable_returns_is_awaited_wherever_it_comes_from() -> None:
    told: list[str] = []

    async def later(call: HookCall) -> None:
        await asyncio.sleep(0)
        told.append(call.name)

    def hands_over(call: HookCall) -> Awaitable[None]:
        return later(call)

    assert await run_hooks(before(hands_over), BEFORE) == []
    assert told == ["preCompact"]


async def test_a_hook_sees_the_context_it_is_called_from() -> None:
    asked_by: ContextVar[str] = ContextVar("asked_by")
    asked_by.set("ada")
    seen: list[tuple[str, str]] = []

    def look(_: HookCall) -> None:
        seen.append((asked_by.get(), threading.current_thread().name))

    assert await run_hooks(before(look), BEFORE) == []
    assert seen == [("ada", "holdfast preCompact hook")]


@pytest.mark.parametrize(
    "make",
    [
        lambda: HookCommand(()),
        lambda: HookCommand("echo hello"),  # type: ignore[arg-type]
        lambda: HookCommand(("",)),
        lambda: HookCommand(("echo", "a\0b")),
        lambda: HookCommand(("echo", 1)),  # type: ignore[arg-type]
        lambda: Hooks(timeout_seconds=0),
        lambda: Hooks(timeout_seconds=float("nan")),
        lambda: Hooks(timeout_seconds=float("inf")),
        lambda: Hooks(timeout_seconds=True),
        lambda: Hooks(pre_compact=("echo hello",)),  # type: ignore[arg-type]
    ],
)
def test_a_hook_that_could_never_run_is_refused_when_it_is_set_up(make: Callable[[], object]) -> None:
    with pytest.raises(SettingsError):
        make()
