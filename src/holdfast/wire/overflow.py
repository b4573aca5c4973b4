"""What a provider's error means.

There are four remedies, and each error needs the right one: shorten a request that is too long, lower the output limit,
wait after a rate limit, or repair a malformed history. Providers describe all of them in free text, some under
a misleading status, some inside a successful answer. A bare number in a message never makes it an overflow.

Each pattern below was seen in a real error. The groups `limit` and `size` capture numbers; case is ignored.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError
from holdfast.wire.json_reader import is_list, is_mapping

_L, _S = r"(?P<limit>[\d,]+)", r"(?P<size>[\d,]+)"

RATE_LIMIT_PATTERNS = (
    r"rate.?limit",
    r"(tokens|requests) per (minute|day|hour)",
    r"\b[TR]PM\b",
    r"too many requests",
    r"quota",
    r"overloaded",
    r"resource.?exhausted",
    r"throttl",
    r"too many tokens, please wait",
    r"(daily|hourly|monthly) token limit",
)
OUTPUT_CAP_PATTERNS = (
    rf"input length and `max_tokens` exceed context limit: {_S} \+ [\d,]+ > {_L}",
    rf"you requested [\d,]+ output tokens and your prompt contains (?:at least )?{_S} input tokens",
    rf"`inputs` tokens \+ `max_new_tokens` must be <= {_L}(?:\. Given: {_S} `inputs` tokens)?",
    r"max_tokens must be at least 1, got -\d+",
    rf"max_tokens: [\d,]+ > {_L}, which is the maximum allowed number of output tokens",
    rf"too large: [\d,]+\. This model's maximum context length is {_L} tokens and your request has {_S} input tokens",
    rf"max_(?:completion_)?tokens is too large: [\d,]+\. This model supports at most {_L}",
    rf"range of max_tokens (?:should be|is) \[1, ?{_L}\]",
    rf"maxOutputTokens value of [\d,]+ but the supported range is from 1 \(inclusive\) to {_L} \(exclusive\)",
    rf"max_\w{{0,20}}tokens\W.{{0,60}}above maximum value.{{0,20}}expected a value <= {_L}",
    rf"maximum tokens you requested exceeds the model limit of {_L}",
    rf"max tokens must be less than or equal to {_L}, the maximum output",
    rf"max_(?:completion_)?tokens.{{0,40}}(?:too large|exceeds|must be (?:less|at most|<=?))\D*{_L}?",
)
ALTERNATION_PATTERN = (
    r"must alternate between|roles must alternate|should alternate with|successive user or assistant messages"
)
MALFORMED_PATTERNS = (
    r"must be followed by",
    r"must be a response to a prece+ding message",
    r"insufficient tool messages",
    r"tool_use(_id)?` (ids|found)",
    r"tool_result` block|tool_result block\(s\)",
    r"text content blocks must be non-empty|must have non-empty content",
    r"function (call|response) (turn|parts)",
    r"thought_signature|thinking\.signature|`thinking`|redacted_thinking|reasoning_content",
    r"No tool (call|output) found for function call",
    r"without its required|Expected an ID that begins|Items are not persisted",
    r"Unexpected role|Expected last role|tool call id|Duplicate tool call",
    r"Not the same number of function calls|More tool responses than tool calls",
    r"Conversation must start|System prompt must have|either content or tool_calls",
    ALTERNATION_PATTERN,
    r"toolResult blocks|tool result blocks cannot be provided",
    r"toolConfig field must be defined|server_tool_use",
    r"assistant message prefill|cache_control",
    r"invalid_request_message_order|invalid_function_call",
    r"expected a string, got null",
    r"with role '\w+' must not be empty|tool_call_id\s+is not found",
)
OVERFLOW_PATTERNS = (
    rf"maximum context length is {_L} tokens\. However, your messages resulted in {_S} tokens",
    rf"maximum context length is {_L} tokens[.,] However,? you requested (?:about )?{_S} tokens",
    rf"maximum context length is {_L} tokens\. However, your request has {_S} input tokens",
    rf"decoder prompt \(length {_S}\) is longer than the maximum model length of {_L}",
    rf"configured limit of {_L} tokens\. Your messages resulted in {_S} tokens",
    rf"prompt is too long: {_S} tokens > {_L} maximum",
    rf"prompt is too long: {_S}, model maximum context length: {_L}",
    rf"input token count is {_S} but model only supports up to {_L}",
    rf"number of input tokens {_S} cannot exceed the total tokens limit {_L}",
    rf"tokens in the prompt cannot exceed {_L}(?: - received {_S})?",
    rf"`inputs` must have less than {_L} tokens\. Given: {_S}",
    rf"input token count \({_S}\) exceeds the maximum number of tokens allowed \({_L}\)",
    rf"input token count exceeds the maximum number of tokens allowed \(?{_L}",
    rf"Prompt contains {_S} tokens(?: and \d+ draft tokens)?[^\d]*too large for model with {_L} maximum context length",
    rf"prompt tokens \({_S}\) exceed model maximum \({_L}\)",
    rf"maximum prompt length is {_L} but the request contains {_S} tokens",
    rf"request \({_S} tokens\) exceeds the available context size \({_L} tokens\)",
    rf"first {_S} tokens when context the overflows[^\d]*context length of only {_L} tokens",
    rf"Current length is {_S} while limit is {_L}",
    rf"prompt token count of {_S} exceeds the limit of {_L}",
    rf"exceeded model token limit: {_L} \(requested: {_S}\)",
    rf"truncating input prompt limit={_L} prompt={_S}",
    rf"maximum context length of {_L} tokens\. You requested a total of {_S} tokens",
    rf"input length \({_S}\) exceeds (?:the )?model's maximum context length \({_L}\)",
    rf"input \({_S} tokens\) is longer than the model's context length \({_L} tokens\)",
    rf"prompt has {_S} tokens?, but the configured context size is {_L}",
    rf"max input tokens: {_L}, request input token count: {_S}",
    rf"range of input length should be \[1, ?{_L}\]",
    # vLLM stops counting one token after the limit, so the size that it names here is not the size of the prompt.
    rf"context length is only [\d,]+ tokens, resulting in a maximum input length of {_L} tokens",
    rf"input length \({_S} tokens\) exceeds the maximum allowed length \({_L} tokens\)",
    rf"length of prompt_tokens \({_S}\) must be less than max_seq_len \({_L}\)",
    rf"requested input length {_S} exceeds maximum input length {_L}",
    rf"cannot truncate prompt with n_keep \({_S}\) >= n_ctx \({_L}\)",
    rf"reached context length of {_L} tokens",
    rf"request body too large for .{{0,80}} model\. Max size: {_L} tokens",
    rf"input and maximum output tokens \([\d,]+\) exceeded this model context window limit \({_L}\)",
    rf"message token length exceed model limit \({_L} tokens\)",
    rf"exceeds the model's maximum context length of {_L} tokens",
    rf"maximum context length is {_L} tokens",
    r"exceeds? the (?:available )?context (?:size|window|length)|context window exceeds limit",
    r"context (?:length|window|size|limit)(?: is| was| has been)? exceeded",
    r"exceeded (?:the )?(?:max(?:imum)? )?context length",
    r"exceeds the model's maximum context length|token limit exceeded|too many (?:input )?tokens",
    r"prompt is too long|input is too long for requested model|input length exceeds context limit",
    r"prompt exceeds max length|longer than the maximum model length",
    r"reduce the length of the messages|input token count exceeds the maximum number of tokens",
    r"tokens to keep from the initial prompt is greater than the context length",
    r"request_too_large|request exceeds the maximum size|request payload size exceeds the limit",
    r"message token length exceed model limit|exceed max message tokens|number of input tokens exceeds maximum length",
    r"too many total text bytes|prompt\s?超长",
    r"string too long",
)
OVERFLOW_CODES = frozenset(
    {
        "context_length_exceeded",
        "model_max_prompt_tokens_exceeded",
        "exceed_context_size_error",
        "model_context_window_exceeded",
        "request_too_large",
        "string_above_max_length",
        "tokens_limit_reached",
    }
)
RATE_LIMIT_CODES = frozenset({"rate_limit_exceeded", "429"})
QUOTED_FUNCTION_PATTERN = r"(?i)function (?:call )?(['\"`])[^'\"`]{1,200}\1"
"""A tool that an error names. What it is called, such as `get_quota`, says nothing about the error."""

RefusalKind: TypeAlias = Literal["overflow", "output_cap", "rate_limit", "malformed", "other"]

BAD_REQUEST, PAYLOAD_TOO_LARGE, TOO_MANY_REQUESTS = 400, 413, 429
MIN_ERROR_STATUS = 400
MAX_TOKEN_DIGITS = 15
MAX_ERROR_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a provider refused a request."""

    kind: RefusalKind
    message: str
    limit: int | None = None
    """The largest input or window the provider named, in tokens."""
    size: int | None = None
    """The size of the request by the provider's count, in tokens."""
    is_lower_bound: bool = False
    """Whether the request may be larger, because the provider stopped counting."""

    @property
    def wants_alternating_roles(self) -> bool:
        """Whether messages of one role may not follow each other."""
        return self.kind == "malformed" and _search((ALTERNATION_PATTERN,), self.message) is not None

    @property
    def input_size(self) -> int | None:
        """The size without the room for the answer, which some providers add to it."""
        answer = re.search(r"([\d,]{1,16}) (?:(?:tokens )?for|in) the (?:completion|output)", self.message)
        size = None if self.size is None else self.size - (_number(answer[1]) or 0 if answer else 0)
        return size if size is None or size > 0 else None


