"""Values of the viewer's pages that no conversation of the other tests holds."""

import copy
from typing import Any

import pytest

from holdfast.apps.viewer.message_values import PartValue, part_values
from holdfast.apps.viewer.rendering import load_templates, short_number, static_file
from holdfast.core.conversation.messages import Media, Opaque, Text, Thinking, ToolResult
from holdfast.stores.memory import MemoryStore
from tests.viewer.visiting import record_conversation, visiting


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


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "–"),
        (980, "980"),
        (15_400, "15.4k"),
        (151_499, "151k"),
        (1_200_000, "1.2M"),
        pytest.param(10**309, f"{10**303}M", id="large"),
        (-5, "-5"),
    ],
)
def test_a_number_is_short(number: int | None, text: str) -> None:
    assert short_number(number) == text


def test_all_templates_can_be_compiled_and_an_unknown_file_is_none() -> None:
    load_templates()

    assert static_file("nothing.css") is None


DAMAGED_NUMBERS = {
    "request.prepared": (("situation", "budget"), ("situation", "systemTokens"), ("situation", "toolsTokens")),
    "message.appended": (("usage", "inputTokens"), ("usage", "outputTokens")),
    "session.compaction_complete": (("effect", "requestTokensBefore"), ("effect", "requestTokensAfter")),
}


@pytest.mark.parametrize("number", [10**309, -(10**309)], ids=["large", "negative"])
@pytest.mark.parametrize(("kind", "place"), [(kind, place) for kind, all_ in DAMAGED_NUMBERS.items() for place in all_])
async def test_a_number_that_no_float_can_hold_keeps_no_page_from_being_shown(
    kind: str, place: tuple[str, str], number: int
) -> None:
    store, damaged = MemoryStore(), MemoryStore()
    await record_conversation(store, turns=3, budget=500)
    for one in await store.read("report"):
        record: Any = copy.deepcopy(one.record)
        values = record["data"].get(place[0]) if record["type"] == kind else None
        if values and place[1] in values:
            values[place[1]] = number
        await damaged.append("report", [record], after=one.position, time_ms=one.time_ms)

    async with visiting(damaged) as browser:
        paths = ["/", "/s/report", "/s/report/plot", "/s/report/requests/6", "/s/report/changes/1", "/s/report/export"]
        found = {path: (await browser.get(path)).status_code for path in paths}

    assert set(found.values()) == {200}, found
