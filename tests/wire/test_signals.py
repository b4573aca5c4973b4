"""Signals of a provider that compacts by itself, in what it answered."""

import pytest

from holdfast.testing.chat import JsonMessage
from holdfast.wire.signals import message_signals

PART = {"type": "compaction", "content": "what was said so far"}


@pytest.mark.parametrize(
    ("message", "signals"),
    [
        ({"role": "assistant", "content": [{"type": "text", "text": "yes"}, PART]}, ["compaction"]),
        ({"type": "compaction", "id": "c-1", "content": "what was said so far"}, ["compaction"]),
        ({"role": "assistant", "content": "compaction"}, []),
        ({"role": "user", "content": [PART]}, []),
    ],
    ids=["a part", "an item", "a text", "the user's own"],
)
def test_a_part_or_an_item_of_a_compaction_is_a_signal(message: JsonMessage, signals: list[str]) -> None:
    assert list(message_signals(message)) == signals
