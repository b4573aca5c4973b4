"""Failures around a chat: each is shown in one line, and the conversation continues."""

from pathlib import Path

import pytest

from holdfast.testing.endpoint import text_stream, tool_call_stream
from holdfast.wire.validate.provider import validate
from tests.chat.conftest import Served, Sit

CTRL_C = "\x03"


def test_two_chats_in_one_conversation_see_what_the_other_has_said(sit: Sit, served: Served) -> None:
    one = sit()
    one.says("The tide turns at four.")
    one.sees("you said: The tide turns at four.")

    other = sit("--resume")
    other.sees("2 messages so far")
    other.says("And the wind?")
    other.sees("you said: And the wind?")
    one.says("So when do we leave?")
    one.sees("you said: So when do we leave?")

    said = [message["content"] for message in served.asked[-1] if message["role"] == "user"]
    assert said == ["The tide turns at four.", "And the wind?", "So when do we leave?"]
    assert validate(served.asked[-1], "openai") == []


def test_an_answer_that_is_larger_than_the_window_is_shown_and_the_next_one_comes(sit: Sit, served: Served) -> None:
    lines = "".join(f"line {number}: " + "salt water " * 9 + "\n" for number in range(2_000))
    served.script.append(text_stream(lines, "THE END"))
    person = sit("--budget", "8000")

    person.says("Tell me everything.")
    person.sees("THE END")
    person.says("And now?")
    person.sees("you said: And now?")

    assert len(str(served.asked[-1])) < 8_000 * 5
    assert "salt water" in str(served.asked[-1])


def test_a_home_that_cannot_be_written_costs_the_input_history_only(sit: Sit, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    person = sit("--store", "memory://", HOLDFAST_HOME=str(tmp_path / "file" / "home"))

    person.says("first")
    person.sees("you said: first")
    person.types("\x1b[A")
    person.waits(lambda: "› first" in person.screen.display[person.screen.cursor.y], "the last prompt")


def test_a_command_that_does_not_end_at_once_is_said_to_be_stopping(sit: Sit, served: Served, tmp_path: Path) -> None:
    command = "trap '' TERM INT; touch begun; sleep 600; sleep 600"
    served.script += [tool_call_stream(("run_command", {"command": command}))]
    person = sit("--tools", "run")

    person.says("Run it.")
    person.sees("[y] yes")
    person.says("y")
    person.waits((tmp_path / "folder" / "begun").exists, "the command to run")
    person.types("\x1b")
    person.glimpses("stopping · ")
    person.types("\x1b")
    person.sees("Interrupted by user.")

    assert validate(served.asked[-1], "openai") == []


def test_a_weights_file_that_is_missing_is_told_before_the_first_prompt(sit: Sit) -> None:
    person = sit("--model", "embedded:/nowhere/missing.gguf")

    person.sees("there is no file /nowhere/missing.gguf; embedded:FILE.gguf takes")


def test_a_provider_that_says_nothing_at_all_can_be_left(sit: Sit, served: Served) -> None:
    served.script.append([None])
    person = sit()

    person.says("Are you there?")
    person.waits(lambda: len(served.asked) == 1, "the request")
    person.types(CTRL_C)
    person.sees("Interrupted by user.")
    person.says("Hello?")
    person.sees("you said: Hello?")


@pytest.mark.seed("C-10")
def test_commands_answer_while_a_summary_is_written_and_ctrl_c_gives_it_up(sit: Sit, served: Served) -> None:
    person = sit("--budget", "3000", HOLDFAST_SUMMARIZATION_MODEL=served.model)
    for number in range(3):
        person.says(f"question {number} " + "why " * 40)
        person.sees(f"you said: question {number}")
    served.script.append(text_stream("The summary so f", None))
    person.says("/compact")
    person.sees("Compacting conversation history")
    person.waits(lambda: len(served.asked) == 4, "the request for a summary")
    person.says("/history")
    person.sees("3 turns, 6 messages; 6 are in the log")
    person.says("/pin")
    person.sees("1 queued")
    person.types(CTRL_C)

    person.sees("cancelled", "stays whole")
    person.says("Still there?")
    person.sees("you said: Still there?")
    assert person.text.count("cancelled") == 1


@pytest.mark.parametrize("place", ["/proc/nowhere/chats.db", "{folder}"])
def test_a_store_that_cannot_be_had_is_named_and_nothing_is_begun(sit: Sit, tmp_path: Path, place: str) -> None:
    person = sit(HOLDFAST_STORE="sqlite:///" + place.format(folder=tmp_path))

    assert person.leaves() == 2
    assert "Traceback" not in person.text
    assert "holdfast" in person.text.splitlines()[0].lower()
