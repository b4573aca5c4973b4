"""The rules of Anthropic Messages, and of Bedrock Converse."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from holdfast.wire.anthropic import COMPACTION_BLOCK, MAX_CACHE_MARKS, count_cache_marks, place_system_messages
from holdfast.wire.json_reader import is_mapping
from holdfast.wire.thinking import extend_prefix, prefix_message_hash, prefix_of_extras
from holdfast.wire.validate.rules import (
    Payload,
    ValidationRule,
    Violation,
    at,
    content_blocks,
    image_limit_rule,
    is_blank,
    is_not_empty,
    tool_name_violations,
)

ANTHROPIC_MAX_IMAGES = 100
_ANTHROPIC_ID = r"[a-zA-Z0-9_-]+"


def begins_and_ends_with_user(payload: Payload) -> Iterator[Violation]:
    """The first and the last message are the user's, unless a turn is paused; a system message follows a user's."""
    roles = [message.get("role") for message in payload.messages]
    for index, role in enumerate(roles):
        if role not in {"user", "assistant", "system"}:
            yield Violation("role", at(index, ".role"), f"{role!r} is not a role here")
    for index, (sent, placed) in enumerate(zip(payload.messages, place_system_messages(payload.messages), strict=True)):
        if placed is not sent:
            yield Violation("role", at(index, ".role"), "a system message must be between a user's and an assistant's")
    if payload.messages and roles[0] != "user" and not _begins_with_compaction(payload.messages[0]):
        yield Violation("first-role", at(0), "the first message must be a user message")
    if payload.messages and roles[-1] not in {"user", "system"} and not _open_server_uses(payload.messages):
        yield Violation("last-role", at(payload.last), "the conversation must end with a user message")


def _begins_with_compaction(message: Mapping[str, Any]) -> bool:
    return any(block.get("type") == COMPACTION_BLOCK for block in content_blocks(message)[:1])


def compactions_are_first(payload: Payload) -> Iterator[Violation]:
    """A signed compaction is the first block of the conversation."""
    for index, message in enumerate(payload.messages):
        for number, block in enumerate(content_blocks(message)):
            if block.get("type") == COMPACTION_BLOCK and block.get("signature") and (index or number):
                place = at(index, f".content[{number}]")
                yield Violation("compaction-place", place, "a signed compaction must be the first block")


def _open_server_uses(messages: Sequence[Mapping[str, Any]]) -> set[object]:
    """Return the ids of server tools without a result: the API continues a paused turn that ends with them."""
    uses: set[object] = set()
    for message in messages:
        for block in content_blocks(message):
            if str(block.get("type")).endswith("_tool_use"):
                uses.add(block.get("id"))
            elif str(block.get("type")).endswith("_tool_result"):
                uses.discard(block.get("tool_use_id"))
    return uses


def uses_are_answered(payload: Payload) -> Iterator[Violation]:
    """All results of a batch are at the start of the next message, and nowhere else."""
    waiting: list[object] = []
    for index, message in enumerate(payload.messages):
        results = [block.get("tool_use_id") for block in content_blocks(message) if block.get("type") == "tool_result"]
        answered, still_open = set(results), set(waiting)
        for use in waiting:
            if use not in answered:
                yield Violation("use-answered", at(index - 1), f"tool_use {use!r} has no tool_result directly after it")
        for result in results:
            if result not in still_open:
                yield Violation(
                    "result-has-use", at(index), f"tool_result for {result!r}, which is not an open tool_use"
                )
            still_open.discard(result)
        first_others = content_blocks(message)[: len(results)]
        if any(block.get("type") != "tool_result" for block in first_others):
            yield Violation("results-first", at(index), "tool results must come before anything else")
        waiting = _uses(message)
    for use in waiting:
        yield Violation("use-answered", at(payload.last), f"tool_use {use!r} has no tool_result")


def _uses(message: Mapping[str, Any]) -> list[object]:
    return [block.get("id") for block in content_blocks(message) if block.get("type") == "tool_use"]


def ids_are_unique(payload: Payload) -> Iterator[Violation]:
    """A tool_use id is unique and has only plain characters."""
    seen: set[object] = set()
    for index, message in enumerate(payload.messages):
        for use in _uses(message):
            if use in seen:
                yield Violation("unique-id", at(index), f"tool_use id {use!r} was used before")
            if not isinstance(use, str) or not re.fullmatch(_ANTHROPIC_ID, use):
                yield Violation("id", at(index), f"tool_use id {use!r} may only have letters, digits, _ and -")
            seen.add(use)


def use_names_are_plain(payload: Payload) -> Iterator[Violation]:
    """The name of a tool has at most 128 letters, digits, underscores and dashes."""
    names = [
        (at(index, f".content[{number}].name"), block.get("name"))
        for index, message in enumerate(payload.messages)
        for number, block in enumerate(content_blocks(message))
        if block.get("type") == "tool_use"
    ]
    yield from tool_name_violations(names, r"[a-zA-Z0-9_-]{1,128}")


def nothing_is_empty(payload: Payload) -> Iterator[Violation]:
    """Messages and text blocks are not empty."""
    for index, message in enumerate(payload.messages):
        content = message.get("content")
        is_setting = message.get("role") == "system" and is_mapping(message.get("output_config"))
        if (not content and not is_setting) or (isinstance(content, str) and is_blank(content)):
            yield Violation("empty", at(index), "all messages must have non-empty content")
        for number, block in enumerate(content_blocks(message)):
            for inner in (block, *content_blocks(block)):
                if inner.get("type") == "text" and is_blank(inner.get("text")):
                    yield Violation("empty-text", at(index, f".content[{number}]"), "text blocks must be non-empty")


def thinking_is_signed(payload: Payload) -> Iterator[Violation]:
    """Reasoning has a signature."""
    for index, message in enumerate(payload.messages):
        for number, block in enumerate(content_blocks(message)):
            if block.get("type") == "thinking" and not isinstance(block.get("signature"), str):
                yield Violation("signature", at(index, f".content[{number}]"), "thinking.signature: field required")


def thinking_is_not_marked(payload: Payload) -> Iterator[Violation]:
    """Reasoning has no cache mark."""
    for index, message in enumerate(payload.messages):
        for number, block in enumerate(content_blocks(message)):
            if block.get("type") in ("thinking", "redacted_thinking") and "cache_control" in block:
                place = at(index, f".content[{number}].cache_control")
                yield Violation("thinking-mark", place, "extra inputs are not permitted")


def failed_results_are_text(payload: Payload) -> Iterator[Violation]:
    """The result of a tool that failed holds text alone."""
    for index, message in enumerate(payload.messages):
        for number, block in enumerate(content_blocks(message)):
            is_failed = block.get("type") == "tool_result" and block.get("is_error")
            if is_failed and any(inner.get("type") != "text" for inner in content_blocks(block)):
                place = at(index, f".content[{number}]")
                yield Violation("failed-result", place, "all content must be type `text` if `is_error` is true")


def thinking_follows_its_prefix(payload: Payload) -> Iterator[Violation]:
    """Thinking comes after the exact request that it was said in, where that is known."""
    prefix = prefix_of_extras(payload.system, payload.tools) if payload.thinking_prefixes else ""
    for index, message in enumerate(payload.messages) if payload.thinking_prefixes else ():
        for number, block in enumerate(content_blocks(message)):
            if block.get("type") not in {"thinking", "redacted_thinking"}:
                continue
            said_in = payload.thinking_prefixes.get(str(block.get("signature") or block.get("data")))
            if said_in is not None and prefix not in said_in:
                place = at(index, f".content[{number}]")
                yield Violation("thinking-prefix", place, "thinking is bound to a different conversation")
        prefix = extend_prefix(prefix, [prefix_message_hash(message)])


def server_uses_are_answered(payload: Payload) -> Iterator[Violation]:
    """A server tool has one result after its use, before the user says something else than tool results."""
    waiting: dict[object, str] = {}
    for index, message in enumerate(payload.messages):
        blocks = content_blocks(message)
        if message.get("role") == "user" and any(one.get("type") != "tool_result" for one in blocks or [message]):
            for use, place in waiting.items():
                yield Violation("server-use", place, f"server tool use {use!r} has no result")
            waiting.clear()
        for number, block in enumerate(blocks):
            kind, place = str(block.get("type")), at(index, f".content[{number}]")
            caller = block.get("caller")
            program = caller.get("tool_id") if is_mapping(caller) else None
            if program is not None and program not in waiting:
                yield Violation("caller", place, f"a call of {program!r}, which is no open server_tool_use before it")
            if kind.endswith("_tool_use"):
                waiting[block.get("id")] = place
            elif kind.endswith("_tool_result") and waiting.pop(block.get("tool_use_id"), None) is None:
                yield Violation("server-result", place, f"{kind} without its server_tool_use")


def cache_marks_are_few_enough(payload: Payload) -> Iterator[Violation]:
    """At most four cache marks, system text and tools included."""
    count = sum(map(count_cache_marks, (payload.messages, payload.system, payload.tools)))
    if count > MAX_CACHE_MARKS:
        yield Violation("cache-marks", "request", f"{count} cache marks are more than {MAX_CACHE_MARKS}")


ANTHROPIC_RULES: tuple[ValidationRule, ...] = (
    is_not_empty,
    begins_and_ends_with_user,
    uses_are_answered,
    ids_are_unique,
    use_names_are_plain,
    nothing_is_empty,
    thinking_is_signed,
    thinking_is_not_marked,
    failed_results_are_text,
    thinking_follows_its_prefix,
    server_uses_are_answered,
    compactions_are_first,
    cache_marks_are_few_enough,
    image_limit_rule("image", ANTHROPIC_MAX_IMAGES),
)


def _ids(message: Mapping[str, Any], key: str) -> list[object]:
    return [block[key].get("toolUseId") for block in content_blocks(message) if key in block]


def roles_alternate(payload: Payload) -> Iterator[Violation]:
    """User and assistant alternate; the first and the last message are the user's."""
    roles = [message.get("role") for message in payload.messages]
    for index, (before, after) in enumerate(pairwise(roles)):
        if before == after:
            yield Violation(
                "alternate", at(index + 1), "a conversation must alternate between user and assistant roles"
            )
    for index in {0, len(roles) - 1} if roles else ():
        if roles[index] != "user":
            yield Violation("edge-role", at(index), "the first and the last message must be user messages")


