"""Notes on tool results that only repeat compacted content."""

from holdfast.core.conversation.messages import Media, Message, Text, ToolResult
from holdfast.core.history.read_notes import add_read_notes


def test_a_note_follows_the_last_words_of_its_result_and_is_nowhere_else() -> None:
    shown = ToolResult("a", (Text("def f(): ...", "tool"), Media("image", "tool")))
    silent, other = ToolResult("b", (Media("image", "tool"),)), ToolResult("c", (Text("ok", "tool"),))
    message = Message("user", (shown, silent, other, Text("so?", "user")))

    noted = add_read_notes(message, (("a", "[Unchanged]"), ("b", "[Unchanged]")))

    assert noted.parts == (
        ToolResult("a", (Text("def f(): ...\n[Unchanged]", "tool"), Media("image", "tool"))),
        silent,
        other,
        Text("so?", "user"),
    )
    assert add_read_notes(message, ()) is message
