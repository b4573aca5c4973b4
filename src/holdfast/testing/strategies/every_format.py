"""Hypothesis strategies for broken histories, by the name of their format."""

from collections.abc import Mapping

from hypothesis import strategies as st

from holdfast.testing.chat import JsonMessage
from holdfast.testing.strategies.chat import anthropic_histories, chat_histories
from holdfast.testing.strategies.gemini import gemini_histories
from holdfast.testing.strategies.pydantic_ai import pydantic_ai_histories
from holdfast.testing.strategies.responses import responses_histories

HISTORIES_BY_FORMAT: Mapping[str, st.SearchStrategy[list[JsonMessage]]] = {
    "openai-chat": chat_histories(),
    "anthropic-messages": anthropic_histories(),
    "openai-responses": responses_histories(),
    "openai-responses-stateless": responses_histories(),
    "gemini": gemini_histories(),
    "gemini-2": gemini_histories(),
    "pydantic-ai": pydantic_ai_histories(),
}
