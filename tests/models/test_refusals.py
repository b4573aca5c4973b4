"""What went wrong with a call is told apart, whoever tells it."""

import json
import pickle
import socket
import ssl

import anthropic
import httpx
import httpx2
import openai
import pytest
from pydantic_ai import exceptions as pai

from holdfast.errors import (
    HoldfastError,
    ModelAccessError,
    ModelBusyError,
    ModelError,
    ModelOverflowError,
    ModelRefusedError,
    ModelUnreachableError,
    SettingsError,
)
from holdfast.models.errors import as_model_error, error_from_response, retry_after_seconds

OVERFLOW = "This model's maximum context length is 4097 tokens. However, you requested 4203 tokens"
TOO_LONG = "prompt is too long: 208310 tokens > 200000 maximum"
PER_MINUTE = "on tokens per minute (TPM): Limit 12000, Requested 14137"
EMPTY_BLOCK = "messages: text content blocks must be non-empty"
QUOTA: dict[str, object] = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
KEY = "sk-abcdefghijklmnop1234"


def facts(error: HoldfastError) -> tuple[object, ...]:
    """Return an error's kind and its own facts."""
    own: dict[type[HoldfastError], tuple[str, ...]] = {
        ModelBusyError: ("retry_after",),
        ModelOverflowError: ("limit", "size"),
        ModelRefusedError: ("status", "is_transient"),
    }
    return (type(error), *(getattr(error, name) for name in own.get(type(error), ())))


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (401, '{"error": {"message": "Incorrect API key provided"}}', (ModelAccessError,)),
        (403, "", (ModelAccessError,)),
        (402, '{"error": {"message": "Insufficient credits"}}', (ModelAccessError,)),
        (429, QUOTA, (ModelAccessError,)),
        (429, {"error": {"message": "Rate limit reached"}}, (ModelBusyError, 7.0)),
        (413, {"error": {"message": PER_MINUTE}}, (ModelBusyError, 7.0)),
        (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, (ModelBusyError, 7.0)),
        (503, {"error": {"code": 503, "message": "Loading model"}}, (ModelBusyError, 7.0)),
        (400, {"error": {"message": OVERFLOW}}, (ModelOverflowError, 4_097, 4_203)),
        (400, "", (ModelOverflowError, None, None)),
        (408, "", (ModelUnreachableError,)),
        (404, {"error": {"message": "no such model"}}, (ModelRefusedError, 404, False)),
        (400, {"error": {"message": EMPTY_BLOCK}}, (ModelRefusedError, 400, False)),
        (500, "<html>oops</html>", (ModelRefusedError, 500, True)),
        (502, "", (ModelRefusedError, 502, True)),
        (500, b"\xffoops", (ModelRefusedError, 500, True)),
        # A success that is none.
        (200, {"error": {"code": 401, "message": "no"}}, (ModelAccessError,)),
        (200, {"error": {"code": 429, "message": "slow down"}}, (ModelBusyError, 7.0)),
        (200, {"error": {"code": 500, "message": "upstream"}}, (ModelRefusedError, 500, True)),
        (200, json.dumps({"error": {"code": 400, "message": OVERFLOW}}), (ModelOverflowError, 4_097, 4_203)),
        (200, "<html>a portal</html>", (ModelRefusedError, 200, False)),
    ],
)
def test_a_providers_answer_becomes_the_error_that_says_what_to_do(
    status: int, body: object, expected: tuple[object, ...]
) -> None:
    assert facts(error_from_response("m", body, status=status, retry_after=7.0)) == expected


def test_a_stream_without_an_event_is_a_refusal() -> None:
    error = error_from_response("m", "", status=200, is_stream=True)

    assert (facts(error), str(error)) == (
        (ModelRefusedError, 200, False),
        "m: the stream ended without an event; ask again, or choose another model",
    )


def answered(status: int, body: object, headers: dict[str, str] | None = None) -> httpx2.Response:
    request = httpx2.Request("POST", "http://127.0.0.1/v1")
    return httpx2.Response(status, json=body, headers=headers, request=request)


def openai_error(status: int, body: dict[str, object], headers: dict[str, str] | None = None) -> openai.APIStatusError:
    """Return the error that the client itself makes of an answer; it takes the wrapper off."""
    client = openai.OpenAI(api_key=KEY)
    try:
        return client._make_status_error_from_response(answered(status, body, headers))
    finally:
        client.close()


