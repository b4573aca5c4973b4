"""Conversion between pydantic-ai's messages and the JSON that a session records.

A session records the system text at the beginning of a request as a separate element. pydantic-ai joins consecutive
requests, so the conversion back returns the same conversation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

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
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    ToolSearchReturnPart,
    UserPromptPart,
)

from holdfast.core.conversation.json_values import copied_json
from holdfast.errors import MalformedInputError
from holdfast.wire.pydantic_ai import PYDANTIC_AI_FORMAT_NAME

SESSION_FORMAT = PYDANTIC_AI_FORMAT_NAME
RESULT_KINDS = frozenset({"tool-return", "retry-prompt"})
"""The kinds of the parts that pydantic-ai puts before all others of a joined request."""


def session_elements(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Return messages with the system text at the beginning of a request as a message of its own."""
    found: list[ModelMessage] = []
    for message in messages:
        parts = message.parts
        if parts and isinstance(parts[0], SystemPromptPart) and isinstance(message, ModelRequest):
            count = next((number for number, part in enumerate(parts) if not _is_permanent_system(part)), 0)
            if count:
                found.append(replace(message, parts=parts[:count]))
                message = replace(message, parts=parts[count:])  # noqa: PLW2901 - the rest of it
        found.append(message)
    return found


def _is_permanent_system(part: object) -> bool:
    return isinstance(part, SystemPromptPart) and part.scope != "request"


def split_joined_requests(
    elements: Sequence[ModelMessage], recorded: Sequence[Mapping[str, Any]]
) -> list[ModelMessage]:
    """Return elements with each request that pydantic-ai has joined from recorded ones as these requests again.

    A run ends with the results of its output's calls, or of those that had ended when it was stopped, and pydantic-ai
    joins them with the prompt of the next run in a history that is passed to it. A result that a person or another
    program gives later follows a request too: pydantic-ai puts all results of a joined request before its other parts.
    """
    found: list[ModelMessage] = []
    for element in elements:
        rest = element
        while isinstance(rest, ModelRequest) and len(found) < len(recorded):
            first, *_ = both = recorded[len(found) : len(found) + 2]
            if any(one.get("kind") != "request" for one in both):
                break
            taken = _taken_parts(rest.parts, [part["part_kind"] for part in first["parts"]])
            if not taken or len(taken) == len(rest.parts):
                break
            found.append(replace(rest, parts=taken))
            taken_ids = set(map(id, taken))
            rest = replace(rest, parts=[part for part in rest.parts if id(part) not in taken_ids])
        found.append(rest)
    return found


def _taken_parts(joined: Sequence[ModelRequestPart], kinds: Sequence[str]) -> list[ModelRequestPart]:
    """Return the parts of a joined request that a recorded one with these kinds of parts has brought; none if none.

    They are the first results, and the first other parts, of the joined request.
    """
    results = iter([part for part in joined if part.part_kind in RESULT_KINDS])
    others = iter([part for part in joined if part.part_kind not in RESULT_KINDS])
    taken = [next(results if kind in RESULT_KINDS else others, None) for kind in kinds]
    found = [part for part in taken if part is not None]
    return found if [part.part_kind for part in found] == list(kinds) else []


def call_results(
    calls: Iterable[ToolCallPart], results: Mapping[str, Any], output_tools: Iterable[str]
) -> list[ModelRequestPart]:
    """Return the results of calls that came with the output of a run, as `run_stream` writes them.

    `results` is what the tools have returned, by the id of the call, or a part where one failed. The first call of an
    output tool is the output.
    """
    output_texts = iter(["Final result processed."])
    found: list[ModelRequestPart] = []
    contents: list[ModelRequestPart] = []
    for call in calls:
        if call.tool_call_id in results:
            value = results[call.tool_call_id]
        elif call.tool_name in output_tools:
            value = next(output_texts, "Output tool not used - a final result was already processed.")
        else:
            value = "Tool not executed - a final result was already processed."
        if isinstance(value, ToolReturnPart):
            found.append(cast("ToolReturnPart[Any]", value))
            continue
        returned = cast("ToolReturn[Any]", value) if isinstance(value, ToolReturn) else ToolReturn[Any](value)
        part = ToolReturnPart(
            call.tool_name,
            returned.return_value,
            call.tool_call_id,
            tool_kind=call.tool_kind,
            metadata=returned.metadata,
        )
        found.append(ToolReturnPart.narrow_type(part))
        if returned.content:
            contents.append(UserPromptPart(returned.content))
    return [*found, *contents]


