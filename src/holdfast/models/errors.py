"""Translates a failed call to a model into a `ModelError`.

Providers, their libraries and the network fail in many ways, but a caller only needs to know what to do: fix the
access, wait for the network, wait for the provider, send less, or do without. The errors of libraries are recognized
by class name, so that no library is loaded for it.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import TypeGuard

from holdfast.errors import (
    FIRST_SERVER_STATUS,
    HoldfastError,
    ModelAccessError,
    ModelBusyError,
    ModelError,
    ModelOverflowError,
    ModelRefusedError,
    ModelUnreachableError,
)
from holdfast.text import lazy_pattern
from holdfast.wire.json_reader import is_list, is_mapping
from holdfast.wire.overflow import Refusal, classify

UNAUTHORIZED, PAYMENT_REQUIRED, FORBIDDEN, NOT_FOUND, PROXY_UNAUTHORIZED, REQUEST_TIMEOUT = 401, 402, 403, 404, 407, 408
UNAVAILABLE, OVERLOADED = 503, 529
NO_ACCESS_STATUSES = {UNAUTHORIZED, PAYMENT_REQUIRED, FORBIDDEN, PROXY_UNAUTHORIZED}
FIRST_HTTP_ERROR, LAST_HTTP_ERROR = 400, 599
CONTENT_FILTERED = "the provider's content filter stopped the answer"
MAX_ERROR_TEXT_CHARS = 500
"""The longest text of a provider in an error: some send whole pages."""
_PAGE = lazy_pattern(r"<(!doctype )?html", re.IGNORECASE)
_TITLE = lazy_pattern(r"<title>([^<]{1,200})</title>", re.IGNORECASE)
_MISSING_KEY = lazy_pattern(r"[Ss]et the `([A-Z][A-Z0-9_]*)`")
_UNKNOWN_MODEL = lazy_pattern(r"Unknown model: [^ ]+?(?:\. Did you mean '([^']+)'\?|$)")
_TAG = lazy_pattern(r"<[^>]{0,500}>")
NO_CREDIT = lazy_pattern(r"insufficient_quota|current quota|credit balance|billing|out of credits", re.IGNORECASE)

UNREACHABLE_ERRORS = {
    "APIConnectionError",  # openai and anthropic; their timeouts too
    "ConnectionError",
    "ModelConnectionError",  # pydantic-ai; its transport timeouts too
    "ModelRequestTimeout",
    "SSLError",
    "TimeoutError",
    "TransportError",  # httpx
    "gaierror",  # an unknown host name
}
ACCESS_ERRORS = {
    "AuthenticationError",
    "ModelAuthenticationError",
    "ModelQuotaExceededError",
    "PermissionDeniedError",
}
ERROR_STATUSES = {
    "ModelRateLimitError": 429,
    "ModelUnavailableError": UNAVAILABLE,
    "ModelServerError": FIRST_SERVER_STATUS,
}
"""The status that an error without one corresponds to."""


def error_from_response(
    model: str, body: object, *, status: int | None, retry_after: float | None = None, is_stream: bool = False
) -> ModelError:
    """Return the error that a provider's response means; `body` is its text or JSON."""
    status = status if status is not None and status >= FIRST_HTTP_ERROR else _status_inside(body) or status
    refusal = classify(body, status=status, is_stream=is_stream)
    if refusal is None:
        return ModelRefusedError(model, f"the response holds no answer: {_shorten(_text(body))}", status=status)
    problem = _shorten(refusal.message)
    if status in NO_ACCESS_STATUSES or (refusal.kind == "rate_limit" and NO_CREDIT.search(_text(body))):
        return ModelAccessError(model, problem)
    if status == REQUEST_TIMEOUT:
        return ModelUnreachableError(model, problem)
    if refusal.kind == "overflow":
        return _overflow(model, refusal)
    if refusal.kind == "rate_limit" or status in {UNAVAILABLE, OVERLOADED}:
        return ModelBusyError(model, problem, retry_after=retry_after)
    remedy = "check the model's name and the address" if status == NOT_FOUND else None
    if refusal.wants_alternating_roles:
        remedy = "join neighbors of one role: holdfast.compaction.join_same_roles"
    return ModelRefusedError(model, problem, status=status, remedy=remedy)


def as_model_error(model: str, error: Exception) -> HoldfastError:
    """Return an error of a provider's library, of an HTTP client or of the system as one of ours."""
    if isinstance(error, HoldfastError):
        return error
    members: object = getattr(error, "exceptions", None)
    if is_list(members) and members and isinstance(members[-1], Exception):
        # The last attempt of a chain of fallbacks.
        return as_model_error(model, members[-1])
    names = {kind.__name__ for kind in type(error).__mro__}
    if named := _error_by_class_name(model, error, names):
        return named
    status, body = _status_and_body(error)
    if status is None:
        status = next((known for name, known in ERROR_STATUSES.items() if name in names), None)
    if status is None and body is None:
        refusal = classify(str(error))
        if refusal is not None and refusal.kind == "overflow":
            return _overflow(model, refusal)
        return ModelRefusedError(model, f"{type(error).__name__}: {_shorten(str(error))}")
    if is_mapping(body) and "error" not in body:
        # Some libraries remove the outer object.
        body = {"error": body}
    text_or_body = str(error) if body is None else body
    return error_from_response(model, text_or_body, status=status, retry_after=_requested_wait(error))


