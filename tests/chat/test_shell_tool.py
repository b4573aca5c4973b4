"""Running commands for a model."""

import asyncio
import os
import string
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given, strategies

from holdfast.apps.chat.events import Consent
from holdfast.apps.chat.tools.shell import (
    COMMAND_REFUSED,
    COMMAND_TERMINATE_SECONDS,
    HARMLESS_VARIABLES,
    MAX_OUTPUT_BYTES,
    ShellTool,
    command_environment,
    is_allowed,
)


class Person:
    """Answers questions, and remembers them."""

    def __init__(self, *answers: Consent) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, command: str) -> Consent:
        self.asked.append(command)
        return self.answers.pop(0)


def is_running(pid_file: Path) -> bool:
    """Return whether a process does anything: one that has ended and is not reaped yet has no words any more.

    The file is there, and empty, before a shell writes the number into it.
    """
    try:
        number = pid_file.read_text().strip()
        return bool(number) and bool(Path(f"/proc/{number}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return False


def processes_in(folder: Path) -> list[str]:
    """Return the processes that run in a folder."""

    def place(process: Path) -> str:
        with suppress(OSError):
            return str((process / "cwd").readlink())
        return ""

    return [one.name for one in Path("/proc").iterdir() if one.name.isdigit() and place(one) == str(folder)]


async def test_a_command_is_asked_about_every_time(tmp_path: Path) -> None:
    person = Person("yes", "no")
    shell = ShellTool(tmp_path, person)

    assert await shell.run_command("echo one") == "one"
    assert await shell.run_command("echo one") == COMMAND_REFUSED
    assert person.asked == ["echo one", "echo one"]


async def test_always_is_about_the_same_command_only(tmp_path: Path) -> None:
    person = Person("always", "no")
    shell = ShellTool(tmp_path, person)

    assert await shell.run_command("echo one") == "one"
    assert await shell.run_command("echo one") == "one"
    assert await shell.run_command("echo two") == COMMAND_REFUSED


async def test_always_also_answers_for_the_same_command_that_waits_for_the_answer(tmp_path: Path) -> None:
    class Hesitating(Person):
        async def __call__(self, command: str) -> Consent:
            await asyncio.sleep(0)
            return await super().__call__(command)

    person = Hesitating("always", "no")
    shell = ShellTool(tmp_path, person)

    said = await asyncio.gather(*(shell.run_command(command) for command in ("echo one", "echo one", "echo two")))

    assert (said, person.asked) == (["one", "one", COMMAND_REFUSED], ["echo one", "echo two"])


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf x", "git status && rm x", "git status | sh", "git status > x", "git status `rm x`",
        "git status $(rm x)", "git status\nrm x", "git push", "gitx status", "FOO=1 git status", "git status 'x",
    ],
)  # fmt: skip
def test_what_could_hide_another_command_is_not_allowed_by_its_beginning(command: str) -> None:
    assert not is_allowed(command, [["git", "status"]])


def test_a_plain_command_is_allowed_by_its_beginning() -> None:
    assert is_allowed("git status --short src", [["git", "status"]])
    assert not is_allowed("git status", [[]])


async def test_a_command_fails_in_words(tmp_path: Path) -> None:
    shell = ShellTool(tmp_path, Person("yes", "yes", "yes"))

    assert await shell.run_command("echo oops >&2; exit 3") == "oops\n[exit code 3]"
    assert await shell.run_command("true") == "[no output]"
    assert await shell.run_command("cat") == "[no output]"
    assert await shell.run_command("  ") == "there is no command"


async def test_a_command_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    shell, command = ShellTool(tmp_path, Person("always")), "echo begun; sleep 600 & echo $! > child; wait"

    said = await shell.run_command(command, timeout_seconds=1)
    while not (tmp_path / "child").exists():  # on a busy machine, the second is over before it has begun
        said = await shell.run_command(command, timeout_seconds=1)

    assert said == "begun\n[stopped after 1 s]"
    assert not is_running(tmp_path / "child")


async def test_a_command_ends_with_its_turn(tmp_path: Path) -> None:
    shell = ShellTool(tmp_path, Person("yes"))
    turn = asyncio.create_task(shell.run_command("echo $$ > pid; sleep 600"))
    while not is_running(tmp_path / "pid"):  # noqa: ASYNC110 - another process tells it by a file
        await asyncio.sleep(0.01)

    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn

    assert not is_running(tmp_path / "pid")


