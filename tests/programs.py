"""Start `holdfast` as a program, without importing all of it for each start.

A server that has imported the chat forks a process for each start, which saves some two seconds of processor time. The
process has what a new one would have: arguments, environment, folder, standard streams, a terminal of its own, the
default reaction to signals, and an exit code. `is_fresh` starts a new interpreter instead: for what depends on how one
starts, and for one conversation of each kind. With `HOLDFAST_FRESH=1` every start is fresh.
"""

import atexit
import faulthandler
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, Self

import pexpect
from pexpect.fdpexpect import fdspawn

from holdfast.apps.cli.main import main

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
ROOT = str(Path(__file__).parent.parent)
TIMEOUT_SECONDS = 300
"""A fresh start with an MCP server takes up to 16 s of processor time, of which a busy machine gives it a fraction."""
ABORT_SECONDS = 10
STUCK = f"the program still ran after {TIMEOUT_SECONDS} s"
"""What it has written by then ends with where each of its threads is."""
IS_ALWAYS_FRESH = os.environ.get("HOLDFAST_FRESH") == "1"
FORKING = get_context("forkserver")
FORKING.set_forkserver_preload(["tests.preloaded"])


def run_program(
    *arguments: str,
    env: dict[str, str],
    folder: Path,
    said: str = "",
    stdout: int | None = None,
    is_fresh: bool = False,
    on_start: Callable[[int], None] = lambda _: None,
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end with pipes for its standard streams.

    A lone surrogate in `said` stands for a byte that is not UTF-8. What it writes goes to `stdout` where that is given.
    `on_start` gets the number of its process before anything is said to it.
    """
    if is_fresh or IS_ALWAYS_FRESH:
        command = [HOLDFAST, *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe if stdout is None else stdout,
            stderr=pipe,
            env={**env, "PYTHONFAULTHANDLER": "1"},
            cwd=folder,
            encoding="utf-8",
            errors="surrogateescape",
        ) as process:
            on_start(process.pid)
            try:
                outputs = process.communicate(said, TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)
                try:
                    outputs = process.communicate(timeout=ABORT_SECONDS)
                finally:
                    process.kill()
                raise TimeoutError(f"{STUCK}: {outputs}") from None
        return subprocess.CompletedProcess(command, process.returncode, *outputs)
    (stdin, writing), (out, piped), (error, stderr) = os.pipe(), os.pipe(), os.pipe()
    if stdout is not None:
        os.dup2(stdout, piped)
    process = fork(arguments, env, folder, (stdin, piped, stderr))
    assert process.pid is not None
    on_start(process.pid)
    with ThreadPoolExecutor() as threads:
        threads.submit(_write_all, writing, said)
        outputs = [threads.submit(_read_all, stream) for stream in (out, error)]
        try:
            code = wait_for(process)
        except TimeoutError as stuck:
            stuck.add_note(str([one.result() for one in outputs]))
            raise
    return subprocess.CompletedProcess([HOLDFAST, *arguments], code, *(one.result() for one in outputs))


class RunningProgram:
    """A forked program with pipes for its standard streams, used as `subprocess.Popen` is."""

    def __init__(self, *arguments: str, env: dict[str, str], folder: Path) -> None:
        (stdin, writing), (out, stdout), (error, stderr) = os.pipe(), os.pipe(), os.pipe()
        self._process = fork(arguments, env, folder, (stdin, stdout, stderr))
        self.stdin = os.fdopen(writing, "w", encoding="utf-8")
        self.stdout, self.stderr = (os.fdopen(fd, encoding="utf-8") for fd in (out, error))

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float = TIMEOUT_SECONDS) -> int:
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(HOLDFAST, timeout)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        if self.poll() is None:
            self.kill()
            self.wait()


def start_program(
    *arguments: str, env: dict[str, str], folder: Path, is_fresh: bool = False
) -> "subprocess.Popen[str] | RunningProgram":
    """Start the program with pipes for its standard streams, to be talked to while it runs."""
    if is_fresh or IS_ALWAYS_FRESH:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [HOLDFAST, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=folder, text=True
        )
    return RunningProgram(*arguments, env=env, folder=folder)


def open_terminal(
    *arguments: str, env: dict[str, str], folder: Path, rows: int, columns: int, is_fresh: bool = False
) -> "pexpect.spawn[bytes] | ForkedTerminal":
    """Start the program in a pseudo-terminal of its own."""
    if is_fresh or IS_ALWAYS_FRESH:
        child = pexpect.spawn(
            HOLDFAST, list(arguments), env=env, cwd=str(folder), dimensions=(rows, columns), timeout=TIMEOUT_SECONDS
        )
        child.delaybeforesend = None
        return child
    return ForkedTerminal(arguments, env, folder, rows, columns)


class ForkedTerminal(fdspawn):  # pyright: ignore[reportMissingTypeArgument] - generic in its stubs only
    """A pseudo-terminal with a forked program in it, used as `pexpect.spawn` is."""

    def __init__(self, arguments: Sequence[str], env: dict[str, str], folder: Path, rows: int, columns: int) -> None:
        ours, theirs = pty.openpty()
        super().__init__(ours, timeout=TIMEOUT_SECONDS)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = fork(arguments, env, folder, (theirs, theirs, theirs), has_terminal=True)

    def isalive(self) -> bool:
        return self._process.is_alive()

    def kill(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self) -> int:
        return wait_for(self._process)

    def close(self) -> None:
        """Hang up, as a terminal that is closed does, and keep how the program ended."""
        super().close()
        code = self.wait()
        self.exitstatus, self.signalstatus = (code, None) if code >= 0 else (None, -code)


class Stream:
    """A file descriptor of which a forked process gets a copy."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[[Any], "Stream"], tuple[Any]]:
        return _received, (DupFd(self.fd),)


def _received(copy: Any) -> Stream:
    return Stream(copy.detach())


def fork(
    arguments: Sequence[str], env: dict[str, str], folder: Path, streams: Sequence[int], *, has_terminal: bool = False
) -> ForkServerProcess:
    """Start the program in a fork of the server, and hand over its standard streams."""
    sent = [Stream(fd) for fd in streams]
    process = FORKING.Process(target=_run_forked, args=(list(arguments), env, str(folder), sent, has_terminal))
    process.start()
    for fd in set(streams):
        os.close(fd)
    return process


def wait_for(process: ForkServerProcess) -> int:
    """Return the exit code of a forked program, which is negative where a signal ended it."""
    process.join(TIMEOUT_SECONDS)
    if process.exitcode is None:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGABRT)
        process.join(ABORT_SECONDS)
        process.kill()
        raise TimeoutError(STUCK)
    return process.exitcode


