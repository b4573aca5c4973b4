"""Holdfast for pydantic-ai: sessions for any agent. Needs the extra `pydantic-ai`."""

from holdfast.errors import imports_of_extra

with imports_of_extra("pydantic-ai", "the adapter for pydantic-ai"):
    from holdfast.adapters.pydantic_ai.capability import Holdfast
    from holdfast.adapters.pydantic_ai.delegation import SubAgent, delegation_toolset
    from holdfast.adapters.pydantic_ai.messages import model_messages, native_messages
    from holdfast.adapters.pydantic_ai.processors import (
        HistorySettings,
        compact_messages,
        history_processors,
        patch_dangling_tool_calls,
        summarize_messages,
        truncate_history_window,
        truncate_tool_returns,
    )


__all__ = [
    "HistorySettings",
    "Holdfast",
    "SubAgent",
    "compact_messages",
    "delegation_toolset",
    "history_processors",
    "model_messages",
    "native_messages",
    "patch_dangling_tool_calls",
    "summarize_messages",
    "truncate_history_window",
    "truncate_tool_returns",
]
