"""What is clipped, and what stays the same object."""

import pytest

from holdfast import govern, validate
from holdfast.core.conversation.messages import Message, Text, ToolResult, user
from holdfast.core.conversation.shorten import clip_outputs, clip_user_texts
from holdfast.core.planning.policy import PRESETS
from holdfast.testing.chat import tool_call_message, tool_result_message, user_message

LONG = "x" * 500


def test_only_the_long_texts_of_a_user_are_clipped() -> None:
    message = Message("user", (Text("short", "user"), Text(LONG, "user")))

    short, clipped = clip_user_texts(message, 200).parts

    assert short is message.parts[0]
    assert isinstance(clipped, Text)
    assert (len(clipped.text) <= 200, clipped.text[:10]) == (True, "x" * 10)


def test_a_message_with_nothing_to_clip_is_returned_itself() -> None:
    brief, answer = user("short"), Message("assistant", (Text(LONG, "model"),))

    assert clip_user_texts(brief, 200) is brief
    assert clip_user_texts(answer, 200) is answer


def test_an_output_of_several_texts_keeps_its_beginning_and_its_end_with_one_notice() -> None:
    rows = tuple(Text(letter * 50, "tool", {"type": "text"}) for letter in "abcdefghij")
    message = Message("tool", (ToolResult("c", rows),))

    (clipped,) = clip_outputs(message, 200).results
    texts = [part.text for part in clipped.content if isinstance(part, Text)]

    notice = "\n[… 348 characters cut …]\n"
    assert texts == ["a" * 50, "b" * 50, "c" + notice, "i", "j" * 50]
    assert sum(map(len, texts)) <= 200
    assert clipped.content[0] is rows[0]
    assert clip_outputs(Message("tool", (clipped,)), 200).results[0] is clipped


@pytest.mark.parametrize("policy", PRESETS)
def test_a_newest_output_of_very_many_texts_is_clipped_until_it_fits(policy: str) -> None:
    rows = [{"type": "text", "text": f"row {number} of what was found, with its own text"} for number in range(5_000)]
    talk = [user_message("Find it."), tool_call_message("c"), {**tool_result_message("c"), "content": rows}]

    request = govern(talk, budget=16_000, model="gpt-4o", policy=policy)

    assert validate(request.messages, "openai") == []
    assert request.messages[:2] == talk[:2]
    assert (request.messages[2]["content"][0], request.messages[2]["content"][-1]) == (rows[0], rows[-1])
    assert request.receipt.clipped == (2,)
