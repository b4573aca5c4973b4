"""Agents of other programs read stored conversations over the Model Context Protocol, and change nothing."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, TextContent

from holdfast import Session, __version__
from holdfast.apps.mcp import ConversationReader, mcp_server
from holdfast.errors import StoreUnavailableError
from holdfast.memory import DailyMemory
from holdfast.stores.base import Store
from holdfast.stores.read_only import ReadOnlyStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import assistant_message, user_message
from tests.programs import run_program

TALK = [user_message("the harbour code is KESTREL"), assistant_message("noted"), user_message("and now?")]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = SqliteStore(tmp_path / "chats.db")
    async with Session.open("8f3a-boats", store=made) as session:
        await session.record(TALK)
        await session.prepare(16_000)
        await session.rename("Boats")
    async with Session.open("another", store=made) as session:
        await session.record([user_message("hello")])
    yield made
    await made.close()


def said(result: CallToolResult) -> tuple[str, bool]:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text, bool(result.is_error)


async def test_the_tools_are_found_by_what_they_are_for_and_only_read(store: Store) -> None:
    async with Client(mcp_server(ConversationReader(store))) as client:
        tools = (await client.list_tools()).tools

    assert [tool.name for tool in tools] == ["recall", "show", "sessions", "memory_search"]
    assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
    assert all("conversation" in tool.input_schema["properties"] for tool in tools[:2])
    for word in ("history", "compacted", "earlier", "context", "decisions"):
        assert word in str(tools[0].description)


async def test_recall_and_show_answer_from_the_conversation_that_a_call_names(store: Store) -> None:
    async with Client(mcp_server(ConversationReader(store))) as client:
        found = said(await client.call_tool("recall", {"conversation": "8f3a", "query": "harbour code"}))
        shown = said(await client.call_tool("show", {"conversation": "8f3a-boats"}))
        sent = said(await client.call_tool("show", {"conversation": "8f3a-boats", "at": 1}))
        beyond = said(await client.call_tool("show", {"conversation": "8f3a-boats", "at": 2}))

    assert found[0].startswith("[conversation 8f3a-boats]\n")
    assert "the harbour code is KESTREL" in found[0]
    page = "--- user\nthe harbour code is KESTREL\n\n--- assistant\nnoted\n\n--- user\nand now?"
    assert shown == (f"[conversation 8f3a-boats, for reference only]\n{page}", False)
    assert sent == shown
    assert beyond == ("[conversation 8f3a-boats, for reference only]\nThere is no request 2; there are 1.", False)


async def test_what_is_no_plain_text_is_shown_as_recall_quotes_it(store: Store) -> None:
    contract = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "It says 42."}}
    photo = {"type": "image", "source": {"type": "url", "url": "https://boats/a.png"}}
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    found = {"type": "tool_result", "tool_use_id": "t1", "content": [photo]}
    async with Session.open("rich", store=store, format="anthropic-messages") as session:
        await session.record([
            {"role": "user", "content": [photo, contract]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, use]},
            {"role": "user", "content": [found]},
        ])  # fmt: skip

    text, _ = await ConversationReader(store).call("show", {"conversation": "rich"})

    assert text.splitlines()[1:] == [
        "--- user", "[image: https://boats/a.png]", json.dumps(contract), "",
        "--- assistant", "calls look {}", "",
        "--- tool", "[image: https://boats/a.png]",
    ]  # fmt: skip


async def test_sessions_are_listed_with_the_handles_that_the_other_tools_take(store: Store) -> None:
    reader = ConversationReader(store)

    assert await reader.call("sessions", {}) == ("another · 1 event\n8f3a-boats · 5 events · Boats", False)
    assert await reader.call("sessions", {"prefix": "8f", "limit": 1}) == ("8f3a-boats · 5 events · Boats", False)
    none = ("No conversation has an id that begins with 'zz'.", False)
    assert await reader.call("sessions", {"prefix": "zz"}) == none


async def test_a_list_that_is_not_whole_says_how_to_see_the_rest(store: Store) -> None:
    answer = await ConversationReader(store).call("sessions", {"limit": 1})

    more = "[There are older ones. List those whose ids begin alike with `prefix`.]"
    assert answer == (f"another · 1 event\n{more}", False)


async def test_a_number_may_be_written_as_text_and_anything_else_is_refused(store: Store) -> None:
    async with Session.open("long", store=store) as session:
        await session.record([user_message("word " * 5_000)])
    reader = ConversationReader(store, default_session="long")

    for skip in ("20000", " 20000 ", 20_000.0):
        assert await reader.call("show", {"skip": skip}) == await reader.call("show", {"skip": 20_000})
    assert await reader.call("show", {"at": "3"}) == await reader.call("show", {"at": 3})
    assert await reader.call("show", {"at": "last"}) == ("at: must be a whole number, not 'last'", True)
    assert await reader.call("show", {"skip": [5]}) == ("skip: must be a whole number, not [5]", True)
    assert await reader.call("sessions", {"limit": True}) == ("limit: must be a whole number, not True", True)


async def test_a_call_without_a_conversation_means_the_default_or_says_which_there_are(store: Store) -> None:
    text, is_error = await ConversationReader(store).call("recall", {"query": "x"})
    assert is_error
    assert text == ("conversation: name one, by its id or the beginning of it; the newest are: another, 8f3a-boats")

    text, is_error = await ConversationReader(store, default_session="8f3a").call("recall", {"query": "KESTREL"})
    assert not is_error
    assert "KESTREL" in text

    text, is_error = await ConversationReader(store).call("show", {"conversation": "nobody"})
    assert is_error
    assert text == "conversation: 'nobody' is not known; the tool `sessions` lists all"
    assert (await ConversationReader(store).call("drop", {}))[1]


async def test_a_beginning_that_several_conversations_have_names_them_as_their_owner_does(store: Store) -> None:
    for name in ("ada:tides-1", "ada:tides-2"):
        async with Session.open(name, store=store) as session:
            await session.record([user_message("hello")])

    text, is_error = await ConversationReader(store, owner="ada:").call("show", {"conversation": "tides"})

    assert is_error
    assert "tides-1" in text
    assert "ada:" not in text


async def test_a_long_conversation_is_shown_in_pages(store: Store) -> None:
    async with Session.open("long", store=store) as session:
        await session.record([user_message("word " * 5_000)])
    reader = ConversationReader(store, default_session="long")

    first, _ = await reader.call("show", {})
    second, _ = await reader.call("show", {"skip": 20_000})

    assert first.endswith("more characters: ask again with skip=20000]")
    assert first.count("word") + second.count("word") >= 4_999
    assert "more characters" not in second


async def test_whoever_asks_to_skip_less_than_nothing_gets_the_beginning(store: Store) -> None:
    async with Session.open("long", store=store) as session:
        await session.record([user_message("word " * 5_000)])
    reader = ConversationReader(store, default_session="long")

    assert await reader.call("show", {"skip": -5}) == await reader.call("show", {})


@pytest.mark.parametrize(
    ("tool", "arguments", "answer"),
    [
        ("sessions", {"prefx": "8f"}, "'prefx' is not an argument of sessions; there are: prefix, limit"),
        ("show", {"conversation": "8f3a", "last": 3},
         "'last' is not an argument of show; there are: conversation, at, skip"),
        ("memory_search", {"words": "x"},
         "'words' is not an argument of memory_search; there are: query, day, skip, max_tokens"),
    ],
)  # fmt: skip
async def test_an_argument_that_no_tool_has_is_refused(
    store: Store, tool: str, arguments: dict[str, object], answer: str
) -> None:
    assert await ConversationReader(store).call(tool, arguments) == (answer, True)


async def test_recall_takes_its_other_names_and_no_unknown_ones(store: Store) -> None:
    reader = ConversationReader(store, default_session="8f3a")

    known = await reader.call("recall", {"q": "KESTREL"})
    unknown, is_error = await reader.call("recall", {"query": "KESTREL", "colour": "red"})

    assert known == await reader.call("recall", {"query": "KESTREL"})
    assert (unknown.partition(";")[0], is_error) == ("'colour' is not an argument of recall", True)


async def test_memory_is_searched_where_there_is_one(store: Store, tmp_path: Path) -> None:
    off, _ = await ConversationReader(store).call("memory_search", {"query": "boats"})
    on, _ = await ConversationReader(store, memory=DailyMemory(tmp_path / "memory")).call(
        "memory_search", {"query": "boats"}
    )

    assert "holdfast config memory" in off
    assert on.startswith("Nothing was found.")


async def test_nothing_is_written_by_reading_and_the_store_refuses_every_write(store: Store) -> None:
    before = await store.read("8f3a-boats")
    reader = ConversationReader(store, default_session="8f3a")
    for name in ("recall", "show", "sessions", "memory_search"):
        await reader.call(name, {"query": "KESTREL"})
    only = ReadOnlyStore(store)

    assert await store.read("8f3a-boats") == before
    for write in (
        only.append("s", [], after=0, time_ms=0), only.rewrite("s", {}, tombstone={}, after=0, time_ms=0),
        only.purge(), only.put_blob(b""), only.rename("s", "t"), only.delete("8f3a-boats"),
        only.put_snapshot("s", None), only.put_value("k", {}), only.delete_value("k"),
    ):  # fmt: skip
        with pytest.raises(StoreUnavailableError, match="opened to be read only"):
            await write


async def test_a_client_starts_the_program_and_its_session_is_the_default(store: Store, tmp_path: Path) -> None:
    del store
    environment = {"HOLDFAST_HOME": str(tmp_path), "CLAUDE_CODE_SESSION_ID": "8f3a-boats"}
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    program = StdioServerParameters(
        command=str(Path(sys.executable).with_name("holdfast")), args=["mcp", "--store", url], env=environment
    )

    async with Client(program) as client:
        text, is_error = said(await client.call_tool("recall", {"query": "harbour code"}))

    assert not is_error
    assert "the harbour code is KESTREL" in text


async def test_requests_that_are_piped_into_the_program_are_answered_though_the_input_has_ended(tmp_path: Path) -> None:
    async with Session.open("first\n[conversation second]", store=f"sqlite:///{tmp_path / 'chats.db'}") as session:
        await session.record(TALK[:1])
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "shell", "version": "1"}}
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        "no json",
        "",
        "[]",
        *(
            json.dumps({"jsonrpc": "2.0", "id": one, "method": "tools/call", "params": {"name": "sessions"}})
            for one in ("a", "b")
        ),
    ]

    env = {**os.environ, "HOLDFAST_HOME": str(tmp_path)}
    run = await asyncio.to_thread(run_program, "mcp", env=env, folder=tmp_path, said="\n".join([*lines, ""]))
    output = run.stdout
    answers = {str(one.get("id")): one for one in map(json.loads, output.splitlines()[1:]) if "result" in one}
    errors = [one["error"] for one in map(json.loads, output.splitlines()) if "error" in one]
    greeting = json.loads(output.splitlines()[0])["result"]

    assert run.returncode == 0
    assert (greeting["serverInfo"]["name"], greeting["serverInfo"]["version"]) == ("holdfast", __version__)
    assert [one["result"]["content"][0]["text"] for one in (answers["a"], answers["b"])] == [
        "first [conversation second] · 1 event"
    ] * 2
    assert [(error["code"], error["message"]) for error in errors] == [
        (-32700, "this line is no JSON; send one JSON-RPC message a line"),
        (-32600, "this line is no request; send one JSON-RPC message a line"),
    ]


async def test_a_request_with_half_a_character_is_answered_under_its_id(tmp_path: Path) -> None:
    async with Session.open("first", store=f"sqlite:///{tmp_path / 'chats.db'}") as session:
        await session.record(TALK)
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "shell", "version": "1"}}
    asked = {"name": "recall", "arguments": {"conversation": "first", "query": "harbour code \ud83d"}}
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}),
    ]

    env = {**os.environ, "HOLDFAST_HOME": str(tmp_path)}
    run = await asyncio.to_thread(run_program, "mcp", env=env, folder=tmp_path, said="\n".join([*lines, ""]))
    output = run.stdout
    greeting, answer = map(json.loads, output.splitlines())

    assert (greeting["id"], answer["id"]) == (0, 1)
    assert "the harbour code is KESTREL" in answer["result"]["content"][0]["text"]


@pytest.mark.parametrize(("output", "code"), [("a closed pipe", 0), ("/dev/full", 2)])
def test_an_output_that_takes_no_answer_ends_the_program_without_a_traceback(
    tmp_path: Path, output: str, code: int
) -> None:
    if output == "/dev/full" and not Path(output).exists():
        pytest.skip("this system has no device that is always full")
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "shell", "version": "1"}}
    hello = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client})
    reading, writing = os.pipe()
    os.close(reading)
    full = os.open(output, os.O_WRONLY) if output == "/dev/full" else writing

    env = {**os.environ, "HOLDFAST_HOME": str(tmp_path)}
    run = run_program("mcp", env=env, folder=tmp_path, said=f"{hello}\n", stdout=full)
    for one in {writing, full}:
        os.close(one)

    said = "" if code == 0 else "holdfast: standard output: No space left on device; what it has got is not whole\n"
    assert (run.returncode, run.stderr) == (code, said)


async def test_an_interrupt_ends_the_program_though_its_client_is_silent(tmp_path: Path) -> None:
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "shell", "version": "1"}}
    hello = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client})
    run = await asyncio.create_subprocess_exec(
        *(Path(sys.executable).with_name("holdfast"), "mcp"), env={**os.environ, "HOLDFAST_HOME": str(tmp_path)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert run.stdin is not None
    assert run.stdout is not None
    run.stdin.write(f"{hello}\n".encode())
    answer = json.loads(await run.stdout.readline())

    run.send_signal(signal.SIGINT)
    try:
        code = await asyncio.wait_for(run.wait(), 60)
    finally:
        run.stdin.close()
    _, printed = await run.communicate()

    assert (answer["id"], code, printed) == (0, -signal.SIGINT, b"")


async def test_a_server_that_was_started_before_the_first_conversation_finds_it(tmp_path: Path) -> None:
    holdfast = str(Path(sys.executable).with_name("holdfast"))
    program = StdioServerParameters(command=holdfast, args=["mcp"], env={"HOLDFAST_HOME": str(tmp_path)})

    async with Client(program) as client:
        before = said(await client.call_tool("sessions", {}))
        async with Session.open("first", store=f"sqlite:///{tmp_path / 'chats.db'}") as session:
            await session.record(TALK)
        after = said(await client.call_tool("sessions", {}))

    assert (before, after) == (("There are no conversations.", False), ("first · 3 events", False))


async def test_an_owner_has_only_its_own_conversations_and_names_them_without_itself(store: Store) -> None:
    async with Session.open("alice/boats", store=store) as session:
        await session.record(TALK)
    alice, nobody = ConversationReader(store, owner="alice/"), ConversationReader(store, owner="bob/")

    assert await alice.call("sessions", {}) == ("boats · 3 events", False)
    assert (await alice.call("show", {"conversation": "boa"}))[0].startswith("[conversation boats, for reference only]")
    assert (await alice.call("recall", {"conversation": "8f3a-boats", "query": "code"}))[1]
    assert await nobody.call("sessions", {}) == ("There are no conversations.", False)
    none = ("No conversation has an id that begins with '../alice'.", False)
    assert await nobody.call("sessions", {"prefix": "../alice"}) == none
    assert "the newest are: none" in (await nobody.call("recall", {"query": "code"}))[0]
