"""Every refusal text we know, and those that must not be mistaken for one another."""

import json
from typing import Any

import pytest

from holdfast import Refusal, SettingsError, classify
from holdfast.wire.overflow import is_silently_truncated

OVERFLOWS = [
    (
        "This model's maximum context length is 32768 tokens. However, your request has 40000 input tokens. Please "
        "reduce the length of the input messages.",
        32_768,
        40_000,
    ),
    (
        "The decoder prompt (length 12324) is longer than the maximum model length of 8192. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens.",
        8_192,
        12_324,
    ),
    ("The prompt is too long: 265392, model maximum context length: 262144", 262_144, 265_392),
    (
        "Unable to submit request because the input token count is 32825 but model only supports up to 32768. Reduce "
        "the input token count and try again.",
        32_768,
        32_825,
    ),
    (
        "Invalid input argument for Model 'meta-llama/llama-2-70b-chat': the number of input tokens 4098 cannot exceed "
        "the total tokens limit 4096 for this model",
        4_096,
        4_098,
    ),
    (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292. Try using a shorter "
        "prompt.",
        4_081,
        4_292,
    ),
    ("Input validation error: `inputs` must have less than 4096 tokens. Given: 5000", 4_096, 5_000),
    (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and "
        "512 `max_new_tokens`",
        8_193,
        9_000,
    ),
    ("Prompt exceeds max length", None, None),
    (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 202868 tokens "
        "(202767 in the messages, 101 in the functions). Please reduce the length of the messages or functions.",
        128_000,
        202_868,
    ),
    (
        "This model's maximum context length is 4097 tokens. However, you requested 4203 tokens (3703 in the "
        "messages, 500 in the completion). Please reduce the length of the messages or completion.",
        4_097,
        4_203,
    ),
    (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 289650 tokens. "
        "Please reduce the length of the messages.",
        272_000,
        289_650,
    ),
    ("Your input exceeds the context window of this model. Please adjust your input and try again.", None, None),
    ("prompt is too long: 208310 tokens > 200000 maximum", 200_000, 208_310),
    (
        "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
        1_048_576,
        1_200_293,
    ),
    (
        "Prompt contains 140000 tokens and is too large for model with 131072 maximum context length",
        131_072,
        140_000,
    ),
    (
        "Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        32_768,
        65_673,
    ),
    ("Input is too long for requested model.", None, None),
    ("prompt tokens (9000) exceed model maximum (8192)", 8_192, 9_000),
    ("Please reduce the length of the messages or completion.", None, None),
    (
        "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in the "
        "messages, 8192 in the completion). Please reduce the length of the messages or completion.",
        131_072,
        131_134,
    ),
    (
        "This model's maximum prompt length is 131072 but the request contains 136973 tokens.",
        131_072,
        136_973,
    ),
    (
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 tokens (42832 "
        'of text input). Please reduce the length of either one, or use the "middle-out" transform',
        32_768,
        42_832,
    ),
    ("truncating input prompt limit=2048 prompt=5065 keep=5 new=2048", 2_048, 5_065),
    (
        "This model's maximum context length is 16384 tokens. However, you requested 19591 tokens (9591 in the "
        "messages, 10000 in the completion). Please reduce the length of the messages or completion.",
        16_384,
        19_591,
    ),
    (
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        None,
        None,
    ),
    ("the request exceeds the available context size, try increasing it", None, None),
    ("request (1739 tokens) exceeds the available context size (1024 tokens), try increasing it", 1_024, 1_739),
    (
        "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with "
        "context length of only 32768 tokens, which is not enough.",
        32_768,
        111_490,
    ),
    ("The number of tokens to keep from the initial prompt is greater than the context length.", None, None),
    ("Please reduce the length of the messages. Current length is 42328 while limit is 40000", 40_000, 42_328),
    ("prompt token count of 70000 exceeds the limit of 64000", 64_000, 70_000),
    ("Your request exceeded model token limit: 262144 (requested: 270000)", 262_144, 270_000),
    ("invalid params, context window exceeds limit", None, None),
    ("Invalid 'messages[17].content': string too long. Expected a string with maximum length 1048576", None, None),
    ("input length exceeds context limit", None, None),
    ("request_too_large: Request exceeds the maximum size", None, None),
    ("context length exceeded", None, None),
    ("context window exceeded", None, None),
    ("Error: the context window was exceeded.", None, None),
    ("Requested token count exceeds the model's maximum context length of 32768 tokens.", 32_768, None),
    (
        "Requested token count exceeds the model's maximum context length of 64000 tokens. You requested a total of "
        "71897 tokens: 63897 tokens from the input messages and 8000 tokens for the completion. Please reduce the "
        "number of tokens in the input messages or the completion to fit within the limit.",
        64_000,
        71_897,
    ),
    ("Requested token count exceeds the model's maximum context length.", None, None),
    ("Range of input length should be [1, 983616]", 983_616, None),
    ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]", 30_720, None),
    ("Input length (265330) exceeds model's maximum context length (262144).", 262_144, 265_330),
    ("The input (210000 tokens) is longer than the model's context length (200000 tokens).", 200_000, 210_000),
    ("Prompt has 32769 tokens, but the configured context size is 32768 tokens", 32_768, 32_769),
    ("prompt too long; exceeded max context length by 512 tokens", None, None),
    ("the input length exceeds the context length", None, None),
    ("Too many input tokens. Max input tokens: 8192, request input token count: 10000", 8_192, 10_000),
    ("The input token count exceeds the maximum number of tokens allowed 1048576.", 1_048_576, None),
    ("The input token count exceeds the maximum number of tokens allowed.", None, None),
    ("token limit exceeded", None, None),
    (
        "This endpoint's maximum context length is 262144 tokens. However, you requested about 504212 tokens (472212 "
        'of text input, 32000 in the output). Please reduce the length of either one, or use the "middle-out" '
        "transform to compress your prompt automatically.",
        262_144,
        504_212,
    ),
    (
        "This model's maximum context length is 4097 tokens, however you requested 4322 tokens (4066 in your prompt; "
        "256 for the completion). Please reduce your prompt; or completion length.",
        4_097,
        4_322,
    ),
    (
        "You passed 98305 input tokens and requested 32768 output tokens. However, the model's context length is only "
        "131072 tokens, resulting in a maximum input length of 98304 tokens. Please reduce the length of the input "
        "prompt. (parameter=input_tokens, value=98305)",
        98_304,
        None,
    ),
    (
        "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens). Use a shorter input or enable "
        "--allow-auto-truncate.",
        59_862,
        160_062,
    ),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 64000. This model's maximum context length is 64001 "
        "tokens and your request has 64235 input tokens (64000 > 64001 - 64235).",
        64_001,
        64_235,
    ),
    ("length of prompt_tokens (57535) must be less than max_seq_len (32768).", 32_768, 57_535),
    ("Requested input length 39818 exceeds maximum input length 32767", 32_767, 39_818),
    ("Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)", 7_424, 15_028),
    (
        "Reached context length of 4096 tokens with model (arch: gpt-oss) that does not currently support "
        "mid-generation context overflow",
        4_096,
        None,
    ),
    ("Request body too large for gpt-4o model. Max size: 8000 tokens.", 8_000, None),
    (
        "5021: The estimated number of input and maximum output tokens (155740) exceeded this model context window "
        "limit (128000).",
        128_000,
        None,
    ),
    ("Total message token length exceed model limit (10000000 tokens).", 10_000_000, None),
    ("Total message token length exceed model limit", None, None),
    ("Total tokens of image and text exceed max message tokens. Request id: 0217", None, None),
    (
        "The model returned the following errors: Input Tokens Exceeded: Number of input tokens exceeds maximum "
        "length. Please update the input to try again.",
        None,
        None,
    ),
    ("too many total text bytes: 29113180 > 25000000", None, None),
    ("Request payload size exceeds the limit: 20971520 bytes.", None, None),
    ("Prompt 超长", None, None),
]