def classify(body: object = None, *, status: int | None = None, is_stream: bool = False) -> Refusal | None:
    """Return what an error means, or None for an answer without an error.

    `body` is the text, the parsed JSON, or the message of an exception; for a stream, all of its text.
    """
    if status is not None and (isinstance(status, bool) or not isinstance(status, int)):
        raise SettingsError("status", f"must be an HTTP status or None, not {status!r}")
    text, payload = _parse_body(body)
    if not text.strip() or "(no body)" in text:
        return _classify_by_status(text, status, is_stream=is_stream)
    message, codes = _message_and_codes(payload, text)
    if not _is_refusal(payload, text, status, codes):
        return None
    said = re.sub(QUOTED_FUNCTION_PATTERN, "function", message)
    if status == TOO_MANY_REQUESTS or codes & RATE_LIMIT_CODES or _search(RATE_LIMIT_PATTERNS, said):
        return Refusal("rate_limit", message)
    if found := _search(OUTPUT_CAP_PATTERNS, said):
        capped = _refusal_with_numbers("output_cap", message, found)
        # If the input alone is too long, no smaller answer helps; a lower bound was computed from the answer's size.
        is_input_too_long = not capped.is_lower_bound and (capped.size or 0) > (capped.limit or capped.size or 0)
        return replace(capped, kind="overflow") if is_input_too_long else capped
    # A code is more reliable than what the text happens to mention.
    is_coded = bool(codes & OVERFLOW_CODES)
    if not is_coded and _search(MALFORMED_PATTERNS, said):
        return Refusal("malformed", message)
    if found := _search(OVERFLOW_PATTERNS, said):
        return _refusal_with_numbers("overflow", message, found, payload)
    if is_coded or status == PAYLOAD_TOO_LARGE:
        return _refusal_with_numbers("overflow", message, None, payload)
    return Refusal("other", message)


