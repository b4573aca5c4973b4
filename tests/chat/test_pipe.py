"""The chat without a terminal: text for pipes, events for programs."""

import json
import re
import signal
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from holdfast.testing.endpoint import http_response, text_stream, tool_call_stream
from tests.chat.conftest import Served
from tests.programs import run_program, start_program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def ran(
    served: Served, env: dict[str, str], folder: Path, *arguments: str, said: str = "", is_fresh: bool = False
) -> tuple[int, str, str]:
    """Run the chat to its end, and return the exit code and what it wrote."""
    command = ("chat", "--model", served.model, *arguments)
    done = run_program(*command, env=env, folder=folder, said=said, is_fresh=is_fresh)
    return done.returncode, done.stdout, done.stderr


def test_a_question_on_standard_input_is_answered_once(served: Served, env: dict[str, str], folder: Path) -> None:
    answered = ran(served, env, folder, "-p", "--budget", "9000", said="What is a tide?\n", is_fresh=True)

    assert answered == (0, "you said: What is a tide?\n", "")
    assert served.prompts == ["What is a tide?"]


@pytest.mark.parametrize("arguments", [["-p"], []], ids=["once", "line by line"])
@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
def test_standard_input_may_begin_with_a_mark_and_hold_bytes_that_are_not_utf_8(
    served: Served, env: dict[str, str], folder: Path, encoding: str, arguments: list[str]
) -> None:
    environment = {**env, "PYTHONIOENCODING": encoding}
    is_fresh = encoding == "ascii:strict" and not arguments

    code, _, _ = ran(served, environment, folder, *arguments, said="\ufeffcafé \udcff\r\n", is_fresh=is_fresh)

    assert (code, served.prompts) == (0, ["café \ufffd"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_chat_that_waits_for_a_line_ends_in_order_when_it_is_told_to_end(
    served: Served, env: dict[str, str], folder: Path, number: int
) -> None:
    is_fresh = number == signal.SIGTERM
    with start_program("chat", "--model", served.model, env=env, folder=folder, is_fresh=is_fresh) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("first\n")
        process.stdin.flush()
        assert process.stdout.readline() == "you said: first\n"

        process.send_signal(number)
        errors = process.stderr.read()
        code = process.wait()

    assert code == 130
    assert re.fullmatch(r"(warning: Interrupted by user\.|saved; continue with: \S+ chat --resume \S+)\n", errors)


def test_a_question_and_what_it_is_about_go_together(served: Served, env: dict[str, str], folder: Path) -> None:
    ran(served, env, folder, "-p", "Summarise", "this:", said="a long report")

    assert served.prompts == ["Summarise this:\n\na long report"]


def test_a_program_gets_events(served: Served, env: dict[str, str], folder: Path) -> None:
    (folder / "notes.txt").write_text("the tide turns at four")
    served.script += [tool_call_stream(("read_file", {"path": "notes.txt"})), text_stream("At ", "four.")]

    code, out, _ = ran(served, env, folder, "-p", "When?", "--json", "--budget", "9000")

    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [event["event"] for event in events] == [
        "session", "session.system_changed", "session.tools_changed", "session.usage_info", "tool_call", "tool_result",
        "session.usage_info", "text", "text", "turn_end",
    ]  # fmt: skip
    assert {**events[3], "currentTokens": 0, "tokens": {}} == {
        "event": "session.usage_info", "tokenLimit": 7_650, "currentTokens": 0, "messagesLength": 1, "tokens": {},
        "isInitial": True, "provenance": events[3]["provenance"],
    }  # fmt: skip
    assert events[5]["result"] == "the tide turns at four"
    assert events[-1]["outcome"] == "done"


def test_a_program_gets_no_password_of_the_address_of_a_model(
    served: Served, env: dict[str, str], folder: Path
) -> None:
    model = served.model.replace("http://", "http://me:marmalade7@")

    done = run_program("chat", "-p", "Hello?", "--json", "--model", model, env=env, folder=folder)

    assert json.loads(done.stdout.splitlines()[0])["model"] == model.replace("marmalade7", "[redacted]")
    session = json.loads(done.stdout.splitlines()[-1])["session"]
    log = run_program("export", session, env=env, folder=folder).stdout
    assert "marmalade7" not in done.stdout + done.stderr + log
    assert served.model.partition("#")[0] in log
    assert served.requests[0].headers["authorization"] == f"Basic {b64encode(b'me:marmalade7').decode()}"


def test_lines_are_turns_of_one_conversation(served: Served, env: dict[str, str], folder: Path) -> None:
    code, out, err = ran(served, env, folder, said="one\n\n/history\ntwo\n")

    assert (code, out) == (0, "you said: one\nyou said: two\n")
    assert "1 turn, 2 messages" in err
    assert [message["content"] for message in served.asked[-1] if message["role"] == "user"] == ["one", "two"]


@pytest.mark.seed("A-44")
def test_a_conversation_is_resumed_by_the_beginning_of_its_id(
    served: Served, env: dict[str, str], folder: Path
) -> None:
    ran(served, env, folder, "-p", "first")

    code, _, _ = ran(served, env, folder, "--resume", "-p", said="second")

    assert code == 0
    assert [message["content"] for message in served.asked[-1] if message["role"] == "user"] == ["first", "second"]


@pytest.mark.parametrize("gone", ["2026-11-01-101010-abcd", "secret unicorn"])
def test_a_conversation_that_is_not_there_is_not_replaced_by_one_with_some_of_its_words(
    served: Served, env: dict[str, str], folder: Path, gone: str
) -> None:
    ran(served, env, folder, "-p", "The plan for 2026 is secret.")

    code, out, err = ran(served, env, folder, "--resume", gone, "-p", said="Go on with the other work.")
    found, _, _ = ran(served, env, folder, "--resume", "secret PLANS", "-p", said="And then?")

    assert (code, out, err.count(f"session '{gone}' is not known")) == (2, "", 1)
    assert (found, [message["content"] for message in served.asked[-1] if message["role"] == "user"]) == (
        0,
        ["The plan for 2026 is secret.", "And then?"],
    )


def test_a_failure_is_an_exit_code_and_a_line(served: Served, env: dict[str, str], folder: Path) -> None:
    served.script.append(http_response(401, {"error": {"message": "Incorrect API key provided: sk-abcdefghijklmnop"}}))

    code, out, err = ran(served, env, folder, "-p", "hello")

    assert (code, out) == (1, "")
    assert "Incorrect API key provided" in err
    assert "sk-abcdefghijklmnop" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--resume", "nothing"], "session 'nothing' is not known"),
        (["--resume"], "session 'the newest' is not known"),
        (["--preset", "nope"], "nope"),
        (["--tools", "fly"], "fly"),
        (["--system", "missing.txt"], "missing.txt"),
        (["--store", "oracle://x"], "oracle"),
        (["-p"], "prompt: is empty"),
    ],
)
def test_a_users_mistake_is_told_in_a_line(
    served: Served, env: dict[str, str], folder: Path, arguments: list[str], expected: str
) -> None:
    _, out, err = ran(served, env, folder, *arguments)

    assert expected in err
    assert out == ""
    assert "Traceback" not in err