OUTPUT_CAPS = [
    (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 1218 `inputs` tokens and "
        "1500 `max_new_tokens`",
        Refusal("output_cap", "", 2_048, 1_218),
    ),
    (
        "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length or "
        "`max_tokens` and try again",
        Refusal("output_cap", "", 200_000, 178_959),
    ),
    (
        "This model's maximum context length is 131072 tokens. However, you requested 128000 output tokens and your "
        "prompt contains at least 134145 input tokens, for a total of at least 262145 tokens. Please reduce the "
        "length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=134145)",
        Refusal("output_cap", "", 131_072, 134_145, is_lower_bound=True),
    ),
    ("max_tokens must be at least 1, got -186.", Refusal("output_cap", "")),
    ("Range of max_tokens should be [1, 8192]", Refusal("output_cap", "", 8_192)),
    ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", Refusal("output_cap", "", 8_192)),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 64000. This model's maximum context length is 64001 "
        "tokens and your request has 24235 input tokens (64000 > 64001 - 24235).",
        Refusal("output_cap", "", 64_001, 24_235),
    ),
    (
        "max_completion_tokens is too large: 100000. This model supports at most 65536 completion tokens, whereas you "
        "provided 100000.",
        Refusal("output_cap", "", 65_536),
    ),
    (
        "`max_completion_tokens` must be less than or equal to `16384`, the maximum value for `max_completion_tokens` "
        "is less than the `context_window` for this model",
        Refusal("output_cap", "", 16_384),
    ),
    (
        "Unable to submit request because it has a maxOutputTokens value of 65536 but the supported range is from 1 "
        "(inclusive) to 65536 (exclusive). Update the value and try again.",
        Refusal("output_cap", "", 65_536),
    ),
    (
        "Invalid 'max_tokens': integer above maximum value. Expected a value <= 16384, but got 100000 instead.",
        Refusal("output_cap", "", 16_384),
    ),
    (
        "The parameter `max_completion_tokens` specified in the request are not valid: integer above maximum value, "
        "expected a value <= 12288, but got 32000 instead.",
        Refusal("output_cap", "", 12_288),
    ),
    (
        "The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum tokens value that "
        "is lower than 4096.",
        Refusal("output_cap", "", 4_096),
    ),
    (
        "too many tokens: max tokens must be less than or equal to 4096, the maximum output for this model - received "
        "8192.",
        Refusal("output_cap", "", 4_096),
    ),
]

