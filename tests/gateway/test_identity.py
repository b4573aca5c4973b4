"""What a client's words say about the purpose of a request."""

import pytest

from holdfast.apps.gateway.recording.identity import MIN_ORDER_CHARS, AnswerIndex, orders_a_summary
from holdfast.stores.memory import MemoryStore

ORDER = "Your task is to create a detailed summary of the conversation so far, for the next session. "


@pytest.mark.parametrize(
    ("text", "is_order"),
    [
        (ORDER * 40, True),
        (ORDER, False),
        ("Please go on with the parser, and run the tests. " * 80, False),
    ],
    ids=["an order", "too short", "about something else"],
)
def test_a_long_order_for_a_summary_is_told_from_other_prompts(text: str, is_order: bool) -> None:  # noqa: FBT001
    assert (len(text) >= MIN_ORDER_CHARS) == (text is not ORDER)
    assert orders_a_summary({"role": "user", "content": text}) is is_order


async def test_answers_that_memory_has_no_room_for_are_found_in_the_store() -> None:
    index = AnswerIndex(MemoryStore(), max_entries=1)
    await index.add(b"1", "stored")
    index.remember(b"2", "forgotten")
    index.remember(b"3", "newest")

    found = [await index.sessions_with([link]) for link in (b"3", b"2", b"1")]

    assert found == [(b"3", ["newest"]), None, (b"1", ["stored"])]
