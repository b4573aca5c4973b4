"""Broken histories of every format that conversations come in, by its name, for Hypothesis."""

from collections.abc import Mapping

from hypothesis import strategies as st

from holdfast.testing.chat import JsonMessage
from holdfast.testing.content_histories import gemini_histories
from holdfast.testing.histories import anthropic_histories, chat_histories
from holdfast.testing.item_histories import responses_histories
from holdfast.testing.request_histories import pydantic_ai_histories

HISTORIES_BY_FORMAT: Mapping[str, st.SearchStrategy[list[JsonMessage]]] = {
    "openai-chat": chat_histories(),
    "anthropic-messages": anthropic_histories(),
    "openai-responses": responses_histories(),
    "openai-responses-stateless": responses_histories(),
    "gemini": gemini_histories(),
    "gemini-2": gemini_histories(),
    "pydantic-ai": pydantic_ai_histories(),
}