def anthropic_error(status: int, kind: str, message: str) -> anthropic.APIStatusError:
    client = anthropic.Anthropic(api_key=KEY)
    body = {"type": "error", "error": {"type": kind, "message": message}}
    try:
        return client._make_status_error_from_response(answered(status, body))
    finally:
        client.close()


def overflow_of_pydantic_ai() -> pai.ModelHTTPError:
    return pai.ModelHTTPError.for_category(
        pai.ModelContextWindowExceededError, status_code=400, model_name="m", body={"message": OVERFLOW}
    )


class GenaiClientError(Exception):
    """An error with the attributes of `google.genai.errors.ClientError`."""

    def __init__(self, code: int, details: dict[str, object]) -> None:
        super().__init__(f"{code} INVALID_ARGUMENT. {details}")
        self.code = code
        self.details = details


class BotoClientError(Exception):
    """An error with the attributes of `botocore.exceptions.ClientError`."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"An error occurred ({code}) when calling the Converse operation: {message}")
        self.response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}


def httpx_error(status: int, body: object) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/v1")
    return httpx.HTTPStatusError("it failed", request=request, response=httpx.Response(status, json=body))


def unread_httpx_error(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/v1")
    response = httpx.Response(status, stream=httpx.ByteStream(b"later"))
    return httpx.HTTPStatusError("it failed", request=request, response=response)


GEMINI_OVERFLOW = "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576)."
REQUEST = httpx2.Request("POST", "http://127.0.0.1/v1")
CODED: dict[str, object] = {"message": OVERFLOW, "code": "context_length_exceeded"}
FALLBACKS = [pai.UserError("x"), pai.ModelConnectionError("m", "y")]
LIBRARIES: list[tuple[Exception, tuple[object, ...]]] = [
    (openai_error(401, {"error": {"message": "no"}}), (ModelAccessError,)),
    (openai_error(403, {"error": {"message": "no"}}), (ModelAccessError,)),
    (openai_error(429, QUOTA), (ModelAccessError,)),
    (openai_error(429, {"error": {"message": "slow down"}}, {"Retry-After": "3"}), (ModelBusyError, 3.0)),
    (openai_error(400, {"error": CODED}), (ModelOverflowError, 4_097, 4_203)),
    (openai_error(500, {"error": {"message": "oops"}}), (ModelRefusedError, 500, True)),
    (openai.APIConnectionError(request=REQUEST), (ModelUnreachableError,)),
    (openai.APITimeoutError(REQUEST), (ModelUnreachableError,)),
    (openai.APIError("in a stream", REQUEST, body=CODED), (ModelOverflowError, 4_097, 4_203)),
    (anthropic_error(401, "authentication_error", "no"), (ModelAccessError,)),
    (anthropic_error(529, "overloaded_error", "Overloaded"), (ModelBusyError, None)),
    (anthropic_error(400, "invalid_request_error", TOO_LONG), (ModelOverflowError, 200_000, 208_310)),
    (anthropic.APIConnectionError(request=REQUEST), (ModelUnreachableError,)),
    (pai.UserError("Set the `OPENAI_API_KEY` environment variable"), (ModelAccessError,)),
    (pai.ModelHTTPError(500, "m", "oops"), (ModelRefusedError, 500, True)),
    (pai.ModelHTTPError(429, "m", {"message": "slow down"}, headers={"retry-after": "4"}), (ModelBusyError, 4.0)),
    (overflow_of_pydantic_ai(), (ModelOverflowError, 4_097, 4_203)),
    (pai.ModelContextWindowExceededError("m", "too long"), (ModelOverflowError, None, None)),
    (pai.ModelQuotaExceededError("m", "no credit"), (ModelAccessError,)),
    (pai.ModelRateLimitError("m", "slow down", retry_after=9), (ModelBusyError, 9.0)),
    (pai.ModelOverloadedError("m", "busy"), (ModelBusyError, None)),
    (pai.ModelServerError("m", "oops"), (ModelRefusedError, 500, True)),
    (pai.ModelConnectionError("m", "reset"), (ModelUnreachableError,)),
    (pai.ModelRequestTimeout("m", 5), (ModelUnreachableError,)),
    (pai.UnexpectedModelBehavior("no text"), (ModelRefusedError, None, False)),
    (pai.ContentFilterError("filtered"), (ModelRefusedError, None, False)),
    (pai.FallbackExceptionGroup("all failed", FALLBACKS), (ModelUnreachableError,)),
    (httpx.ConnectError("refused"), (ModelUnreachableError,)),
    (httpx.ReadTimeout("slow"), (ModelUnreachableError,)),
    (socket.gaierror(-2, "Name or service not known"), (ModelUnreachableError,)),
    (ssl.SSLError("bad certificate"), (ModelUnreachableError,)),
    (TimeoutError(), (ModelUnreachableError,)),
    (ConnectionResetError(104, "reset"), (ModelUnreachableError,)),
    (ImportError("Please install `groq`"), (ModelAccessError,)),
    (ValueError("what a custom model raises"), (ModelRefusedError, None, False)),
    (RuntimeError("prompt is too long: 208310 tokens > 200000 maximum"), (ModelOverflowError, 200_000, 208_310)),
    (GenaiClientError(400, {"error": {"message": GEMINI_OVERFLOW}}), (ModelOverflowError, 1_048_576, 1_200_293)),
    (GenaiClientError(429, {"error": {"message": "slow down"}}), (ModelBusyError, None)),
    (
        BotoClientError(400, "ValidationException", "Input is too long for requested model."),
        (ModelOverflowError, None, None),
    ),
    (BotoClientError(429, "ThrottlingException", "Too many tokens, please wait."), (ModelBusyError, None)),
    (httpx_error(400, {"error": {"message": TOO_LONG}}), (ModelOverflowError, 200_000, 208_310)),
    (httpx_error(401, {"error": {"message": "no"}}), (ModelAccessError,)),
    (unread_httpx_error(500), (ModelRefusedError, 500, True)),
]


@pytest.mark.parametrize(("error", "expected"), LIBRARIES, ids=lambda value: type(value).__name__)
def test_a_librarys_error_becomes_ours(error: Exception, expected: tuple[object, ...]) -> None:
    assert facts(as_model_error("m", error)) == expected


def test_an_error_of_ours_stays_what_it_is() -> None:
    error = SettingsError("model", "wrong")

    assert as_model_error("m", error) is error


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_a_provider_says_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers) == seconds


@pytest.mark.parametrize(
    "error",
    [
        ModelAccessError("m", f"no such key {KEY}"),
        ModelUnreachableError("http://me:secretpassword@host", "down"),
        ModelBusyError("m", "slow down", retry_after=2.5),
        ModelOverflowError("m", "too long", limit=100, size=200),
        ModelRefusedError("m", "no", status=500),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_travels_whole_and_without_keys(error: ModelError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert not any(secret in repr((error, vars(error))) for secret in (KEY, "secretpassword"))


def test_each_error_says_what_to_do() -> None:
    messages = [
        str(ModelAccessError("m", "401")),
        str(ModelUnreachableError("m", "reset")),
        str(ModelBusyError("m", "429", retry_after=2.5)),
        str(ModelBusyError("m", "429")),
        str(ModelOverflowError("m", "too long", limit=8_192)),
        str(ModelRefusedError("m", "no")),
        str(ModelRefusedError("m", "oops", status=500)),
    ]

    assert messages == [
        "m: 401; check the API key, and that it may use this model",
        "m: reset; check the address and the network, then ask again",
        "m: 429; ask again in 2.5 s",
        "m: 429; ask again later",
        "m: too long; send less than 8,192 tokens",
        "m: no; ask again, or choose another model",
        "m: oops; ask again later",
    ]


@pytest.mark.parametrize("status", [400, 500], ids=["vLLM", "llama.cpp"])
def test_a_server_that_wants_alternating_roles_is_told_apart_with_what_to_do(status: int) -> None:
    error = error_from_response("m", {"error": {"message": "Conversation roles must alternate"}}, status=status)

    assert str(error) == (
        "m: Conversation roles must alternate; join neighbors of one role: holdfast.compaction.join_same_roles"
    )


def test_a_long_text_is_shortened() -> None:
    error = error_from_response("m", {"error": {"message": "x" * 10_000}}, status=418)

    assert isinstance(error, ModelRefusedError)
    assert len(error.problem) == 500


def test_a_problem_that_is_a_sentence_is_joined_to_what_to_do() -> None:
    error = ModelUnreachableError("gpt-5", "Connection error.")

    assert str(error) == "gpt-5: Connection error; check the address and the network, then ask again"
