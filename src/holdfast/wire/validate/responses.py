"""OpenAI Responses: items that need each other, by id and by place."""

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.wire.openai_responses import COMPACTIONS, ID_PREFIXES, ROLES
from holdfast.wire.reading import is_list
from holdfast.wire.responses_tools import OUTPUTS, TEXT_OUTPUTS, tool_of_call, tool_of_output
from holdfast.wire.validate.rules import Payload, Rule, Violation, at, blocks, is_not_empty

MAX_STRING = 10_485_760
MAX_IMAGES = 500
MAX_ID = 64


def _kind(item: Mapping[str, Any]) -> str:
    kind = item.get("type")
    return str(kind) if kind is not None else "message" if "role" in item else "item_reference"


def roles_are_known(payload: Payload) -> Iterator[Violation]:
    """A message has one of four roles, and content."""
    for index, item in enumerate(payload.messages):
        if _kind(item) != "message":
            continue
        if item.get("role") not in ROLES:
            yield Violation("role", at(index, ".role"), f"{item.get('role')!r} is not a role")
        if not isinstance(item.get("content"), str) and not is_list(item.get("content")):
            yield Violation("content", at(index, ".content"), "a message needs a string or a list of parts")


def _call_id(item: Mapping[str, Any]) -> str | None:
    """Return the id under which an item is called or answered; None if it is neither."""
    kind = _kind(item)
    if tool := tool_of_call(kind, item):
        return str(item.get(tool.call_key) or "")
    if tool := tool_of_output(kind, item):
        return str(next((item[key] for key in tool.output_keys if item.get(key) is not None), ""))
    return None


def calls_are_answered(payload: Payload) -> Iterator[Violation]:
    """Each call is answered once somewhere behind it, each output has a call before it."""
    waiting: dict[str, int] = {}
    for index, item in enumerate(payload.messages):
        call_id = _call_id(item)
        if call_id is None:
            continue
        if tool_of_call(_kind(item), item):
            waiting[call_id] = index
        elif waiting.pop(call_id, None) is None:
            yield Violation("output-has-call", at(index), f"no tool call found for the output with call_id {call_id!r}")
    for call_id, index in waiting.items():
        yield Violation("call-answered", at(index), f"no tool output found for call {call_id!r}")


def outputs_are_of_their_kind(payload: Payload) -> Iterator[Violation]:
    """A call is answered by the output of its own kind, and that is there, if only empty."""
    wanted: dict[str, str] = {}
    for index, item in enumerate(payload.messages):
        kind, call_id = _kind(item), _call_id(item)
        if call_id is None:
            continue
        if tool := tool_of_call(kind, item):
            wanted[call_id] = tool.output
        elif kind in OUTPUTS and wanted.get(call_id, kind) != kind:
            yield Violation("output-kind", at(index, ".type"), f"{kind} answers a call that wants {wanted[call_id]}")
        if kind in TEXT_OUTPUTS and not isinstance(item.get("output"), str) and not is_list(item.get("output")):
            yield Violation("output", at(index, ".output"), "an output is a string or a list of parts")


def call_ids_are_unique(payload: Payload) -> Iterator[Violation]:
    """A call id is used once, and is not too long."""
    seen: set[str] = set()
    for index, item in enumerate(payload.messages):
        if not tool_of_call(_kind(item), item):
            continue
        call_id = _call_id(item) or ""
        if not call_id or call_id in seen:
            yield Violation("unique-id", at(index, ".call_id"), f"call id {call_id!r} is empty or used before")
        if len(call_id) > MAX_ID:
            yield Violation("id-length", at(index, ".call_id"), f"a call id has at most {MAX_ID} characters")
        seen.add(call_id)


def item_ids_begin_rightly(payload: Payload) -> Iterator[Violation]:
    """The id of an item begins with what its kind prescribes."""
    for index, item in enumerate(payload.messages):
        prefix, item_id = ID_PREFIXES.get(_kind(item)), item.get("id")
        if prefix and item_id is not None and not str(item_id).startswith(prefix):
            yield Violation("item-id", at(index, ".id"), f"expected an id that begins with {prefix!r}")


def reasoning_is_followed(payload: Payload) -> Iterator[Violation]:
    """Reasoning stands directly before another item of the model's."""
    items = payload.messages
    for index, item in enumerate(items):
        if _kind(item) != "reasoning":
            continue
        if index + 1 == len(items) or not _is_models(items[index + 1]):
            yield Violation(
                "reasoning-followed", at(index), "reasoning was provided without its required following item"
            )


def _is_models(item: Mapping[str, Any]) -> bool:
    kind = _kind(item)
    if kind == "message":
        return item.get("role") == "assistant"
    return kind not in COMPACTIONS and tool_of_output(kind, item) is None


def compactions_are_whole(payload: Payload) -> Iterator[Violation]:
    """A compaction carries its encrypted content."""
    for index, item in enumerate(payload.messages):
        if _kind(item) in COMPACTIONS and not isinstance(item.get("encrypted_content"), str):
            yield Violation("compaction", at(index, ".encrypted_content"), "a compaction is replayed whole")


def strings_are_short_enough(payload: Payload) -> Iterator[Violation]:
    """A string has at most ten mebi of characters."""
    for index, item in enumerate(payload.messages):
        for key in ("content", "output", "arguments", "input"):
            for text in (item.get(key), *(block.get("text") for block in blocks(item, key))):
                if isinstance(text, str) and len(text) > MAX_STRING:
                    yield Violation("string-length", at(index, f".{key}"), f"{len(text):,} characters are too long")


def images_are_few_enough(payload: Payload) -> Iterator[Violation]:
    """A request holds at most so many images, inside outputs too."""
    held = [block for item in payload.messages for key in ("content", "output") for block in blocks(item, key)]
    count = sum(block.get("type") == "input_image" for block in held)
    if count > MAX_IMAGES:
        yield Violation("images", "messages", f"{count} images are more than {MAX_IMAGES}")


def nothing_refers_to_storage(payload: Payload) -> Iterator[Violation]:
    """Where nothing is stored, reasoning is encrypted and no item is referred to."""
    for index, item in enumerate(payload.messages):
        if _kind(item) == "item_reference":
            yield Violation("stored", at(index), "items are not persisted when store is false")
        if _kind(item) == "reasoning" and item.get("id") is not None and not item.get("encrypted_content"):
            yield Violation("stored", at(index), "reasoning is not persisted when store is false, and is not encrypted")


RULES: tuple[Rule, ...] = (
    is_not_empty,
    roles_are_known,
    calls_are_answered,
    outputs_are_of_their_kind,
    call_ids_are_unique,
    item_ids_begin_rightly,
    reasoning_is_followed,
    compactions_are_whole,
    strings_are_short_enough,
    images_are_few_enough,
)
STATELESS_RULES: tuple[Rule, ...] = (*RULES, nothing_refers_to_storage)
