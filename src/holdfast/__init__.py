"""Long LLM conversations that fit the context window and lose nothing."""

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
from holdfast.govern import govern
from holdfast.session.request import Request
from holdfast.session.session import Session
from holdfast.wire.convert import Converted, convert
from holdfast.wire.overflow import Refusal, classify
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
