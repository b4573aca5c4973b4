"""Hooks before and after a compaction: Python callables, and commands that read JSON.

The session ignores what a hook returns or prints, so no hook can harm it. A hook that fails, crashes, hangs or prints
without end costs at most its timeout and one line in the report. A command runs without a shell in its own process
group, which is killed as a whole. A synchronous callable runs in a thread; a thread cannot be killed, so it is
abandoned. No hook is given what looks like a key.
"""

import asyncio
import contextvars
import inspect
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import field, replace
from typing import Literal, Self, TypeAlias

from holdfast.core.history.events import CompactionTrigger, TokenBreakdown
from holdfast.core.schema import short_repr
from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError
from holdfast.redaction import redact_text

MAX_REPORT_CHARS = 300
MAX_STDERR_BYTES = 4_096
"""How much of the end of a command's standard error is kept for the report."""
STDERR_READ_BYTES, MAX_FINAL_READS = 65_536, 16
"""Bounds of the read after the program has exited, about one full pipe: a child process may print without end."""
KILL_GRACE_SECONDS = 2.0
"""How long to wait for a hook after it was cancelled or killed."""
_UNFINISHED_HOOKS: set[asyncio.Task[str | None]] = set()
"""Tasks of hooks that ignored their cancellation, until they end: the event loop keeps only weak references.

All sessions of the process share the set; each task removes itself when it is done.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    """The arguments of a hook."""

    name: Literal["preCompact", "postCompact"]
    session: str
    trigger: CompactionTrigger
    focus: str = ""
    """What the user wants the summary to cover."""
    tokens: TokenBreakdown = field(default_factory=TokenBreakdown)
    success: bool | None = None
    """This field and those below hold the outcome, for `postCompact` only."""
    summary: str = ""
    error: str | None = None
    checkpoint_path: str | None = None


@dataclass(frozen=True, slots=True)
class HookCommand:
    """A program that runs without a shell and reads one JSON object from its standard input."""

    argv: tuple[str, ...]
    cwd: str | None = None
    """Its working directory; None for that of this process. It inherits this process's environment."""

    def __post_init__(self) -> None:
        words: object = self.argv
        is_sound = isinstance(words, tuple) and bool(words) and all(isinstance(word, str) for word in self.argv)
        if not is_sound or not self.argv[0] or any("\0" in word for word in self.argv):
            problem = f'needs the program and its arguments as a tuple such as ("notify", "--quiet"), not {words!r}'
            raise SettingsError("command", problem)


HookFunction: TypeAlias = Callable[[HookCall], Awaitable[None] | None]
Hook: TypeAlias = HookFunction | HookCommand
_HookReturn: TypeAlias = tuple[Awaitable[None] | None, str | None]
"""What a callable returned, and the text of its error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The hooks of a session, called one after the other in this order."""

    pre_compact: tuple[Hook, ...] = ()
    post_compact: tuple[Hook, ...] = ()
    timeout_seconds: float = 30.0
    """The timeout of each hook."""

    def __post_init__(self) -> None:
        limit: object = self.timeout_seconds
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < math.inf:
            raise SettingsError("timeout_seconds", f"must be a number above 0, not {limit!r}")
        for name in ("pre_compact", "post_compact"):
            hooks: object = getattr(self, name)
            if not isinstance(hooks, tuple | list):
                raise SettingsError(
                    f"hooks.{name}", f"must be a tuple of hooks such as (hook,), not {short_repr(hooks)}"
                )
        for hook in (*self.pre_compact, *self.post_compact):
            if not isinstance(hook, HookCommand) and not callable(hook):
                raise SettingsError("hooks", f"a hook is a callable or a HookCommand, not {hook!r}")


