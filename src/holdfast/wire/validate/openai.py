"""The rules of OpenAI Chat Completions, and of Mistral, which also checks the order of roles and the form of ids."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.wire.json_reader import is_list, is_mapping
from holdfast.wire.openai_chat import OPENAI_CHAT_ROLES
from holdfast.wire.validate.rules import (
    Payload,
    ValidationRule,
    Violation,
    at,
    content_blocks,
    image_limit_rule,
    is_not_empty,
    tool_name_violations,
)

OPENAI_MAX_STRING_CHARS = 1_048_576
OPENAI_MAX_IMAGES = 500
OPENAI_MAX_ID_CHARS = 40
_NAME = r"[a-zA-Z0-9_-]{1,64}"


def roles_are_known(payload: Payload) -> Iterator[Violation]:
    """Only these roles exist."""
    for index, message in enumerate(payload.messages):
        if message.get("role") not in OPENAI_CHAT_ROLES:
            yield Violation("role", at(index, ".role"), f"{message.get('role')!r} is not a role")


def calls_are_answered(payload: Payload) -> Iterator[Violation]:
    """Every call is answered directly after it, and every result has a call."""
    waiting: Counter[str] = Counter()
    caller = 0
    for index, message in enumerate(payload.messages):
        if message.get("role") == "tool":
            call_id = str(message.get("tool_call_id"))
            if waiting[call_id] > 0:
                waiting[call_id] -= 1
            else:
                yield Violation("result-has-call", at(index), f"a result for {call_id!r}, which is not an open call")
            continue
        yield from _unanswered(waiting, caller)
        waiting, caller = Counter(call_ids(message)), index
    yield from _unanswered(waiting, caller)


def _unanswered(waiting: Counter[str], caller: int) -> Iterator[Violation]:
    for call_id in waiting.elements():
        yield Violation("call-answered", at(caller), f"call {call_id!r} has no result directly after it")


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
                    "unique-id", at(index, ".tool_calls"), f"call id {call_id!r} is empty or was used before"
                )
            seen.add(call_id)


def ids_are_short_enough(payload: Payload) -> Iterator[Violation]:
    """A call id has at most 40 characters."""
    for index, message in enumerate(payload.messages):
        for call_id in call_ids(message):
            if len(str(call_id)) > OPENAI_MAX_ID_CHARS:
                problem = f"a call id has at most {OPENAI_MAX_ID_CHARS} characters"
                yield Violation("id-length", at(index, ".tool_calls"), problem)


def function_names_are_plain(payload: Payload) -> Iterator[Violation]:
    """The name of a function has at most 64 letters, digits, underscores and dashes."""
    names = [
        (at(index, f".tool_calls[{number}].function.name"), call["function"].get("name"))
        for index, message in enumerate(payload.messages)
        for number, call in enumerate(message.get("tool_calls") or ())
        if is_mapping(call) and is_mapping(call.get("function"))
    ]
    yield from tool_name_violations(names, _NAME)


def calls_have_a_type(payload: Payload) -> Iterator[Violation]:
    """A call says of which type it is."""
    for index, message in enumerate(payload.messages):
        calls = message.get("tool_calls")
        for number, call in enumerate(calls if is_list(calls) else ()):
            if is_mapping(call) and not isinstance(call.get("type"), str):
                place = at(index, f".tool_calls[{number}].type")
                yield Violation("call-type", place, "missing required parameter")


def images_are_objects(payload: Payload) -> Iterator[Violation]:
    """An image is an object with an address."""
    for index, message in enumerate(payload.messages):
        for number, block in enumerate(content_blocks(message)):
            image = block.get("image_url")
            address = image.get("url") if is_mapping(image) else None
            if block.get("type") == "image_url" and not (isinstance(address, str) and address):
                place = at(index, f".content[{number}].image_url")
                yield Violation("image-url", place, "expected an object with a url")


def content_is_there(payload: Payload) -> Iterator[Violation]:
    """Content is null only in a message with calls, and a list of parts is never empty."""
    for index, message in enumerate(payload.messages):
        if is_list(message.get("content")) and not message["content"]:
            yield Violation("content", at(index, ".content"), "expected at least one part, got an empty list")
        says_otherwise = any(message.get(key) for key in ("tool_calls", "refusal", "audio", "function_call"))
        if message.get("content") is None and not (message.get("role") == "assistant" and says_otherwise):
            yield Violation("content", at(index, ".content"), "expected a string, got null")


def strings_are_short_enough(payload: Payload) -> Iterator[Violation]:
    """A string has at most 1,048,576 characters."""
    for index, message in enumerate(payload.messages):
        texts = [message.get("content"), *(block.get("text") for block in content_blocks(message))]
        for text in texts:
            if isinstance(text, str) and len(text) > OPENAI_MAX_STRING_CHARS:
                yield Violation("string-length", at(index, ".content"), f"{len(text):,} characters are too many")


OPENAI_RULES: tuple[ValidationRule, ...] = (
    is_not_empty,
    roles_are_known,
    calls_are_answered,
    ids_are_unique,
    ids_are_short_enough,
    function_names_are_plain,
    calls_have_a_type,
    images_are_objects,
    content_is_there,
    strings_are_short_enough,
    image_limit_rule("image_url", OPENAI_MAX_IMAGES),
)


MISTRAL_MAX_IMAGES = 8
ALLOWED_NEXT_ROLES = {
    "system": {"user", "assistant", "system"},
    "user": {"assistant", "system", "user"},
    "assistant": {"assistant", "user", "tool"},
    "tool": {"assistant", "tool", "user"},
}
_MISTRAL_ID = r"[a-zA-Z0-9]{9}"


def roles_follow_in_order(payload: Payload) -> Iterator[Violation]:
    """Roles follow in a permitted order, and the last message is not the assistant's."""
    previous = None
    for index, message in enumerate(payload.messages):
        role = message.get("role")
        if role not in ALLOWED_NEXT_ROLES:
            yield Violation("role", at(index, ".role"), f"{role!r} is not a role")
        elif previous in ALLOWED_NEXT_ROLES and role not in ALLOWED_NEXT_ROLES[previous]:
            yield Violation("order", at(index), f"unexpected role {role!r} after role {previous!r}")
        previous = role
    if previous == "assistant" and not payload.messages[-1].get("prefix"):
        yield Violation("last-role", at(payload.last), "the last message must not be an assistant message")
    if payload.messages and payload.messages[0].get("role") not in {"system", "user"}:
        yield Violation("first-role", at(0), "the first message is neither system nor user")


