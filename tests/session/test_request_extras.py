"""System text and tools are counted once, and anew when they change."""

from holdfast import counter_for
from holdfast.core.conversation.tokens import Provenance
from holdfast.core.history.session_state import RequestExtras
from holdfast.session.prepare import ExtrasCounter

TOOLS = ({"name": "read_file"},)


class Watched:
    """A counter that remembers what it was asked."""

    name = "watched"
    provenance: Provenance = "counted"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def count(self, text: str) -> int:
        self.asked.append(text)
        return counter_for("gpt-5").count(text)


def test_what_travels_outside_the_messages_is_counted_once_for_each_agent_until_it_changes() -> None:
    outside, counter = ExtrasCounter(), Watched()
    first, other = RequestExtras("Be brief.", TOOLS), RequestExtras("Be brief, and always kind.", TOOLS)

    counted = [outside.tokens("main", each, counter) for each in (first, first, other, other)]
    outside.tokens("scout", first, counter)

    tools = '[{"name":"read_file"}]'
    assert counted == [(3, 8), (3, 8), (7, 8), (7, 8)]
    assert [text.replace(" ", "") for text in counter.asked] == [
        "Bebrief.", tools, "Bebrief,andalwayskind.", tools, "Bebrief.", tools,
    ]  # fmt: skip
