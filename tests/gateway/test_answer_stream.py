"""Events read from the bytes of an answer."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.gateway.provider_apis import answer_events
from holdfast.wire.answers import Wire, answer_text, read_answer


def _text_event(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
DELTAS = st.one_of(
    TEXTS.map(lambda text: {"content": text}),
    st.just({"role": "assistant", "content": ""}),
    st.just({"role": "assistant", "content": None}),
    TEXTS.map(lambda text: {"reasoning_content": text}),
    TEXTS.map(lambda text: {"content": text, "refusal": None}),
    st.just({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}),
    st.just({}),
)
CHOICES = st.fixed_dictionaries(
    {"index": st.sampled_from([0, 0, 0, 1]), "delta": DELTAS, "finish_reason": st.sampled_from([None, None, "stop"])},
    optional={"logprobs": st.none()},
)
EVENTS = st.one_of(
    CHOICES.map(lambda choice: {"id": "c", "model": "m", "choices": [choice], "obfuscation": "x"}),
    TEXTS.map(_text_event),
    TEXTS.map(lambda text: _text_event(text) | {"usage": None}),
    st.just({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}),
    st.just({"error": {"message": "overloaded"}}),
)


@given(
    events=st.lists(EVENTS, max_size=12),
    has_end=st.booleans(),
    is_ascii=st.booleans(),
    beside=st.sampled_from([b"", b"", b": ping\n\n", b"event: message\n", b"id: 7\n"]),
)
def test_a_chat_stream_says_the_same_as_its_events_one_by_one(
    events: list[dict[str, Any]], *, has_end: bool, is_ascii: bool, beside: bytes
) -> None:
    lines = [beside + b"data: " + json.dumps(event, ensure_ascii=is_ascii).encode() + b"\n\n" for event in events]
    lines[:1] = [line.removeprefix(beside) for line in lines[:1]]
    raw = b"".join(lines) + b"data: [DONE]\n\n" * has_end

    assert read_answer("openai-chat", answer_events("openai-chat", raw)) == read_answer("openai-chat", events)


@given(
    texts=st.lists(st.one_of(TEXTS, st.sampled_from(['"', "\\", '","', "\n\ndata: ", '"content": "'])), max_size=8),
    beside=st.sampled_from([{}, {"content": "x"}, {"usage": None}, {"error": None}]),
    is_ascii=st.booleans(),
)
def test_events_that_differ_only_in_their_text_say_it_all(
    texts: list[str], beside: dict[str, Any], *, is_ascii: bool
) -> None:
    first: dict[str, Any] = {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]}
    last: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    events = [
        first,
        *(beside | _text_event(text) for text in texts),
        last,
        {"choices": [], "usage": {"total_tokens": 5}},
    ]
    lines = [b"data: " + json.dumps(event, ensure_ascii=is_ascii).encode() + b"\n\n" for event in events]

    read = read_answer("openai-chat", answer_events("openai-chat", b"".join(lines) + b"data: [DONE]\n\n"))

    assert read == read_answer("openai-chat", events)


def test_an_event_that_is_no_json_is_left_out_of_a_run_of_text() -> None:
    texts = [json.dumps(_text_event(text)).encode() for text in ("a", "b", "c", "d", "e")]
    texts[2] = texts[2].replace(b'"c"', b'"c","d"')
    raw = b"".join(b"data: %s\n\n" % text for text in texts) + b"data: [DONE]\n\n"

    assert read_answer("openai-chat", answer_events("openai-chat", raw)).messages[0]["content"] == "abde"


def test_a_run_of_text_is_one_event() -> None:
    def event(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    words = b"".join(event({"content": f"w{number} "}) for number in range(50))
    raw = event({"role": "assistant", "content": ""}) + words + event({}, "stop") + b"data: [DONE]\n\n"

    assert len(answer_events("openai-chat", raw)) == 4


def test_what_comes_in_one_event_with_a_text_is_not_lost() -> None:
    deltas = [{"role": "assistant"}, {"content": "Yes."}, {"content": " So.", "reasoning_content": "Sure."}, {}, {}]
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    raw = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"

    read = read_answer("openai-chat", answer_events("openai-chat", raw))

    assert read.messages == [{"role": "assistant", "content": "Yes. So.", "reasoning_content": "Sure."}]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_an_answer_is_read_with_every_line_end_that_a_stream_may_have(line_end: bytes) -> None:
    events: list[Any] = [
        {"type": "message_start"},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_stop"},
    ]
    named = [b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event).encode()) for event in events]
    unnamed = [b"data: %s\n\n" % json.dumps(event).encode() for event in events]

    assert answer_events("anthropic", b"".join(named).replace(b"\n", line_end)) == events
    assert answer_events("openai-responses", b"".join(unnamed).replace(b"\n", line_end)) == events


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_byte_order_mark_before_an_answer_hides_nothing_of_it(*, is_stream: bool) -> None:
    message = {"role": "assistant", "content": "every word"}
    whole = {"choices": [{"index": 0, "delta" if is_stream else "message": message, "finish_reason": "stop"}]}
    raw = b"\xef\xbb\xbf" + b"data: " * is_stream + json.dumps(whole).encode() + b"\n\n"

    answer = read_answer("openai-chat", answer_events("openai-chat", raw))

    assert (answer.messages, answer.is_complete) == ([message], True)


@pytest.mark.parametrize("is_stream", [True, False])
def test_bytes_that_are_no_utf_8_are_replaced_in_an_answer_as_clients_do_it(*, is_stream: bool) -> None:
    member = b"delta" if is_stream else b"message"
    said = b'{"role": "assistant", "content": "a caf\xe9 and more"}'
    whole = b'{"choices": [{"index": 0, "%s": %s, "finish_reason": "stop"}]}' % (member, said)

    answer = read_answer("openai-chat", answer_events("openai-chat", b"data: " * is_stream + whole + b"\n\n"))

    assert answer.messages == [{"role": "assistant", "content": "a caf\ufffd and more"}]


@pytest.mark.parametrize("data", [b"data: ", b"data:", b"event: end\r\ndata: "])
@pytest.mark.parametrize("is_read_at_once", [True, False])
def test_what_comes_after_the_end_of_a_chat_stream_is_no_part_of_the_answer(
    data: bytes, *, is_read_at_once: bool
) -> None:
    def event(text: str, end: str | None = None) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": end}
        return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    raw = event("the answer") + event(", [DONE]", "stop") + data + b"[DONE]\n\n" + event(" and an advertisement")
    raw += b"data: [DONE]\n\n" if is_read_at_once else b": bye\n\n"

    read = read_answer("openai-chat", answer_events("openai-chat", raw))

    assert (read.messages, read.is_complete) == ([{"role": "assistant", "content": "the answer, [DONE]"}], True)


def test_white_space_of_any_kind_before_the_data_of_an_event_hides_nothing() -> None:
    raw = b'data:\t{"type": "message_start"}\n\ndata: {"type": "message_stop"}\n\n'

    assert answer_events("anthropic", raw) == [{"type": "message_start"}, {"type": "message_stop"}]


def gemini_chunk(text: str, **members: object) -> dict[str, object]:
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, **members}]}


@pytest.mark.parametrize("separator", [b",", b",\r\n", b" \n, "])
def test_a_gemini_list_that_breaks_off_is_read_as_far_as_its_chunks_are_whole(separator: bytes) -> None:
    chunks = [gemini_chunk("Hel, ["), gemini_chunk("lo"), gemini_chunk("!", finishReason="STOP")]
    raw = b"[" + separator.join(json.dumps(chunk, indent=1).encode() for chunk in chunks) + b"\n]"
    texts = {"": 0, "Hel, [": 0, "Hel, [lo": 0, "Hel, [lo!": 0}

    for stop in range(len(raw) + 1):
        answer = read_answer("gemini", answer_events("gemini", raw[:stop]))
        texts[answer_text(answer)] += 1
        assert answer.is_complete == (answer_text(answer) == "Hel, [lo!")

    assert all(texts.values())


def test_a_whole_answer_that_breaks_off_says_nothing() -> None:
    raw = json.dumps(gemini_chunk("Hello", finishReason="STOP")).encode()

    assert [answer_events("gemini", raw[:stop]) for stop in range(len(raw))] == [[]] * len(raw)


def halves(event: Callable[[str], object]) -> bytes:
    """Return the events of a text that is cut in the middle of a character, as JSON escapes one."""
    events = [json.dumps(event(piece)).encode() for piece in ("a \ud83d", "\ude00 b \ud83d")]
    return b"".join(b"data: %s\n\n" % one for one in events)


CUT_CHARACTERS: dict[Wire, tuple[bytes, object]] = {
    "openai-chat": (
        halves(lambda piece: {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}),
        {"role": "assistant", "content": "a \U0001f600 b \ud83d"},
    ),
    "anthropic": (
        halves(
            lambda piece: {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": piece},
            }
        ),
        {"role": "assistant", "content": [{"type": "text", "text": "a \U0001f600 b \ud83d"}]},
    ),
    "openai-responses": (
        halves(lambda piece: {"type": "response.output_text.delta", "output_index": 0, "delta": piece}),
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "a \U0001f600 b \ud83d", "annotations": []}],
            "status": "incomplete",
        },
    ),
    "gemini": (halves(gemini_chunk), {"role": "model", "parts": [{"text": "a \U0001f600 b \ud83d"}]}),
}


@pytest.mark.parametrize("wire", CUT_CHARACTERS)
def test_a_character_whose_halves_come_in_two_events_is_whole_again(wire: Wire) -> None:
    raw, message = CUT_CHARACTERS[wire]

    assert read_answer(wire, answer_events(wire, raw)).messages == [message]
