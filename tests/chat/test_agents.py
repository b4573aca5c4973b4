"""Agents in the chat: defined in the settings, used by the model, and shown to the user."""

import json
from pathlib import Path

import pytest

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.events import TextDelta, ToolCallFinished, TurnEnded
from holdfast.apps.chat.turn import ReferenceFilter
from holdfast.apps.settings.sources import load_settings
from holdfast.core.history.scopes import DelegateFinding
from holdfast.core.history.visibility import Visibility
from holdfast.stores.memory import MemoryStore
from holdfast.testing.endpoint import ResponsePiece, http_response, text_stream, tool_call_stream
from tests.chat.conftest import Served
from tests.chat.recording_screen import RecordingScreen, open_chat, reply_to, user_part

SETTINGS = """
[agents.looker]
description = "looks things up"
instructions = "You look."
sees = "nothing"
"""


def whole(text: str) -> list[ResponsePiece]:
    """Return an answer in one piece, as a sub-agent gets it."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    body = {
        "id": "r1",
        "object": "chat.completion",
        "created": 1,
        "model": "served",
        "choices": [choice],
        "usage": usage,
    }
    return http_response(200, body)


def tool_call_body(name: str, arguments: dict[str, object]) -> list[ResponsePiece]:
    """Return an answer in one piece that calls a tool."""
    call = {"id": "i1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    body = {"id": "r1", "object": "chat.completion", "created": 1, "model": "served", "choices": [choice]}
    return http_response(200, body)


async def chat_with(home: Path, model: str, text: str = SETTINGS) -> tuple[Chat, RecordingScreen]:
    (home / "holdfast.toml").write_text(text)
    screen = RecordingScreen()
    settings = load_settings(flags={"model": model}, cwd=home, environ={"HOLDFAST_HOME": str(home)})
    chat = Chat(settings, screen, folder=home, store=MemoryStore())
    await chat.open_conversation()
    return chat, screen


async def test_the_model_asks_an_agent_and_the_person_sees_what_that_one_saw(tmp_path: Path, served: Served) -> None:
    chat, screen = await chat_with(tmp_path, served.model)
    task = {"agent": "looker", "task": "Find the tide table."}
    served.script += [tool_call_stream(("delegate", task)), whole("It is in notes.txt."), text_stream("In notes.txt.")]

    outcome = await chat.take_turn("Where is the tide table? My name is Ada.")

    assert outcome == "done"
    assert "".join(one.text for one in screen.events if isinstance(one, TextDelta)) == "In notes.txt."
    assert [one.result for one in screen.events if isinstance(one, ToolCallFinished)] == ["It is in notes.txt."]
    assert [one.requests for one in screen.events if isinstance(one, TurnEnded)] == [2]
    assert [message["content"] for message in served.asked[1]] == ["You look.", "Find the tide table."]
    listed = await reply_to(chat, screen, "/agents")
    assert "looker | " in listed
    assert "1 | looker | answered | Find the tide table. | nothing" in listed
    about = await reply_to(chat, screen, "/agents 1")
    assert "Answer: It is in notes.txt." in about
    assert "Saw nothing; 1 request, 2 messages of its own." in about
    await chat.close()


@pytest.mark.seed("B-18")
@pytest.mark.parametrize(("preset", "is_seen"), [("inkeep", True), ("default", False)])
async def test_the_preset_says_what_the_main_agent_sees_of_an_agent_in_the_settings(
    tmp_path: Path, served: Served, preset: str, *, is_seen: bool
) -> None:
    (tmp_path / "tides.txt").write_text("high water at noon")
    settings = f'preset = "{preset}"\n{SETTINGS}tools = ["read"]\n'
    chat, _ = await chat_with(tmp_path, served.model, settings)
    read = tool_call_body("read_file", {"path": "tides.txt"})
    task = {"agent": "looker", "task": "Find the tide table."}
    served.script += [tool_call_stream(("delegate", task)), read, whole("At noon."), text_stream("Noon.")]

    await chat.take_turn("When is high water?")
    served.script += [text_stream("Yes.")]
    await chat.take_turn("Are you sure?")
    await chat.close()

    assert ("high water at noon" in str(served.asked[-1])) is is_seen


async def test_an_agent_that_fails_does_not_end_the_turn(tmp_path: Path, served: Served) -> None:
    chat, screen = await chat_with(tmp_path, served.model)
    failing = http_response(400, {"error": {"message": "no such thing"}})
    served.script += [
        tool_call_stream(("delegate", {"agent": "looker", "task": "x"})),
        failing,
        text_stream("I go on alone."),
    ]

    outcome = await chat.take_turn("Go.")

    assert outcome == "done"
    (ended,) = [one.result for one in screen.events if isinstance(one, ToolCallFinished)]
    assert ended.startswith("looker has not answered: Model")
    assert "1 | looker | failed | x | nothing" in await reply_to(chat, screen, "/agents")
    assert "No answer: Model" in await reply_to(chat, screen, "/agents 1")
    await chat.close()


async def test_without_agents_there_is_nobody_to_ask(tmp_path: Path, served: Served) -> None:
    chat, screen = await chat_with(tmp_path, served.model, "")

    assert (
        await reply_to(chat, screen, "/agents") == "there are no agents; define them in the settings, as [agents.NAME]"
    )
    assert await reply_to(chat, screen, "/agents 3") == "/agents: there is no task 3; /agents lists them"
    await chat.close()


REFERENCE = '[Artifact: "run" (id: compress_run_c1_0) | description: {} | summary: x]'


@pytest.mark.seed("B-16")
@pytest.mark.parametrize("size", [1, 3, 7, 1_000])
def test_what_stands_for_a_tools_output_is_not_shown_as_an_answer(size: int) -> None:
    text = f"Three [tests] fail.\n{REFERENCE}\nSee [Art] and [Artifact: none.\n[Artifacts] too. {REFERENCE}"
    references = ReferenceFilter()

    shown = "".join(references.feed(text[at : at + size]) for at in range(0, len(text), size)) + references.flush()

    assert shown == "Three [tests] fail.\n\nSee [Art] and [Artifact: none.\n[Artifacts] too. "


async def test_a_task_that_is_not_there_is_told_so_and_a_model_without_tools_too(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"model": "embedded"})

    shown = [await reply_to(chat, screen, line) for line in ("/agents 9", "/agents nine", "/agents")]
    await chat.close()

    assert shown == [
        "/agents: there is no task 9; /agents lists them",
        "/agents: takes the number of a task; /agents lists them",
        "the embedded model has no tools and cannot delegate; /model NAME chooses another",
    ]


async def test_a_task_is_shown_with_its_briefing_its_findings_and_their_sources(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await chat.session.record([{"kind": "request", "parts": [user_part("Read src/totals.py.")]}], format="pydantic-ai")
    sees = Visibility(ledger=True)
    finding = DelegateFinding(claim="A cent is lost.", sources=("src/totals.py",))
    async with chat.session.delegate("checker", task="Check src/totals.py.", sees=sees) as child:
        await child.answer("See there.", findings=[finding])

    shown = await reply_to(chat, screen, "/agents 1")
    await chat.close()

    assert shown.split("\n\n") == [
        "**checker** (answered), delegated by main",
        "Task: Check src/totals.py.",
        "Saw a briefing about the rest; 0 requests, 2 messages of its own.",
        "Briefing:",
        "[Ledger of earlier messages, made by rule, for reference only; #n is where a line comes from.]\n"
        "Identifiers used so far, most likely needed first:\nsrc/totals.py",
        "Answer: See there.",
        "Findings:",
        "- A cent is lost. [src/totals.py] (uncertain)",
        "Sources: src/totals.py",
    ]
