"""Values of the viewer's pages that no conversation of the other tests holds."""

import pytest

from holdfast.apps.viewer.message_values import PartValue, part_values
from holdfast.apps.viewer.rendering import load_templates, short_number, static_file
from holdfast.core.conversation.messages import Media, Opaque, Text, Thinking, ToolResult


def test_every_kind_of_part_has_a_text() -> None:
    image = Media("image", "user", 1_200)
    parts = (
        Thinking(text="hm"),
        Thinking(text=""),
        ToolResult(call_id="c1", content=(Text("seen", "tool"), image)),
        image,
        Opaque("citation", "page 3", "model"),
    )

    assert part_values(parts, None) == (
        PartValue("thinking", "hm"),
        PartValue("thinking", "(encrypted)"),
        PartValue("result", "seen\n[image]", "", "c1"),
        PartValue("media", "image, about 1,200 tokens"),
        PartValue("other", "page 3", "citation"),
    )


@pytest.mark.parametrize(("number", "text"), [(None, "–"), (980, "980"), (15_400, "15.4k"), (1_200_000, "1.2M")])
def test_a_number_is_short(number: int | None, text: str) -> None:
    assert short_number(number) == text


def test_all_templates_can_be_compiled_and_an_unknown_file_is_none() -> None:
    load_templates()

    assert static_file("nothing.css") is None
