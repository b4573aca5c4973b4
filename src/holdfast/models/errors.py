"""What went wrong with a call, as one of our errors.

Providers, their libraries and the network fail in many words. Each caller of a model has one question, what
to do now, and `ModelError` has an answer for each: mend the access, wait for the network, wait for the
provider, send less, or do without. Libraries' errors are told by their names, so that none is loaded for it.
"""

import json
import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Protocol

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
from holdfast.wire.json_reader import is_list, is_mapping
from holdfast.wire.overflow import Refusal, classify

UNAUTHORIZED, PAYMENT_REQUIRED, FORBIDDEN, NOT_FOUND, PROXY_UNAUTHORIZED, REQUEST_TIMEOUT = 401, 402, 403, 404, 407, 408
UNAVAILABLE, OVERLOADED = 503, 529
NO_ACCESS_STATUSES = {UNAUTHORIZED, PAYMENT_REQUIRED, FORBIDDEN, PROXY_UNAUTHORIZED}
FIRST_HTTP_ERROR, LAST_HTTP_ERROR = 400, 599
MAX_ERROR_TEXT_CHARS = 500
"""Of a provider's words in an error: some send whole pages."""
_PAGE = re.compile(r"<(!doctype )?html", re.IGNORECASE)
_TITLE = re.compile(r"<title>([^<]{1,200})</title>", re.IGNORECASE)
_TAG = re.compile(r"<[^>]{0,500}>")
NO_CREDIT = re.compile(r"insufficient_quota|current quota|credit balance|billing|out of credits", re.IGNORECASE)