RATE_LIMITS = [
    (
        413,
        {
            "error": {
                "message": "Request too large for model `llama-3` in organization on tokens per minute (TPM): Limit "
                "12000, Requested 14137, please reduce your message size and try again.",
                "code": "rate_limit_exceeded",
            }
        },
    ),
    (429, "Too many requests"),
    (429, ""),
    (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    (413, "Rate limit reached on tokens per minute (TPM): Limit 6000, Requested 7000."),
    (400, "Too many tokens, please wait before trying again."),
    (400, "ThrottlingException: Too many tokens"),
    (400, "Daily token limit exceeded"),
    (200, {"error": {"message": "Provider returned error", "code": 429}}),
    (None, "Error code: 429 - {'error': {'message': 'Provider returned error'}}"),
]

MALFORMED = [
    "Conversation roles must alternate user/assistant/user/assistant/...",
    "After the (optional) system message(s), user or tool message(s) should alternate with assistant message(s).",
    "deepseek-reasoner does not support successive user or assistant messages (messages[1] and messages[2])",
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The "
    "following tool_call_ids did not have response messages: call_1",
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
    "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
    "Invalid value for 'content': expected a string, got null.",
    "No tool call found for function call output with call_id call_1.",
    "No tool output found for function call call_1.",
    "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
    "Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'.",
    "Invalid 'input[2].id': 'x'. Expected an ID that begins with 'fc'.",
    "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
    "messages.3: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1. Each `tool_use` "
    "block must have a corresponding `tool_result` block in the next message.",
    "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1. Each `tool_result` block "
    "must have a corresponding `tool_use` block in the previous message.",
    "Did not find 1 tool_result block(s) at the beginning of this message. Messages following tool_use blocks must "
    "begin with a matching number of tool_result blocks.",
    "messages.1.content.1: `tool_use` ids must be unique",
    "messages: text content blocks must be non-empty",
    "messages.17: all messages must have non-empty content except for the optional final assistant message",
    "messages.129.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`.",
    "messages.1: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
    "messages.1.content.0: Invalid `signature` in `thinking` block",
    "messages.1.content.0.thinking.signature: Field required",
    "This model does not support assistant message prefill. The conversation must end with a user message.",
    "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    "cache_control cannot be set for empty text blocks",
    "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
    "Please ensure that function response turn comes immediately after a function call turn.",
    "Please ensure that the number of function response parts is equal to the number of function call parts of the "
    "function call turn.",
    "Function call is missing a thought_signature in functionCall parts.",
    "Unexpected role 'user' after role 'tool'",
    "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
    "Tool call id was call_123 but must be a-z, A-Z, 0-9, with a length of 9.",
    "Not the same number of function calls and responses",
    "More tool responses than tool calls",
    "Unexpected tool call id x in tool results",
    "Duplicate tool call id x",
    "Conversation must start with a user message or system message",
    "System prompt must have content",
    "Assistant message must have either content or tool_calls, but not both.",
    "A conversation must alternate between user and assistant roles.",
    "The number of toolResult blocks at messages.2.content exceeds the number of toolUse blocks of previous turn.",
    "The toolConfig field must be defined when using toolUse and toolResult content blocks.",
    "Conversation blocks and tool result blocks cannot be provided in the same turn",
    "An assistant message with 'tool_calls' must be followed by … (insufficient tool messages)",
    "Missing `reasoning_content` field in the assistant message at message index 2",
    "The `reasoning_content` in the thinking mode must be passed back to the API.",
    '<400> InternalError.Algo.InvalidParameter: An assistant message with "tool_calls" must be followed by tool '
    "messages: message[532].role",
    "advisor_tool_result must have server_tool_use before it",
    "Invalid request: the message at position 2 with role 'assistant' must not be empty",
    "Invalid request: tool_call_id  is not found",
]

OTHERS = [
    (400, "The answer has 4000 words"),
    (400, "Invalid value 4000 for temperature"),
    (401, "Incorrect API key provided"),
    (404, "The model `gpt-9` does not exist"),
    (500, "Internal server error"),
    (503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}),
    (400, "max_retries must be positive"),
    (400, "The context of your question is unclear"),
    (400, "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."),
    (400, "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 10 instead."),
    (400, "`max_tokens` must be greater than `thinking.budget_tokens`."),
]