def test_the_tools_of_a_server_that_the_settings_name_can_be_used(
    served: Served, env: dict[str, str], folder: Path
) -> None:
    home = Path(env["HOLDFAST_HOME"])
    home.mkdir()
    script = Path(__file__).with_name("mcp_tides.py")
    table = f'[mcp.tides]\ncommand = "{sys.executable}"\nargs = ["{script}"]\n'
    (home / "holdfast.toml").write_text(table)
    served.script += [tool_call_stream(("tides_high_water", {"port": "Cuxhaven"})), text_stream("At 04:12.")]

    code, out, err = ran(served, env, folder, "-p", "When?", "--tools", "none")

    assert (code, out) == (0, "At 04:12.\n")
    assert "high water at Cuxhaven: 04:12" in err


def test_a_dotenv_file_of_the_working_folder_is_not_read(served: Served, env: dict[str, str], folder: Path) -> None:
    home = Path(env["HOLDFAST_HOME"])
    home.mkdir()
    script = Path(__file__).with_name("mcp_tides.py")
    (home / "holdfast.toml").write_text(f'[mcp.tides]\ncommand = "{sys.executable}"\nargs = ["-P", "{script}"]\n')
    lines = ["HOLDFAST_MODEL=https://elsewhere.example/v1#m", "FASTMCP_LOG_LEVEL=obeyed", "FASTMCP_ENV_FILE=.env"]
    (folder / ".env").write_text("\n".join(lines))
    served.script += [text_stream("Hello.")]

    code, out, err = ran(served, env, folder, "-p", "hello", is_fresh=True)

    assert (code, out) == (0, "Hello.\n")
    assert "obeyed" not in err


