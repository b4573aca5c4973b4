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
        "*Context cleared*",
        "**user**",
        "hello",
    ]


def test_an_empty_conversation_says_so() -> None:
    assert render_transcript([]) == "there are no messages yet"
