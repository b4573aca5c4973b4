"""Chat messages as entries, and a ledger that has taken them in."""

from collections.abc import Callable, Sequence

import pytest

from holdfast.core.conversation.messages import Entry
from holdfast.core.ledger.ledger import Ledger
from holdfast.testing.chat import JsonMessage
from holdfast.wire.formats import format_named


@pytest.fixture
def entries() -> Callable[..., list[Entry]]:
    def read(*messages: JsonMessage) -> list[Entry]:
        reader = format_named("openai-chat")
        return [Entry(reader.decode(native, index), index) for index, native in enumerate(messages)]

    return read


@pytest.fixture
def ledger(entries: Callable[..., list[Entry]]) -> Callable[..., Ledger]:
    def observed(*messages: JsonMessage) -> Ledger:
        kept = Ledger()
        read: Sequence[Entry] = entries(*messages)
        for entry in read:
            kept.observe(entry)
        return kept

    return observed
