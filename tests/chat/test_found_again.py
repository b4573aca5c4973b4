"""Conversations are found again by title and by words, and programs are told which one they had."""

from pathlib import Path

import pytest

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands.config import known_model_names
from holdfast.apps.chat.dispatch import is_immediate, submit_line
from holdfast.apps.chat.events import ConversationOpened, TurnEnded
from holdfast.apps.chat.main import ChatOptions, _open_chat, describe_models, describe_tools
from holdfast.apps.settings.sources import load_settings
from holdfast.testing.endpoint import ScriptedEndpoint, http_response, text_stream
from tests.chat.conftest import Served
from tests.chat.recording_screen import RecordingScreen, open_chat, reply_to
from tests.chat.test_turns import chat_with


async def test_a_conversation_is_found_by_its_title_its_words_and_its_number(tmp_path: Path, served: Served) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen)
    ids: list[str] = []
    for prompt in ("How do tides work?", "Fix the parser.", "Which berth is free?"):
        served.script.append(text_stream(f"About {prompt[-7:]} ask for ZX-{len(ids)}."))
        await chat.take_turn(prompt)
        ids.append(chat.session.id)
        await chat.open_conversation()
    await reply_to(chat, screen, "/title nothing yet")

    listed = {words: await reply_to(chat, screen, f"/sessions {words}") for words in ("PARSER fix", "ZX-2", "moon")}
    numbered = await reply_to(chat, screen, "/sessions")
    opened: list[str] = []
    for words in ("tides", "ZX-1", str(1 + numbered.splitlines()[1:].index(_row_of(numbered, ids[2])))):
        await reply_to(chat, screen, f"/resume {words}")
        opened.append(chat.session.id)
    missing = await reply_to(chat, screen, "/resume something else entirely")
    await chat.close()

    assert [ids[1] in listed["PARSER fix"], ids[2] in listed["ZX-2"]] == [True, True]
    assert listed["moon"] == "no conversation is about 'moon'"
    assert opened == ids[:1] + ids[1:2] + ids[2:]
    assert missing == "/resume: no conversation is about 'something else entirely'; /sessions lists them"


def _row_of(table: str, session: str) -> str:
    return next(line for line in table.splitlines() if session in line)


async def test_a_program_is_told_the_session_the_whole_text_the_finish_and_the_cost(
    tmp_path: Path, served: Served
) -> None:
    served.script.append(text_stream("One ", "two.", input_tokens=1_000))
    url = served.model.partition("#")[0]
    prices = '[models."priced"]\nwindow = 9000\ninput_price = 2.0\noutput_price = 10.0\n'
    (tmp_path / "holdfast.toml").write_text(prices)
    environ = {"HOLDFAST_HOME": str(tmp_path)}
    settings = load_settings(flags={"model": f"{url}#priced"}, cwd=tmp_path, environ=environ)
    screen = RecordingScreen()
    async with _open_chat(settings, screen, ChatOptions()) as chat:
        session = chat.session.id
        await chat.take_turn("Count.")

    opened = next(event for event in screen.events if isinstance(event, ConversationOpened))
    ended = next(event for event in screen.events if isinstance(event, TurnEnded))
    assert opened == ConversationOpened(session, f"{url}#priced", opened.budget, 0)
    assert (ended.session, ended.text, ended.finish_reason) == (session, "One two.", "stop")
    assert ended.cost == pytest.approx((1_000 * 2.0 + 2 * 10.0) / 1_000_000)


async def test_the_models_of_an_endpoint_are_listed_completed_and_switched_to_by_their_names(tmp_path: Path) -> None:
    listed = http_response(200, {"data": [{"id": "small"}, {"id": "large"}]})
    async with ScriptedEndpoint(lambda _: listed) as endpoint:
        chat, screen = await open_chat(tmp_path, flags={"model": f"{endpoint.url}#small"})
        shown = await reply_to(chat, screen, "/model")
        completed = known_model_names(chat)
        switched = await reply_to(chat, screen, "/model large")
        refused = await reply_to(chat, screen, "/model huge")
        await chat.close()

    assert shown.splitlines()[1:] == ["its endpoint also has: large; /model NAME switches"]
    assert completed[:3] == [f"{endpoint.url}#small", "embedded", f"{endpoint.url}#large"]
    assert switched.splitlines()[0] == f"switched to {endpoint.url}#large"
    assert refused.startswith("huge: no provider offers a model of this name")
    assert chat.model == f"{endpoint.url}#large"


async def test_an_endpoint_that_lists_no_models_is_shown_without_others(tmp_path: Path) -> None:
    async with ScriptedEndpoint(lambda _: http_response(404, "not here")) as endpoint:
        chat, screen = await open_chat(tmp_path, flags={"model": f"{endpoint.url}#small"})
        shown = await reply_to(chat, screen, "/model")
        await chat.close()

    assert shown.splitlines() == [
        f"{endpoint.url}#small; window: unknown; largest request: {chat.budget.tokens:,} tokens"
    ]


async def test_exit_and_quit_leave_and_looking_commands_do_not_wait(tmp_path: Path) -> None:
    for word in ("exit", " QUIT "):
        chat, _ = await open_chat(tmp_path)
        assert (await submit_line(chat, word), chat.is_over) == ("done", True)
        await chat.close()

    looking = ["/context", "/help", "/show #1", "/recall a", "/history", "/todo", "/plan", "/sessions"]
    changing = ["/context clear", "/compact", "/undo", "/model x", "hello", "/unknown", "/plan clear"]
    assert [is_immediate(line) for line in looking] == [True] * len(looking)
    assert [is_immediate(line) for line in changing] == [False] * len(changing)


async def test_the_greeting_says_what_the_model_can_do_where_keys_go_and_what_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    embedded, _ = await open_chat(tmp_path, flags={"model": "embedded"})
    large, _ = await open_chat(tmp_path)

    def greeting(chat: Chat) -> str:
        return f"{describe_models(chat)}\n{describe_tools(chat)}"

    assert greeting(embedded).splitlines() == [
        "It has 135 million parameters: plain sentences, few true facts, no tools.",
        "Others: set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, or run Ollama.",
    ]
    embedded.local_models = ["ollama:qwen3"]
    assert "/model ollama:qwen3 switches" in greeting(embedded)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    assert "There are keys for anthropic: /model anthropic: and Tab lists models" in greeting(embedded)
    assert (
        greeting(large) == "\nIt may read files, change files, run commands here, and asks before it changes anything."
    )
    await embedded.close()
    await large.close()