UNREACHABLE_ERRORS = {
    "APIConnectionError",  # openai and anthropic; their timeouts too
    "ConnectionError",
    "ModelConnectionError",  # pydantic-ai; its transport timeouts too
    "ModelRequestTimeout",
    "SSLError",
    "TimeoutError",
    "TransportError",  # httpx
    "gaierror",  # a name that nobody knows
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
"""What an error without a status amounts to."""


class ResponseHeaders(Protocol):
    """What is asked of an answer's headers, whosever they are."""

    def get(self, key: str, /) -> str | None:
        """Return a header."""
        ...


def error_from_response(
    model: str, body: object, *, status: int | None, retry_after: float | None = None, is_stream: bool = False
) -> ModelError:
    """Return the error that a provider's answer amounts to; `body` is its text or JSON."""
    told = status if status is not None and status >= FIRST_HTTP_ERROR else _status_inside(body) or status
    refusal = classify(body, status=told, is_stream=is_stream)
    if refusal is None:
        return ModelRefusedError(model, f"the answer is none: {_shorten(_text(body))}", status=told)
    problem = _shorten(refusal.message)
    if told in NO_ACCESS_STATUSES or (refusal.kind == "rate_limit" and NO_CREDIT.search(_text(body))):
        return ModelAccessError(model, problem)
    if told == REQUEST_TIMEOUT:
        return ModelUnreachableError(model, problem)
    if refusal.kind == "overflow":
        return _overflow(model, refusal)
    if refusal.kind == "rate_limit" or told in {UNAVAILABLE, OVERLOADED}:
        return ModelBusyError(model, problem, retry_after=retry_after)
    remedy = "check the model's name and the address" if told == NOT_FOUND else None
    return ModelRefusedError(model, problem, status=told, remedy=remedy)


def as_model_error(model: str, error: Exception) -> HoldfastError:
    """Return a library's error as one of ours: pydantic-ai's, openai's, anthropic's, httpx', or the system's."""
    if isinstance(error, HoldfastError):
        return error
    if last := _last_exception(error):
        return as_model_error(model, last)
    names = {kind.__name__ for kind in type(error).__mro__}
    if named := _error_by_class_name(model, error, names):
        return named
    body: object = getattr(error, "body", None)
    given: object = getattr(error, "status_code", None)
    status = (
        given
        if isinstance(given, int)
        else next((ERROR_STATUSES[name] for name in ERROR_STATUSES if name in names), None)
    )
    if status is not None or body is not None:
        return error_from_response(model, _error_body(error, body), status=status, retry_after=_requested_wait(error))
    return ModelRefusedError(model, f"{type(error).__name__}: {_shorten(str(error))}")


def _error_by_class_name(model: str, error: Exception, names: set[str]) -> ModelError | None:
    """Return what the kind of an error alone says."""
    problem = _shorten(str(error)) or type(error).__name__
    if names & UNREACHABLE_ERRORS:
        return ModelUnreachableError(model, problem)
    if "ModelContextWindowExceededError" in names:
        told: object = getattr(error, "body", None) or str(error)
        return _overflow(model, classify(told, status=FIRST_HTTP_ERROR) or Refusal("overflow", problem))
    if names & ACCESS_ERRORS:
        return ModelAccessError(model, problem)
    if "UserError" in names:
        return ModelAccessError(model, problem, "configure its provider")
    if isinstance(error, ImportError):
        return ModelAccessError(model, problem, "install what its provider needs")
    return None


def retry_after_seconds(headers: ResponseHeaders) -> float | None:
    """Return how many seconds a provider asks us to wait, where it does."""
    milliseconds = _seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    told = headers.get("retry-after")
    seconds = _seconds(told)
    if seconds is not None or not told:
        return seconds
    try:
        # A date is held against the server's own clock, which may not be ours.
        wait = parsedate_to_datetime(told) - parsedate_to_datetime(headers.get("date") or "")
    except (TypeError, ValueError):
        return None
    return max(0.0, wait.total_seconds())


def _last_exception(error: Exception) -> Exception | None:
    """Return the last of a group of errors: what a chain of fallbacks tried last."""
    members: object = getattr(error, "exceptions", None)
    last: object = members[-1] if is_list(members) and members else None
    return last if isinstance(last, Exception) else None


def _overflow(model: str, refusal: Refusal) -> ModelOverflowError:
    return ModelOverflowError(model, _shorten(refusal.message), limit=refusal.limit, size=refusal.size)


def _error_body(error: Exception, body: object) -> object:
    """Return what a provider said: the body as such, wrapped as on the wire where a library took the wrapper off."""
    if body is None:
        return str(error)
    return {"error": body} if is_mapping(body) and "error" not in body else body


def _requested_wait(error: Exception) -> float | None:
    told = _seconds(getattr(error, "retry_after", None))
    headers: object = getattr(getattr(error, "response", None), "headers", None)
    if told is None and isinstance(headers, Mapping):
        return retry_after_seconds(headers)  # pyright: ignore[reportUnknownArgumentType] - a library's own headers
    return told


def _seconds(value: object) -> float | None:
    if not isinstance(value, str | int | float):
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _status_inside(body: object) -> int | None:
    """Return the status that an error names inside an answer which claims to be none."""
    if isinstance(body, str | bytes):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return None
    told = body.get("error") if is_mapping(body) else None
    code: object = told.get("code") if is_mapping(told) else None
    return code if isinstance(code, int) and FIRST_HTTP_ERROR <= code <= LAST_HTTP_ERROR else None


def _text(body: object) -> str:
    if isinstance(body, bytes | bytearray):
        return bytes(body).decode("utf-8", "replace")
    return json.dumps(body, default=str, skipkeys=True) if is_mapping(body) or is_list(body) else str(body)


def _shorten(text: str) -> str:
    if _PAGE.search(text):
        # Proxies and gateways answer with pages: what they are called says enough.
        title = _TITLE.search(text)
        text = title[1] if title else _TAG.sub(" ", text)
    line = " ".join(text.split())
    return line if len(line) <= MAX_ERROR_TEXT_CHARS else line[: MAX_ERROR_TEXT_CHARS - 1] + "…"
