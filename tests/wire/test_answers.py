"""Answers read from streams."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.testing.provider_streams import ProviderReply, stream_events, whole_answer
from holdfast.wire.answers import Answer, Wire, answer_text, read_answer
from holdfast.wire.formats import canonical_message

WIRES: tuple[Wire, ...] = ("openai-chat", "openai-responses", "anthropic", "gemini")
FORMATS = {"openai-chat": "openai-chat", "openai-responses": "openai-responses", "anthropic": "anthropic-messages"}
REPLIES = (
    ProviderReply("Hello there, my friend.", tokens=7),
    ProviderReply(tool="read", arguments={"path": "a.txt", "lines": [1, 2]}, tokens=7),
)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("reply", REPLIES, ids=["text", "call"])
def test_a_stream_says_the_same_as_the_whole_answer(wire: Wire, reply: ProviderReply) -> None:
    streamed = read_answer(wire, [event for _, event in stream_events(wire, reply)])
    whole = read_answer(wire, [whole_answer(wire, reply)])

    name = FORMATS.get(wire, "gemini")
    assert [canonical_message(name, one) for one in streamed.messages] == [
        canonical_message(name, one) for one in whole.messages
    ]
    assert (streamed.is_complete, whole.is_complete) == (True, True)
    assert (streamed.usage is not None, answer_text(streamed)) == (True, reply.text)


@settings(max_examples=60, deadline=None)
@given(wire=st.sampled_from(WIRES), reply=st.sampled_from(REPLIES), data=st.data())
def test_a_stream_cut_anywhere_gives_the_beginning_of_its_text_and_only_whole_calls(
    wire: Wire, reply: ProviderReply, data: st.DataObject
) -> None:
    events = [event for _, event in stream_events(wire, reply)]
    cut = read_answer(wire, events[: data.draw(st.integers(0, len(events)))])

    calls = [text for text in (str(cut.messages),) if "path" in text]
    assert reply.text.startswith(answer_text(cut))
    assert all("lines" in text and "2]" in text for text in calls)


MEMBERS = st.sampled_from(["type", "choices", "delta", "index", "candidates", "item", "usage"])
VALUES = st.none() | st.integers() | st.just([{}]) | st.just({"content": 3}) | st.text(max_size=3)


@settings(max_examples=80, deadline=None)
@given(events=st.lists(st.dictionaries(MEMBERS, VALUES)), wire=st.sampled_from(WIRES))
def test_events_of_any_shape_are_read_without_an_error(events: list[object], wire: Wire) -> None:
    assert read_answer(wire, events).is_complete in {True, False}


def chat_events(*deltas: object) -> list[object]:
    """Return the events of a chat stream that ends as it should."""
    ends = [*(None for _ in deltas), "stop"]
    return [
        {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
        for delta, end in zip([*deltas, {}], ends, strict=True)
    ]


CHAT_STREAMS: dict[str, tuple[list[object], dict[str, object]]] = {
    "a call of a custom tool": (
        [
            {"tool_calls": [{"index": 0, "id": "c", "type": "custom", "custom": {"name": "run", "input": ""}}]},
            {"tool_calls": [{"index": 0, "custom": {"input": "print"}}]},
            {"tool_calls": [{"index": 0, "custom": {"input": "(1)"}}]},
        ],
        {
            "content": None,
            "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "run", "input": "print(1)"}}],
        },
    ),
    "the blocks of Mistral": (
        [
            {"content": ""},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Which "}]}]},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "city?"}]}]},
            {"content": [{"type": "text", "text": "It is "}]},
            {"content": "Paris"},
            {"content": [{"type": "reference", "reference_ids": [1]}]},
            {"content": "."},
        ],
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "Which city?"}]},
                {"type": "text", "text": "It is Paris"},
                {"type": "reference", "reference_ids": [1]},
                {"type": "text", "text": "."},
            ]
        },
    ),
    "a text before blocks": (
        [{"content": "It "}, {"content": [{"type": "text", "text": "is"}]}],
        {"content": [{"type": "text", "text": "It is"}]},
    ),
    "the reasoning of OpenRouter": (
        [
            {"reasoning": "Hm", "reasoning_details": [{"type": "reasoning.text", "text": "Hm", "index": 0}]},
            {"reasoning": ".", "reasoning_details": [{"type": "reasoning.text", "text": ".", "index": 0}]},
            {"reasoning_details": [{"type": "reasoning.text", "signature": "c2ln", "index": 0}]},
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "AA", "index": 1}]},
            {"content": "Yes"},
        ],
        {
            "content": "Yes",
            "reasoning": "Hm.",
            "reasoning_details": [
                {"type": "reasoning.text", "text": "Hm.", "index": 0, "signature": "c2ln"},
                {"type": "reasoning.encrypted", "data": "AA", "index": 1},
            ],
        },
    ),
    "images and references": (
        [
            {"content": "Here."},
            {"images": [{"type": "image_url", "image_url": {"url": "data:,A"}, "index": 0}]},
            {"annotations": [{"type": "url_citation", "title": "A"}]},
            {"annotations": [{"type": "url_citation", "title": "B"}]},
        ],
        {
            "content": "Here.",
            "images": [{"type": "image_url", "image_url": {"url": "data:,A"}, "index": 0}],
            "annotations": [{"type": "url_citation", "title": "A"}, {"type": "url_citation", "title": "B"}],
        },
    ),
    "a spoken answer": (
        [
            {"content": ""},
            {"audio": {"id": "audio_1", "transcript": "Hel"}},
            {"audio": {"transcript": "lo", "data": "AAAA"}},
            {"audio": {"expires_at": 9}},
        ],
        {"content": "", "audio": {"id": "audio_1", "transcript": "Hello", "expires_at": 9}},
    ),
}


@pytest.mark.parametrize("name", CHAT_STREAMS)
def test_a_chat_stream_loses_nothing_that_other_servers_put_into_it(name: str) -> None:
    deltas, message = CHAT_STREAMS[name]

    answer = read_answer("openai-chat", chat_events(*deltas))

    assert (answer.messages, answer.is_complete) == ([{"role": "assistant", **message}], True)


def test_the_custom_call_of_a_cut_stream_is_left_out_because_its_end_is_unknown() -> None:
    piece = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "run", "input": "rm -r /tmp"}}

    assert read_answer("openai-chat", chat_events({"tool_calls": [piece]})[:1]) == Answer(response_id="x")


def test_of_several_answers_the_one_with_index_0_counts_wherever_it_is_in_the_list() -> None:
    said = [{"index": index, "message": {"role": "assistant", "content": text}} for index, text in ((1, "B"), (0, "A"))]

    assert read_answer("openai-chat", [{"choices": said}]).messages == [{"role": "assistant", "content": "A"}]


@pytest.mark.parametrize("kind", ["tool_use", "server_tool_use", "mcp_tool_use"])
def test_a_call_of_a_cut_anthropic_stream_whose_arguments_are_not_whole_is_left_out(kind: str) -> None:
    events: list[object] = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "I look."}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": kind, "id": "t", "name": "f", "input": {}},
        },
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a":'}},
    ]

    cut = read_answer("anthropic", events)

    assert cut.messages == [{"role": "assistant", "content": [{"type": "text", "text": "I look."}]}]


def test_the_sound_of_a_whole_answer_is_not_kept_and_its_words_are() -> None:
    audio = {"id": "audio_1", "data": "AAAA", "transcript": "Hello", "expires_at": 9}
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": None, "audio": audio}}]}

    answer = read_answer("openai-chat", [whole])

    kept = {"id": "audio_1", "transcript": "Hello", "expires_at": 9}
    assert answer.messages == [{"role": "assistant", "content": None, "audio": kept}]
    assert answer_text(answer) == "Hello"


@pytest.mark.parametrize("numbering", [{"index": 0}, {}], ids=["all-zero", "none"])
def test_parallel_calls_of_a_chat_stream_stay_apart_however_they_are_numbered(numbering: dict[str, int]) -> None:
    def events(call_id: str, name: str) -> list[object]:
        first = {"id": call_id, "type": "function", "function": {"name": name, "arguments": '{"a":'}}
        rest = {"function": {"arguments": "1}"}}
        return [{"choices": [{"index": 0, "delta": {"tool_calls": [numbering | piece]}}]} for piece in (first, rest)]

    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    answer = read_answer("openai-chat", [*events("one", "read"), *events("two", "run"), end])

    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": '{"a":1}'}}
        for call_id, name in (("one", "read"), ("two", "run"))
    ]
    assert answer.messages == [{"role": "assistant", "content": None, "tool_calls": calls}]


@pytest.mark.parametrize("wire", WIRES[:3])
def test_indexes_of_any_shape_and_arguments_of_any_depth_are_read_without_an_error(wire: Wire) -> None:
    deep = "[" * 200_000
    events = [
        {"choices": [{"delta": {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": deep}}]}}]},
        {"type": "content_block_start", "index": None, "content_block": {"type": "tool_use", "id": "t", "name": "f"}},
        {"type": "content_block_delta", "index": [1], "delta": {"type": "input_json_delta", "partial_json": deep}},
        {"type": "response.output_item.added", "output_index": "x", "item": {"type": "message"}},
        {"type": "response.output_item.done", "output_index": [1], "item": {}},
    ]

    assert read_answer(wire, events).is_complete is False


def test_a_chat_stream_may_begin_with_text_and_break_off() -> None:
    events = [
        {"id": "c-1", "model": "m", "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
        for piece in ("Hel", "lo")
    ]

    assert read_answer("openai-chat", events) == Answer(
        [{"role": "assistant", "content": "Hello"}], model="m", response_id="c-1"
    )


def test_a_chat_stream_that_breaks_off_before_its_first_text_says_nothing() -> None:
    events = [{"id": "c-1", "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}]

    assert read_answer("openai-chat", events) == Answer([], model="m", response_id="c-1")


def test_citations_of_a_streamed_text_are_those_of_the_whole_answer() -> None:
    cited = [{"type": "char_location", "cited_text": text, "document_index": 0} for text in ("The grass", "the sky")]
    block = {"type": "text", "text": "Grass is green.", "citations": cited}
    deltas = [
        {"type": "text_delta", "text": "Grass is "},
        *({"type": "citations_delta", "citation": one} for one in cited),
        {"type": "text_delta", "text": "green."},
    ]
    events = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "", "citations": []}},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_stop"},
    ]

    streamed = read_answer("anthropic", events)

    assert streamed.messages == read_answer("anthropic", [{"type": "message", "content": [block]}]).messages
    assert streamed.messages == [{"role": "assistant", "content": [block]}]


def test_thinking_is_kept_with_its_signature_and_dropped_without_it() -> None:
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}
    deltas = [{"type": "thinking_delta", "thinking": "Let me see."}, {"type": "signature_delta", "signature": "c2ln"}]
    events = [start, *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas)]

    whole = read_answer("anthropic", [*events, {"type": "content_block_stop", "index": 0}])
    block = {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"}
    assert whole.messages == [{"role": "assistant", "content": [block]}]
    assert read_answer("anthropic", events).messages == []


def test_a_compaction_of_the_provider_is_kept_whole_or_not_at_all() -> None:
    began = {"type": "compaction", "content": None, "encrypted_content": None}
    events = [
        {"type": "content_block_start", "index": 0, "content_block": began},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": "The boat "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": "is blue."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln"}},
        {"type": "content_block_stop", "index": 0},
    ]
    whole = {**began, "content": "The boat is blue.", "signature": "c2ln"}

    assert [read_answer("anthropic", events[:count]).messages for count in range(1, 5)] == [[]] * 4
    assert read_answer("anthropic", events).messages == [{"role": "assistant", "content": [whole]}]


@pytest.mark.parametrize(
    ("stop", "is_complete", "calls"),
    [
        (2, False, []),
        (3, False, [{"name": "read", "arguments": '{"a":1}'}]),
        (4, True, [{"name": "read", "arguments": '{"a":1}'}]),
    ],
)
def test_a_function_call_of_the_older_form_is_read_once_it_is_whole(
    stop: int, calls: list[dict[str, str]], *, is_complete: bool
) -> None:
    deltas = [{"role": "assistant", "function_call": {"name": "read", "arguments": ""}}]
    deltas += [{"function_call": {"arguments": piece}} for piece in ('{"a":', "1}")]
    end: object = {"choices": [{"index": 0, "delta": {}, "finish_reason": "function_call"}]}
    events = [*({"choices": [{"index": 0, "delta": delta}]} for delta in deltas), end]

    answer = read_answer("openai-chat", events[:stop])

    assert answer.is_complete == is_complete
    assert answer.messages == [{"role": "assistant", "content": None, "function_call": call} for call in calls]


def test_an_empty_finish_reason_in_every_event_ends_no_answer() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "read", "arguments": '{"path": "a'}}
    deltas: list[object] = [{"role": "assistant", "content": "I read"}, {"tool_calls": [call]}]
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": ""}]} for delta in deltas]

    cut = read_answer("openai-chat", events)
    whole = read_answer("openai-chat", [*events, {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}])

    assert (cut.messages, cut.is_complete) == ([{"role": "assistant", "content": "I read"}], False)
    assert whole.is_complete


def test_arguments_that_a_server_streams_as_an_object_are_kept_as_text() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "read", "arguments": {"path": "a"}}}
    event = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}

    [message] = read_answer("openai-chat", [event]).messages

    assert message["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"path": "a"}'}


def gemini_event(*parts: object, **members: object) -> dict[str, object]:
    return {"candidates": [{"content": {"role": "model", "parts": [*parts]}, **members}]}


def pieces(*given: dict[str, object], **members: object) -> dict[str, object]:
    return {"functionCall": {"partialArgs": [*given], **members}}


GEMINI_PIECES = [
    gemini_event({"text": "Looking."}),
    gemini_event({**pieces(name="edit", id="c1", willContinue=True), "thoughtSignature": "sig"}),
    gemini_event(pieces({"jsonPath": "$.path", "stringValue": "src/", "willContinue": True}, willContinue=True)),
    gemini_event(
        pieces({"jsonPath": "$.path", "stringValue": "a.py"}, {"jsonPath": "$.line", "numberValue": 7}),
        {"text": "And"},
    ),
    gemini_event(pieces({"jsonPath": "$.lines[0].new", "stringValue": "x = "}, name="write", willContinue=True)),
    gemini_event(pieces({"jsonPath": "$.lines[0].new", "stringValue": "1"}, willContinue=True)),
    gemini_event(
        pieces(
            {"jsonPath": "$.lines[1]['it\\'s']", "boolValue": True},
            {"jsonPath": '$["a b"]', "nullValue": "NULL_VALUE"},
            {"jsonPath": "$.lines[1].no.way", "stringValue": "of a text"},
            {"jsonPath": "$.lines.first", "stringValue": "of a list"},
            willContinue=True,
        )
    ),
    gemini_event({"functionCall": {}}),
    gemini_event({"functionCall": {"name": "stop", "args": {}}}, finishReason="STOP"),
]


def test_the_arguments_of_a_gemini_call_that_come_in_pieces_are_joined() -> None:
    edit = {"name": "edit", "id": "c1", "args": {"path": "src/a.py", "line": 7}}
    lines = [{"new": "x = 1"}, {"it's": True, "no": {"way": "of a text"}}]
    write = {"name": "write", "args": {"lines": lines, "a b": None}}

    whole = read_answer("gemini", GEMINI_PIECES)

    assert whole.messages == [
        {
            "role": "model",
            "parts": [
                {"text": "Looking."},
                {"functionCall": edit, "thoughtSignature": "sig"},
                {"text": "And"},
                {"functionCall": write},
                {"functionCall": {"name": "stop", "args": {}}},
            ],
        }
    ]


@pytest.mark.parametrize(("stop", "names"), [(2, []), (4, ["edit"]), (7, ["edit"]), (8, ["edit", "write"])])
def test_a_gemini_call_that_is_cut_between_its_pieces_is_left_out(stop: int, names: list[str]) -> None:
    (message,) = read_answer("gemini", GEMINI_PIECES[:stop]).messages

    assert [part["functionCall"]["name"] for part in message["parts"] if "functionCall" in part] == names


def response_event(kind: str, **members: object) -> dict[str, object]:
    return {"type": f"response.{kind}", **members}


ADDED = response_event(
    "output_item.added",
    output_index=0,
    item={"type": "message", "id": "m", "role": "assistant", "status": "in_progress", "content": []},
)
CITED = {"type": "url_citation", "url": "https://a.example/x", "title": "A", "start_index": 0, "end_index": 2}


@pytest.mark.parametrize(
    ("events", "content"),
    [
        (
            [
                response_event("refusal.delta", output_index=0, content_index=0, delta="I can"),
                response_event("refusal.delta", output_index=0, content_index=0, delta="not."),
            ],
            [{"type": "refusal", "refusal": "I cannot."}],
        ),
        (
            [
                response_event("output_text.delta", output_index=0, content_index=0, delta="Yes, "),
                response_event("output_text.annotation.added", output_index=0, content_index=0, annotation=CITED),
                response_event("output_text.delta", output_index=0, content_index=0, delta=None),
                response_event("refusal.done", output_index=0, content_index=1, refusal="No more."),
            ],
            [
                {"type": "output_text", "text": "Yes, ", "annotations": [CITED]},
                {"type": "refusal", "refusal": "No more."},
            ],
        ),
        (
            [
                response_event("output_text.delta", output_index=0, content_index=0, delta="Ye"),
                response_event(
                    "content_part.done", output_index=0, content_index=0, part={"type": "output_text", "text": "Yes"}
                ),
            ],
            [{"type": "output_text", "text": "Yes"}],
        ),
    ],
    ids=["refusal", "text, citation and refusal", "a whole part"],
)
def test_a_cut_response_keeps_every_part_of_its_message_that_came(
    events: list[object], content: list[dict[str, object]]
) -> None:
    message = {"type": "message", "id": "m", "role": "assistant", "status": "incomplete", "content": content}

    assert read_answer("openai-responses", [ADDED, *events]) == Answer([message])


def test_the_text_of_a_response_whose_item_was_never_announced_is_kept() -> None:
    events = [response_event("output_text.delta", delta=piece) for piece in ("Hel", "lo")]

    assert read_answer("openai-responses", events).messages == [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
            "status": "incomplete",
        }
    ]


@pytest.mark.parametrize("ids", [("a", "b"), (None, None)], ids=["ids", "no ids"])
def test_items_of_a_response_that_come_without_an_index_stay_apart(ids: tuple[str | None, str | None]) -> None:
    texts = [{"type": "output_text", "text": text, "annotations": []} for text in ("one", "two")]
    items = [
        {"type": "message", "id": name, "role": "assistant", "content": [text]}
        for name, text in zip(ids, texts, strict=True)
    ]
    events = [
        event
        for item in items
        for event in (
            response_event("output_item.added", item=item | {"content": []}),
            response_event("output_text.delta", item_id=item["id"], delta="t"),
            response_event("output_item.done", item=item),
        )
    ]

    assert read_answer("openai-responses", events).messages == items


def test_thinking_does_not_keep_the_numbers_that_tell_how_far_it_is() -> None:
    deltas: list[dict[str, object]] = [
        {"type": "thinking_delta", "thinking": "Let me", "estimated_tokens": 50},
        {"type": "thinking_delta", "thinking": " see.", "estimated_tokens": None},
        {"type": "signature_delta", "signature": "c2ln"},
    ]
    start = {"type": "thinking", "thinking": "", "signature": ""}
    events: list[object] = [
        {"type": "message_start", "message": {"role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": start},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_stop"},
    ]

    answer = read_answer("anthropic", events)

    block = {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"}
    assert answer.messages == [{"role": "assistant", "content": [block]}]
