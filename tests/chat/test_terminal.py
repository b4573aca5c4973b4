"""The chat in a real pseudo-terminal, with a model served over real HTTP."""

import os
import re
from pathlib import Path

import pexpect
import pytest

from holdfast.testing.endpoint import http_response, stream_response, text_chunk, text_stream, tool_call_stream
from holdfast.wire.validate.provider import validate
from tests.chat.conftest import Person, Served, Sit
from tests.programs import HOLDFAST

CTRL_C, CTRL_D, CTRL_Z = "\x03", "\x04", "\x1a"
EMPTY = "served: it answered nothing; ask again, or choose another model"


def test_a_conversation_from_the_first_line_to_the_last(sit: Sit, served: Served) -> None:
    served.script.append(text_stream("Tabs are **not** spaces.\n\n", "Split on both."))
    person = sit(is_fresh=True)

    person.sees("/help lists the commands", "tokens (1%)")
    person.says("Why does the parser fail?")
    person.sees("› Why does the parser fail?", "Tabs are not spaces.", "Split on both.", "tokens")
    person.types(CTRL_D)

    assert person.leaves() == 0
    assert re.search(r"saved; continue with: \S*holdfast chat --resume", person.text)
    assert served.prompts == ["Why does the parser fail?"]


@pytest.mark.seed("A-7", "A-36")
def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(sit: Sit, served: Served) -> None:
    served.script.append(text_stream("Once upon", None))
    person = sit()

    person.says("Tell me a story.")
    person.sees("Once upon")
    person.types(CTRL_C)
    person.sees("Interrupted by user.")
    person.says("Never mind.")
    person.sees("you said: Never mind.")

    assert validate(served.asked[-1], "openai") == []
    assert "Tell me a story." in str(served.asked[-1])


def test_what_is_typed_during_an_answer_waits_its_turn(sit: Sit, served: Served) -> None:
    served.script.append(text_stream("thinking about it", None))
    person = sit()

    person.says("first")
    person.sees("thinking about it")
    person.says("second")
    person.sees("1 queued")
    person.types("half a thi")
    person.types(CTRL_C)
    person.sees("you said: second", "› half a thi")
    person.says("rd")
    person.sees("you said: half a third")


def test_a_killed_chat_resumes_with_its_turn_repaired(sit: Sit, served: Served) -> None:
    served.script += [tool_call_stream(("run_command", {"command": "sleep 600"}))]
    person = sit("--tools", "run")
    person.says("Run it.")
    person.sees("Run: sleep 600")
    person.kills()

    again = sit("--resume", "--tools", "run")
    again.sees("messages so far")
    again.says("What happened?")
    again.sees("you said: What happened?")

    assert validate(served.asked[-1], "openai") == []


def test_a_command_is_run_only_when_the_person_agrees(sit: Sit, served: Served) -> None:
    served.script += [
        tool_call_stream(("run_command", {"command": "echo from-the-shell"})),
        text_stream("It printed something."),
        tool_call_stream(("run_command", {"command": "touch forbidden"})),
        text_stream("Then not."),
    ]
    person = sit("--tools", "read,run")

    person.says("Print.")
    person.sees("Run: echo from-the-shell", "[y] yes")
    person.says("y")
    person.sees("✓ from-the-shell", "It printed something.")
    person.says("Touch.")
    person.sees("Run: touch forbidden")
    person.says("n")
    person.sees("Then not.")

    assert "the user did not allow this command" in str(served.asked[-1])


def test_a_result_that_comes_while_a_question_waits_names_its_tool(sit: Sit, served: Served, tmp_path: Path) -> None:
    (tmp_path / "folder" / "notes.txt").write_text("the tide is at nine")
    calls = ("read_file", {"path": "notes.txt"}), ("run_command", {"command": "echo alone"})
    served.script += [tool_call_stream(*calls), text_stream("Both are done.")]
    person = sit()

    person.says("Read, and run.")
    person.sees("Run: echo alone", "✓ read_file: the tide is at nine")
    person.says("y")
    person.sees("  ✓ alone", "Both are done.")


@pytest.mark.parametrize("key", [CTRL_C, "\x1b"], ids=["ctrl-c", "esc"])
def test_a_key_that_stops_stops_the_turn_that_asks_a_question_too(sit: Sit, served: Served, key: str) -> None:
    served.script += [tool_call_stream(("run_command", {"command": "touch forbidden"})), text_stream("Not asked for.")]
    person = sit("--tools", "run")

    person.says("Touch.")
    person.sees("Run: touch forbidden", "[y] yes")
    person.types(key)
    person.sees("Interrupted by user.")
    asked = len(served.asked)
    served.script.clear()
    person.says("Never mind.")
    person.sees("you said: Never mind.")

    assert asked == 1
    assert validate(served.asked[-1], "openai") == []


def test_ctrl_c_without_anything_to_stop_says_how_to_leave(sit: Sit) -> None:
    person = sit()

    person.sees("/help lists the commands")
    person.types(CTRL_C)

    person.sees("nothing runs; Ctrl-D leaves")


