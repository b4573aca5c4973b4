"""Tools that Anthropic runs itself: their results pair by id, in the same answer or in a later one."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Opaque, Session, govern, validate
from holdfast.wire.anthropic import AnthropicMessages

Block = Mapping[str, Any]


def turn(role: str, *blocks: Block) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


ASK = {"role": "user", "content": "Look it up."}
NEXT = {"role": "user", "content": "And now?"}
TEXT = {"type": "text", "text": "I found it."}
SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
MCP_USE = {"type": "mcp_tool_use", "id": "mcp_1", "name": "run", "server_name": "s", "input": {}}
MCP_RESULT = {"type": "mcp_tool_result", "tool_use_id": "mcp_1", "is_error": False, "content": []}
USE = {"type": "tool_use", "id": "t1", "name": "run", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "done"}


def governed(*messages: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    request = govern(list(messages), format="anthropic", budget=10_000)
    assert validate(request.messages, "anthropic") == []
    return request.messages, [repair.description for repair in request.receipt.repairs]


def test_what_a_server_tool_has_read_counts_as_what_it_is_and_not_by_its_letters() -> None:
    page = {"type": "web_search_result", "title": "Tides", "encrypted_content": "Qx9" * 4_000}
    search = {**FOUND, "content": [page]}
    source = {"type": "base64", "media_type": "application/pdf", "data": "Qx9" * 100_000}
    picture = {"type": "base64", "media_type": "image/png", "data": "Qx9" * 100_000}
    document = {"type": "document", "source": source}
    fetched = {"type": "web_fetch_tool_result", "tool_use_id": "srv_2", "content": document}
    seen = {"type": "mcp_tool_result", "tool_use_id": "mcp_1", "content": [{"type": "image", "source": picture}]}

    parts = AnthropicMessages().decode(turn("assistant", search, fetched, seen), 0).parts

    assert [(part.text, part.encoded_tokens) for part in parts if isinstance(part, Opaque)] == [
        (
            '{"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"type": "web_search_result", '
            '"title": "Tides", "encrypted_content": "[12,000 characters]"}]}',
            3_000,
        ),
        (
            '{"type": "web_fetch_tool_result", "tool_use_id": "srv_2", "content": {"type": "document", "source": '
            '{"type": "base64", "media_type": "application/pdf", "data": "[300,000 characters]"}}}',
            5_000,
        ),
        (
            '{"type": "mcp_tool_result", "tool_use_id": "mcp_1", "content": [{"type": "image", "source": '
            '{"type": "base64", "media_type": "image/png", "data": "[300,000 characters]"}}]}',
            1_600,
        ),
    ]


def test_a_long_word_that_a_server_tool_returns_counts_as_text() -> None:
    output = {"type": "mcp_tool_result", "tool_use_id": "mcp_1", "content": [{"type": "text", "text": "Qx9" * 4_000}]}
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Qx9" * 4_000}}

    parts = [*AnthropicMessages().decode(turn("user", plain), 0).parts]
    parts += AnthropicMessages().decode(turn("assistant", output), 0).parts

    assert [(json.loads(part.text), part.encoded_tokens) for part in parts if isinstance(part, Opaque)] == [
        (plain, 0),
        (output, 0),
    ]


def test_a_document_that_a_server_tool_has_fetched_stays_in_a_request_that_it_fits() -> None:
    use = {"type": "server_tool_use", "id": "srv_2", "name": "web_fetch", "input": {"url": "https://example.org"}}
    source = {"type": "base64", "media_type": "application/pdf", "data": "Qx9+" * 100_000}
    page = {"type": "web_fetch_result", "content": {"type": "document", "source": source}}
    fetched = {"type": "web_fetch_tool_result", "tool_use_id": "srv_2", "content": page}
    messages = [ASK, turn("assistant", use, fetched), NEXT]

    assert governed(*messages) == (messages, [])


@pytest.mark.parametrize(("use", "result"), [(SEARCH, FOUND), (MCP_USE, MCP_RESULT)])
def test_a_server_tools_result_in_a_later_answer_is_kept(use: Block, result: Block) -> None:
    messages = [ASK, turn("assistant", use, USE), turn("user", RESULT), turn("assistant", result, TEXT), NEXT]

    assert governed(*messages) == (messages, [])


@pytest.mark.parametrize("use", [SEARCH, MCP_USE])
def test_a_server_tool_that_was_interrupted_is_left_out(use: Block) -> None:
    assert governed(ASK, turn("assistant", use, TEXT), NEXT) == (
        [ASK, turn("assistant", TEXT), NEXT],
        [f"left out a {use['type']} that has no result"],
    )


def test_a_turn_with_nothing_but_an_interrupted_server_tool_is_left_out() -> None:
    assert governed(ASK, turn("assistant", SEARCH), NEXT)[0] == [ASK, NEXT]


@pytest.mark.parametrize("use", [SEARCH, MCP_USE])
def test_a_paused_turn_is_sent_as_it_is(use: Block) -> None:
    assert governed(ASK, turn("assistant", TEXT, use)) == ([ASK, turn("assistant", TEXT, use)], [])


def test_a_server_tool_stays_open_while_only_tool_results_come() -> None:
    messages = [ASK, turn("assistant", SEARCH, USE), turn("user", RESULT)]

    assert governed(*messages) == (messages, [])


def test_a_result_before_its_use_is_left_out_with_the_use() -> None:
    assert governed(ASK, turn("assistant", FOUND, SEARCH, TEXT), NEXT) == (
        [ASK, turn("assistant", TEXT), NEXT],
        ["left out a web_search_tool_result without its tool use", "left out a server_tool_use that has no result"],
    )


async def test_a_session_continues_a_paused_turn_and_repairs_it_once_the_user_goes_on() -> None:
    async with Session.open("s1", format="anthropic") as session:
        await session.record([ASK, turn("assistant", SEARCH)])
        paused = await session.prepare(10_000)
        await session.record([NEXT])
        later = await session.prepare(10_000)

    assert paused.messages == [ASK, turn("assistant", SEARCH)]
    assert later.messages == [ASK, NEXT]


async def test_a_session_keeps_a_late_result_and_notices_a_missing_one_rounds_later() -> None:
    rounds = [ASK, turn("assistant", SEARCH, USE), turn("user", RESULT)]
    again = [turn("assistant", {**USE, "id": "t2"}), turn("user", {**RESULT, "tool_use_id": "t2"})]
    async with Session.open("s1", format="anthropic") as session:
        for message in [*rounds, *again]:
            await session.record([message])
            if message["role"] == "user":
                assert validate((await session.prepare(10_000)).messages, "anthropic") == []
        await session.record([NEXT])
        interrupted = await session.prepare(10_000)

    assert interrupted.messages == [ASK, turn("assistant", USE), turn("user", RESULT), *again, NEXT]


BLOCKS: st.SearchStrategy[list[Block]] = st.lists(
    st.sampled_from([SEARCH, FOUND, MCP_USE, MCP_RESULT, TEXT]), max_size=4
)
MESSAGES = st.lists(
    st.one_of(st.just(NEXT), BLOCKS.map(lambda blocks: turn("assistant", *blocks))), min_size=1, max_size=6
)


@given(MESSAGES)
def test_whatever_server_tools_did_the_request_is_valid_and_repair_settles(messages: list[Any]) -> None:
    once = govern([ASK, *messages], format="anthropic", budget=10_000).messages

    assert validate(once, "anthropic") == []
    assert govern(once, format="anthropic", budget=10_000).messages == once
