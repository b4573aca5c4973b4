"""Which differences between two messages of a client's list mean nothing."""

import pytest

from holdfast.testing.chat import JsonMessage
from holdfast.wire.equivalence import essential_gemini_content, essential_message


@pytest.mark.parametrize(
    "message",
    [
        {"type": "message", "role": "user", "content": "go on"},
        {"role": "user", "content": "go on"},
        {"type": "function_call", "call_id": "call-1", "name": "read", "arguments": "{}"},
    ],
    ids=["item", "message", "call"],
)
def test_an_id_that_a_client_or_a_server_gave_makes_no_difference(message: JsonMessage) -> None:
    assert essential_message({**message, "id": "one"}) == essential_message({**message, "id": "two"})


@pytest.mark.parametrize("reference", [{"type": "item_reference"}, {}], ids=["typed", "bare"])
def test_a_reference_to_an_item_is_nothing_but_its_id(reference: JsonMessage) -> None:
    assert essential_message({**reference, "id": "one"}) != essential_message({**reference, "id": "two"})


@pytest.mark.parametrize(
    "part",
    [
        {"inlineData": {"data": "-_A=", "mime_type": "image/png"}},
        {"inline_data": {"data": "+/A=", "mime_type": "image/png"}, "thought_signature": "c2ln"},
    ],
    ids=["sent by Google's library", "in snake case"],
)
def test_an_image_of_gemini_that_its_client_spells_differently_is_the_same(part: JsonMessage) -> None:
    answer = {"role": "model", "parts": [{"inlineData": {"mimeType": "image/png", "data": "+/A="}}]}

    assert essential_gemini_content({"role": "model", "parts": [part]}) == answer


@pytest.mark.parametrize(
    "said",
    [
        {"content": "No."},
        {"content": None, "refusal": "No."},
        {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"content": "", "audio": {"id": "audio_1"}},
    ],
    ids=["text", "refusal", "older call", "audio"],
)
def test_reasoning_that_a_client_leaves_out_makes_no_difference_beside_anything_else(said: JsonMessage) -> None:
    answer = {"role": "assistant", **said}

    assert essential_message({**answer, "reasoning_content": "Hm."}) == essential_message(answer)


def test_an_empty_text_beside_a_call_of_the_older_form_says_nothing() -> None:
    call = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}

    assert essential_message({**call, "content": ""}) == essential_message({**call, "content": None}) == call