def test_ctrl_z_stops_the_chat_until_the_shell_goes_on_with_it(
    served: Served, env: dict[str, str], tmp_path: Path
) -> None:
    served.script.append(text_stream("Once upon", None))
    shell: pexpect.spawn[bytes] = pexpect.spawn(
        "bash", ["--norc", "-i"], env={**env, "PS1": "shell> "}, cwd=str(tmp_path), dimensions=(24, 100)
    )
    person = Person(shell, 24, 100)
    try:
        person.sees("shell>")
        person.says(f"{HOLDFAST} chat --model {served.model}")
        person.sees("/help lists the commands", "tokens (1%)")
        person.types("Tell me")
        person.sees("› Tell me")
        person.types(CTRL_Z)
        person.sees("Stopped")
        person.says("echo in-$((2 + 3))-between")
        person.sees("in-5-between")
        person.says("fg")
        person.waits(lambda: person.screen.display[person.screen.cursor.y].startswith("› Tell me"), "the line again")
        person.says(" a story.")
        person.sees("Once upon")
        person.types(CTRL_Z)
        person.waits(lambda: person.text.count("Stopped") == 2, "the second stop")
        person.says("fg")
        person.waits(lambda: person.screen.display[person.screen.cursor.y].startswith("›"), "the line again")
        person.types(CTRL_C)
        person.sees("Interrupted by user.")
        person.types(CTRL_D)
        person.sees("saved; continue with")
    finally:
        person.close()

    assert served.prompts == ["Tell me a story."]


def test_ctrl_r_finds_an_earlier_prompt_and_enter_takes_it_into_the_line(sit: Sit) -> None:
    person = sit()
    person.says("black tea")
    person.sees("you said: black tea")
    person.says("milk")
    person.sees("you said: milk")

    person.types("\x12tea")
    person.waits(lambda: person.text.count("› black tea") == 2, "the prompt that is found")
    person.types("\r")
    person.waits(lambda: "I-search" not in person.text, "the end of the search")
    person.types("\r")

    person.waits(lambda: person.text.count("you said: black tea") == 2, "the second answer")


def test_a_chat_that_is_left_says_which_queued_prompts_the_input_history_keeps(
    sit: Sit, served: Served, tmp_path: Path
) -> None:
    served.script.append(text_stream("thinking about it", None))
    person = sit()
    person.says("first")
    person.sees("thinking about it")
    person.says("second")
    person.sees("1 queued")
    person.says(f"\x1b[200~{'tea ' * 500}\x1b[201~")
    person.sees("2 queued")
    person.types(CTRL_D)

    assert person.leaves() == 0
    said = " ".join(person.text.split())
    assert "not sent, but saved in the input history: second" in said
    assert "not sent, and the input history does not keep it: tea tea" in said
    kept = [line for path in (tmp_path / "home").rglob("prompts") for line in path.read_text().splitlines()]
    assert [line for line in kept if line.startswith("+")] == [
        "+first",
        "+second",
        "+[paste 1: 1 line, 2,000 characters]",
    ]


def test_a_chat_that_is_left_says_which_prompts_no_conversation_has_recorded(sit: Sit) -> None:
    person = sit("--model", "openai:gpt-5", OPENAI_API_KEY="")
    person.says("Which worker failed?")
    person.sees("OPENAI_API_KEY")
    person.says("/new")
    person.sees("a new conversation")
    person.says(f"\x1b[200~{'tea ' * 500}\x1b[201~")
    person.waits(lambda: person.text.count("/retry sends the prompt again") == 2, "the second failure")
    person.types(CTRL_D)

    assert person.leaves() == 0
    said = " ".join(person.text.split())
    assert "not sent, but saved in the input history: Which worker failed?" in said
    assert "not sent, and the input history does not keep it: tea tea" in said


def test_a_conversation_resumed_at_a_prompt_without_an_answer_shows_no_older_answer(sit: Sit, served: Served) -> None:
    served.script += [text_stream("An old answer."), text_stream("half", None)]
    person = sit()
    person.says("An old question.")
    person.sees("An old answer.")
    person.says("A new question.")
    person.sees("half")
    person.kills()

    again = sit("--resume")
    again.sees("› A new question.", "this prompt has no answer; /retry sends it again")

    assert "An old answer." not in again.text


def test_whoever_is_typing_when_a_question_comes_up_agrees_to_nothing(sit: Sit, served: Served, tmp_path: Path) -> None:
    command = "echo harmless " + "x" * 200 + " #\ntouch owned"
    served.script += [tool_call_stream(("run_command", {"command": command})), text_stream("Then not.")]
    person = sit("--tools", "run")

    person.says("Do it.")
    person.sees("[y] yes")
    person.says("yet another day")
    person.sees("touch owned")
    person.says("no")
    person.sees("Then not.", "› yet another day")

    assert not (tmp_path / "folder" / "owned").exists()
    assert "the user did not allow this command" in str(served.asked[-1])