def is_silently_truncated(*, counted: int, reported: int) -> bool:
    """Return whether a server truncated the prompt, because it reports fewer input tokens than were sent.

    Some local servers truncate a long prompt without an error. A tenth is allowed for the difference between two
    tokenizers, and a little for templates.
    """
    return 0 < reported < counted * 0.9 - 64


def _classify_by_status(text: str, status: int | None, *, is_stream: bool) -> Refusal | None:
    named = re.match(r"\s*(4\d\d)\b", text)
    status = int(named.group(1)) if named else status
    if status in {BAD_REQUEST, PAYLOAD_TOO_LARGE}:
        # Some servers send an empty error when a request is too long, and only then.
        return Refusal("overflow", f"{status} without a body")
    if status == TOO_MANY_REQUESTS:
        return Refusal("rate_limit", "429 without a body")
    if status is not None and status >= MIN_ERROR_STATUS:
        return Refusal("other", f"{status} without a body")
    return Refusal("other", "the stream ended without an event") if is_stream else None


def _is_refusal(payload: object, text: str, status: int | None, codes: frozenset[str]) -> bool:
    """Return whether the status, or an error inside the answer, says that the request failed."""
    if _has_error(payload) or codes & OVERFLOW_CODES:
        return True
    if status is None:
        answers = ("choices", "content", "output", "candidates")
        return not is_mapping(payload) or not any(key in payload for key in answers)
    return status >= MIN_ERROR_STATUS or (payload is None and text.lstrip().lower().startswith("error"))


