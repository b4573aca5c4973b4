"""The files a ledger knows, what was done with them, and what went wrong."""

from collections.abc import Callable
from hashlib import sha256

import pytest

from holdfast.core.conversation.messages import Text, ToolCall, ToolResult
from holdfast.core.ledger.actions import (
    MAX_ACTION_RECORDS,
    CallOutcome,
    CommandRecord,
    ErrorRecord,
    SearchRecord,
    call_outcome,
)
from holdfast.core.ledger.files import MAX_LEDGER_FILES, FileAccess, FileRecord
from holdfast.core.ledger.identifiers import argument_value
from holdfast.core.ledger.ledger import Ledger
from holdfast.core.ledger.tool_calls import describe_call
from holdfast.testing.chat import JsonMessage, tool_call_message, tool_result_message

LedgerOf = Callable[..., Ledger]


def did(call_id: str, output: str, tool: str, **arguments: object) -> list[JsonMessage]:
    return [tool_call_message(call_id, name=tool, arguments=arguments), tool_result_message(call_id, output)]


def hash_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]


def test_a_file_is_known_with_the_lines_and_the_hash_of_what_was_read_and_written(ledger: LedgerOf) -> None:
    kept = ledger(
        *did("a", "x = 1\ny = 2", "read", path="src/a.py", offset=40, limit=2),
        *did("b", "done", "edit", path="src/a.py", oldText="x = 1", newText="x = 2"),
        *did("c", "    7\tdef f():\n    8\t    pass", "view_file", file_path="src/b.py"),
        *did("d", "ok", "str_replace_editor", command="create", path="src/c.py", file_text="print()"),
    )

    assert list(kept.files) == [
        FileRecord(
            "src/a.py", 0, 3, FileAccess(1, (40, 41), hash_of("x = 1\ny = 2")), FileAccess(3, None, hash_of("x = 2"))
        ),
        FileRecord("src/b.py", 4, 5, last_read=FileAccess(5, (7, 8), hash_of("    7\tdef f():\n    8\t    pass"))),
        FileRecord("src/c.py", 6, 7, last_write=FileAccess(7, None, hash_of("print()"))),
    ]
    assert str(next(iter(kept.files))) == "src/a.py: wrote #3, read 40-41 #1"


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ({"offset": 7, "limit": 1}, (7, 7)),
        ({"limit": 0}, None),
        ({"view_range": [3, 9]}, (3, 9)),
        ({"view_range": [3, -1]}, None),
        ({"view_range": [3, None]}, None),
        ({"view_range": ["3", 9]}, None),
        ({"start_line": 5}, None),
    ],
)
def test_the_lines_that_were_read_are_those_that_the_call_names_in_full(
    ledger: LedgerOf, arguments: dict[str, object], lines: tuple[int, int] | None
) -> None:
    kept = ledger(*did("a", "x = 1", "read", path="src/a.py", **arguments))

    assert [one.last_read.lines for one in kept.files if one.last_read] == [lines]


def test_a_file_that_could_not_be_read_is_only_named(ledger: LedgerOf) -> None:
    kept = ledger(
        *did("a", "Error: no such file", "read", path="gone.py"), tool_call_message("b", arguments={"path": "open.py"})
    )

    assert list(kept.files) == [FileRecord("gone.py", 0, 0), FileRecord("open.py", 2, 2)]
    assert [call.subject for call in kept.open_calls.values()] == ["open.py"]


def test_a_command_names_the_files_that_stand_in_it(ledger: LedgerOf) -> None:
    command = "curl https://example.org/x/y.html && sed -n 1,5p /etc/app/conf ./a.sh and/or"

    assert [file.path for file in ledger(*did("a", "", "bash", command=command)).files] == ["/etc/app/conf", "./a.sh"]


def test_commands_are_kept_with_how_they_ended_the_last_time(ledger: LedgerOf) -> None:
    kept = ledger(
        *did("a", "1 failed, 3 passed\n\nCommand exited with code 1", "bash", command="pytest -q"),
        *did("b", "3 errors were fixed\n[exit code: 0]", "bash", command="ruff check ."),
        *did("c", "4 passed", "bash", command="pytest -q"),
        *did("d", '{"status": "sent"}', "send_mail", to="ann@example.org"),
    )

    assert [str(command) for command in kept.actions.commands.values()] == [
        "ruff check .: ok #3",
        "pytest -q: ok, 2 runs #5",
        'send_mail {"to": "ann@example.org"}: ok #7',
    ]
    assert list(kept.actions.commands.values())[1] == CommandRecord("pytest -q", CallOutcome(is_ok=True), (1, 5), 2)


