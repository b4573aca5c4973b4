"""What a user is told about the model, its key, its servers and an earlier conversation."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import RunContext
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_ai.usage import RunUsage

from holdfast.apps.chat import agent
from holdfast.apps.chat.agent import OptionalToolset
from holdfast.apps.chat.chat import Chat, describe_failure
from holdfast.apps.chat.events import ChatNotice
from holdfast.apps.chat.main import _describe_resuming, program_name
from holdfast.apps.settings.sources import load_settings
from holdfast.counters.models import budget_for, describe_unknown_model
from holdfast.errors import ModelAccessError, StoreUnavailableError
from holdfast.models.open import open_summarizer, parse_endpoint
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.endpoint import http_response, text_stream, tool_call_stream
from tests.chat.conftest import Served
from tests.chat.recording_screen import RecordingScreen, open_chat, reply_to


def start(
    home: Path,
    model: str,
    screen: RecordingScreen,
    store: Store | None = None,
    *,
    store_url: str | None = None,
    **flags: str,
) -> Chat:
    if store_url is not None:
        flags["store"] = store_url
    found = load_settings(flags={"model": model, **flags}, cwd=home, environ={"HOLDFAST_HOME": str(home)})
    return Chat(found, screen, folder=home, store=store or MemoryStore())


def notices(screen: RecordingScreen) -> list[str]:
    return [event.text for event in screen.events if isinstance(event, ChatNotice)]


# A key for an endpoint.


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("https://llm.example.com/v1", "HOLDFAST_KEY_LLM_EXAMPLE_COM"),
        ("http://127.0.0.1:8080/v1", "HOLDFAST_KEY_127_0_0_1_8080"),
        ("https://user:secret@llm.example.com/v1", "HOLDFAST_KEY_LLM_EXAMPLE_COM"),
    ],
)
def test_the_key_of_an_endpoint_is_read_from_a_variable_that_names_its_host(url: str, variable: str) -> None:
    endpoint = parse_endpoint(f"{url}#m")

    assert endpoint is not None
    assert (endpoint.url, endpoint.name, endpoint.key_variable) == (url, "m", variable)


def test_a_provider_whose_key_may_be_in_several_variables_gets_no_two_different_advices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    unset = UserError("Set the `GOOGLE_API_KEY` environment variable or pass it via `GoogleProvider(api_key=...)`")
    refused = ModelAccessError("gemini-3.1-pro", "API key not valid")

    told = [describe_failure(unset, "google:gemini-3.1-pro"), describe_failure(refused, "google:gemini-3.1-pro")]
    monkeypatch.setenv("GOOGLE_API_KEY", "wrong")
    told.append(describe_failure(refused, "google:gemini-3.1-pro"))

    check = "gemini-3.1-pro: API key not valid; check the API key, and that it may use this model"
    assert told == [
        "google:gemini-3.1-pro: there is no API key for it; set the environment variable GOOGLE_API_KEY",
        f"{check} (it is read from $GEMINI_API_KEY or $GOOGLE_API_KEY)",
        f"{check} (it is read from $GOOGLE_API_KEY)",
    ]


async def test_an_endpoint_gets_its_key_and_no_other_host_does(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = parse_endpoint(served.model)
    assert endpoint is not None
    monkeypatch.setenv(endpoint.key_variable, "the-key")
    monkeypatch.setenv("OPENAI_API_KEY", "of-openai")
    chat = start(tmp_path, served.model, RecordingScreen(), budget="4000")
    await chat.open_conversation()

    await chat.take_turn("hello")
    await chat.close()

    assert [request.headers["authorization"] for request in served.requests] == ["Bearer the-key"]
    assert "the-key" not in repr(open_summarizer(served.model))


async def test_a_wrong_key_is_told_in_a_sentence_with_the_variable_that_holds_it(
    tmp_path: Path, served: Served
) -> None:
    screen = RecordingScreen()
    chat = start(tmp_path, served.model, screen, budget="4000")
    await chat.open_conversation()
    served.script.append(http_response(401, {"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}))

    assert await chat.take_turn("hello") == "failed"
    await chat.close()

    endpoint = parse_endpoint(served.model)
    assert endpoint is not None
    assert notices(screen) == [
        "served: Incorrect API key; check the API key, and that it may use this model"
        f" (it is read from ${endpoint.key_variable})\nNothing is lost; /retry sends the prompt again."
    ]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            "openai:gpt-5",
            "openai:gpt-5: there is no API key for it; set the environment variable OPENAI_API_KEY",
        ),
        (
            "gpt-5",
            "gpt-5: no provider offers a model of this name; write it as PROVIDER:NAME, such as openai:gpt-5",
        ),
        ("nobody:knows", "nobody:knows: no provider offers a model of this name; write it as PROVIDER:NAME"),
    ],
)
async def test_a_model_without_key_or_provider_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, said: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    screen = RecordingScreen()
    chat = start(tmp_path, model, screen, budget="4000")
    await chat.open_conversation()

    assert await chat.take_turn("hello") == "failed"
    await chat.close()

    assert notices(screen) == [f"{said}\nNothing is lost; /retry sends the prompt again."]


def test_an_error_that_no_provider_raised_is_still_a_sentence() -> None:
    assert describe_failure(ValueError("boom"), "http://a/v1#m").startswith("m: ValueError: boom; ")


# Unknown models.


async def test_a_model_name_with_a_typo_is_noticed_with_the_nearest_name_and_the_assumed_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    chat, screen = await open_chat(tmp_path, flags={"model": "openai:gtp-5"})
    switched = await reply_to(chat, screen, "/model openai:gpt-5")
    back = await reply_to(chat, screen, "/model openai:gpt-5-mimi-pro")
    await chat.close()

    said = "openai:gtp-5 is not in the table of models (did you mean gpt-5?); a window of 128,000 tokens is assumed"
    assert notices(screen)[0] == (f'{said}; write [models."openai:gtp-5"] with window = … into holdfast.toml')
    assert switched == "switched to openai:gpt-5"
    assert back.startswith("switched to openai:gpt-5-mimi-pro")


def test_an_unknown_model_is_logged_once_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        for name in ("claud-sonnet-4-5", "claud-sonnet-4-5", "claude-sonnet-4-5"):
            budget_for(name)
            budget_for(name, 5_000)

    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("holdfast", describe_unknown_model("claud-sonnet-4-5"))
    ]
    assert "did you mean claude-sonnet-4-5?" in caplog.text


async def test_resuming_says_that_another_model_answers_now(tmp_path: Path, served: Served) -> None:
    store, screen = MemoryStore(), RecordingScreen()
    first = start(tmp_path, served.model, screen, store, budget="4000")
    await first.open_conversation()
    await first.take_turn("hello")
    session = first.session.id
    await first.session.close()
    same, other = RecordingScreen(), RecordingScreen()

    await start(tmp_path, served.model, same, store, budget="4000").open_conversation(session)
    await start(tmp_path, "openai:gpt-5", other, store).open_conversation(session)

    assert notices(same) == []
    assert notices(other) == [
        "served answered in this conversation before; now openai:gpt-5 does. /model NAME switches"
    ]


# Conversations of other programs.


@pytest.mark.parametrize("format_name", ["openai-chat", "anthropic-messages"])
async def test_a_conversation_of_another_format_is_continued_as_a_copy(
    tmp_path: Path, served: Served, format_name: str
) -> None:
    store, screen = MemoryStore(), RecordingScreen()
    said = [{"role": "user", "content": "The tide turns at four."}, {"role": "assistant", "content": "Noted."}]
    async with Session.open("report", store=store) as session:
        await session.attach("notes.txt", "high water", format=format_name)
        await session.record(said, format=format_name)
    chat = start(tmp_path, served.model, screen, store, budget="4000")

    await chat.open_conversation("report")
    await chat.take_turn("When?")
    await chat.open_conversation("report")
    await chat.take_turn("And then?")
    await chat.close()

    assert [message["content"] for message in served.asked[-1] if message["role"] == "user"] == [
        "The tide turns at four.",
        "When?",
        "And then?",
    ]
    assert (chat.session.id, chat.session.attachments) == ("report-chat", ["notes.txt"])
    told = f"report holds {format_name} messages; the chat continues its copy report-chat"
    assert notices(screen) == [told, told]
    async with Session.open("report", store=store) as original:
        assert await original.messages() == said


class FullForSpeech(MemoryStore):
    """A store that has room for attachments, and for nothing that somebody says."""

    is_full = True

    async def append(self, session: str, records: Any, **options: Any) -> int:
        if self.is_full and session.endswith("-chat") and any(one["data"].get("name") is None for one in records):
            raise StoreUnavailableError("store", "the disk is full")
        return await super().append(session, records, **options)


async def test_a_copy_that_was_interrupted_is_completed(tmp_path: Path, served: Served) -> None:
    store, screen = FullForSpeech(), RecordingScreen()
    async with Session.open("report", store=store) as session:
        for name in ("notes.txt", "times.txt"):
            await session.attach(name, f"high water in {name}", format="openai-chat")
        await session.record([{"role": "user", "content": "The tide turns at four."}])
    chat = start(tmp_path, served.model, screen, store, budget="4000")
    with pytest.raises(StoreUnavailableError):
        await chat.open_conversation("report")
    attached = await store.length("report-chat")
    store.is_full = False

    await chat.open_conversation("report")

    assert (attached, chat.session.attachments, len(chat.session)) == (2, ["notes.txt", "times.txt"], 3)
    await chat.close()


async def test_a_copy_says_that_its_original_has_gone_on(tmp_path: Path, served: Served) -> None:
    store, screen = MemoryStore(), RecordingScreen()
    async with Session.open("report", store=store) as session:
        await session.record([{"role": "user", "content": "The tide turns at four."}])
    chat = start(tmp_path, served.model, screen, store, budget="4000")
    await chat.open_conversation("report")
    async with Session.open("report", store=store) as session:
        await session.record([{"role": "assistant", "content": "Noted."}, {"role": "user", "content": "At five."}])

    await chat.open_conversation("report")
    await chat.close()

    told = "report holds openai-chat messages; the chat continues its copy report-chat"
    assert notices(screen) == [
        told,
        told,
        "report has 2 messages that the copy lacks, because they came later; to continue with them instead, delete the"
        " copy first: holdfast sessions rm report-chat",
    ]


# Hints.


async def test_a_hint_to_resume_is_given_only_for_what_is_stored(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin dir" / "holdfast")])
    kept = start(tmp_path, served.model, RecordingScreen(), SqliteStore(tmp_path / "a.db"), budget="4000")
    passing = start(tmp_path, served.model, RecordingScreen(), budget="4000")
    hints: list[str] = []
    for chat in (kept, passing):
        await chat.open_conversation()
        hints.append(_describe_resuming(chat))
        await chat.take_turn("hello")
        hints.append(_describe_resuming(chat))
        await chat.close()

    program = f"'{tmp_path}/bin dir/holdfast'"
    assert hints == ["", f"; continue with: {program} chat --resume {kept.session.id}", "", ""]


def test_a_program_on_the_path_is_named_as_the_user_types_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "holdfast"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", str(tmp_path))

    assert program_name() == "holdfast"


def test_a_program_that_was_started_as_a_module_is_named_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/src/holdfast/__main__.py"])
    monkeypatch.setattr(sys, "executable", "/my env/bin/python")

    assert program_name() == "'/my env/bin/python' -m holdfast"


async def test_a_hint_to_resume_names_the_store_that_the_command_line_names(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/holdfast"])
    file = tmp_path / "other store.db"
    chat = start(
        tmp_path, served.model, RecordingScreen(), SqliteStore(file), budget="4000", store_url=f"sqlite:///{file}"
    )
    await chat.open_conversation()
    await chat.take_turn("hello")
    hint = _describe_resuming(chat)
    await chat.close()

    assert hint == f"; continue with: /opt/holdfast chat --resume {chat.session.id} --store 'sqlite:///{file}'"


# Servers of tools.


async def test_a_server_that_cannot_start_is_named_once_and_the_turns_go_on_without_it(
    tmp_path: Path, served: Served
) -> None:
    script = Path(__file__).with_name("mcp_tides.py")
    (tmp_path / "holdfast.toml").write_text(
        f'[mcp.gone]\ncommand = "/no/such/program"\n'
        f'[mcp.unset]\nurl = "https://mcp.example/${{NO_SUCH_VARIABLE}}"\n'
        f'[mcp.tides]\ncommand = "{sys.executable}"\nargs = ["{script}"]\n'
    )
    screen = RecordingScreen()
    chat = start(tmp_path, served.model, screen, budget="4000", tools="none")
    await chat.open_conversation()
    served.script += [tool_call_stream(("tides_high_water", {"port": "Cuxhaven"})), text_stream("At 04:12.")]

    outcomes = [await chat.take_turn("When?"), await chat.take_turn("And then?")]
    await chat.close()

    assert outcomes == ["done", "done"]
    assert served.tools[0] == ["tides_high_water"]
    named = [text.partition(" cannot start: ")[0] for text in notices(screen)]
    assert sorted(named) == ["the MCP server 'gone'", "the MCP server 'unset'"]


class SilentToolset(FunctionToolset[object]):
    """The tools of a server that takes requests and answers none."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    async def get_tools(self, ctx: RunContext[object]) -> dict[str, ToolsetTool[object]]:
        del ctx
        self.is_asked.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("is_interrupted", [False, True], ids=["too late", "interrupted"])
