"""What a request must say of messages that it leaves out.

pydantic-ai reads the messages it is about to send for what is in force: which tools the model has been shown, which
capabilities are loaded, which instructions have changed. Those records are carried over to the summary that stands for
the messages they were in. A capability that the model has loaded by a call of its own brings instructions along, so
that exchange stays as it is: see `loads_capability`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from pydantic_ai.messages import (
    CapabilityLoadDeltaPart,
    CompactionPart,
    InstructionBaselinePart,
    InstructionDeltaPart,
    LoadCapabilityReturnPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelSettingsDeltaPart,
    NativeToolSearchReturnPart,
    ToolAvailabilityDeltaPart,
    ToolSearchReturnPart,
    UserPromptPart,
)

from holdfast.adapters.pydantic_ai.natives import is_system_message

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
