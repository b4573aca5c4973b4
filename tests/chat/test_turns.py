"""The turns of a chat: their requests, their limits, and what an interrupt leaves."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.apps.chat.agent import CLOSING_INSTRUCTION
from holdfast.apps.chat.attachments import PreparedPrompt
from holdfast.apps.chat.chat import Chat, describe_failure
from holdfast.apps.chat.events import (
    ChangeProposed,
    ChatEvent,
    ChatNotice,
    Consent,
    TextDelta,
    ThinkingDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEnded,
)
from holdfast.apps.chat.main import ChatOptions, _open_chat
from holdfast.apps.settings.sources import load_settings
from holdfast.errors import SettingsError
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import JsonMessage
from holdfast.testing.endpoint import sse_event, stream_response, text_chunk, text_stream, tool_call_stream
from holdfast.wire.validate.provider import validate
from tests.chat.conftest import Served
from tests.chat.recording_screen import RecordingScreen, reply_to, user_part

LOOK = ("list_files", {"path": "."})


class SilentUser(RecordingScreen):
    """A user who does not answer a question."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    async def ask_consent(self, question: str, *, has_always: bool = False) -> Consent:
        del question, has_always
        self.is_asked.set()
        await asyncio.Event().wait()
        raise AssertionError


class ThinkingUser(RecordingScreen):
    """A user who agrees to each question after everything else in the program has had its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def show(self, event: ChatEvent) -> None:
        if isinstance(event, ChangeProposed):
            self.seen.append(event.diff)

    async def ask_consent(self, question: str, *, has_always: bool = False) -> Consent:
        del has_always
        self.seen.append(question)
        for _ in range(10):  # one worker runs what all wait for, in order
            await asyncio.to_thread(len, question)
        self.seen.append("yes")
        return "yes"


async def chat_with(home: Path, model: str, screen: RecordingScreen, **flags: str) -> Chat:
    settings = load_settings(flags={"model": model, **flags}, cwd=home, environ={"HOLDFAST_HOME": str(home)})
    chat = Chat(settings, screen, folder=home, store=MemoryStore())
    await chat.open_conversation()
    return chat


def talk(messages: list[JsonMessage]) -> list[JsonMessage]:
    """Return messages without the system text."""
    return [message for message in messages if message["role"] != "system"]


@pytest.mark.seed("A-4", "A-5", "A-6")
@pytest.mark.parametrize("preset", ["default", "co-cli"])
async def test_a_conversation_begins_with_nothing_and_each_turn_is_given_what_the_ones_before_left(
    tmp_path: Path, served: Served, preset: str
) -> None:
    chat = await chat_with(tmp_path, served.model, RecordingScreen(), preset=preset)
    assert await chat.session.messages() == []

    await chat.take_turn("one")
    await chat.take_turn("two")
    await chat.open_conversation()
    assert await chat.session.messages() == []
    await chat.take_turn("three")
    await chat.close()

    assert [[message["content"] for message in talk(messages)] for messages in served.asked] == [
        ["one"], ["one", "you said: one", "two"], ["three"],
    ]  # fmt: skip


async def test_the_meter_counts_the_answer_of_the_last_turn_too(tmp_path: Path, served: Served) -> None:
    chat = await chat_with(tmp_path, served.model, RecordingScreen())

    await chat.take_turn("one " * 500)

    contents = await chat.session.context_breakdown()
    assert (chat.status.tokens, chat.status.budget) == (contents.total, contents.capacity)
    assert contents.messages == 2
    await chat.close()


async def test_a_question_comes_after_the_answer_to_the_one_before(tmp_path: Path, served: Served) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
    screen = ThinkingUser()
    chat = await chat_with(tmp_path, served.model, screen)
    served.script.append(
        tool_call_stream(
            ("run_command", {"command": "true"}), ("write_file", {"path": "tides.txt", "text": "nine o'clock"})
        )
    )

    await chat.take_turn("Run it, and write.")
    await chat.close()

    asked_to_run = ["Run: true", "yes"]
    asked_to_write = ["+nine o'clock", "Create tides.txt (+1 −0 lines); always means every change", "yes"]
    assert screen.seen in (asked_to_run + asked_to_write, asked_to_write + asked_to_run)


@pytest.mark.seed("A-7", "A-33", "A-34", "A-35", "A-36")
@pytest.mark.parametrize("preset", ["default", "co-cli"])
async def test_an_interrupt_among_tools_answers_each_open_call_and_the_next_turn_begins(
    tmp_path: Path, served: Served, preset: str
) -> None:
    screen = SilentUser()
    chat = await chat_with(tmp_path, served.model, screen, preset=preset, tools="run")
    served.script.append(
        tool_call_stream(("run_command", {"command": "make a"}), ("run_command", {"command": "make b"}))
    )
    turn = asyncio.create_task(chat.take_turn("Build both."))
    await screen.is_asked.wait()

    assert chat.interrupt()
    assert await turn == "interrupted"
    assert await chat.take_turn("Leave it.") == "done"
    await chat.close()

    asked = served.asked[-1]
    assert validate(asked, "openai") == []
    assert [message["content"] for message in asked if message["role"] == "tool"] == ["Interrupted by user."] * 2
    assert asked[-1]["content"] == "Leave it."


@pytest.mark.seed("D-2", "D-6")
async def test_a_turn_takes_no_more_steps_than_it_may_and_closes_with_an_answer(tmp_path: Path, served: Served) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen, max_steps="3")
    served.script += [
        tool_call_stream(LOOK),
        tool_call_stream(LOOK),
        tool_call_stream(LOOK),
        text_stream("That is all I found."),
    ]

    assert await chat.take_turn("Look around.") == "done"
    await chat.close()

    assert [one.requests for one in screen.events if isinstance(one, TurnEnded)] == [4]
    assert [CLOSING_INSTRUCTION.format(steps=3) in str(messages) for messages in served.asked] == [
        False,
        False,
        False,
        True,
    ]


@pytest.mark.seed("D-6")
async def test_a_model_that_goes_on_calling_is_stopped(tmp_path: Path, served: Served) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen, preset="cowagent")
    served.script += [tool_call_stream(LOOK) for _ in range(40)]

    assert await chat.take_turn("Look around.") == "failed"
    await chat.close()

    assert len(served.asked) == 15 + 2
    assert any("stopped after 15 steps" in one.text for one in screen.events if isinstance(one, ChatNotice))


@pytest.mark.seed("D-16")
@pytest.mark.parametrize(("preset", "goes_on"), [("cowagent", True), ("default", False)])
async def test_cowagent_goes_on_with_the_last_conversation_by_itself(
    tmp_path: Path, preset: str, *, goes_on: bool
) -> None:
    flags = {"model": "gpt-5", "preset": preset, "store": f"sqlite:///{tmp_path}/chats.db"}
    settings = load_settings(flags=flags, cwd=tmp_path, environ={"HOLDFAST_HOME": str(tmp_path)})
    prompt = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "hello"}]}
    async with _open_chat(settings, RecordingScreen(), ChatOptions()) as chat:
        await chat.session.record([prompt], format="pydantic-ai")
        first = chat.session.id

    async with _open_chat(settings, RecordingScreen(), ChatOptions()) as chat:
        assert (chat.session.id == first) is goes_on
    async with _open_chat(settings, RecordingScreen(), ChatOptions(is_once=True)) as chat:
        assert chat.session.id != first


@pytest.mark.seed("A-40")
async def test_a_compaction_without_a_summary_leaves_a_conversation_as_it_was(tmp_path: Path, served: Served) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen, preset="co-cli")
    nothing = await reply_to(chat, screen, "/compact")
    await chat.take_turn("one")
    await chat.take_turn("two")
    before = await chat.session.messages()
    served.answer = lambda _: ""

    failed = await reply_to(chat, screen, "/compact")

    assert "nothing" in nothing
    assert failed
    assert await chat.session.messages() == before
    assert [entry.message.text for entry in await chat.session.visible_messages()] == [
        "one", "you said: one", "two", "you said: two",
    ]  # fmt: skip
    await chat.close()


async def test_a_prompt_with_invisible_joiners_gives_the_conversation_its_title(tmp_path: Path, served: Served) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen)

    outcome = await chat.take_turn("می\u200cخواهم 👩\u200d👧\n  tea")
    [info] = await chat.store.sessions()

    assert (outcome, info.name) == ("done", "می خواهم 👩 👧 tea")
    assert chat.status.tokens == (await chat.context_report()).total


class PhaseScreen(RecordingScreen):
    """A screen that also calls back on each event."""

    def __init__(self, other: RecordingScreen, callback: Callable[[], None]) -> None:
        super().__init__()
        self.events = other.events
        self._callback = callback

    def show(self, event: ChatEvent) -> None:
        super().show(event)
        self._callback()


def reasoning_chunk(text: str) -> str:
    return sse_event({"model": "served", "choices": [{"index": 0, "delta": {"reasoning_content": text}}]})


async def test_what_a_model_thinks_is_an_event_and_no_text_is_held_back_when_it_calls_a_tool(
    tmp_path: Path, served: Served
) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen, max_context_tokens="9000")
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "list_files"}}
    delta = {
        "model": "served",
        "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}],
    }
    served.script += [
        stream_response(
            reasoning_chunk("Let me "), reasoning_chunk("see."), text_chunk("I look [Art"), sse_event(delta)
        ),
        text_stream("An empty folder."),
    ]
    phases: list[str] = []
    chat.screen = PhaseScreen(screen, lambda: phases.append(chat.activity.what if chat.activity else ""))

    assert await chat.take_turn("Look around.") == "done"
    await chat.close()

    assert [(event, phase.split()[0]) for event, phase in zip(screen.events, phases, strict=True)][:-1] == [
        (ThinkingDelta("Let me "), "thinking"),
        (ThinkingDelta("see."), "thinking"),
        (TextDelta("I look "), "writing"),
        (TextDelta("[Art"), "writing"),
        (ToolCallStarted("c1", "list_files", ""), "running"),
        (ToolCallFinished("c1", "list_files", "nothing in . matches *"), "reading"),
        (TextDelta("An empty folder."), "writing"),
    ]


@pytest.mark.parametrize(
    ("prompt", "outcome", "said"),
    [
        ("\0\1\2\3\4\5\6\7\x08", "failed", "this is binary data, not text: save it as a file and ask about the file"),
        ("tea\0 please", "done", "control characters were removed"),
        ("see @nosuch.txt", "done", "no such file, so nothing is attached for it: @nosuch.txt"),
    ],
)
async def test_a_prompt_that_is_not_sent_as_it_was_typed_is_told_why(
    tmp_path: Path, served: Served, prompt: str, outcome: str, said: str
) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen, max_context_tokens="9000")

    assert await chat.take_turn(prompt) == outcome
    await chat.close()

    assert [event.text for event in screen.events if isinstance(event, ChatNotice)] == [said]


async def test_retry_sends_what_was_never_recorded_and_a_prompt_without_an_answer(
    tmp_path: Path, served: Served
) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen, max_context_tokens="9000")
    chat.unrecorded_prompt = PreparedPrompt("one")

    await reply_to(chat, screen, "/retry")
    await chat.session.record([{"kind": "request", "parts": [user_part("two")]}], format="pydantic-ai")
    await reply_to(chat, screen, "/retry")
    exchange = await chat.last_exchange()
    await chat.session.rewind(to=0)
    await chat.session.record(
        [{"kind": "response", "parts": [{"part_kind": "text", "content": "Hello."}]}], format="pydantic-ai"
    )
    alone = await chat.last_exchange()
    await chat.close()

    assert served.prompts == ["one", "two"]
    assert exchange == ("two", "you said: two")
    assert alone == ("", "Hello.")


async def test_without_a_board_a_conversation_begins_with_the_prompt_alone(tmp_path: Path, served: Served) -> None:
    chat = await chat_with(tmp_path, served.model, RecordingScreen(), boards="off")

    await chat.take_turn("one")
    await chat.close()

    assert [message["content"] for message in talk(served.asked[0])] == ["one"]


async def test_a_chat_without_a_conversation_says_so_and_has_nothing_to_stop(tmp_path: Path) -> None:
    settings = load_settings(flags={"model": "gpt-5"}, cwd=tmp_path, environ={"HOLDFAST_HOME": str(tmp_path)})
    chat = Chat(settings, RecordingScreen(), folder=tmp_path, store=MemoryStore())

    assert not chat.interrupt()
    with pytest.raises(SettingsError, match="session: none is open yet"):
        _ = chat.session
    await chat.close()


class MCPError(Exception):
    """As the client of MCP servers raises it."""


def test_the_failure_of_an_mcp_server_is_told_as_one() -> None:
    assert describe_failure(MCPError("no such tool"), "gpt-5") == (
        "an MCP server failed: no such tool; check [mcp] in the settings, or remove the server"
    )


async def test_a_model_that_calls_a_tool_wrongly_ends_the_turn_in_words_for_users(
    tmp_path: Path, served: Served
) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen)
    served.script += [tool_call_stream(("read_file", {"file": "tides.txt"})) for _ in range(5)]

    outcome = await chat.take_turn("Read it.")
    await chat.close()

    told = [event.text for event in screen.events if isinstance(event, ChatNotice)][-1]
    assert (outcome, told) == (
        "failed",
        "served: it called the tool read_file wrongly again and again, so the turn was stopped; ask again, or choose"
        " another model\nNothing is lost; /retry sends the prompt again.",
    )
