"""Messages of pydantic-ai as the JSON that a session keeps of them, and back.

In a session system text that opens a request is an element of its own. pydantic-ai joins requests that follow each
other, so what comes back from one is the same conversation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, SystemPromptPart

from holdfast.errors import MalformedInputError
from holdfast.wire.pydantic_ai import PYDANTIC_AI_FORMAT_NAME, split_system_text

SESSION_FORMAT = PYDANTIC_AI_FORMAT_NAME


def dump_messages(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Return messages as JSON, one for one; what JSON cannot express is described."""
    # A tool may return anything, and its metadata, which no model sees, may be a live object.
    return ModelMessagesTypeAdapter.dump_python(list(messages), mode="json", fallback=repr)


def session_elements(messages: Sequence[ModelMessage]) -> list[tuple[Mapping[str, Any], ModelMessage]]:
    """Return messages as a session records them, each element with the message that says just this."""
    found: list[tuple[Mapping[str, Any], ModelMessage]] = []
    for native, message in zip(dump_messages(messages), messages, strict=True):
        natives = split_system_text(native)
        found += zip(natives, _split_parts(message, [len(one["parts"]) for one in natives]), strict=True)
    return found


def native_messages(messages: Sequence[ModelMessage]) -> list[Mapping[str, Any]]:
    """Return messages as a session records them under the format `pydantic-ai`."""
    return [native for native, _ in session_elements(messages)]


def validate_messages(natives: Sequence[Mapping[str, Any]]) -> list[ModelMessage]:
    """Return recorded messages as objects, one for one."""
    try:
        return ModelMessagesTypeAdapter.validate_python(natives)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place, *path = first["loc"]
        where = f"messages[{place}]" + "".join(f".{step}" for step in path)
        raise MalformedInputError(where, f"this version of pydantic-ai cannot read it: {first['msg']}") from error


def model_messages(natives: Sequence[Mapping[str, Any]]) -> list[ModelMessage]:
    """Return recorded messages as pydantic-ai has them, such as for `message_history=`."""
    return join_system_text(validate_messages(natives))


def join_system_text(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Return messages with system text in the request that it opens."""
    whole: list[ModelMessage] = []
    for message in messages:
        before = whole[-1] if whole else None
        if isinstance(message, ModelRequest) and isinstance(before, ModelRequest) and is_system_message(before):
            whole[-1] = replace(message, parts=[*before.parts, *message.parts])
        else:
            whole.append(message)
    return whole


def is_system_message(message: ModelMessage) -> bool:
    """Return whether a message is system text and nothing else."""
    return isinstance(message, ModelRequest) and all(isinstance(part, SystemPromptPart) for part in message.parts)


def native_system_text(native: Mapping[str, Any]) -> str:
    """Return the system text that a recorded message is; nothing where it is more than that."""
    is_text = all(part.get("part_kind") == "system-prompt" for part in native["parts"])
    return "\n\n".join(str(part.get("content")) for part in native["parts"]) if is_text else ""


def _split_parts(message: ModelMessage, counts: Sequence[int]) -> list[ModelMessage]:
    """Return a message as messages of so many parts each."""
    if len(counts) == 1 or not isinstance(message, ModelRequest):
        return [message]
    first = counts[0]
    return [replace(message, parts=message.parts[:first]), replace(message, parts=message.parts[first:])]
