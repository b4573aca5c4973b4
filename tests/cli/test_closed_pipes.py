"""A pipe that nobody reads any more ends no command with a traceback, and changes no exit code."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from subprocess import run as run_process
from typing import TextIO

import pytest

from holdfast.apps.chat.events import ChatNotice, TextDelta, TurnEnded
from holdfast.apps.chat.plain_screen import PlainScreen
from holdfast.apps.cli.main import main
from tests.programs import HOLDFAST


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing was done yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))


@pytest.fixture
def closed_pipe() -> Iterator[TextIO]:
    """Yield the end of a pipe whose other end is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", buffering=1)
    yield stream
    with suppress(BrokenPipeError):
        stream.close()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", "nobody"], 2),
        (["sessions", "--store", "mysql://host"], 2),
        (["config", "max_steps", "many"], 2),
        (["sessions"], 0),
    ],
)
def test_a_command_whose_messages_nobody_reads_ends_with_its_own_exit_code(
    arguments: list[str], code: int, closed_pipe: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", closed_pipe)

    assert main(arguments) == code


def test_an_answer_is_written_though_nobody_reads_the_notices_beside_it(
    closed_pipe: TextIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", closed_pipe)
    screen = PlainScreen()

    for event in (ChatNotice("by the way"), TextDelta("the answer"), TurnEnded("done", 10, 5, 2, 1)):
        screen.show(event)

    assert capsys.readouterr().out == "the answer\n"


@pytest.mark.parametrize("command", [("export", "s", "-o"), ("view", "s", "--export")])
def test_a_file_that_is_a_pipe_may_be_closed_as_standard_output_may(
    command: tuple[str, ...], closed_pipe: TextIO, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.json").write_text('[{"role": "user", "content": "hello"}]')
    assert main(["import", "s.json"]) == 0
    capsys.readouterr()

    with os.fdopen(os.dup(1), "w") as kept:  # what the command then takes from the process
        code = main([*command, f"/dev/fd/{closed_pipe.fileno()}"])
        os.dup2(kept.fileno(), 1)

    assert (code, capsys.readouterr().err) == (0, "")


def test_a_viewer_whose_address_nobody_reads_ends_in_order() -> None:
    reading, writing = os.pipe()
    os.close(reading)

    done = run_process([HOLDFAST, "view", "--no-open", "--port", "0"], stdout=writing, stderr=PIPE, check=False)
    os.close(writing)

    assert (done.returncode, done.stderr) == (0, b"")
