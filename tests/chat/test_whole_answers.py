"""A cut answer is said to be cut, a stalled one ends, and a failed prompt leaves no trace in the next request."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.dispatch import submit_line
from holdfast.apps.chat.events import ChatNotice, ConversationCompacted, TurnEnded
from holdfast.apps.settings.sources import load_settings
from holdfast.core.history.events import CompactionStarted
from holdfast.stores.memory import MemoryStore
from holdfast.testing.endpoint import (
    ResponsePiece,
    http_response,
    sse_event,
    stream_response,
    text_chunk,
    text_stream,
)
from tests.chat.conftest import Served
from tests.chat.recording_screen import RecordingScreen, add_turns, open_chat, reply_to

DONE = sse_event("[DONE]")
BROKEN = http_response(500, {"error": {"message": "the server failed"}})


async def chat_with(home: Path, served: Served, screen: RecordingScreen, **flags: str) -> Chat:
    flags = {"model": served.model, **flags}
    settings = load_settings(flags=flags, cwd=home, environ={"HOLDFAST_HOME": str(home)})
    chat = Chat(settings, screen, folder=home, store=MemoryStore())
    await chat.open_conversation()
    return chat


def notices(screen: RecordingScreen) -> list[str]:
    return [event.text for event in screen.events if isinstance(event, ChatNotice)]


def users(messages: Sequence[object]) -> list[object]:
    return [message["content"] for message in messages if isinstance(message, dict) and message["role"] == "user"]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (
            stream_response(text_chunk("half an"), text_chunk(finish="length"), DONE),
            "the answer reached the model's output limit and is cut; say “go on” for the rest",
        ),
        (
            stream_response(text_chunk("half an"), text_chunk(finish="content_filter"), DONE),
            "the provider's content filter stopped the answer; it is cut",
        ),
        (
            stream_response(text_chunk("half an"), DONE),
            "the stream ended without a finish reason, so the answer may be cut; /retry asks again",
        ),
    ],
    ids=["length", "content filter", "no finish reason"],
)
async def test_an_answer_that_is_not_whole_is_said_to_be_cut(
    tmp_path: Path, served: Served, reply: list[ResponsePiece], said: str
) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served, screen)
    served.script.append(reply)

    assert await chat.take_turn("Go.") == "cut"
    assert await chat.take_turn("And now?") == "done"
    await chat.close()

    assert notices(screen) == [said]
    assert [event.outcome for event in screen.events if isinstance(event, TurnEnded)] == ["cut", "done"]


async def test_a_stalled_answer_ends_after_the_idle_time_and_can_be_asked_for_again(
    tmp_path: Path, served: Served
) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served, screen, idle_seconds="1")
    served.script.append([*stream_response(text_chunk("half an"))[:-1], None])

    assert await chat.take_turn("Go.") == "failed"
    await reply_to(chat, screen, "/retry")
    await chat.close()

    assert "check the address and the network, then ask again" in notices(screen)[0]
    assert "It sent nothing for 1 s; /config idle_seconds changes this limit\nNothing is lost" in notices(screen)[0]
    assert [users(messages) for messages in served.asked] == [["Go."], ["Go."]]


async def test_prompts_that_failed_do_not_pile_up_in_the_context(tmp_path: Path, served: Served) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served, screen)
    await chat.take_turn("one")
    for prompt in ("two", "three"):
        served.script += [BROKEN] * 3
        assert await chat.take_turn(prompt) == "failed"
    await chat.take_turn("four")
    undone = await reply_to(chat, screen, "/undo")
    await chat.close()

    assert users(served.asked[-1]) == ["one", "four"]
    assert len(chat.session) == 6
    left = "the prompt before this one had no answer and left the context; /undo brings it back"
    assert notices(screen).count(left) == 2
    assert undone.startswith("undone: the rewind to before message 3; 2 newer messages left the context")


async def test_a_prompt_that_was_interrupted_stays_in_the_context_also_after_a_restart(
    tmp_path: Path, served: Served
) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served, screen)
    await chat.session.record([{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Wait."}]}],
                              format="pydantic-ai")  # fmt: skip
    await chat.session.interrupt()
    await chat.open_conversation(chat.session.id)

    await chat.take_turn("Go on.")
    await chat.close()

    assert users(served.asked[-1]) == ["Wait.", "Go on."]


@pytest.mark.seed("C-50")
async def test_a_compaction_stands_in_the_transcript_when_it_happens(tmp_path: Path, served: Served) -> None:
    served.answer = lambda prompt: f"answer to {prompt[:11]}: " + "because of the tide. " * 20
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served, screen, budget="1500", tools="none", summarization_model="none")
    for number in range(12):
        await chat.take_turn(f"question {number}? " + "Why is that so? " * 8)
    shown = [event for event in screen.events if isinstance(event, ConversationCompacted)]
    made = [event for event in await chat.session.receipts() if event.compaction]
    await chat.close()

    assert len(shown) == len(made) > 0
    assert str(shown[0]).startswith("Conversation Compacted: ")
    first = screen.events.index(shown[0])
    assert any(isinstance(event, TurnEnded) for event in screen.events[first:])


async def test_an_undone_compaction_brings_back_the_one_before_and_does_not_tell_it_again(
    tmp_path: Path, served: Served
) -> None:
    served.answer = lambda prompt: f"answer to {prompt[:11]}: " + "because of the tide. " * 20
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served, screen, budget="1500", tools="none", summarization_model="none")
    for number in range(12):
        await chat.take_turn(f"question {number}? " + "Why is that so? " * 8)
    start = len(screen.events)
    undone, redone = await submit_line(chat, "/undo"), await submit_line(chat, "/redo")
    told = screen.events[start:]
    await chat.close()

    assert (undone, redone) == ("done", "done")
    assert screen.since(start).startswith("undone: the compaction of")
    assert "applied again: the compaction of" in screen.since(start)
    assert [event for event in told if isinstance(event, ConversationCompacted)] == []


async def test_a_compaction_on_request_stands_in_the_transcript_once(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"max_context_tokens": "4000", "summarization_model": "none"})
    await add_turns(chat, 12)

    await reply_to(chat, screen, "/compact")
    await reply_to(chat, screen, "/context")
    await chat.close()

    assert len([event for event in screen.events if isinstance(event, ConversationCompacted)]) == 1


async def test_a_focus_that_ended_in_a_digest_says_why(tmp_path: Path, served: Served) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served, screen, budget="6000")
    for number in range(12):
        await chat.take_turn(f"question {number}? " + "Why is that so? " * 30)
    served.script += [http_response(400, {"error": {"message": "the summary is refused"}})] * 4

    said = await reply_to(chat, screen, "/compact the tides")
    await chat.close()

    assert ", by rule\nthis is a digest, because " in said


@pytest.mark.seed("C-4")
async def test_the_focus_of_a_compaction_reaches_the_summarizer(tmp_path: Path, served: Served) -> None:
    chat = await chat_with(tmp_path, served, RecordingScreen(), budget="6000")
    for number in range(12):
        await chat.take_turn(f"question {number}? " + "Why is that so? " * 30)

    await reply_to(chat, RecordingScreen(), "/compact the tides")
    started = [event for event in await chat.session.events() if isinstance(event, CompactionStarted)]
    await chat.close()

    assert [event.custom_instructions for event in started if event.trigger == "manual"] == ["the tides"]
    assert any("\nthe tides\n" in prompt for prompt in served.prompts)


@pytest.mark.seed("A-1", "A-2")
@pytest.mark.parametrize(("preset", "has_recall"), [("default", True), ("co-cli", False)])
async def test_a_co_cli_chat_has_its_two_processors_and_no_recall_tool(
    tmp_path: Path, served: Served, preset: str, *, has_recall: bool
) -> None:
    served.answer = lambda prompt: f"answer to {prompt[:11]}: " + "because of the tide. " * 40
    chat = await chat_with(tmp_path, served, RecordingScreen(), preset=preset, budget="4000", max_history_messages="6")
    for number in range(12):
        await chat.take_turn(f"question {number}? " + "Why is that so? " * 20)
    await chat.close()

    assert ("recall" in served.tools[-1]) is has_recall
    assert "list_files" in served.tools[-1]


@pytest.mark.seed("A-38")
async def test_an_inbox_note_is_no_turn(tmp_path: Path, served: Served) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served, screen, preset="co-cli")
    await reply_to(chat, screen, "/board add The tide turns at four.")
    await chat.take_turn("When?")

    said = await reply_to(chat, screen, "/history")
    await chat.close()

    assert said == "1 turn, 3 messages; 3 are in the log"


async def test_undo_and_redo_say_what_they_did_and_undo_after_a_retry_brings_the_first_answer_back(
    tmp_path: Path, served: Served
) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served, screen)
    served.script += [text_stream("first"), text_stream("second")]
    await chat.take_turn("Which?")
    await reply_to(chat, screen, "/retry")
    said = [await reply_to(chat, screen, "/undo")]
    texts = [entry.message.text for entry in await chat.session.visible_messages()]
    await reply_to(chat, screen, "/clear")
    said += [await reply_to(chat, screen, command) for command in ("/undo", "/redo")]
    await chat.close()

    assert texts == ["Which?", "first"]
    assert said == [
        "undone: the rewind to before message 1; 1 newer message left the context; /undo reverts that",
        "undone: the clear; /redo applies it again",
        "applied again: the clear",
    ]


async def test_a_bare_pin_takes_the_newest_prompt_that_is_still_in_the_context(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 3)
    await reply_to(chat, screen, "/rewind 2")

    said = await reply_to(chat, screen, "/pin")
    await chat.close()

    assert said == "message 0 stays whole"