@pytest.mark.parametrize(("text", "limit", "size"), OVERFLOWS)
def test_an_overflow_is_recognized_with_the_numbers_in_its_text(text: str, limit: int | None, size: int | None) -> None:
    assert classify(text, status=400) == Refusal("overflow", text, limit, size)
    assert classify({"error": {"message": text}}, status=400) == Refusal("overflow", text, limit, size)
    assert classify(json.dumps({"error": {"message": text}})) == Refusal("overflow", text, limit, size)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("maximum context length is 4097 tokens. However, you requested 4203 tokens (3703 in the messages, 500 in the "
         "completion)", 3_703),
        ("maximum context length of 64000 tokens. You requested a total of 71897 tokens: 63897 tokens from the input "
         "messages and 8000 tokens for the completion.", 63_897),
        ("maximum context length is 262144 tokens. However, you requested about 504212 tokens (472212 of text input, "
         "32000 in the output)", 472_212),
        ("maximum context length is 4097 tokens, however you requested 4322 tokens (4066 in your prompt; 256 for the "
         "completion)", 4_066),
        ("prompt is too long: 208310 tokens > 200000 maximum", 208_310),
        ("you requested 10 tokens (20 in the completion)", None),
        ("prompt is too long", None),
    ],
)  # fmt: skip
def test_the_size_of_the_input_leaves_out_the_room_for_the_answer(text: str, size: int | None) -> None:
    found = classify(text, status=400)

    assert found is not None
    assert found.input_size == size


@pytest.mark.parametrize(("text", "expected"), OUTPUT_CAPS)
def test_an_output_cap_that_does_not_fit_is_not_an_overflow(text: str, expected: Refusal) -> None:
    found = classify(text, status=400)

    assert found == Refusal("output_cap", text, expected.limit, expected.size, expected.is_lower_bound)


@pytest.mark.parametrize(("status", "body"), RATE_LIMITS)
def test_a_rate_limit_is_not_an_overflow_whatever_its_status(status: int | None, body: object) -> None:
    found = classify(body, status=status)

    assert found is not None
    assert found.kind == "rate_limit"


@pytest.mark.parametrize("quote", "`'\"")
def test_the_name_of_a_tool_in_an_error_says_nothing_about_the_error(quote: str) -> None:
    unsigned = (
        f"Function call is missing a thought_signature. Function call {quote}default_api:get_quota{quote}, position 2."
    )
    schema = f"Invalid schema for function {quote}check_rate_limit{quote}: object schema missing properties."

    assert classify(unsigned, status=400) == Refusal("malformed", unsigned)
    assert classify(schema, status=400) == Refusal("other", schema)


def test_what_an_error_quotes_of_the_request_says_nothing_about_the_error() -> None:
    problem = {
        "type": "extra_forbidden",
        "loc": ["body", "messages", 2, "user", "note"],
        "msg": "Extra inputs are not permitted",
        "input": "It says: prompt is too long: 300 tokens > 200 maximum. Is that a rate limit?",
    }
    refused = Refusal("other", "Extra inputs are not permitted")

    assert classify({"detail": [problem]}, status=422) == refused
    assert classify({"object": "error", "message": {"detail": [problem]}}, status=422) == refused


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_history_is_recognized(text: str) -> None:
    assert classify(text, status=400) == Refusal("malformed", text)


@pytest.mark.parametrize(("status", "body"), OTHERS)
def test_other_errors_are_none_of_these(status: int, body: object) -> None:
    found = classify(body, status=status)

    assert found is not None
    assert found.kind == "other"