async def test_a_server_that_does_not_answer_holds_no_turn_and_is_started_again_for_the_next(
    monkeypatch: pytest.MonkeyPatch, *, is_interrupted: bool
) -> None:
    monkeypatch.setattr(agent, "MCP_START_SECONDS", 60 if is_interrupted else 0)
    happened: list[str] = []

    async def stop() -> None:
        happened.append("stopped")

    silent = SilentToolset()
    server = OptionalToolset(silent, "tides", happened.append, stop=stop)
    ctx = RunContext[object](deps=None, model=TestModel(), usage=RunUsage())

    async with server:
        asking = asyncio.create_task(server.get_tools(ctx))
        await silent.is_asked.wait()
        if is_interrupted:
            asking.cancel()
        (tools,) = await asyncio.gather(asking, return_exceptions=True)
        again = await server.get_tools(ctx)
    happened.append("next turn")
    async with server:
        pass

    reported = (
        "the MCP server 'tides' cannot start: it did not list its tools within 0 s; the turn goes on without its tools."
        " Check [mcp.tides] in the settings, or remove it"
    )
    assert happened == [*([] if is_interrupted else [reported]), "next turn", "stopped"]
    assert again == {}
    assert isinstance(tools, asyncio.CancelledError) if is_interrupted else tools == {}
