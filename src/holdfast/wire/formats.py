"""The message formats, by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from holdfast.core.conversation.transcript import MessageFormat
from holdfast.errors import SettingsError
from holdfast.wire.anthropic import AnthropicMessages
from holdfast.wire.equivalence import essential_gemini_content, essential_message
from holdfast.wire.gemini import Gemini
from holdfast.wire.json_reader import is_list, is_mapping
from holdfast.wire.openai_chat import OpenAIChat
from holdfast.wire.pydantic_ai import PydanticAI, canonical_form, split_messages
from holdfast.wire.responses import OpenAIResponses

T = TypeVar("T")
FORMATS: Mapping[str, MessageFormat] = {
    message_format.name: message_format
    for message_format in (
        OpenAIChat(),
        AnthropicMessages(),
        OpenAIResponses(),
        OpenAIResponses(is_stored=False),
        Gemini(),
        Gemini(is_signed=False),
        PydanticAI(),
    )
}
CANONICAL: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    PydanticAI.name: canonical_form,
    AnthropicMessages.name: essential_message,
    OpenAIChat.name: essential_message,
    "openai-responses": essential_message,
    "openai-responses-stateless": essential_message,
    "gemini": essential_gemini_content,
    "gemini-2": essential_gemini_content,
}
"""How to reduce a message to what it says, for formats whose clients write the same message differently."""
ANTHROPIC_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"})
"""Kinds of content that only Anthropic's messages have."""
FORMAT_ALIASES = {"openai": "openai-chat", "anthropic": "anthropic-messages"}


def format_named(name: str, setting: str = "format") -> MessageFormat:
    """Return a format by its name; `setting` names the option in an error."""
    known = FORMATS.get(FORMAT_ALIASES.get(name, name)) if isinstance(name, str) else None
    if known is None:
        raise SettingsError(setting, f"{name!r} is not known; choose one of: {', '.join(FORMATS)}")
    return known


def detect_format(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the format that messages show; None where they could be of several, such as plain text."""
    for native in messages:
        if (seen := _format_shown_by(native)) is not None:
            return seen
    return None


def _format_shown_by(native: Mapping[str, Any]) -> str | None:
    role, content = native.get("role"), native.get("content")
    if not isinstance(role, str):
        role = None  # a role of another type shows no format; the decoder says what is wrong with it
    if len(native) == 2 and isinstance(content, str):  # noqa: PLR2004 - a role and a text, as in most messages
        return OpenAIChat.name if role in {"tool", "function"} else None
    if is_list(native.get("parts")):
        return PydanticAI.name if native.get("kind") in ("request", "response") else "gemini"
    kind = native.get("type")
    if role in {"tool", "function"} or "tool_calls" in native:
        return OpenAIChat.name
    parts = filter(is_mapping, content) if is_list(content) else ()
    types = {name for part in parts if isinstance(name := part.get("type"), str)}
    if (isinstance(kind, str) and kind != "message") or types & {"input_text", "output_text"}:
        return "openai-responses"
    return AnthropicMessages.name if types & ANTHROPIC_BLOCKS else None


def without_response_fields(native: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the message of an Anthropic response without what the API refuses in a request; others as they are."""
    is_response = native.get("type") == "message" and "stop_reason" in native and "usage" in native
    return {name: native[name] for name in ("role", "content") if name in native} if is_response else native


def split_elements(message_format: MessageFormat, natives: list[T]) -> tuple[list[T], Sequence[int]]:
    """Return a list with one message in each element, and the original index of each; mostly the list itself."""
    if isinstance(message_format, PydanticAI):
        return cast("tuple[list[T], list[int]]", split_messages(natives))
    return natives, range(len(natives))


def canonical_message(name: str, native: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a message says, without what its format stores besides; mostly the message itself."""
    return CANONICAL[name](native) if name in CANONICAL else native