def _run_forked(
    arguments: list[str],
    env: dict[str, str],
    folder: str,
    streams: list[Stream],
    has_terminal: bool,  # noqa: FBT001
) -> None:
    """Do in the forked process what a new interpreter and the script `holdfast` do."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    if has_terminal:
        os.setsid()
        fcntl.ioctl(streams[0].fd, termios.TIOCSCTTY, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream.fd, number)
    for fd in {stream.fd for stream in streams}:
        os.close(fd)
    named, _, reaction = env.get("PYTHONIOENCODING", "").partition(":")
    encoding, errors = named or "utf-8", reaction or ("strict" if named else "surrogateescape")
    sys.stdin = sys.__stdin__ = open(0, encoding=encoding, errors=errors)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding=encoding, errors=errors)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, encoding=encoding, errors="backslashreplace")  # noqa: SIM115
    faulthandler.enable()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup`, if it runs the tests, made the server ignore it
    sys.argv = [HOLDFAST, *arguments]
    sys.path = [str(Path(HOLDFAST).parent), *(path for path in sys.path if path != ROOT)]
    try:
        sys.exit(main())
    finally:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue] - as the interpreter ends
        atexit._run_exitfuncs()


def _write_all(fd: int, text: str) -> None:
    with open(fd, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(text)


def _read_all(fd: int) -> str:
    with open(fd, encoding="utf-8") as stream:
        return stream.read()