def _status_and_body(error: Exception) -> tuple[int | None, object]:
    """Return the status and the body of the response that an exception carries, where there are any.

    openai, anthropic and pydantic-ai have `status_code` and `body`; google-genai has `code` and `details`; botocore has
    `response` as an object of JSON; httpx and requests have `response` with `status_code` and `text`.
    """
    code: object = getattr(error, "status_code", None)
    body: object = getattr(error, "body", None)
    response: object = getattr(error, "response", None)
    if is_mapping(response):
        metadata, problem = response.get("ResponseMetadata"), response.get("Error")
        code = metadata.get("HTTPStatusCode") if code is None and is_mapping(metadata) else code
        if body is None and is_mapping(problem):
            body = {"message": problem.get("Message"), "code": problem.get("Code")}
    elif code is None:
        code = getattr(response, "status_code", None)
    if code is None and _is_error_status(number := getattr(error, "code", None)):
        code = number
    details: object = getattr(error, "details", None)
    if body is None and is_mapping(details):
        body = details
    return (code if isinstance(code, int) else None), _text_of(response) if body is None else body


def _text_of(response: object) -> str | None:
    try:
        text: object = getattr(response, "text", None)
    except RuntimeError:
        # The answer was a stream, and httpx has not read it.
        return None
    return text if isinstance(text, str) else None


def _error_by_class_name(model: str, error: Exception, names: set[str]) -> ModelError | None:
    """Return the error that the class of an exception alone determines."""
    problem = _shorten(str(error)) or type(error).__name__
    if names & UNREACHABLE_ERRORS:
        return ModelUnreachableError(model, problem)
    if "ModelContextWindowExceededError" in names:
        told: object = getattr(error, "body", None) or str(error)
        return _overflow(model, classify(told, status=FIRST_HTTP_ERROR) or Refusal("overflow", problem))
    if names & ACCESS_ERRORS:
        body: object = getattr(error, "body", None)
        refusal = classify(body, status=UNAUTHORIZED) if body else None
        return ModelAccessError(model, _shorten(refusal.message) if refusal else problem)
    if "UserError" in names:
        return _configuration_error(model, problem)
    if isinstance(error, ImportError):
        return ModelAccessError(model, problem, "install the library of its provider")
    return None


def _configuration_error(model: str, problem: str) -> ModelAccessError:
    """Return the error for a model that pydantic-ai cannot set up; its own text speaks to programmers."""
    if missing := _MISSING_KEY.search(problem):
        return ModelAccessError(model, "there is no API key for it", f"set the environment variable {missing[1]}")
    if unknown := _UNKNOWN_MODEL.search(problem):
        near = f", such as {unknown[1].replace('openai-chat:', 'openai:')}" if unknown[1] else ""
        return ModelAccessError(model, "no provider offers a model of this name", f"write it as PROVIDER:NAME{near}")
    return ModelAccessError(model, problem, "configure its provider")


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Return the delay in seconds that a provider asks for, if it does."""
    if (milliseconds := _seconds(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _seconds(value)
    if seconds is not None or not value:
        return seconds
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - hardly any provider names a date

    try:
        # A date is compared with the server's clock, which may differ from ours.
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(headers.get("date") or "")
    except (TypeError, ValueError):
        return None
    return max(0.0, wait.total_seconds())


def _overflow(model: str, refusal: Refusal) -> ModelOverflowError:
    return ModelOverflowError(model, _shorten(refusal.message), limit=refusal.limit, size=refusal.input_size)


def _requested_wait(error: Exception) -> float | None:
    delay = _seconds(getattr(error, "retry_after", None))
    headers: object = getattr(getattr(error, "response", None), "headers", None)
    return retry_after_seconds(headers) if delay is None and is_mapping(headers) else delay


def _seconds(value: object) -> float | None:
    if not isinstance(value, str | int | float):
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _status_inside(body: object) -> int | None:
    """Return the status that an error names inside a response without an error status."""
    if isinstance(body, str | bytes):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return None
    error = body.get("error") if is_mapping(body) else None
    code: object = error.get("code") if is_mapping(error) else None
    return code if _is_error_status(code) else None


def _is_error_status(code: object) -> TypeGuard[int]:
    return isinstance(code, int) and FIRST_HTTP_ERROR <= code <= LAST_HTTP_ERROR


def _text(body: object) -> str:
    if isinstance(body, bytes | bytearray):
        return bytes(body).decode("utf-8", "replace")
    return json.dumps(body, default=str, skipkeys=True) if is_mapping(body) or is_list(body) else str(body)


def _shorten(text: str) -> str:
    if _PAGE.search(text):
        # Proxies and gateways answer with HTML pages, whose title says enough.
        title = _TITLE.search(text)
        text = title[1] if title else _TAG.sub(" ", text)
    line = " ".join(text.split())
    return line if len(line) <= MAX_ERROR_TEXT_CHARS else line[: MAX_ERROR_TEXT_CHARS - 1] + "…"
