"""Many calls in one message, and many messages of one side, take work in proportion to their number."""

from time import process_time
from typing import Any

import pytest

from holdfast import Budget, convert, counter_for, validate
from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.planning.fit import CutGrid
from holdfast.testing.chat import user_message
from holdfast.wire.formats import format_named

MANY = 1_000
GENEROUS_S = 10
"""Of processor time, for what takes one or two; in proportion to the square it took a minute."""


class CountedId(str):
    """The id of a call, which counts how often such ids are compared."""

    __slots__ = ()
    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedId.comparisons += 1
        return str.__eq__(self, other)


class CountedTranscript(Transcript):
    """Messages that count how often they are read."""

    reads = 0

    def __getitem__(self, index: int, /) -> Message:
        CountedTranscript.reads += 1
        return super().__getitem__(index)


def counted_calls(provider: str) -> list[Any]:
    ids = [CountedId(f"c{number}") for number in range(MANY)]
    if provider == "anthropic-messages":
        uses = [{"type": "tool_use", "id": one, "name": "f", "input": {}} for one in ids]
        results = [{"type": "tool_result", "tool_use_id": one, "content": "ok"} for one in ids]
        return [user_message("go"), {"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    if provider == "bedrock":
        asked = {"role": "user", "content": [{"text": "go"}]}
        uses = [{"toolUse": {"toolUseId": one, "name": "f", "input": {}}} for one in ids]
        results = [{"toolResult": {"toolUseId": one, "content": [{"text": "ok"}]}} for one in ids]
        return [asked, {"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    asked = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "go"}]}
    uses = [{"part_kind": "tool-call", "tool_name": "f", "tool_call_id": one, "args": "{}"} for one in ids]
    results = [{"part_kind": "tool-return", "tool_name": "f", "tool_call_id": one, "content": "ok"} for one in ids]
    return [asked, {"kind": "response", "parts": uses}, {"kind": "request", "parts": results}]


@pytest.mark.parametrize("provider", ["anthropic-messages", "bedrock", "pydantic-ai"])
def test_many_calls_in_one_message_are_checked_in_linear_time(provider: str) -> None:
    messages = counted_calls(provider)
    CountedId.comparisons = 0

    violations = validate(messages, provider, tools=[{"name": "f"}])

    assert violations == []
    assert CountedId.comparisons < 20 * MANY


def test_cuts_around_many_calls_are_found_in_linear_time() -> None:
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(MANY)]
    outputs = [{"type": "function_call_output", "call_id": f"c{n}", "output": "some words"} for n in range(MANY)]
    items = [user_message("go"), *calls, *outputs, user_message("and?")]
    transcript = CountedTranscript(items, format_named("openai-responses"), counter_for("gpt-5"))
    grid = CutGrid(transcript, Budget(100), 100, 0.25, len(items))
    CountedTranscript.reads = 0

    number = grid.number_of_cut(MANY)

    assert (grid.cut_at(number - 1), grid.cut_at(number), grid.cut_at(number + 50)) == (0, 2 * MANY + 1, 2 * MANY + 1)
    assert CountedTranscript.reads < 10 * MANY


def test_many_messages_of_one_side_are_joined_in_linear_time() -> None:
    messages = [user_message("go")] * 50_000

    started = process_time()
    converted = convert(messages, source="openai-chat", target="bedrock")

    assert converted.messages == [{"role": "user", "content": [{"text": "go"}] * 50_000}]
    assert process_time() - started < GENEROUS_S