def _search(patterns: tuple[str, ...], message: str) -> re.Match[str] | None:
    """Return the first match; `re` compiles patterns on first use and caches them."""
    found = (re.search(pattern, message, re.IGNORECASE) for pattern in patterns)
    return next((match for match in found if match), None)


def _refusal_with_numbers(
    kind: RefusalKind, message: str, found: re.Match[str] | None, payload: object = None
) -> Refusal:
    groups = found.groupdict() if found else {}
    limit, size = _number(groups.get("limit")), _number(groups.get("size"))
    if limit is None and (named := re.search(r"maximum context length is ([\d,]+)", message)):
        limit = _number(named[1])
    for item in _error_objects(payload):
        if isinstance(item.get("n_ctx"), int) and isinstance(item.get("n_prompt_tokens"), int):
            limit, size = item["n_ctx"], item["n_prompt_tokens"]
    return Refusal(kind, message, limit, size, is_lower_bound=size is not None and "at least" in message)


def _number(text: str | None) -> int | None:
    digits = (text or "").replace(",", "")
    return int(digits) if digits and len(digits) <= MAX_TOKEN_DIGITS else None


def _parse_body(body: object) -> tuple[str, object]:
    """Return a body as text, and as JSON if it is JSON."""
    if isinstance(body, bytes | bytearray):
        body = bytes(body).decode("utf-8", "replace")
    if body is None:
        return "", None
    if is_mapping(body) or is_list(body):
        try:
            return json.dumps(body, default=str, skipkeys=True), body
        except (ValueError, RecursionError):
            return "an answer that cannot be read", body
    text = str(body)
    events = [line[5:] for line in text.splitlines() if line.startswith("data:")]
    for candidate in events or [text]:
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if not events or _has_error(value):
            return text, value
    return text, None


def _has_error(payload: object) -> bool:
    if is_list(payload):
        return any(_has_error(item) for item in payload if is_mapping(item))
    return is_mapping(payload) and (bool(payload.get("error")) or payload.get("type") == "error")


def _error_objects(value: object, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of an error: itself, its inner errors, and the error that a router wraps."""
    if depth > MAX_ERROR_DEPTH:
        return
    if is_list(value):
        for item in value:
            yield from _error_objects(item, depth + 1)
    if not is_mapping(value):
        return
    yield value
    for key in ("error", "errors", "message", "detail", "response", "metadata"):
        yield from _error_objects(value.get(key), depth + 1)
    raw = value.get("raw")
    if isinstance(raw, str):
        yield from _error_objects(_parse_body(raw)[1] or {"message": raw}, depth + 1)


def _message_and_codes(payload: object, text: str) -> tuple[str, frozenset[str]]:
    messages: list[str] = []
    codes: set[str] = set()
    for item in _error_objects(payload):
        messages += [item[key] for key in ("message", "error", "detail", "msg") if isinstance(item.get(key), str)]
        codes.update(str(item[key]) for key in ("code", "type") if isinstance(item.get(key), str | int))
    choices = payload.get("choices") if is_mapping(payload) else None
    for choice in filter(is_mapping, [payload, *(choices if is_list(choices) else ())]):
        codes.update(OVERFLOW_CODES & {str(choice.get("finish_reason")), str(choice.get("stop_reason"))})
    if payload is None:
        codes.update(code for code in OVERFLOW_CODES if code in text)
        codes.update(re.findall(r"^Error code: (\d{3})\b", text))
    return "\n".join(messages) or text, frozenset(codes)
