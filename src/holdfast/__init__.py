"""Long LLM conversations that fit the context window and lose nothing."""

__version__ = "0.1.0"

TYPE_CHECKING = False  # `typing` would cost a third of the import
if TYPE_CHECKING:
    from holdfast.bare_list import govern
    from holdfast.core.conversation.messages import Media, Message, Opaque, Text, Thinking, ToolCall, ToolResult
    from holdfast.core.conversation.tokens import Calibration, Counter, TokenCount
    from holdfast.core.planning.policy import Policy, read_policy
    from holdfast.core.planning.receipt import Receipt
    from holdfast.core.planning.situation import Budget
    from holdfast.counters.vocabularies import counter_for
    from holdfast.errors import (
        CannotFitError,
        EmptyConversationError,
        HoldfastError,
        MalformedInputError,
        PendingToolCallsError,
        SettingsError,
    )
    from holdfast.session.session import Session
    from holdfast.wire.convert import Converted, convert
    from holdfast.wire.overflow import Refusal, classify
    from holdfast.wire.request import Request
    from holdfast.wire.validate.provider import validate
    from holdfast.wire.validate.rules import Violation

__all__ = [
    "Budget",
    "Calibration",
    "CannotFitError",
    "Converted",
    "Counter",
    "EmptyConversationError",
    "HoldfastError",
    "MalformedInputError",
    "Media",
    "Message",
    "Opaque",
    "PendingToolCallsError",
    "Policy",
    "Receipt",
    "Refusal",
    "Request",
    "Session",
    "SettingsError",
    "Text",
    "Thinking",
    "TokenCount",
    "ToolCall",
    "ToolResult",
    "Violation",
    "classify",
    "convert",
    "counter_for",
    "govern",
    "read_policy",
    "validate",
]

_MODULE_OF_NAME = {
    "Budget": "core.planning.situation",
    "Calibration": "core.conversation.tokens",
    "CannotFitError": "errors",
    "Converted": "wire.convert",
    "Counter": "core.conversation.tokens",
    "EmptyConversationError": "errors",
    "HoldfastError": "errors",
    "MalformedInputError": "errors",
    "Media": "core.conversation.messages",
    "Message": "core.conversation.messages",
    "Opaque": "core.conversation.messages",
    "PendingToolCallsError": "errors",
    "Policy": "core.planning.policy",
    "Receipt": "core.planning.receipt",
    "Refusal": "wire.overflow",
    "Request": "wire.request",
    "Session": "session.session",
    "SettingsError": "errors",
    "Text": "core.conversation.messages",
    "Thinking": "core.conversation.messages",
    "TokenCount": "core.conversation.tokens",
    "ToolCall": "core.conversation.messages",
    "ToolResult": "core.conversation.messages",
    "Violation": "wire.validate.rules",
    "classify": "wire.overflow",
    "convert": "wire.convert",
    "counter_for": "counters.vocabularies",
    "govern": "bare_list",
    "read_policy": "core.planning.policy",
    "validate": "wire.validate.provider",
}
"""Where each name is defined. A name is imported when it is first used, so that `import holdfast` is cheap."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - most programs use one or two names

    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF_NAME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