def dump_messages(elements: Sequence[ModelMessage]) -> list[Mapping[str, Any]]:
    """Return elements of a session as JSON, one for one."""
    # A tool may return any object. Its metadata, which no model sees, may be any object too.
    return ModelMessagesTypeAdapter.dump_python(list(elements), mode="json", fallback=repr)


def native_messages(messages: Sequence[ModelMessage]) -> list[Mapping[str, Any]]:
    """Return messages as a session records them under the format `pydantic-ai`."""
    return dump_messages(session_elements(messages))


def validate_messages(natives: Sequence[Mapping[str, Any]]) -> list[ModelMessage]:
    """Return recorded messages as objects, one for one."""
    try:
        return ModelMessagesTypeAdapter.validate_python(copied_json(list(natives)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place, *path = first["loc"]
        where = f"messages[{place}]" + "".join(f".{step}" for step in path)
        raise MalformedInputError(where, f"this version of pydantic-ai cannot read it: {first['msg']}") from error


def model_messages(natives: Sequence[Mapping[str, Any]]) -> list[ModelMessage]:
    """Return recorded messages as pydantic-ai expects them in `message_history=`."""
    return join_system_text(validate_messages(natives))


def join_system_text(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Return messages with system text joined to the request after it."""
    joined: list[ModelMessage] = []
    for message in messages:
        previous = joined[-1] if joined else None
        if isinstance(message, ModelRequest) and isinstance(previous, ModelRequest) and is_system_message(previous):
            joined[-1] = replace(message, parts=[*previous.parts, *message.parts])
        else:
            joined.append(message)
    return joined


def is_system_message(message: ModelMessage) -> bool:
    """Return whether a message is system text and nothing else."""
    return isinstance(message, ModelRequest) and all(isinstance(part, SystemPromptPart) for part in message.parts)


def changed_system_text(message: ModelMessage, native: Mapping[str, Any]) -> str:
    """Return the text of a message that is only system text, if its recorded JSON says something else."""
    if not is_system_message(message):
        return ""
    text = "\n\n".join(part.content for part in message.parts if isinstance(part, SystemPromptPart))
    return text if text != "\n\n".join(str(part.get("content")) for part in native["parts"]) else ""


STATE_PARTS = (
    CapabilityLoadDeltaPart,
    InstructionBaselinePart,
    InstructionDeltaPart,
    ModelSettingsDeltaPart,
    ToolAvailabilityDeltaPart,
)


def loads_capability(message: ModelMessage) -> bool:
    """Return whether a message holds the result of a call that loads a capability."""
    return any(isinstance(part, LoadCapabilityReturnPart) for part in message.parts)


def state_parts_of(message: ModelMessage) -> list[ModelRequestPart]:
    """Return the parts of a message that change pydantic-ai's state: tools, capabilities or instructions."""
    found: list[ModelRequestPart] = []
    for part in message.parts:
        if isinstance(part, STATE_PARTS):
            found.append(part)
        elif isinstance(part, ToolSearchReturnPart | NativeToolSearchReturnPart):
            found.append(ToolAvailabilityDeltaPart(tools_added=[match["name"] for match in part.discovered_tools]))
    return found


def carry_state_parts(messages: Sequence[ModelMessage], parts: Iterable[ModelRequestPart]) -> list[ModelMessage]:
    """Return messages with parts added to the first request that is more than system text."""
    result, carried = list(messages), list(parts)
    for at, message in enumerate(result if carried else ()):
        if isinstance(message, ModelRequest) and not is_system_message(message):
            result[at] = replace(message, parts=[*message.parts, *carried])
            break
    return result


def summary_as_prompt(message: ModelMessage) -> ModelMessage:
    """Return a message with a summary in it as a user prompt, as in the systems that the presets reproduce."""
    if not isinstance(message, ModelRequest) or not any(isinstance(part, CompactionPart) for part in message.parts):
        return message
    return replace(message, parts=[prompt for part in message.parts if (prompt := _part_as_prompt(part))])


def _part_as_prompt(part: ModelRequestPart) -> ModelRequestPart | None:
    if not isinstance(part, CompactionPart):
        return part
    return UserPromptPart(part.content) if part.content else None
