"""Holdfast for pydantic-ai: any agent's history, governed. Needs the extra `pydantic-ai`."""

from holdfast.adapters.pydantic_ai.capability import Holdfast
from holdfast.adapters.pydantic_ai.dangling import patch_dangling_tool_calls
from holdfast.adapters.pydantic_ai.natives import model_messages, native_messages

__all__ = ["Holdfast", "model_messages", "native_messages", "patch_dangling_tool_calls"]
