"""What others do before and after a compaction: Python callables, and commands that are given JSON.

A hook is told, and that is all: what it returns or prints changes nothing, so nothing it does can hurt the
session. One that fails, crashes, hangs or never stops printing costs its time limit at most and one line that
says what went wrong. A command runs without a shell in a process group of its own, which is killed whole; a
synchronous callable runs in a thread of its own, which cannot be killed and is left behind.
"""

import asyncio
import contextvars
import inspect
import json
import math
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Self, TypeAlias

from holdfast.core.history.events import Breakdown, Trigger
from holdfast.errors import SettingsError
from holdfast.redaction import redacted

MAX_LINE_CHARS = 300
MAX_KEPT_BYTES = 4_096
"""Of what a command prints to its standard error, the end is kept for the report: that is where reasons stand."""
READ_BYTES, MAX_LAST_READS = 65_536, 16
"""More than a pipe holds is not read when the program has ended: a child of it may never stop."""
GRACE_SECONDS = 2.0
"""For what was cancelled or killed to be gone."""
_LEFT_BEHIND: set[asyncio.Task[str | None]] = set()
"""The loop itself holds on to no task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    """What a hook is told."""

    name: Literal["preCompact", "postCompact"]
    session: str
    trigger: Trigger
    focus: str = ""
    """What the person wants the summary to look at."""
    tokens: Breakdown = field(default_factory=Breakdown)
    success: bool | None = None
    """From here on: what came of it, for `postCompact` only."""
    summary: str = ""
    error: str | None = None
    checkpoint_path: str | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A program that is started without a shell and reads one JSON object from its standard input."""

    argv: tuple[str, ...]
    cwd: str | None = None
    """Where it runs; None is where this program runs. It has this program's environment, and nothing is added."""

    def __post_init__(self) -> None:
        words: object = self.argv
        is_sound = isinstance(words, tuple) and bool(words) and all(isinstance(word, str) for word in self.argv)
        if not is_sound or not self.argv[0] or any("\0" in word for word in self.argv):
            problem = f'needs the program and its arguments as a tuple such as ("notify", "--quiet"), not {words!r}'
            raise SettingsError("command", problem)


Called: TypeAlias = Callable[[HookCall], Awaitable[None] | None]
Hook: TypeAlias = Called | Command
_Returned: TypeAlias = tuple[Awaitable[None] | None, str | None]
"""What a callable returned, and what went wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Whom to tell; one after the other, in this order."""

    pre_compact: tuple[Hook, ...] = ()
    post_compact: tuple[Hook, ...] = ()
    timeout_seconds: float = 30.0
    """For each of them."""

    def __post_init__(self) -> None:
        limit: object = self.timeout_seconds
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < math.inf:
            raise SettingsError("timeout_seconds", f"must be a number above 0, not {limit!r}")
        for hook in (*self.pre_compact, *self.post_compact):
            if not isinstance(hook, Command) and not callable(hook):
                raise SettingsError("hooks", f"a hook is a callable or a Command, not {hook!r}")


def payload_of(call: HookCall) -> dict[str, object]:
    """Return what a command reads: the names that users of such hooks know."""
    told: dict[str, object] = {
        "hookEventName": call.name,
        "sessionId": call.session,
        "trigger": call.trigger,
        "customInstructions": call.focus,
        "tokens": {
            "systemTokens": call.tokens.system_tokens,
            "conversationTokens": call.tokens.conversation_tokens,
            "toolDefinitionsTokens": call.tokens.tool_definitions_tokens,
        },
    }
    if call.name == "postCompact":
        told |= {
            "success": call.success,
            "summary": call.summary,
            "error": call.error,
            "checkpointPath": call.checkpoint_path,
        }
    return told


async def run_hooks(hooks: Hooks, call: HookCall) -> list[str]:
    """Tell everybody, and return what went wrong, a line each; raises nothing but a cancellation."""
    told = hooks.pre_compact if call.name == "preCompact" else hooks.post_compact
    problems: list[str] = []
    for hook in told:
        problem = await _problem_of(hook, call, hooks.timeout_seconds)
        if problem is not None:
            problems.append(_line(f"{call.name} hook {_name_of(hook)} {problem}"))
    return problems


async def _problem_of(hook: Hook, call: HookCall, timeout_seconds: float) -> str | None:
    """Run one hook, and return what was wrong with it.

    It is a task of its own, so that one that does not let itself be cancelled can be left behind.
    """
    task = asyncio.create_task(_outcome(hook, call))
    try:
        await asyncio.wait({task}, timeout=timeout_seconds)
    finally:
        is_late = not task.done()
        if is_late:
            _LEFT_BEHIND.add(task)
            task.add_done_callback(_LEFT_BEHIND.discard)
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_SECONDS)
    if is_late:
        return f"did not finish within {timeout_seconds:g} s and was {_fate_of(hook, task)}"
    return "was cancelled" if task.cancelled() else task.result()