def converse_uses_are_answered(payload: Payload) -> Iterator[Violation]:
    """The next message holds one result for each use of a batch, and no other."""
    waiting: list[object] = []
    for index, message in enumerate(payload.messages):
        results = _ids(message, "toolResult")
        answered, still_open = set(results), set(waiting)
        for result in results:
            if result not in still_open:
                yield Violation(
                    "result-has-use", at(index), f"toolResult {result!r} has no toolUse in the message before"
                )
        for use in waiting:
            if use not in answered:
                yield Violation("use-answered", at(index - 1), f"toolUse {use!r} has no toolResult directly after it")
        waiting = _ids(message, "toolUse")
        if len(set(map(str, waiting))) != len(waiting):
            yield Violation("unique-id", at(index), "a toolUseId is used twice")
    for use in waiting:
        yield Violation("use-answered", at(payload.last), f"toolUse {use!r} has no toolResult")


def converse_nothing_is_empty(payload: Payload) -> Iterator[Violation]:
    """Messages and texts are not empty."""
    for index, message in enumerate(payload.messages):
        if not content_blocks(message):
            yield Violation("empty", at(index), "the content field is empty")
        for number, block in enumerate(content_blocks(message)):
            if "text" in block and is_blank(block["text"]):
                yield Violation("empty-text", at(index, f".content[{number}]"), "the text field is blank")


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