def test_a_code_says_overflow_whatever_the_text() -> None:
    body = {"error": {"message": "No.", "code": "context_length_exceeded", "param": "input"}}

    assert classify(body, status=400) == Refusal("overflow", "No.")


def test_a_server_names_its_numbers_in_fields() -> None:
    body: dict[str, Any] = {
        "error": {
            "code": 400,
            "message": "the request exceeds the available context size",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 1739,
            "n_ctx": 1024,
        }
    }

    assert classify(body, status=400) == Refusal("overflow", body["error"]["message"], 1_024, 1_739)


def test_an_error_inside_a_200_is_an_error() -> None:
    body: dict[str, Any] = {"error": {"code": 400, "message": "prompt is too long: 9 tokens > 8 maximum"}}

    assert classify(body, status=200) == Refusal("overflow", body["error"]["message"], 8, 9)


def test_an_error_event_in_a_stream_that_began_well_is_an_error() -> None:
    error = {"type": "error", "error": {"code": "context_length_exceeded", "message": "Too long."}}
    stream = f'data: {{"choices": [{{"delta": {{"content": "Hel"}}}}]}}\n\ndata: {json.dumps(error)}\n\n'

    assert classify(stream, status=200, is_stream=True) == Refusal("overflow", "Too long.")


def test_a_stream_without_an_event_is_an_error() -> None:
    assert classify("", status=200, is_stream=True) == Refusal("other", "the stream ended without an event")


def test_a_finish_reason_can_say_overflow() -> None:
    body = {"choices": [{"finish_reason": "model_context_window_exceeded", "message": {"content": "…"}}]}

    found = classify(body, status=200)

    assert found is not None
    assert found.kind == "overflow"


@pytest.mark.seed("C-36", "C-54")
@pytest.mark.parametrize(("body", "status"), [("", 413), (None, 413), ("", 400), ("413 status code (no body)", None)])
def test_a_413_or_400_without_a_body_is_an_overflow(body: object, status: int | None) -> None:
    found = classify(body, status=status)

    assert found is not None
    assert found.kind == "overflow"


def test_what_a_router_wraps_is_unwrapped() -> None:
    raw = json.dumps({"error": {"message": "prompt is too long: 208310 tokens > 200000 maximum"}})
    body = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}}

    found = classify(body, status=400)

    assert found is not None
    assert (found.kind, found.limit, found.size) == ("overflow", 200_000, 208_310)


@pytest.mark.parametrize(("wrappings", "kind"), [(8, "overflow"), (9, "other")])
def test_an_error_is_unwrapped_eight_times(wrappings: int, kind: str) -> None:
    body: dict[str, object] = {"message": "prompt is too long: 208310 tokens > 200000 maximum"}
    for _ in range(wrappings):
        body = {"message": "Provider returned error", "error": body}

    found = classify(body, status=400)

    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"message": {"content": "prompt is too long, you said"}, "finish_reason": "stop"}]},
        {"content": [{"type": "text", "text": "rate limit"}], "stop_reason": "end_turn"},
        'data: {"choices": []}\n\ndata: [DONE]\n',
    ],
)
def test_an_answer_is_not_a_refusal(answer: object) -> None:
    assert classify(answer, status=200) is None


def test_without_a_status_what_holds_no_answer_is_a_refusal() -> None:
    assert classify({"choices": []}) is None
    assert classify({"detail": "no such model"}) == Refusal("other", "no such model")
    assert classify("prompt is too long: 300 tokens > 200 maximum") == Refusal(
        "overflow", "prompt is too long: 300 tokens > 200 maximum", 200, 300
    )


def test_bytes_are_read_as_text_and_a_failure_without_a_body_is_named_by_its_status() -> None:
    assert classify(b"error: bad gateway \xff", status=502) == Refusal("other", "error: bad gateway \ufffd")
    assert classify(b"", status=503) == Refusal("other", "503 without a body")


@pytest.mark.parametrize("status", [True, "400", 4.0])
def test_a_status_that_is_not_one_is_refused(status: Any) -> None:
    with pytest.raises(SettingsError, match="status: must be an HTTP status or None"):
        classify("", status=status)


def test_a_prompt_that_was_cut_silently_shows_in_the_reported_count() -> None:
    assert is_silently_truncated(counted=5_065, reported=2_048)
    assert not is_silently_truncated(counted=5_065, reported=5_100)
    assert not is_silently_truncated(counted=5_065, reported=4_800)
    assert not is_silently_truncated(counted=5_065, reported=0)