def test_a_prompt_that_could_not_be_sent_is_said_by_retry(sit: Sit, served: Served) -> None:
    person = sit()
    person.says("first")
    person.sees("you said: first")
    person.says("/model openai:gpt-5")
    person.sees("OPENAI_API_KEY")
    person.says("second")
    person.sees("you said: second")

    assert [message["content"] for message in served.asked[-1] if message["role"] == "user"] == ["first", "second"]


def test_a_chat_that_is_told_to_end_leaves_the_terminal_as_it_was(sit: Sit, served: Served) -> None:
    command = f"sleep 303.{os.getpid()}"  # another run on this machine has another
    served.script.append(tool_call_stream(("run_command", {"command": command})))
    person = sit("--tools", "run")
    person.says("Do it.")
    person.sees("[y] yes")
    person.says("y")
    person.waits(lambda: person.has_child(command), "the command to run")

    person.ends()

    assert person.leaves() == 0
    assert not person.has_child(command)
    assert "saved; continue with" in person.text


@pytest.mark.parametrize("terminal", ["xterm-256color", "dumb"])
def test_a_turn_whose_terminal_is_closed_is_stopped_and_the_conversation_keeps_its_title(
    sit: Sit, served: Served, terminal: str
) -> None:
    served.script.append(text_stream("Once upon", None))
    person = sit(TERM=terminal)
    person.says("Tell me a story.")
    person.sees("Once upon")

    code = person.hangs_up()

    again = sit("--resume")
    again.sees("2 messages so far", "› Tell me a story.", "Once upon")
    again.says("/sessions")
    again.waits(lambda: re.search(r"→ .* Tell me a story\.", again.text) is not None, "the title to be listed")
    assert code == 0


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (
            http_response(401, {"error": {"message": "Incorrect API key provided", "type": "invalid_request_error"}}),
            "key",
        ),
        (http_response(404, {"error": {"message": "The model does not exist"}}), "check the model's name"),
        (stream_response(text_chunk("half an ans"), is_cut=True), "/retry sends the prompt again"),
        (text_stream(""), EMPTY),
    ],
    ids=["wrong key", "unknown model", "cut in mid-stream", "an empty answer"],
)
def test_a_failure_is_told_and_the_conversation_goes_on(
    sit: Sit, served: Served, reply: list[bytes], expected: str
) -> None:
    served.script += [reply, reply] if expected == EMPTY else [reply]
    person = sit()

    person.says("hello")
    person.sees(expected, "Nothing is lost")
    person.says("/retry")
    # An empty answer was asked for once more by pydantic-ai itself, in words of its own.
    person.sees("you said: Please return text" if expected == EMPTY else "you said: hello")


def test_a_large_paste_becomes_an_attachment_that_the_model_reads(sit: Sit, served: Served) -> None:
    served.script += [
        tool_call_stream(("read_file", {"path": "paste-1.txt", "start_line": 900, "lines": 2})),
        text_stream("Line 901 it is."),
    ]
    person = sit("--budget", "4000")
    person.sees("/help lists the commands", "›")
    paste = "".join(f"line {number} of the log\r" for number in range(1, 3_001))

    person.types(f"\x1b[200~{paste}\x1b[201~")
    person.says("")
    person.sees("… 2,988 more lines", "too much for a budget", "[y] yes")
    person.says("yes")
    person.sees("Line 901 it is.")

    assert "line 900 of the log\\nline 901 of the log" in str(served.asked[-1])


@pytest.mark.parametrize("columns", [20, 40, 200])
def test_a_terminal_of_any_width_will_do(sit: Sit, columns: int) -> None:
    person = sit(columns=columns, rows=12, NO_COLOR="1")

    person.says("hello")
    person.sees("you said:", "hello")
    person.types(CTRL_D)

    assert person.leaves() == 0


def test_a_long_conversation_is_compacted_and_goes_on(sit: Sit, served: Served) -> None:
    served.answer = lambda prompt: f"answer to {prompt[:11]}: " + "because of the tide. " * 20
    person = sit("--budget", "1500", "--tools", "none")

    for number in range(25):
        person.says(f"question {number}? " + "Why is that so? " * 8)
        person.sees(f"answer to question {number}")
    person.says("/receipts")
    person.sees("compacted (threshold)")
    person.says("/history")
    person.sees("are in the log")

    turns = [messages for messages in served.asked if str(messages[-1]["content"]).startswith("question")]
    assert len(turns) == 25
    assert max(len(str(messages)) for messages in turns) < 9_000
    assert all(validate(messages, "openai") == [] for messages in turns)


def test_settings_with_a_typo_are_named_and_the_chat_begins(sit: Sit, env: dict[str, str]) -> None:
    home = Path(env["HOLDFAST_HOME"])
    home.mkdir(parents=True)
    (home / "holdfast.toml").write_text('max_stepps = 3\npreset = "default"\n')
    person = sit(columns=200)

    person.sees("holdfast.toml:1", "max_steps", "/help lists the commands")
