"""The rules for pydantic-ai messages: what pydantic-ai and its providers accept."""

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.wire.json_reader import is_list, is_mapping
from holdfast.wire.pydantic_ai import FILE_KINDS, MESSAGE_KINDS, STATE_PART_KINDS, is_not_decoded, is_permanent_system
from holdfast.wire.validate.rules import Payload, ValidationRule, Violation, at, content_blocks, is_blank, is_not_empty

PYDANTIC_AI_MAX_IMAGES = 100
VALID_REQUEST_PART_KINDS = STATE_PART_KINDS | {
    "system-prompt", "user-prompt", "tool-return", "retry-prompt", "retry-feedback", "compaction", "speech",
}  # fmt: skip
VALID_RESPONSE_PART_KINDS = frozenset({
    "text", "thinking", "tool-call", "builtin-tool-call", "builtin-tool-return", "file", "compaction", "speech",
})  # fmt: skip


def kinds_are_known(payload: Payload) -> Iterator[Violation]:
    """A message is a request or a response without parts of the other side; unknown parts come from newer versions."""
    for index, message in enumerate(payload.messages):
        if message.get("kind") not in MESSAGE_KINDS or not is_list(message.get("parts")):
            yield Violation("kind", at(index), "must be a request or a response with parts")
            continue
        foreign = (
            VALID_RESPONSE_PART_KINDS - VALID_REQUEST_PART_KINDS
            if message["kind"] == "request"
            else VALID_REQUEST_PART_KINDS - VALID_RESPONSE_PART_KINDS
        )
        for number, part in enumerate(message["parts"]):
            kind = part.get("part_kind") if is_mapping(part) else None
            if not isinstance(kind, str) or kind in foreign:
                yield Violation("part-kind", at(index, f".parts[{number}]"), f"{kind!r} is not allowed here")


def begins_and_ends_with_requests(payload: Payload) -> Iterator[Violation]:
    """The first and the last message are requests, apart from system text."""
    others = [index for index, message in enumerate(payload.messages) if not _is_system(message)]
    if not others:
        yield Violation("first-kind", "messages", "there is no message besides system text")
        return
    for name, index in (("first-kind", others[0]), ("last-kind", others[-1])):
        if payload.messages[index].get("kind") != "request":
            yield Violation(name, at(index), f"the {name.split('-')[0]} message must be a request")


def calls_are_answered(payload: Payload) -> Iterator[Violation]:
    """All results of a batch are at the start of the next request, and nowhere else."""
    waiting: list[object] = []
    for index, message in enumerate(payload.messages):
        parts = [part for part in content_blocks(message, "parts") if not is_not_decoded(part)]
        results = [part.get("tool_call_id") for part in parts if _is_result(part)]
        answered, still_open = set(results), set(waiting)
        for call in waiting:
            if call not in answered:
                yield Violation("call-answered", at(index - 1), f"call {call!r} has no result directly after it")
        for result in results:
            if result not in still_open:
                yield Violation("result-has-call", at(index), f"a result for {result!r}, which is not an open call")
            still_open.discard(result)
        if not all(map(_is_result, parts[: len(results)])):
            yield Violation("results-first", at(index), "tool results must come before anything else")
        waiting = _calls(message)
    for call in waiting:
        yield Violation("call-answered", at(payload.last), f"call {call!r} has no result")


def ids_are_unique(payload: Payload) -> Iterator[Violation]:
    """A call has an id that no other call has."""
    seen: set[object] = set()
    for index, message in enumerate(payload.messages):
        for call in _calls(message):
            if not call or call in seen:
                yield Violation("unique-id", at(index), f"call id {call!r} is empty or was used before")
            seen.add(call)


def nothing_is_empty(payload: Payload) -> Iterator[Violation]:
    """Messages and their texts are not empty."""
    for index, message in enumerate(payload.messages):
        parts = [part for part in content_blocks(message, "parts") if not is_not_decoded(part)]
        if all(part.get("part_kind") == "thinking" for part in parts):
            yield Violation("empty", at(index), "the message has no content")
        for number, part in enumerate(parts):
            if any(map(is_blank, _texts(part))):
                yield Violation("empty-text", at(index, f".parts[{number}]"), "texts must not be empty")


def images_are_few_enough(payload: Payload) -> Iterator[Violation]:
    """A request holds at most 100 files, results included."""
    contents = [part.get("content") for message in payload.messages for part in content_blocks(message, "parts")]
    items = [item for content in contents for item in (content if is_list(content) else [content])]
    count = sum(is_mapping(item) and str(item.get("kind")) in FILE_KINDS for item in items)
    if count > PYDANTIC_AI_MAX_IMAGES:
        yield Violation("images", "messages", f"{count} files are more than {PYDANTIC_AI_MAX_IMAGES}")


def _is_system(message: Mapping[str, Any]) -> bool:
    parts = message.get("parts")
    return message.get("kind") == "request" and bool(parts) and is_list(parts) and all(map(is_permanent_system, parts))


def _is_result(part: Mapping[str, Any]) -> bool:
    kind = part.get("part_kind")
    return kind == "tool-return" or (kind == "retry-prompt" and bool(part.get("tool_name")))


def _calls(message: Mapping[str, Any]) -> list[object]:
    return [
        part.get("tool_call_id") for part in content_blocks(message, "parts") if part.get("part_kind") == "tool-call"
    ]


def _texts(part: Mapping[str, Any]) -> list[object]:
    """Return the texts of a part that a provider refuses if they are empty."""
    kind, content = part.get("part_kind"), part.get("content")
    if kind in {"text", "system-prompt", "compaction"} and isinstance(content, str):
        return [content]
    if kind != "user-prompt":
        return []
    return [item for item in (content if is_list(content) else [content]) if isinstance(item, str)]


PYDANTIC_AI_RULES: tuple[ValidationRule, ...] = (
    is_not_empty,
    kinds_are_known,
    begins_and_ends_with_requests,
    calls_are_answered,
    ids_are_unique,
    nothing_is_empty,
    images_are_few_enough,
)
