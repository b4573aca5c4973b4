"""What is clipped, and what stays the same object."""

from holdfast.core.conversation.messages import Message, Text, user
from holdfast.core.conversation.shorten import clip_user_texts

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
