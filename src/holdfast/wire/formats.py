"""The message formats, by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.core.conversation.transcript import MessageFormat
from holdfast.errors import SettingsError
from holdfast.wire.anthropic import AnthropicMessages
from holdfast.wire.equivalence import essential_gemini_content, essential_message
from holdfast.wire.gemini import Gemini
from holdfast.wire.openai_chat import OpenAIChat
from holdfast.wire.pydantic_ai import PydanticAI, canonical_form, split_messages
from holdfast.wire.responses import OpenAIResponses

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
FORMAT_ALIASES = {"openai": "openai-chat", "anthropic": "anthropic-messages"}


def format_named(name: str, setting: str = "format") -> MessageFormat:
    """Return a format by its name; `setting` names the option in an error."""
    known = FORMATS.get(FORMAT_ALIASES.get(name, name)) if isinstance(name, str) else None
    if known is None:
        raise SettingsError(setting, f"{name!r} is not known; choose one of: {', '.join(FORMATS)}")
    return known


def split_elements(message_format: MessageFormat, natives: list[object]) -> tuple[list[object], Sequence[int]]:
    """Return a list with one message in each element, and the original index of each; mostly the list itself."""
    return split_messages(natives) if isinstance(message_format, PydanticAI) else (natives, range(len(natives)))


def canonical_message(name: str, native: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a message says, without what its format stores besides; mostly the message itself."""
    return CANONICAL[name](native) if name in CANONICAL else native
