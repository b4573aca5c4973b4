"""Messages of pydantic-ai as the JSON that a session keeps of them, and back.

In a session system text that opens a request is an element of its own. pydantic-ai joins requests that follow each
other, so what comes back from one is the same conversation.

What a request must say of messages that it leaves out.

pydantic-ai reads the messages it is about to send for what is in force: which tools the model has been shown, which
capabilities are loaded, which instructions have changed. Those records are carried over to the summary that stands for
the messages they were in. A capability that the model has loaded by a call of its own brings instructions along, so
that exchange stays as it is: see `loads_capability`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import (
    CapabilityLoadDeltaPart,
    CompactionPart,
    InstructionBaselinePart,
    InstructionDeltaPart,
    LoadCapabilityReturnPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelSettingsDeltaPart,
    NativeToolSearchReturnPart,
    SystemPromptPart,
    ToolAvailabilityDeltaPart,
    ToolSearchReturnPart,
    UserPromptPart,
)

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


STATE_PARTS = (
    CapabilityLoadDeltaPart,
    InstructionBaselinePart,
    InstructionDeltaPart,
    ModelSettingsDeltaPart,
    ToolAvailabilityDeltaPart,
)


def loads_capability(message: ModelMessage) -> bool:
    """Return whether the model has loaded a capability here."""
    return any(isinstance(part, LoadCapabilityReturnPart) for part in message.parts)


def state_parts_of(message: ModelMessage) -> list[ModelRequestPart]:
    """Return what a message records of what is in force from there on."""
    found: list[ModelRequestPart] = []
    for part in message.parts:
        if isinstance(part, STATE_PARTS):
            found.append(part)
        elif isinstance(part, ToolSearchReturnPart | NativeToolSearchReturnPart):
            found.append(ToolAvailabilityDeltaPart(tools_added=[match["name"] for match in part.discovered_tools]))
    return found


def carry_state_parts(messages: Sequence[ModelMessage], parts: Iterable[ModelRequestPart]) -> list[ModelMessage]:
    """Return messages whose first request that is more than system text says what is in force, too."""
    carried = list(parts)
    place = next(
        (at for at, one in enumerate(messages) if isinstance(one, ModelRequest) and not is_system_message(one)), None
    )
    if not carried or place is None:
        return list(messages)
    return [_with_parts(one, carried) if at == place else one for at, one in enumerate(messages)]


def _with_parts(message: ModelMessage, parts: Sequence[ModelRequestPart]) -> ModelMessage:
    return replace(message, parts=[*message.parts, *parts]) if isinstance(message, ModelRequest) else message


def summaries_as_prompts(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Return messages with summaries as the prompts that they are in the systems we reproduce."""
    return [_summary_as_prompt(message) for message in messages]


def _summary_as_prompt(message: ModelMessage) -> ModelMessage:
    if not isinstance(message, ModelRequest) or not any(isinstance(part, CompactionPart) for part in message.parts):
        return message
    return replace(message, parts=list(chain.from_iterable(map(_part_as_prompt, message.parts))))


def _part_as_prompt(part: ModelRequestPart) -> list[ModelRequestPart]:
    if not isinstance(part, CompactionPart):
        return [part]
    return [UserPromptPart(part.content)] if part.content else []
