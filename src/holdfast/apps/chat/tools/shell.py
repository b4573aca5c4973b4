"""Runs shell commands for a model. The tool asks the user before each command that the settings do not allow.

The settings allow plain commands by their first words. The tool always asks about a command that could hide another
one (a pipe, a substitution, a second line). Of the environment it passes on only what is known to be harmless, and what
the settings name. When a turn ends, its commands are stopped, and so is every process that they started.
"""

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from holdfast.apps.chat.events import Consent
from holdfast.apps.chat.tools.files import ToolRefusal
from holdfast.redaction import redact_text

AskConsent: TypeAlias = Callable[[str], Awaitable[Consent]]

COMMAND_TIMEOUT_SECONDS = 120
MAX_COMMAND_TIMEOUT_SECONDS = 900
MAX_OUTPUT_BYTES = 400_000
COMMAND_TERMINATE_SECONDS = 2.0
_SHELL_SYNTAX = re.compile(r"[;&|<>`$(){}\n\r\\*?\[\]~!#=]")
"""Characters with a special meaning to a shell."""
HARMLESS_VARIABLES = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "SHLVL", "PWD", "OLDPWD", "HOSTNAME", "TMPDIR", "TMP", "TEMP", "TZ"),
    *("LANG", "LANGUAGE", "LC_*", "TERM", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR*"),
    *("EDITOR", "VISUAL", "PAGER", "MANPATH", "INFOPATH", "XDG_*", "DISPLAY", "WAYLAND_DISPLAY", "CI"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYENV_*", "PYTHON*", "NVM_*", "NODE_ENV", "NODE_PATH"),
    *("GOPATH", "GOROOT", "GOBIN", "GOFLAGS", "CARGO_HOME", "CARGO_TARGET_DIR", "RUSTUP_*", "RUST_*", "JAVA_HOME"),
    *("GEM_HOME", "GEM_PATH", "RBENV_ROOT", "SDKMAN_DIR", "ANDROID_HOME", "HOMEBREW_*", "NIX_*"),
    *("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "MAKEFLAGS", "CPATH", "LIBRARY_PATH"),
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PKG_CONFIG_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
)
"""Variables that a command gets; a star stands for any characters. No list of names of secrets is ever complete."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|JWT|COOKIE|_PAT$|DSN$", re.IGNORECASE)
COMMAND_REFUSED = "the user did not allow this command; do without it, or ask what to do instead"


class ShellTool:
    """Runs commands in one folder."""

    def __init__(
        self, folder: Path, ask: AskConsent, allowed: Sequence[str] = (), variables: Sequence[str] = ()
    ) -> None:
        """`allowed` are beginnings of commands, `variables` names of variables that commands get."""
        self._folder = folder
        self._variables = variables
        self._ask = ask
        self._allowed = [shlex.split(beginning) for beginning in allowed if beginning.strip()]
        self._always_allowed: set[str] = set()
        self._question_lock = asyncio.Lock()

    async def run_command(self, command: str, timeout_seconds: int = COMMAND_TIMEOUT_SECONDS) -> str:
        """Run a shell command in the working folder; the user is asked first. Returns what it printed.

        Args:
            command: The command line.
            timeout_seconds: When to stop it.
        """
        if not command.strip() or "\0" in command:
            return ToolRefusal("there is no command")
        if not await self._may_run(command):
            return ToolRefusal(COMMAND_REFUSED)
        return await self._run(command, max(1, min(timeout_seconds, MAX_COMMAND_TIMEOUT_SECONDS)))

    async def _may_run(self, command: str) -> bool:
        if command in self._always_allowed or is_allowed(command, self._allowed):
            return True
        async with self._question_lock:
            if command in self._always_allowed:  # since the answer to the question before
                return True
            consent = await self._ask(command)
            if consent == "always":
                self._always_allowed.add(command)
        return consent != "no"

    async def _run(self, command: str, timeout_seconds: int) -> str:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_shell(
                command,
                cwd=self._folder,
                env=command_environment(os.environ, self._variables),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        )
        cancellation: asyncio.CancelledError | None = None
        while not starting.done():
            # If the start itself were cancelled, what the command has started meanwhile would go on without us.
            try:
                await asyncio.wait([starting])
            except asyncio.CancelledError as error:
                cancellation = error
        try:
            process = starting.result()
        except OSError as error:
            return ToolRefusal(f"the command could not be started: {error}")
        output = bytearray()
        try:
            if cancellation is not None:
                raise cancellation
            async with asyncio.timeout(timeout_seconds):
                await _collect_output(process, output)
                code = await process.wait()
        except TimeoutError:
            return ToolRefusal(f"{_render_output(output)}\n[stopped after {timeout_seconds} s]")
        finally:
            await _terminate(process)
        text = _render_output(output)
        return text if code == 0 else ToolRefusal(f"{text}\n[exit code {code}]".lstrip("\n"))


def command_environment(environ: Mapping[str, str], named: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables that a command gets: harmless ones, and those that the settings name.

    A variable whose name or value looks like a secret must be named exactly, without a star.
    """
    patterns = (*HARMLESS_VARIABLES, *named)

    def is_harmless(name: str, value: str) -> bool:
        is_plain = name in HARMLESS_VARIABLES or not _SECRET.search(name)
        return is_plain and any(fnmatchcase(name, one) for one in patterns) and redact_text(value) == value

    return {name: value for name, value in environ.items() if name in named or is_harmless(name, value)}


def is_allowed(command: str, allowed: Sequence[Sequence[str]]) -> bool:
    """Return whether a command is plain and begins with allowed words."""
    if _SHELL_SYNTAX.search(command):
        return False
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    return any(words[: len(beginning)] == list(beginning) for beginning in allowed if beginning)


async def _collect_output(process: asyncio.subprocess.Process, output: bytearray) -> None:
    """Collect what a process prints; if it is too much, drop the middle."""
    assert process.stdout is not None  # noqa: S101 - the process has a pipe
    while chunk := await process.stdout.read(65_536):
        output += chunk
        if len(output) > 2 * MAX_OUTPUT_BYTES:
            del output[MAX_OUTPUT_BYTES // 2 : len(output) - MAX_OUTPUT_BYTES // 2]


async def _terminate(process: asyncio.subprocess.Process) -> None:
    """End a process and everything that it started, also if this is cancelled in turn, as by a second Esc."""
    _signal_group(process, signal.SIGTERM)
    try:
        if process.returncode is None:
            await _wait_or_kill(process)
    finally:
        # A pipe that was not read to its end, or that a daemon holds, would stay open; only the transport closes it.
        transport: asyncio.SubprocessTransport = vars(process)["_transport"]
        transport.close()


async def _wait_or_kill(process: asyncio.subprocess.Process) -> None:
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), COMMAND_TERMINATE_SECONDS)
    finally:
        _signal_group(process, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
        # Nothing survives that signal, so this is short also for somebody who has cancelled twice.
        await process.wait()


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a process and everything that it started; on Windows, end the process."""
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, number)


def _render_output(output: bytearray) -> str:
    text = output.decode("utf-8", errors="replace").rstrip()
    if len(output) > MAX_OUTPUT_BYTES:
        half = MAX_OUTPUT_BYTES // 2
        text = f"{text[:half]}\n[… cut out here: the output was too long …]\n{text[-half:]}"
    return text or "[no output]"
