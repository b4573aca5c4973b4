"""The hooks for the Claude Agent SDK record what was said; the program itself runs against a server on this machine."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk", reason="its program takes 350 MB: the extra claude-agent-sdk")

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, ResultMessage, query

from holdfast import Session, SettingsError, validate
from holdfast.adapters.claude_agent_sdk import RECORDED_HOOKS, HoldfastHooks
from holdfast.session.background_loop import BACKGROUND_LOOP
from holdfast.testing.endpoint import ReceivedRequest, ResponsePiece, ScriptedEndpoint, http_response, stream_response
from tests.support import run_example, run_page


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[HoldfastHooks]:
    hooks = HoldfastHooks(store=f"sqlite:///{tmp_path / 'chats.db'}")
    yield hooks
    await hooks.close()


async def tell(kept: HoldfastHooks, name: str, **given: Any) -> Mapping[str, Any]:
    base = {"session_id": "s", "transcript_path": "", "cwd": "", "hook_event_name": name}
    context: Any = {"signal": None}
    told: Any = {**base, **given}
    hooks = kept.options().hooks or {}
    return await hooks[name][0].hooks[0](told, None, context)  # pyright: ignore[reportArgumentType, reportReturnType]


async def recorded(tmp_path: Path, scope: str = "main") -> list[Mapping[str, object]]:
    async with Session.open("s", store=f"sqlite:///{tmp_path / 'chats.db'}") as session:
        return await session.messages(scope=scope)


async def test_prompts_tool_calls_and_answers_are_recorded_as_they_happen(kept: HoldfastHooks, tmp_path: Path) -> None:
    await tell(kept, "UserPromptSubmit", prompt="read it")
    await tell(kept, "PostToolUse", tool_name="Read", tool_input={"p": 1}, tool_response={"t": "x"}, tool_use_id="t1")
    await tell(kept, "PostToolUseFailure", tool_name="Read", tool_input={}, error="no such file", tool_use_id="t2")
    await tell(kept, "Stop", stop_hook_active=False, last_assistant_message="done")

    messages = await recorded(tmp_path)
    assert validate(messages[:-1], "anthropic-messages") == []
    assert messages == [
        {"role": "user", "content": "read it"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {"p": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": '{"t":"x"}'}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t2", "name": "Read", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t2", "content": "no such file", "is_error": True},
        ]},
        {"role": "assistant", "content": "done"},
    ]  # fmt: skip


async def test_a_sub_agent_works_in_a_scope_of_its_own(kept: HoldfastHooks, tmp_path: Path) -> None:
    call = {"tool_name": "Read", "tool_input": {}, "tool_response": "seven", "tool_use_id": "t1"}
    await tell(kept, "UserPromptSubmit", prompt="how many?")
    await tell(kept, "SubagentStart", agent_id="a1", agent_type="counter")
    await tell(kept, "PostToolUse", agent_id="a1", **call)
    await tell(kept, "SubagentStop", agent_id="a1", agent_type="counter", last_assistant_message="seven boats")
    await tell(kept, "SubagentStop", agent_id="unknown", agent_type="counter")

    assert await recorded(tmp_path) == [{"role": "user", "content": "how many?"}]
    session = await asyncio.to_thread(kept.session, "s")
    [one] = await asyncio.to_thread(session.delegations)
    assert (one.state, one.started.agent, one.answer) == ("answered", "counter", "seven boats")
    assert len(await recorded(tmp_path, one.started.scope)) == 3


async def test_a_sub_agent_that_goes_on_after_it_stopped_keeps_its_work_out_of_the_main_conversation(
    kept: HoldfastHooks, tmp_path: Path
) -> None:
    agent = {"agent_id": "a1", "agent_type": "counter"}
    calls = [{"tool_name": "Read", "tool_input": {}, "tool_response": "x", "tool_use_id": f"t{at}"} for at in range(2)]
    await tell(kept, "UserPromptSubmit", prompt="how many?")
    await tell(kept, "SubagentStart", **agent)
    await tell(kept, "SubagentStop", **agent, last_assistant_message="seven")
    # A hook of the user has sent it back to work, so it never starts again, and its calls run at the same time.
    await asyncio.gather(*(tell(kept, "PostToolUse", **agent, **call) for call in calls))
    await tell(kept, "SubagentStop", **agent, last_assistant_message="eight")
    await tell(kept, "SubagentStop", **agent, last_assistant_message="nine")

    assert await recorded(tmp_path) == [{"role": "user", "content": "how many?"}]
    session = await asyncio.to_thread(kept.session, "s")
    ended = await asyncio.to_thread(session.delegations)
    assert [(one.state, one.started.agent, one.answer) for one in ended] == [
        ("answered", "counter", "seven"),
        ("answered", "counter", "eight"),
        ("answered", "counter", "nine"),
    ]
    assert [len(await recorded(tmp_path, one.started.scope)) for one in ended] == [1, 5, 1]


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        ("UserPromptSubmit", {"text": "hi"}, "hook UserPromptSubmit: has no 'prompt'"),
        ("PostToolUse", {"tool_name": "Read", "tool_input": {}}, "hook PostToolUse: has no 'tool_use_id'"),
        ("SubagentStop", {}, "hook SubagentStop: has no 'agent_id'"),
    ],
)
async def test_a_hook_that_lacks_what_is_needed_is_reported_and_the_agent_goes_on(
    kept: HoldfastHooks, tmp_path: Path, name: str, given: dict[str, Any], problem: str
) -> None:
    told = await tell(kept, name, **given)
    await tell(kept, "UserPromptSubmit", prompt="and now?")

    remedy = "this version of Claude Code is not known"
    assert told == {"systemMessage": f"Holdfast could not record this: {problem}; {remedy}"}
    assert await recorded(tmp_path) == [{"role": "user", "content": "and now?"}]


async def test_only_so_many_conversations_stay_open_and_none_that_is_in_use(
    kept: HoldfastHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.adapters.claude_agent_sdk.MAX_OPEN_SESSIONS", 2)
    await tell(kept, "SubagentStart", session_id="busy", agent_id="a1", agent_type="counter")
    names = [f"s{number}" for number in range(6)]

    await asyncio.gather(*(tell(kept, "UserPromptSubmit", session_id=name, prompt=f"I am {name}") for name in names))
    await asyncio.gather(*(tell(kept, "Stop", session_id=name, last_assistant_message="Hello.") for name in names))

    assert len(kept._sessions) == 2
    assert "busy" in kept._sessions
    await tell(kept, "SubagentStop", session_id="busy", agent_id="a1", agent_type="counter")
    assert not kept._in_use
    for name in names:
        session = await asyncio.to_thread(kept.session, name)
        assert await asyncio.to_thread(session.messages) == [
            {"role": "user", "content": f"I am {name}"},
            {"role": "assistant", "content": "Hello."},
        ]


async def test_recall_reaches_what_was_recorded(kept: HoldfastHooks) -> None:
    assert "nothing was said yet" in await BACKGROUND_LOOP.await_result(kept._recall({"query": "code"}))
    await tell(kept, "UserPromptSubmit", prompt="the harbour code is KESTREL")

    assert "KESTREL" in await BACKGROUND_LOOP.await_result(kept._recall({"query": "harbour code"}))


async def test_recall_answers_from_the_conversation_that_asks_while_others_talk(kept: HoldfastHooks) -> None:
    asked = {"query": "harbour code"}

    async def calls(session_id: str, name: str = "PreToolUse", **given: Any) -> None:
        call = {"tool_name": "mcp__holdfast__recall", "tool_input": asked, "tool_use_id": f"of {session_id}"}
        await tell(kept, name, session_id=session_id, **call, **given)

    async def recall() -> str:
        return await BACKGROUND_LOOP.await_result(kept._recall(asked))

    await tell(kept, "UserPromptSubmit", session_id="ann", prompt="the harbour code is KESTREL")
    await tell(kept, "UserPromptSubmit", session_id="ben", prompt="the harbour code is OSPREY")
    unknown = "[Recall: several conversations may have asked this. Ask again in other words.]"
    assert await recall() == unknown
    await calls("ann")
    await tell(kept, "Stop", session_id="ben", last_assistant_message="Thanks.")
    of_ann = await recall()
    assert ("KESTREL" in of_ann, "OSPREY" in of_ann) == (True, False)
    await calls("ben")
    assert await recall() == unknown
    await calls("ann", "PostToolUse", tool_response="KESTREL")
    of_ben = await recall()
    assert ("KESTREL" in of_ben, "OSPREY" in of_ben) == (False, True)
    await tell(kept, "Stop", session_id="ben", last_assistant_message="It was refused.")
    assert await recall() == unknown


async def test_the_options_of_the_user_stay_and_ours_are_added(kept: HoldfastHooks) -> None:
    own = HookMatcher(matcher="Bash")
    given = ClaudeAgentOptions(hooks={"Stop": [own], "PreToolUse": [own]}, env={"A": "1"}, allowed_tools=["Read"])

    options = HoldfastHooks(gateway="http://127.0.0.1:9").options(given)

    assert options.hooks is not None
    assert {*options.hooks} == {*RECORDED_HOOKS, "PreToolUse"}
    assert (options.hooks["Stop"][0], len(options.hooks["Stop"]), options.hooks["PreToolUse"][0]) == (own, 2, own)
    assert [matcher.matcher for matcher in options.hooks["PreToolUse"]] == ["Bash", "mcp__holdfast__recall"]
    assert options.env == {"A": "1", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
    assert options.allowed_tools == ["Read", "mcp__holdfast__recall"]
    with pytest.raises(SettingsError, match="mcp_servers: must be a dictionary"):
        kept.options(ClaudeAgentOptions(mcp_servers="servers.json"))


def reply(request: ReceivedRequest, call: Mapping[str, object] | None = None) -> list[ResponsePiece]:
    """Answer as Anthropic's Messages API: with a text, or first with a tool call."""
    if "count_tokens" in request.line or not request.line.startswith("POST /v1/messages"):
        return http_response(200, {"input_tokens": 10})
    usage = {"input_tokens": 10, "output_tokens": 2}
    message: dict[str, Any] = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-5", "stop_reason": None,
        "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    text = {"type": "text", "text": "At four."}
    if not request.body.get("stream"):
        return http_response(200, {**message, "content": [text], "stop_reason": "end_turn"})
    block: dict[str, Any] = {"type": "text", "text": ""}
    delta: dict[str, Any] = {"type": "text_delta", "text": text["text"]}
    if call is not None and "tool_result" not in json.dumps(request.body["messages"]):
        block = {"type": "tool_use", "id": "toolu_1", "name": call["name"], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call["input"])}
    stop = "tool_use" if block["type"] == "tool_use" else "end_turn"
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]
    return stream_response(*(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events))


