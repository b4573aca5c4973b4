"""The rules of OpenAI Responses."""

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.wire.json_reader import is_list, is_mapping
from holdfast.wire.responses import (
    COMPACTION_ITEM_TYPES,
    ITEM_ID_PREFIXES,
    OPENAI_RESPONSES_ROLES,
    SETTING_ITEM_TYPES,
    TEXT_OUTPUT_TYPES,
    TOOL_OUTPUT_KINDS,
    call_kind_of,
    is_event_output,
    output_kind_of,
)
from holdfast.wire.validate.rules import (
    Payload,
    ValidationRule,
    Violation,
    at,
    content_blocks,
    is_not_empty,
    tool_name_violations,
)

RESPONSES_MAX_STRING_CHARS = 10_485_760
RESPONSES_MAX_IMAGES = 500
MAX_CALL_ID_CHARS = 64


def _kind(item: Mapping[str, Any]) -> str:
    kind = item.get("type")
    return str(kind) if kind is not None else "message" if "role" in item else "item_reference"


def roles_are_known(payload: Payload) -> Iterator[Violation]:
    """A message has one of four roles, and content."""
    for index, item in enumerate(payload.messages):
        if _kind(item) != "message":
            continue
        if item.get("role") not in OPENAI_RESPONSES_ROLES:
            yield Violation("role", at(index, ".role"), f"{item.get('role')!r} is not a role")
        if not isinstance(item.get("content"), str) and not is_list(item.get("content")):
            yield Violation("content", at(index, ".content"), "a message needs a string or a list of parts")


def _call_id(item: Mapping[str, Any]) -> str | None:
    """Return the call id of a call or an output; None for other items."""
    kind = _kind(item)
    if tool := call_kind_of(kind, item):
        return str(item.get(tool.call_key) or "")
    if tool := output_kind_of(kind, item):
        return str(next((item[key] for key in tool.output_keys if item.get(key) is not None), ""))
    return None


def calls_are_answered(payload: Payload) -> Iterator[Violation]:
    """Every call is answered once after it, and every output has a call before it."""
    waiting: dict[str, int] = {}
    for index, item in enumerate(payload.messages):
        call_id = _call_id(item)
        if call_id is None:
            continue
        if call_kind_of(_kind(item), item):
            waiting[call_id] = index
        elif waiting.pop(call_id, None) is None:
            yield Violation("output-has-call", at(index), f"no tool call found for the output with call_id {call_id!r}")
    for call_id, index in waiting.items():
        yield Violation("call-answered", at(index), f"no tool output found for call {call_id!r}")


def programs_come_before_their_calls(payload: Payload) -> Iterator[Violation]:
    """The calls of a program, their outputs, and its own output come after the program."""
    programs: set[object] = set()
    for index, item in enumerate(payload.messages):
        caller = item.get("caller")
        program = caller.get("caller_id") if is_mapping(caller) else None
        if program is not None and program not in programs:
            yield Violation("caller", at(index, ".caller"), f"there is no program {program!r} before it")
        if _kind(item) == "program":
            programs.add(item.get("call_id"))
        elif _kind(item) == "program_output" and item.get("call_id") not in programs:
            yield Violation("program-output", at(index), f"there is no program {item.get('call_id')!r} before it")


def outputs_are_of_their_kind(payload: Payload) -> Iterator[Violation]:
    """A call is answered by an output of its own kind, and the output is not missing."""
    expected: dict[str, str] = {}
    for index, item in enumerate(payload.messages):
        kind, call_id = _kind(item), _call_id(item)
        if kind in TEXT_OUTPUT_TYPES and not isinstance(item.get("output"), str) and not is_list(item.get("output")):
            yield Violation("output", at(index, ".output"), "an output must be a string or a list of parts")
        if call_id is None:
            continue
        if tool := call_kind_of(kind, item):
            expected[call_id] = tool.output
        elif kind in TOOL_OUTPUT_KINDS and expected.get(call_id, kind) != kind:
            yield Violation("output-kind", at(index, ".type"), f"{kind} answers a call that needs {expected[call_id]}")


def call_ids_are_unique(payload: Payload) -> Iterator[Violation]:
    """A call id is used once, and is not too long."""
    seen: set[str] = set()
    for index, item in enumerate(payload.messages):
        if not call_kind_of(_kind(item), item):
            continue
        call_id = _call_id(item) or ""
        if not call_id or call_id in seen:
            yield Violation("unique-id", at(index, ".call_id"), f"call id {call_id!r} is empty or was used before")
        if len(call_id) > MAX_CALL_ID_CHARS:
            yield Violation("id-length", at(index, ".call_id"), f"a call id has at most {MAX_CALL_ID_CHARS} characters")
        seen.add(call_id)


