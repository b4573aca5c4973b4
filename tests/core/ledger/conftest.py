"""A ledger that has taken in some messages."""

from collections.abc import Callable

import pytest

from holdfast.core.conversation.messages import Entry
from holdfast.core.ledger.ledger import Ledger
from holdfast.testing.chat import JsonMessage
from holdfast.wire.formats import format_named


@pytest.fixture
def ledger() -> Callable[..., Ledger]:
    def observed(*messages: JsonMessage) -> Ledger:
        reader, kept = format_named("openai-chat"), Ledger()
        for index, native in enumerate(messages):
            kept.observe(Entry(reader.decode(native, index), index))
        return kept

    return observed
