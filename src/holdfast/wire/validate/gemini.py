"""The rules of Gemini contents."""

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.wire.json_reader import is_mapping
from holdfast.wire.validate.rules import (
    Payload,
    ValidationRule,
    Violation,
    at,
    content_blocks,
    is_not_empty,
    tool_name_violations,
)


def _part_count(content: Mapping[str, Any], key: str) -> int:
    return sum(key in part for part in content_blocks(content, "parts"))


def turns_are_whole(payload: Payload) -> Iterator[Violation]:
    """The first and the last turn are the user's, and every turn has parts."""
    for index, content in enumerate(payload.messages):
        if content.get("role") not in {"user", "model"}:
            yield Violation("role", at(index, ".role"), f"{content.get('role')!r} is not a role here")
        if not content_blocks(content, "parts"):
            yield Violation("empty", at(index, ".parts"), "a turn must have parts")
    for index in {0, len(payload.messages) - 1} if payload.messages else ():
        if payload.messages[index].get("role") != "user":
            yield Violation("edge-role", at(index), "the first and the last turn must be user turns")


def calls_follow_users(payload: Payload) -> Iterator[Violation]:
    """A call turn comes directly after a user or function response turn."""
    for index, content in enumerate(payload.messages):
        if _part_count(content, "functionCall") and (index == 0 or payload.messages[index - 1].get("role") != "user"):
            yield Violation("call-follows-user", at(index), "a function call turn must follow a user turn")


def calls_are_answered(payload: Payload) -> Iterator[Violation]:
    """A response turn comes directly after its call turn and has as many parts."""
    expected = 0
    for index, content in enumerate(payload.messages):
        responses = _part_count(content, "functionResponse")
        if responses and not expected:
            yield Violation("response-has-call", at(index), "a function response turn must follow a function call turn")
        elif responses != expected:
            yield Violation("same-number", at(index), f"{responses} function responses for {expected} function calls")
        expected = _part_count(content, "functionCall")
    if expected:
        yield Violation("call-answered", at(payload.last), "the last function call has no response")


def calls_are_signed(payload: Payload) -> Iterator[Violation]:
    """The first call of a turn carries a thought signature."""
    for index, content in enumerate(payload.messages):
        calls = [part for part in content_blocks(content, "parts") if "functionCall" in part]
        if calls and not calls[0].get("thoughtSignature"):
            yield Violation("signature", at(index), "function call is missing a thought_signature")


def parts_say_something(payload: Payload) -> Iterator[Violation]:
    """A part has a field, and a text is not empty unless it carries a signature."""
    for index, content in enumerate(payload.messages):
        for number, part in enumerate(content_blocks(content, "parts")):
            is_empty_text = part.get("text") == "" and not part.get("thoughtSignature")
            if not part or is_empty_text:
                yield Violation("empty-part", at(index, f".parts[{number}]"), "a part must have one field with content")


def calls_and_responses_are_where_they_belong(payload: Payload) -> Iterator[Violation]:
    """The model calls, the user responds, and a response is an object."""
    for index, content in enumerate(payload.messages):
        for number, part in enumerate(content_blocks(content, "parts")):
            where = at(index, f".parts[{number}]")
            if "functionCall" in part and content.get("role") != "model":
                yield Violation("call-role", where, "a function call outside the model's turn")
            if "functionResponse" in part and content.get("role") != "user":
                yield Violation("response-role", where, "a function response outside the user's turn")
            response = part.get("functionResponse")
            if response is not None and not (is_mapping(response) and is_mapping(response.get("response"))):
                yield Violation("response-object", where, "a function response needs an object")


def function_names_are_valid(payload: Payload) -> Iterator[Violation]:
    """The name of a function begins with a letter or an underscore; digits, dots, colons and dashes may follow."""
    names = [
        (at(index, f".parts[{number}].{key}.name"), part[key].get("name"))
        for index, content in enumerate(payload.messages)
        for number, part in enumerate(content_blocks(content, "parts"))
        for key in ("functionCall", "functionResponse")
        if is_mapping(part.get(key))
    ]
    yield from tool_name_violations(names, r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")


GEMINI_UNSIGNED_RULES: tuple[ValidationRule, ...] = (
    is_not_empty,
    turns_are_whole,
    calls_follow_users,
    calls_are_answered,
    parts_say_something,
    calls_and_responses_are_where_they_belong,
    function_names_are_valid,
)
GEMINI_RULES: tuple[ValidationRule, ...] = (*GEMINI_UNSIGNED_RULES, calls_are_signed)