def test_an_error_is_resolved_when_the_same_attempt_goes_well(ledger: LedgerOf) -> None:
    kept = ledger(
        *did("a", "src/a.py:3: error\nTypeError: no\nmore", "bash", command="cd /repo && make"),
        *did("b", "Could not find the exact text", "edit", path="a.py", oldText="x", newText="y"),
        *did("c", "built", "bash", command="cd /repo && make"),
    )

    assert list(kept.actions.errors.values()) == [
        ErrorRecord("cd /repo && make", "bash", "TypeError: no more", (1,), is_resolved=True),
        ErrorRecord(
            'edit {"path": "a.py", "oldText": "x", "newText": "y"}', "edit", "Could not find the exact text", (3,)
        ),
    ]
    assert str(next(iter(kept.actions.errors.values()))) == "make: TypeError: no more (resolved) #1"


def test_searches_are_kept_with_where_and_how_much_was_found(ledger: LedgerOf) -> None:
    kept = ledger(
        *did("a", "src/a.py:1: TODO\nsrc/b.py:9: TODO", "grep", pattern="TODO", path="src"),
        *did("b", "No matches found", "grep", pattern="FIXME"),
    )

    assert list(kept.actions.searches.values()) == [
        SearchRecord("TODO", "src", 2, (1,)),
        SearchRecord("FIXME", "", 0, (3,)),
    ]


@pytest.mark.parametrize(
    ("output", "tool", "arguments", "is_ok"),
    [
        ("class ParseError(Exception):\n    '''An error.'''", "read", '{"path": "errors.py"}', True),
        ("Error: ENOENT: no such file", "read", '{"path": "x.py"}', False),
        ("0 errors, 0 failed", "bash", '{"command": "make"}', True),
        ("Traceback (most recent call last):\n  x", "bash", '{"command": "python x.py"}', False),
        ("bash: foo: command not found", "bash", '{"cmd": ["bash", "-lc", "foo"]}', False),
        ("(no output)\nCommand exited with code 1", "bash", '{"command": "git diff | grep x"}', True),
        ("(no output)\nCommand exited with code 1", "bash", '{"command": "make"}', False),
        ("Fehler: Datei fehlt", "run", "{}", False),
    ],
)
def test_a_failure_is_told_from_a_text_about_failures(output: str, tool: str, arguments: str, is_ok: bool) -> None:  # noqa: FBT001
    call = describe_call(ToolCall("a", tool, arguments), argument_value(arguments), 0)

    assert call_outcome(call, ToolResult("a", (Text(output, "tool"),))).is_ok is is_ok


def test_records_are_bounded_and_the_oldest_go_first(ledger: LedgerOf) -> None:
    runs = MAX_LEDGER_FILES + 10
    messages = [message for n in range(runs) for message in did(str(n), "error: x", "bash", command=f"x{n} a/{n}.py")]

    kept = ledger(*messages)

    assert len(list(kept.files)) == MAX_LEDGER_FILES
    assert len(list(kept.actions.commands.values())) == len(list(kept.actions.errors.values())) == MAX_ACTION_RECORDS
    assert [command.text for command in kept.actions.commands.values()][-1] == f"x{runs - 1} a/{runs - 1}.py"


def test_calls_without_a_result_do_not_pile_up(ledger: LedgerOf) -> None:
    kept = ledger(*(tool_call_message(str(number)) for number in range(1_000)))

    assert [call.id for call in kept.open_calls.values()] == [str(number) for number in range(800, 1_000)]


@pytest.mark.parametrize(
    "arguments", ["", "null", "[1, 2]", "not json", '{"path": 7, "limit": "x"}', '{"edits": [1, {}], "path": "a"}']
)
def test_anything_may_stand_in_the_arguments_of_a_call(arguments: str) -> None:
    assert describe_call(ToolCall("a", "tool", arguments), argument_value(arguments), 0).label.startswith("tool")
