"""A conversation as Markdown."""

import pytest

from holdfast import Session
from holdfast.apps.chat.commands.sessions import render_transcript


@pytest.mark.seed("C-50")
async def test_a_transcript_tells_what_was_said_and_what_became_of_it() -> None:
    async with Session.open("s", model="gpt-5") as session:
        for number in range(4):
            await session.record([{"role": "user", "content": f"question {number} " + "why " * 60}])
            await session.record([{"role": "assistant", "content": "because " * 60}])
        done = await session.compact(budget=1_000)
        await session.undo()
        await session.redo()
        await session.clear()
        await session.record([{"role": "user", "content": "hello"}])

        text = render_transcript(await session.events())

    before, after = done.request_tokens
    assert text.startswith("**user**\n\nquestion 0 why")
    assert text.split("because \n\n")[-1].split("\n\n") == [
        "---",
        f"*Conversation Compacted: {before:,} → {after:,} tokens*",
        "---",
        "*The last change of context was undone*",
        "---",
        "*The change that was undone last was applied again*",
        "---",
        "*Context cleared*",
        "**user**",
        "hello",
    ]


async def test_a_transcript_holds_tool_calls_the_beginning_of_their_results_and_what_was_stopped_or_rewound() -> None:
    function = {"name": "look", "arguments": '{"at": "tides"}'}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    async with Session.open("s", model="gpt-5") as session:
        await session.record([{"role": "user", "content": "look"}, call])
        await session.record([{"role": "tool", "tool_call_id": "c", "content": "first\n" + "x" * 700}])
        await session.interrupt()
        await session.rewind(to=0)

        text = render_transcript(await session.events())

    assert text.split("\n\n") == [
        "**user**",
        "look",
        '*look* `{"at": "tides"}`',
        f"    first\n    {'x' * 594}\n    … 106 more characters",
        "*Interrupted*",
        "---",
        "*Rewound to before message 0*",
    ]


def test_an_empty_conversation_says_so() -> None:
    assert render_transcript([]) == "there are no messages yet"
