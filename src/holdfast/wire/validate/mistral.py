"""Mistral: OpenAI's shape with an order of roles and ids of nine characters."""

import re
from collections.abc import Iterator

from holdfast.wire.reading import is_mapping
from holdfast.wire.validate import openai
from holdfast.wire.validate.rules import (
    Payload,
    ValidationRule,
    Violation,
    image_limit_rule,
    is_not_empty,
    payload_path,
)

MISTRAL_MAX_IMAGES = 8
ALLOWED_NEXT_ROLES = {
    "system": {"user", "assistant", "system"},
    "user": {"assistant", "system", "user"},
    "assistant": {"assistant", "user", "tool"},
    "tool": {"assistant", "tool", "user"},
}
_MISTRAL_ID = r"[a-zA-Z0-9]{9}"
_NAME = r"[a-zA-Z0-9_-]{1,64}"


def roles_follow_in_order(payload: Payload) -> Iterator[Violation]:
    """Not every role may follow every other; the last word is not the model's."""
    previous = None
    for index, message in enumerate(payload.messages):
        role = message.get("role")
        if role not in ALLOWED_NEXT_ROLES:
            yield Violation("role", payload_path(index, ".role"), f"{role!r} is not a role")
        elif previous in ALLOWED_NEXT_ROLES and role not in ALLOWED_NEXT_ROLES[previous]:
            yield Violation("order", payload_path(index), f"unexpected role {role!r} after role {previous!r}")
        previous = role
    if previous == "assistant" and not payload.messages[-1].get("prefix"):
        yield Violation("last-role", payload_path(len(payload.messages) - 1), "the last message is the assistant's")
    if payload.messages and payload.messages[0].get("role") not in {"system", "user"}:
        yield Violation("first-role", payload_path(0), "the first message is neither system nor user")


def ids_and_names_are_plain(payload: Payload) -> Iterator[Violation]:
    """Ids have nine letters or digits, names at most 64 plain characters."""
    for index, message in enumerate(payload.messages):
        ids = openai.call_ids(message)
        if message.get("role") == "tool":
            ids = [str(message.get("tool_call_id"))]
        for call_id in ids:
            if not re.fullmatch(_MISTRAL_ID, call_id):
                yield Violation("id", payload_path(index), f"call id {call_id!r} is not nine letters or digits")
        for call in message.get("tool_calls") or ():
            name = call["function"].get("name") if is_mapping(call) and is_mapping(call.get("function")) else None
            if not isinstance(name, str) or not re.fullmatch(_NAME, name):
                yield Violation("name", payload_path(index, ".tool_calls"), f"{name!r} is not a function name")


def assistant_says_something(payload: Payload) -> Iterator[Violation]:
    """An assistant message has content or calls."""
    for index, message in enumerate(payload.messages):
        if message.get("role") == "assistant" and not message.get("content") and not message.get("tool_calls"):
            yield Violation("empty", payload_path(index), "neither content nor tool calls")
        if message.get("role") == "system" and message.get("content") is None:
            yield Violation("empty", payload_path(index), "a system message must have content")


MISTRAL_RULES: tuple[ValidationRule, ...] = (
    is_not_empty,
    roles_follow_in_order,
    openai.calls_are_answered,
    openai.ids_are_unique,
    ids_and_names_are_plain,
    assistant_says_something,
    image_limit_rule("image_url", MISTRAL_MAX_IMAGES),
)
