"""Programs that a provider runs, and the calls that they make: neither is sent without the other."""

from typing import Any

import pytest

from holdfast.bare_list import govern
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.session.session import Session
from holdfast.wire.formats import format_named
from holdfast.wire.validate.provider import validate
from tests.support import legal_cuts

BY_PROGRAM = {"type": "program", "caller_id": "call_p"}
BY_SANDBOX = {"type": "code_execution_20250825", "tool_id": "srvtoolu_p"}


def prompt(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def item_call(number: int) -> list[dict[str, Any]]:
    call = {"type": "function_call", "call_id": f"c{number}", "name": "get", "arguments": "{}", "caller": BY_PROGRAM}
    return [
        call,
        {"type": "function_call_output", "call_id": f"c{number}", "output": "row " * 60, "caller": BY_PROGRAM},
    ]


PROGRAM = {"type": "program", "id": "prog_1", "call_id": "call_p", "code": "text(1)", "fingerprint": "f"}
OUTPUT = {"type": "program_output", "id": "po_1", "call_id": "call_p", "result": "42", "status": "completed"}
ITEMS = [
    prompt("Add the rows."),
    PROGRAM,
    *item_call(1),
    *item_call(2),
    OUTPUT,
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is 42."}]},
    prompt("Thanks."),
]


def block_call(number: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "get", "input": {}, "caller": BY_SANDBOX}


def block_result(number: int) -> dict[str, Any]:
    content = [{"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "row " * 60}]
    return {"role": "user", "content": content}


USE = {"type": "server_tool_use", "id": "srvtoolu_p", "name": "code_execution", "input": {"code": "1"}}
RESULT = {
    "type": "code_execution_tool_result",
    "tool_use_id": "srvtoolu_p",
    "content": {"type": "code_execution_result", "stdout": "42", "stderr": "", "return_code": 0, "content": []},
}
BLOCKS = [
    prompt("Add the rows."),
    {"role": "assistant", "content": [USE, block_call(1)]},
    block_result(1),
    {"role": "assistant", "content": [block_call(2)]},
    block_result(2),
    {"role": "assistant", "content": [RESULT, {"type": "text", "text": "It is 42."}]},
    prompt("Thanks."),
]


def test_a_program_of_openai_is_sent_with_its_calls_and_its_output_as_it_came() -> None:
    request = govern(ITEMS, budget=16_000, format="openai-responses", model="gpt-5")

    assert validate(ITEMS, "openai-responses") == []
    assert (request.messages, request.receipt.repairs) == (ITEMS, ())


@pytest.mark.parametrize(
    ("format_name", "history", "points"),
    [("openai-responses", ITEMS, [1, 7, 8]), ("anthropic-messages", BLOCKS, [1, 6])],
)
def test_no_cut_separates_a_program_from_its_calls(
    format_name: str, history: list[dict[str, Any]], points: list[int]
) -> None:
    decode = format_named(format_name).decode

    assert legal_cuts([decode(native, index) for index, native in enumerate(history)]) == points


def without_caller(native: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in native.items() if name != "caller"}


def test_calls_whose_program_the_client_has_left_out_are_sent_as_the_models() -> None:
    items = govern([ITEMS[0], *ITEMS[4:]], budget=16_000, format="openai-responses", model="gpt-5")
    blocks = govern([BLOCKS[0], *BLOCKS[3:]], budget=16_000, format="anthropic-messages", model="claude-opus-4-5")

    assert items.messages == [ITEMS[0], *map(without_caller, ITEMS[4:6]), *ITEMS[7:]]
    assert [repair.description for repair in items.receipt.repairs] == [
        "left out a program_output without its tool use",
        "sent a call of a program that is not there any more as the model's",
        "sent the result of a call of a program that is not there any more as the model's",
        "removed an empty assistant turn",
    ]
    assert blocks.messages == [
        BLOCKS[0],
        {"role": "assistant", "content": [without_caller(block_call(2))]},
        BLOCKS[4],
        {"role": "assistant", "content": [{"type": "text", "text": "It is 42."}]},
        BLOCKS[6],
    ]
    assert [repair.description for repair in blocks.receipt.repairs] == [
        "left out a code_execution_tool_result without its tool use",
        "sent a call of a program that is not there any more as the model's",
    ]


def test_a_call_without_its_program_is_a_violation() -> None:
    items = validate([ITEMS[0], *ITEMS[4:]], "openai-responses")
    blocks = validate([BLOCKS[0], *BLOCKS[3:]], "anthropic")

    assert [one.rule for one in items] == ["caller", "caller", "program-output"]
    assert [one.rule for one in blocks] == ["caller", "server-result"]


async def test_a_request_without_the_program_of_its_calls_is_proved_by_the_log() -> None:
    async with Session.open("s", store="memory://", model="gpt-5", format="openai-responses") as session:
        await session.record([ITEMS[0], *ITEMS[4:]])
        await session.prepare(16_000)

        assert [one.is_same for one in rebuilt_requests(await session.events())] == [True]