def ids_and_names_are_plain(payload: Payload) -> Iterator[Violation]:
    """Ids have nine letters or digits, names at most 64 plain characters."""
    for index, message in enumerate(payload.messages):
        ids = call_ids(message)
        if message.get("role") == "tool":
            ids = [str(message.get("tool_call_id"))]
        for call_id in ids:
            if not re.fullmatch(_MISTRAL_ID, call_id):
                yield Violation("id", at(index), f"call id {call_id!r} is not nine letters or digits")
        for call in message.get("tool_calls") or ():
            name = call["function"].get("name") if is_mapping(call) and is_mapping(call.get("function")) else None
            if not isinstance(name, str) or not re.fullmatch(_NAME, name):
                yield Violation("name", at(index, ".tool_calls"), f"{name!r} is not a function name")


def assistant_says_something(payload: Payload) -> Iterator[Violation]:
    """An assistant message has content or calls."""
    for index, message in enumerate(payload.messages):
        if message.get("role") == "assistant" and not message.get("content") and not message.get("tool_calls"):
            yield Violation("empty", at(index), "an assistant message must have content or tool calls")
        if message.get("role") == "system" and message.get("content") is None:
            yield Violation("empty", at(index), "a system message must have content")


MISTRAL_PART_TYPES = frozenset(
    {"text", "image_url", "input_audio", "audio_url", "document_url", "reference", "thinking"}
)


def parts_are_known(payload: Payload) -> Iterator[Violation]:
    """Content has parts of these types only; files are not among them."""
    for index, message in enumerate(payload.messages):
        for number, part in enumerate(content_blocks(message)):
            if part.get("type") not in MISTRAL_PART_TYPES:
                place = at(index, f".content[{number}]")
                yield Violation("part-type", place, f"{part.get('type')!r} is not a type of content part")


MISTRAL_RULES: tuple[ValidationRule, ...] = (
    is_not_empty,
    roles_follow_in_order,
    calls_are_answered,
    ids_are_unique,
    ids_and_names_are_plain,
    assistant_says_something,
    parts_are_known,
    image_limit_rule("image_url", MISTRAL_MAX_IMAGES),
)