def test_a_server_that_does_not_start_is_told_and_the_turn_goes_on(
    served: Served, env: dict[str, str], folder: Path
) -> None:
    home = Path(env["HOLDFAST_HOME"])
    home.mkdir()
    (home / "holdfast.toml").write_text('[mcp.gone]\ncommand = "/no/such/program"\n')

    code, _, err = ran(served, env, folder, "-p", "hello")

    assert code == 0
    assert "warning: the MCP server 'gone' cannot start: " in err
    assert "Traceback" not in err


def test_no_provider_is_reached_and_no_account_is_needed_to_be_told_so(env: dict[str, str], folder: Path) -> None:
    bare = {name: value for name, value in env.items() if "API_KEY" not in name}

    done = run_program("chat", "--model", "openai:gpt-5", "-p", "hello", env=bare, folder=folder)

    assert done.returncode == 1
    assert "OPENAI_API_KEY" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_named_variable_has_the_key_also_of_an_endpoint_that_the_model_names(
    served: Served, env: dict[str, str], folder: Path
) -> None:
    code, _, _ = ran(served, {**env, "OURS": "the-key"}, folder, "-p", "hello", "--key-env", "OURS")

    assert (code, [request.headers["authorization"] for request in served.requests]) == (0, ["Bearer the-key"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--key-env", "NOT_SET"], "--key-env: the variable NOT_SET is not set"),
        (["--key-env", ""], "--key-env: is empty; give the name of a variable"),
        (
            ["--model", "openai:gpt-5", "--key-env", "OURS"],
            "--key-env: is the key of an endpoint, and openai:gpt-5 is none; name one with --base-url",
        ),
        (["--base-url", ""], "--base-url: '' is not an address; it begins with http:// or https://"),
    ],
)
def test_an_endpoint_or_a_key_that_is_not_there_is_refused_and_nothing_is_sent(
    arguments: list[str], problem: str, served: Served, env: dict[str, str], folder: Path
) -> None:
    assert ran(served, {**env, "OURS": "the-key"}, folder, "-p", "hello", *arguments) == (
        2,
        "",
        f"holdfast: {problem}\n",
    )
    assert served.prompts == []


@pytest.mark.parametrize(("flag", "value"), [("--budget", "abc"), ("--tools", "reed")])
def test_a_wrong_value_of_a_flag_ends_the_program_and_nothing_is_sent(
    served: Served, env: dict[str, str], folder: Path, flag: str, value: str
) -> None:
    code, out, problem = ran(served, env, folder, "-p", "Hello.", flag, value)

    assert (code, out, served.prompts) == (2, "", [])
    assert problem.startswith(f"holdfast: {flag}: ")
    assert repr(value) in problem


@pytest.mark.parametrize("session", ["", " "])
def test_an_empty_id_resumes_no_conversation(session: str, served: Served, env: dict[str, str], folder: Path) -> None:
    ran(served, env, folder, "-p", "Hello.")
    said = len(served.prompts)

    code, out, problem = ran(served, env, folder, "-p", "Hello again.", "--resume", session)

    told = "holdfast: --resume: is empty; give the id of a session, or leave it out for the newest one\n"
    assert (code, out, problem, len(served.prompts)) == (2, "", told, said)


def test_a_wrong_value_of_a_variable_ends_the_program(served: Served, env: dict[str, str], folder: Path) -> None:
    code, _, problem = ran(served, {**env, "HOLDFAST_TOOLS": "reed"}, folder, "-p", "Hello.")

    assert (code, served.prompts) == (2, [])
    assert problem.startswith("holdfast: $HOLDFAST_TOOLS: 'reed' is not known")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no device that is always full")
@pytest.mark.parametrize("arguments", [["-p"], ["-p", "--json"]])
def test_a_full_disk_below_the_answer_is_no_failure_of_the_model(
    served: Served, env: dict[str, str], folder: Path, arguments: list[str]
) -> None:
    command = ("chat", "--model", served.model, *arguments, "hi")
    with Path("/dev/full").open("wb") as full:
        done = run_program(*command, env=env, folder=folder, stdout=full.fileno(), is_fresh="--json" in arguments)

    problem = "holdfast: standard output: No space left on device; what it has got is not whole\n"
    assert (done.returncode, done.stderr) == (2, problem)