def _fate_of(hook: Hook, task: asyncio.Task[str | None]) -> str:
    if isinstance(hook, Command):
        return "killed"
    return "cancelled" if _is_async(hook) and task.done() else "left behind"


async def _outcome(hook: Hook, call: HookCall) -> str | None:
    """Return what is wrong with what a hook did, or None."""
    try:
        if isinstance(hook, Command):
            return await _command_outcome(hook, call)
        returned, problem = (hook(call), None) if _is_async(hook) else await _in_thread(hook, call)
        if inspect.isawaitable(returned):
            await returned
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a hook does, the session goes on
        return _raised(error)
    return problem


# Callables.


def _is_async(hook: Called) -> bool:
    called: object = getattr(type(hook), "__call__", None)  # noqa: B004 - what is called, not whether
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(called)


async def _in_thread(hook: Called, call: HookCall) -> _Returned:
    """Return what a callable returns or raises, from a thread that the end of the program does not wait for."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Returned] = loop.create_future()
    context = contextvars.copy_context()

    def give(returned: _Returned) -> None:
        if not answer.done():
            answer.set_result(returned)
        elif inspect.iscoroutine(returned[0]):
            returned[0].close()

    def work() -> None:
        try:
            returned = context.run(hook, call), None
        except BaseException as error:  # noqa: BLE001 - otherwise the thread prints it, and nobody is told
            returned = None, _raised(error)
        with suppress(RuntimeError):  # the loop is closed, and nobody asks any more
            loop.call_soon_threadsafe(give, returned)

    threading.Thread(target=work, name=f"holdfast {call.name} hook", daemon=True).start()
    return await answer


def _raised(error: BaseException) -> str:
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - even that is a hook's own code
        words = ""
    return f"raised {type(error).__name__}" + (f": {words}" if words else "")


# Commands.


async def _command_outcome(command: Command, call: HookCall) -> str | None:
    """Run a program to its end; a cancellation kills it with all that it has started."""
    with tempfile.TemporaryFile() as told, _Heard() as heard:
        # A file and not a pipe: a program that does not read it, or leaves it to a child, keeps nobody waiting.
        told.write(json.dumps(payload_of(call)).encode())
        told.seek(0)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command.argv,
                stdin=told,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL if sys.platform == "win32" else heard.writing_end,
                cwd=command.cwd,
                start_new_session=True,
            )
        )
        process = None
        try:
            process = await asyncio.shield(starting)
            heard.listen()
            code = await process.wait()
        except asyncio.CancelledError:
            with suppress(OSError):
                await _killed(process or await starting)
            raise
        except OSError as error:
            return f"could not be started: {error.strerror or error}"
        return None if code == 0 else f"{_ending(code)}{heard.reason()}"


async def _killed(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_SECONDS)


def _ending(code: int) -> str:
    if code > 0:
        return f"exited with {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


class _Heard:
    """The end of what a program says on its standard error.

    It is read as it comes, so that no amount of it fills memory or a disk or makes the program wait, and it is not
    waited for: a child that outlives the program may hold it open for ever.
    """

    def __init__(self) -> None:
        self._end = b""
        self._is_cut = False
        self._reading_end, self.writing_end = os.pipe()
        self._is_listening = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        os.close(self._reading_end)
        if self.writing_end >= 0:
            os.close(self.writing_end)

    def listen(self) -> None:
        """Begin to read; the program has its own end of the pipe by now."""
        os.close(self.writing_end)
        self.writing_end = -1
        if sys.platform != "win32":
            os.set_blocking(self._reading_end, False)
            asyncio.get_running_loop().add_reader(self._reading_end, self._take)
            self._is_listening = True

    def reason(self) -> str:
        """Return the last line, with what leads up to it in a report."""
        for _ in range(MAX_LAST_READS):
            if not self._is_listening or not self._take():
                break
        text = self._end.decode(errors="replace")
        if self._is_cut:
            # What may be half a key is not known for one any more.
            text = text.partition(" ")[2] if "\n" not in text.strip() else text.partition("\n")[2]
        lines = [line for line in text.splitlines() if line.strip()]
        return f": {lines[-1]}" if lines else ""

    def _take(self) -> bool:
        """Read some of it, and say whether there was any."""
        try:
            chunk = os.read(self._reading_end, READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._leave()
            return False
        kept = self._end + chunk
        self._is_cut = self._is_cut or len(kept) > MAX_KEPT_BYTES
        self._end = kept[-MAX_KEPT_BYTES:]
        return True

    def _leave(self) -> None:
        if self._is_listening:
            asyncio.get_running_loop().remove_reader(self._reading_end)
            self._is_listening = False


# Reports.


def _name_of(hook: Hook) -> str:
    if isinstance(hook, Command):
        return repr(hook.argv[0])
    return repr(str(getattr(hook, "__qualname__", type(hook).__name__)))


def _line(text: str) -> str:
    """Return a text as one line that can be shown to anybody."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    line = redacted(" ".join(plain.split()))
    return line if len(line) <= MAX_LINE_CHARS else f"{line[: MAX_LINE_CHARS - 1]}…"
