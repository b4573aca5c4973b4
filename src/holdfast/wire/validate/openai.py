"""OpenAI Chat Completions."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.wire.openai_chat import OPENAI_CHAT_ROLES
from holdfast.wire.reading import is_list, is_mapping
from holdfast.wire.validate.rules import (
    Payload,
    ValidationRule,
    Violation,
    content_blocks,
    image_limit_rule,
    is_not_empty,
    payload_path,
)

OPENAI_MAX_STRING_CHARS = 1_048_576
OPENAI_MAX_IMAGES = 500


def roles_are_known(payload: Payload) -> Iterator[Violation]:
    """Only these roles exist."""
    for index, message in enumerate(payload.messages):
        if message.get("role") not in OPENAI_CHAT_ROLES:
            yield Violation("role", payload_path(index, ".role"), f"{message.get('role')!r} is not a role")


def calls_are_answered(payload: Payload) -> Iterator[Violation]:
    """Each call is answered directly, each answer has a call."""
    waiting: Counter[str] = Counter()
    caller = 0
    for index, message in enumerate(payload.messages):
        if message.get("role") == "tool":
            call_id = str(message.get("tool_call_id"))
            if waiting[call_id] > 0:
                waiting[call_id] -= 1
            else:
                yield Violation(
                    "result-has-call", payload_path(index), f"a result for {call_id!r}, which is no open call"
                )
            continue
        yield from _unanswered(waiting, caller)
        waiting, caller = Counter(call_ids(message)), index
    yield from _unanswered(waiting, caller)


def _unanswered(waiting: Counter[str], caller: int) -> Iterator[Violation]:
    for call_id in waiting.elements():
        yield Violation("call-answered", payload_path(caller), f"call {call_id!r} has no result directly after it")


def call_ids(message: Mapping[str, Any]) -> list[str]:
    """Return the ids of the calls a chat message makes."""
    calls = message.get("tool_calls")
    return [call.get("id", "") for call in calls if is_mapping(call)] if is_list(calls) else []


def ids_are_unique(payload: Payload) -> Iterator[Violation]:
    """A call id is used once."""
    seen: set[str] = set()
    for index, message in enumerate(payload.messages):
        for call_id in call_ids(message):
            if call_id in seen or not call_id:
                yield Violation(
                    "unique-id", payload_path(index, ".tool_calls"), f"call id {call_id!r} is empty or used before"
                )
            seen.add(call_id)


def content_is_there(payload: Payload) -> Iterator[Violation]:
    """Content is null only beside calls."""
    for index, message in enumerate(payload.messages):
        says_otherwise = any(message.get(key) for key in ("tool_calls", "refusal", "audio", "function_call"))
        if message.get("content") is None and not (message.get("role") == "assistant" and says_otherwise):
            yield Violation("content", payload_path(index, ".content"), "expected a string, got null")


def strings_are_short_enough(payload: Payload) -> Iterator[Violation]:
    """A string has at most a mebi of characters."""
    for index, message in enumerate(payload.messages):
        texts = [message.get("content"), *(block.get("text") for block in content_blocks(message))]
        for text in texts:
            if isinstance(text, str) and len(text) > OPENAI_MAX_STRING_CHARS:
                yield Violation(
                    "string-length", payload_path(index, ".content"), f"{len(text):,} characters are too long"
                )


OPENAI_RULES: tuple[ValidationRule, ...] = (
    is_not_empty,
    roles_are_known,
    calls_are_answered,
    ids_are_unique,
    content_is_there,
    strings_are_short_enough,
    image_limit_rule("image_url", OPENAI_MAX_IMAGES),
)
