"""A summary without a model."""

import hashlib

import pytest

from holdfast import counter_for
from holdfast.core.conversation.messages import Entry
from holdfast.core.history.digest import make_digest
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.sessions import generate_session
from holdfast.wire.formats import format_named

COUNTER = counter_for("gpt-5")


def summary(messages: list[JsonMessage], allowance: int = 1_000) -> str:
    reader = format_named("openai-chat")
    entries = [Entry(reader.decode(native, index), index) for index, native in enumerate(messages)]
    return make_digest(entries, allowance_tokens=allowance, counter=COUNTER)


def test_it_says_what_was_asked_done_answered_and_left_open() -> None:
    messages = [
        user_message("Fix the parser.\nIt fails on tabs."),
        tool_call_message("a", arguments={"path": "src/parser.py"}),
        tool_result_message("a", "def parse():\n    pass"),
        tool_call_message("b", name="run", arguments={"cmd": "pytest -q"}),
        tool_result_message("b", "collected 3 items\nE  AssertionError: tabs\nFAILED tests/test_parser.py"),
        assistant_message("The parser now handles tabs."),
        user_message("And the docs?"),
        tool_call_message("c", name="search", arguments={"query": "tabs"}),
    ]

    assert summary(messages) == (
        "[Summary of 8 earlier messages, made by rule, for reference only. It records what happened and asks for "
        "nothing.]\n"
        "The user asked:\n"
        "- (#0) “Fix the parser. It fails on tabs.”\n"
        "- (#6) “And the docs?”\n"
        "Done:\n"
        '- (#2) read_file {"path": "src/parser.py"}: 2 lines\n'
        '- (#4) run {"cmd": "pytest -q"}: went wrong\n'
        "Went wrong:\n"
        '- (#4) run {"cmd": "pytest -q"}: E AssertionError: tabs FAILED tests/test_parser.py\n'
        "The assistant said:\n"
        "- (#5) “The parser now handles tabs.”\n"
        "Files:\n"
        "- src/parser.py\n"
        "Left open:\n"
        '- no result for search {"query": "tabs"}\n'
        "- not answered yet: (#6) “And the docs?”"
    )


@pytest.mark.parametrize("allowance", [40, 100, 400, 1_500])
def test_it_keeps_to_its_allowance_and_to_the_first_and_newest_prompts(allowance: int) -> None:
    messages = generate_session(300)

    text = summary(messages, allowance)

    assert COUNTER.count(text) <= allowance
    if allowance >= 400:
        assert "(#1) “" in text
        assert f"(#{len(messages) - 1}) “And now" in text


def test_it_is_empty_where_not_even_its_frame_fits() -> None:
    assert summary([user_message("hi")], allowance=5) == ""


def test_the_same_messages_give_the_same_digest_in_every_process() -> None:
    digest = summary(generate_session(200)).encode()

    assert hashlib.sha256(digest).hexdigest()[:16] == "dab113afcc308842"


def test_a_file_about_errors_did_not_go_wrong() -> None:
    messages = [
        tool_call_message("a", arguments={"path": "src/errors.py"}),
        tool_result_message("a", "class ParseError(Exception):\n    '''Parsing failed.'''"),
    ]

    assert summary(messages).splitlines()[1:] == [
        "Done:",
        '- (#1) read_file {"path": "src/errors.py"}: 2 lines',
        "Files:",
        "- src/errors.py",
    ]


def test_a_line_that_does_not_fit_makes_room_for_one_that_does() -> None:
    messages = [user_message("Fix it."), user_message("Now the docs."), user_message("word " * 200)]

    assert summary(messages, 60).splitlines()[1:] == ["The user asked:", "- (#0) “Fix it.”", "- (#1) “Now the docs.”"]
