"""Broken histories of every format that conversations come in, by its name, for Hypothesis."""

from collections.abc import Mapping

from hypothesis import strategies as st

from holdfast.testing.chat import Json
from holdfast.testing.content_histories import content_histories
from holdfast.testing.histories import anthropic_histories, chat_histories
from holdfast.testing.item_histories import item_histories
from holdfast.testing.request_histories import request_histories

HISTORIES: Mapping[str, st.SearchStrategy[list[Json]]] = {
    "openai-chat": chat_histories(),
    "anthropic-messages": anthropic_histories(),
    "openai-responses": item_histories(),
    "openai-responses-stateless": item_histories(),
    "gemini": content_histories(),
    "gemini-2": content_histories(),
    "pydantic-ai": request_histories(),
}