def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "home").mkdir()
    return {
        "HOME": str(tmp_path / "home"), "ANTHROPIC_AUTH_TOKEN": "x", "DISABLE_TELEMETRY": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
    }  # fmt: skip


async def test_claude_code_itself_tells_its_prompt_and_its_answer(tmp_path: Path) -> None:
    async with ScriptedEndpoint(reply) as endpoint:
        kept = HoldfastHooks(store="memory://", gateway=endpoint.url.removesuffix("/v1"))
        given = ClaudeAgentOptions(model="claude-sonnet-5", cwd=tmp_path, env=environment(tmp_path))
        asked = query(prompt="When?", options=kept.options(given))
        [result] = [one async for one in asked if isinstance(one, ResultMessage)]
        session = await asyncio.to_thread(kept.session, result.session_id)
        messages = await asyncio.to_thread(session.messages)
        await kept.close()

    assert result.result == "At four."
    assert messages == [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "At four."}]


async def test_claude_code_recalls_from_our_mcp_server(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with Session.open("harbour", store=url) as session:
        await session.record([{"role": "user", "content": "the harbour code is KESTREL"}])
    called = {"name": "mcp__holdfast__recall", "input": {"conversation": "harbour", "query": "code"}}
    program: Any = {"command": str(Path(sys.executable).with_name("holdfast")), "args": ["mcp", "--store", url]}
    async with ScriptedEndpoint(lambda request: reply(request, called)) as endpoint:
        options = ClaudeAgentOptions(
            model="claude-sonnet-5",
            cwd=tmp_path,
            env={**environment(tmp_path), "ANTHROPIC_BASE_URL": endpoint.url.removesuffix("/v1")},
            mcp_servers={"holdfast": program},
            allowed_tools=["mcp__holdfast__recall"],
        )
        [result] = [one async for one in query(prompt="When?", options=options) if isinstance(one, ResultMessage)]

    assert result.result == "At four."
    assert "the harbour code is KESTREL" in json.dumps(endpoint.requests[-1].body["messages"])


async def test_claude_code_recalls_from_its_own_conversation_among_others(tmp_path: Path) -> None:
    called = {"name": "mcp__holdfast__recall", "input": {"query": "harbour code"}}
    async with ScriptedEndpoint(lambda request: reply(request, called)) as endpoint:
        kept = HoldfastHooks(store="memory://", gateway=endpoint.url.removesuffix("/v1"))
        await tell(kept, "UserPromptSubmit", session_id="ben", prompt="the harbour code is OSPREY")
        given = ClaudeAgentOptions(model="claude-sonnet-5", cwd=tmp_path, env=environment(tmp_path))
        asked = query(prompt="The harbour code is KESTREL.", options=kept.options(given))
        [result] = [one async for one in asked if isinstance(one, ResultMessage)]
        session = await asyncio.to_thread(kept.session, result.session_id)
        messages = await asyncio.to_thread(session.messages)
        await kept.close()

    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert ("KESTREL" in str(messages[2]), "OSPREY" in str(messages[2])) == (True, False)


def test_the_page_and_the_example_run_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    run_page("claude-agent-sdk")
    run_example("claude_agent_sdk_agent")

    assert capsys.readouterr().out


def test_an_unknown_policy_is_refused_before_the_first_hook() -> None:
    with pytest.raises(SettingsError, match="policy: 'defualt' is not known; choose one of: default, "):
        HoldfastHooks(policy="defualt")
