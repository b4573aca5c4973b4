"""Bedrock Converse."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from holdfast.wire.validate.rules import (
    Payload,
    ValidationRule,
    Violation,
    content_blocks,
    is_blank,
    is_not_empty,
    payload_path,
)


def _ids(message: Mapping[str, Any], key: str) -> list[object]:
    return [block[key].get("toolUseId") for block in content_blocks(message) if key in block]


def roles_alternate(payload: Payload) -> Iterator[Violation]:
    """User and assistant take turns; the user begins and ends."""
    roles = [message.get("role") for message in payload.messages]
    for index, (before, after) in enumerate(pairwise(roles)):
        if before == after:
            yield Violation(
                "alternate", payload_path(index + 1), "a conversation must alternate between user and assistant roles"
            )
    for index in {0, len(roles) - 1} if roles else ():
        if roles[index] != "user":
            yield Violation("edge-role", payload_path(index), "the first and the last message are the user's")


def converse_uses_are_answered(payload: Payload) -> Iterator[Violation]:
    """The results of a batch are exactly its uses, in the next message."""
    waiting: list[object] = []
    for index, message in enumerate(payload.messages):
        results = _ids(message, "toolResult")
        for result in results:
            if result not in waiting:
                yield Violation(
                    "result-has-use", payload_path(index), f"toolResult {result!r} exceeds the toolUse blocks before"
                )
        for use in waiting:
            if use not in results:
                yield Violation(
                    "use-answered", payload_path(index - 1), f"toolUse {use!r} has no toolResult directly after it"
                )
        waiting = _ids(message, "toolUse")
        if len(set(map(str, waiting))) != len(waiting):
            yield Violation("unique-id", payload_path(index), "a toolUseId is used twice")
    for use in waiting:
        yield Violation("use-answered", payload_path(len(payload.messages) - 1), f"toolUse {use!r} has no toolResult")


def converse_nothing_is_empty(payload: Payload) -> Iterator[Violation]:
    """Messages and texts say something."""
    for index, message in enumerate(payload.messages):
        if not content_blocks(message):
            yield Violation("empty", payload_path(index), "the content field is empty")
        for number, block in enumerate(content_blocks(message)):
            if "text" in block and is_blank(block["text"]):
                yield Violation("empty-text", payload_path(index, f".content[{number}]"), "the text field is blank")


def tools_are_defined(payload: Payload) -> Iterator[Violation]:
    """Tool blocks need tool definitions."""
    has_blocks = any(_ids(message, key) for message in payload.messages for key in ("toolUse", "toolResult"))
    if has_blocks and not payload.tools:
        yield Violation("tool-config", "toolConfig", "must be defined when using toolUse and toolResult content blocks")


BEDROCK_RULES: tuple[ValidationRule, ...] = (
    is_not_empty,
    roles_alternate,
    converse_uses_are_answered,
    converse_nothing_is_empty,
    tools_are_defined,
)