@pytest.mark.parametrize("cancellations", [1, 2, 3])
async def test_a_turn_that_is_cancelled_while_its_command_starts_leaves_nothing_running(
    tmp_path: Path, cancellations: int
) -> None:
    shell = ShellTool(tmp_path, Person("yes"))
    turn = asyncio.create_task(shell.run_command("sleep 600 & sleep 600"))
    while not processes_in(tmp_path):  # noqa: ASYNC110 - a step of the start, which has not ended when this sees it
        await asyncio.sleep(0)

    for _ in range(cancellations):
        turn.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await turn

    async with asyncio.timeout(COMMAND_TERMINATE_SECONDS):
        while processes_in(tmp_path):  # noqa: ASYNC110 - the system ends it
            await asyncio.sleep(0.01)


async def test_a_command_that_ignores_the_signal_to_end_does_not_survive_a_second_interrupt(tmp_path: Path) -> None:
    shell = ShellTool(tmp_path, Person("yes"))
    turn = asyncio.create_task(shell.run_command("trap '' TERM INT; echo $$ > pid; sleep 600; sleep 600"))
    while not is_running(tmp_path / "pid"):  # noqa: ASYNC110 - another process tells it by a file
        await asyncio.sleep(0.01)

    turn.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn

    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.parametrize("command", ["yes", "setsid sleep 3 & echo begun"])
async def test_a_command_that_was_stopped_leaves_no_pipe_open(tmp_path: Path, command: str) -> None:
    def open_pipes() -> set[str]:
        links = (os.path.realpath(one) for one in Path("/proc/self/fd").iterdir())
        return {one for one in links if "/pipe:" in one}

    shell = ShellTool(tmp_path, Person("yes"))
    before = open_pipes()

    said = await shell.run_command(command, timeout_seconds=1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert said.endswith("[stopped after 1 s]")
    assert open_pipes() - before == set()


SECRETS = {
    "OPENAI_API_KEY": "sk-secret",
    "DATABASE_URL": "postgres://app:hunter2@db/app",
    "MYSQL_PWD": "hunter2",
    "PGPASSFILE": "/home/me/.pgpass",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.e30.c2ln",
    "SESSION_COOKIE": "abc",
    "AZURE_STORAGE_CONNECTION_STRING": "AccountKey=abc",
    "VAULT_ADDR_UNHEARD_OF": "x",
    "SSH_AUTH_SOCK": "/run/agent",
    "HTTPS_PROXY": "http://me:hunter2@proxy:3128",
    "PYTHON_KEYRING_TOKEN": "x",
}
PLAIN = {"PATH": "/bin", "HOME": "/home/me", "LC_ALL": "C", "OLDPWD": "/", "HTTP_PROXY": "http://proxy:3128"}


def test_a_command_gets_only_variables_that_are_known_to_be_harmless() -> None:
    assert command_environment({**SECRETS, **PLAIN}) == PLAIN


def test_the_settings_name_further_variables_and_secrets_only_by_their_exact_name() -> None:
    environ = {**SECRETS, **PLAIN, "MYAPP_MODE": "test", "MYAPP_TOKEN": "secret"}

    assert command_environment(environ, ["MYAPP_*"]) == {**PLAIN, "MYAPP_MODE": "test"}
    assert command_environment(environ, ["JWT", "MYAPP_TOKEN"]) == {
        **PLAIN, "JWT": SECRETS["JWT"], "MYAPP_TOKEN": "secret",
    }  # fmt: skip


@given(strategies.dictionaries(strategies.text(string.ascii_uppercase + "_", min_size=1), strategies.text()))
def test_a_variable_that_nothing_names_is_never_passed_on(environ: dict[str, str]) -> None:
    found = command_environment(environ)

    assert {name for name in found if not any(fnmatchcase(name, one) for one in HARMLESS_VARIABLES)} == set()


async def test_a_command_sees_the_variables_that_the_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "PLAIN", "NAMED"):
        monkeypatch.setenv(name, name.lower())
    shell = ShellTool(tmp_path, Person("yes"), variables=["NAMED"])

    assert await shell.run_command("echo $PLAIN-$OPENAI_API_KEY-$NAMED") == "--named"


async def test_an_output_that_is_too_long_is_cut_in_the_middle(tmp_path: Path) -> None:
    shell = ShellTool(tmp_path, Person("yes"))

    said = await shell.run_command("echo first; yes | head -c 5000000; echo last")

    assert said.startswith("first\n")
    assert said.endswith("last")
    assert len(said) < 2 * MAX_OUTPUT_BYTES