def hook_payload(call: HookCall) -> dict[str, object]:
    """Return the JSON that a command reads, with the field names that users of such hooks know."""
    payload: dict[str, object] = {
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
        payload |= {
            "success": call.success,
            "summary": call.summary,
            "error": call.error,
            "checkpointPath": call.checkpoint_path,
        }
    return payload


async def run_hooks(hooks: Hooks, call: HookCall) -> list[str]:
    """Call the hooks, and return their problems, one line each; raises nothing but a cancellation."""
    problems: list[str] = []
    call = replace(
        call,
        focus=redact_text(call.focus),
        summary=redact_text(call.summary),
        error=call.error and redact_text(call.error),
    )
    for hook in hooks.pre_compact if call.name == "preCompact" else hooks.post_compact:
        problem = await _run_hook(hook, call, hooks.timeout_seconds)
        if problem is not None:
            problems.append(_report_line(f"{call.name} hook {_hook_name(hook)} {problem}"))
    return problems


async def _run_hook(hook: Hook, call: HookCall, timeout_seconds: float) -> str | None:
    """Run one hook, and return its problem, or None.

    The hook gets its own task, so that one that ignores its cancellation can be abandoned.
    """
    task = asyncio.create_task(_invoke(hook, call))
    try:
        await asyncio.wait({task}, timeout=timeout_seconds)
    finally:
        is_late = not task.done()
        if is_late:
            _UNFINISHED_HOOKS.add(task)
            task.add_done_callback(_UNFINISHED_HOOKS.discard)
            task.cancel()
            await asyncio.wait({task}, timeout=KILL_GRACE_SECONDS)
    if is_late:
        return f"did not finish within {timeout_seconds:g} s and was {_describe_stop(hook, task)}"
    return "was cancelled" if task.cancelled() else task.result()


def _describe_stop(hook: Hook, task: asyncio.Task[str | None]) -> str:
    if isinstance(hook, HookCommand):
        return "killed"
    return "cancelled" if _is_async(hook) and task.done() else "abandoned"


async def _invoke(hook: Hook, call: HookCall) -> str | None:
    """Call a hook, and return its problem, or None."""
    try:
        if isinstance(hook, HookCommand):
            return await _run_command(hook, call)
        returned, problem = (hook(call), None) if _is_async(hook) else await _call_in_thread(hook, call)
        if inspect.isawaitable(returned):
            await returned
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a hook does, the session goes on
        return _describe_error(error)
    return problem


# Callables.


def _is_async(hook: HookFunction) -> bool:
    called: object = getattr(type(hook), "__call__", None)  # noqa: B004 - what is called, not whether
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(called)


async def _call_in_thread(hook: HookFunction, call: HookCall) -> _HookReturn:
    """Call a function in a daemon thread, and return its result or its error.

    `asyncio.to_thread` does not work here: the loop and the program join its threads when they end, so a hook that
    hangs would block both.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_HookReturn] = loop.create_future()
    context = contextvars.copy_context()

    def give(returned: _HookReturn) -> None:
        if not answer.done():
            answer.set_result(returned)
        elif inspect.iscoroutine(returned[0]):
            returned[0].close()

    def work() -> None:
        try:
            returned = context.run(hook, call), None
        except BaseException as error:  # noqa: BLE001 - otherwise only the thread would print it
            returned = None, _describe_error(error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(give, returned)

    threading.Thread(target=work, name=f"holdfast {call.name} hook", daemon=True).start()
    return await answer


def _describe_error(error: BaseException) -> str:
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - even that is a hook's own code
        words = ""
    return f"raised {type(error).__name__}" + (f": {words}" if words else "")


# Commands.


async def _run_command(command: HookCommand, call: HookCall) -> str | None:
    """Run a program to its end; a cancellation kills it with its children."""
    import tempfile  # noqa: PLC0415 - only for a command

    with tempfile.TemporaryFile() as stdin, _StderrTail() as stderr:
        # A file instead of a pipe, so that a program that does not read its input cannot block the session.
        stdin.write(json.dumps(hook_payload(call)).encode())
        stdin.seek(0)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command.argv,
                stdin=stdin,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL if sys.platform == "win32" else stderr.write_end,
                cwd=command.cwd,
                start_new_session=True,
            )
        )
        process = None
        try:
            process = await asyncio.shield(starting)
            stderr.start_reading()
            code = await process.wait()
        except asyncio.CancelledError:
            with suppress(OSError):
                await _kill(process or await starting)
            raise
        except OSError as error:
            return f"could not be started: {error.strerror or error}"
        return None if code == 0 else f"{_describe_exit(code)}{stderr.last_line()}"


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), KILL_GRACE_SECONDS)


def _describe_exit(code: int) -> str:
    if code > 0:
        return f"exited with {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


class _StderrTail:
    """The end of what a program prints to its standard error.

    The stream is read as it arrives, so that a long output neither fills memory or a disk nor blocks the program.
    Nothing waits for its end: a child process that outlives the program may hold it open forever.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._is_cut = False
        self._read_end, self.write_end = os.pipe()
        self._is_reading = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_reading()
        os.close(self._read_end)
        if self.write_end >= 0:
            os.close(self.write_end)

    def start_reading(self) -> None:
        """Start to read. The program must have its own end of the pipe already."""
        os.close(self.write_end)
        self.write_end = -1
        if sys.platform != "win32":
            os.set_blocking(self._read_end, False)
            asyncio.get_running_loop().add_reader(self._read_end, self._read_chunk)
            self._is_reading = True

    def last_line(self) -> str:
        """Return the last line, formatted for the report."""
        for _ in range(MAX_FINAL_READS):
            if not self._is_reading or not self._read_chunk():
                break
        text = self._tail.decode(errors="replace")
        if self._is_cut:
            # Drop the piece at the cut: redaction would not recognize half a key.
            text = text.partition(" ")[2] if "\n" not in text.strip() else text.partition("\n")[2]
        lines = [line for line in text.splitlines() if line.strip()]
        return f": {lines[-1]}" if lines else ""

    def _read_chunk(self) -> bool:
        """Read one chunk, and return whether there was any output."""
        try:
            chunk = os.read(self._read_end, STDERR_READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._stop_reading()
            return False
        kept = self._tail + chunk
        self._is_cut = self._is_cut or len(kept) > MAX_STDERR_BYTES
        self._tail = kept[-MAX_STDERR_BYTES:]
        return True

    def _stop_reading(self) -> None:
        if self._is_reading:
            asyncio.get_running_loop().remove_reader(self._read_end)
            self._is_reading = False


# Reports.


def _hook_name(hook: Hook) -> str:
    if isinstance(hook, HookCommand):
        return repr(hook.argv[0])
    return repr(str(getattr(hook, "__qualname__", type(hook).__name__)))


def _report_line(text: str) -> str:
    """Return a text as one printable line without secrets."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    line = redact_text(" ".join(plain.split()))
    return line if len(line) <= MAX_REPORT_CHARS else f"{line[: MAX_REPORT_CHARS - 1]}…"