def call_names_are_plain(payload: Payload) -> Iterator[Violation]:
    """The name of a tool has only letters, digits, underscores and dashes."""
    calls = {"function_call", "custom_tool_call"}
    names = [
        (at(index, ".name"), item.get("name")) for index, item in enumerate(payload.messages) if _kind(item) in calls
    ]
    yield from tool_name_violations(names, r"[a-zA-Z0-9_-]+")


def texts_are_of_their_author(payload: Payload) -> Iterator[Violation]:
    """The model's texts are `output_text`, and those of everybody else `input_text`."""
    for index, item in enumerate(payload.messages):
        wrong = "input_text" if item.get("role") == "assistant" else "output_text"
        for number, block in enumerate(content_blocks(item) if _kind(item) == "message" else ()):
            if block.get("type") == wrong:
                yield Violation("text-type", at(index, f".content[{number}].type"), f"invalid value {wrong!r}")


def item_ids_have_their_prefix(payload: Payload) -> Iterator[Violation]:
    """The id of an item begins with the prefix of its kind."""
    for index, item in enumerate(payload.messages):
        prefix, item_id = ITEM_ID_PREFIXES.get(_kind(item)), item.get("id")
        if prefix and item_id is not None and not str(item_id).startswith(prefix):
            yield Violation("item-id", at(index, ".id"), f"expected an id that begins with {prefix!r}")


def reasoning_is_followed(payload: Payload) -> Iterator[Violation]:
    """Reasoning is directly followed by another item of the model."""
    items = payload.messages
    for index, item in enumerate(items):
        if _kind(item) != "reasoning":
            continue
        if index + 1 == len(items) or not _is_by_model(items[index + 1]):
            yield Violation(
                "reasoning-followed", at(index), "reasoning was provided without its required following item"
            )


def _is_by_model(item: Mapping[str, Any]) -> bool:
    kind = _kind(item)
    if kind == "message":
        return item.get("role") == "assistant"
    if kind in COMPACTION_ITEM_TYPES | SETTING_ITEM_TYPES or is_event_output(kind, item):
        return False
    return output_kind_of(kind, item) is None


def compactions_are_whole(payload: Payload) -> Iterator[Violation]:
    """A compaction has its encrypted content."""
    for index, item in enumerate(payload.messages):
        if _kind(item) in COMPACTION_ITEM_TYPES and not isinstance(item.get("encrypted_content"), str):
            yield Violation("compaction", at(index, ".encrypted_content"), "a compaction needs its encrypted content")


def strings_are_short_enough(payload: Payload) -> Iterator[Violation]:
    """A string has at most 10,485,760 characters."""
    for index, item in enumerate(payload.messages):
        for key in ("content", "output", "arguments", "input"):
            for text in (item.get(key), *(block.get("text") for block in content_blocks(item, key))):
                if isinstance(text, str) and len(text) > RESPONSES_MAX_STRING_CHARS:
                    yield Violation("string-length", at(index, f".{key}"), f"{len(text):,} characters are too many")


def images_are_few_enough(payload: Payload) -> Iterator[Violation]:
    """A request holds at most 500 images, outputs included."""
    held = [block for item in payload.messages for key in ("content", "output") for block in content_blocks(item, key)]
    count = sum(block.get("type") == "input_image" for block in held)
    if count > RESPONSES_MAX_IMAGES:
        yield Violation("images", "messages", f"{count} images are more than {RESPONSES_MAX_IMAGES}")


def nothing_refers_to_storage(payload: Payload) -> Iterator[Violation]:
    """If responses are not stored, reasoning is encrypted and no item is referenced."""
    for index, item in enumerate(payload.messages):
        if _kind(item) == "item_reference":
            yield Violation("stored", at(index), "items are not persisted when store is false")
        if _kind(item) == "reasoning" and item.get("id") is not None and not item.get("encrypted_content"):
            yield Violation("stored", at(index), "reasoning is not persisted when store is false, and is not encrypted")


RESPONSES_RULES: tuple[ValidationRule, ...] = (
    is_not_empty,
    roles_are_known,
    calls_are_answered,
    programs_come_before_their_calls,
    outputs_are_of_their_kind,
    call_ids_are_unique,
    call_names_are_plain,
    texts_are_of_their_author,
    item_ids_have_their_prefix,
    reasoning_is_followed,
    compactions_are_whole,
    strings_are_short_enough,
    images_are_few_enough,
)
RESPONSES_STATELESS_RULES: tuple[ValidationRule, ...] = (*RESPONSES_RULES, nothing_refers_to_storage)
