"""Opens a summarizer by its name."""

from holdfast.errors import SettingsError
from holdfast.models.base import Summarizer
from holdfast.models.embedded.weights import EMBEDDED_MODEL as EMBEDDED


def open_summarizer(model: str) -> Summarizer:
    """Return a summarizer: `embedded`, a model of an endpoint as `http://…/v1#name`, or any pydantic-ai model name."""
    if model == EMBEDDED:
        from holdfast.models.embedded.server import EmbeddedSummarizer  # noqa: PLC0415 - an optional extra

        return EmbeddedSummarizer()
    if model.startswith(("http://", "https://")):
        from holdfast.models.openai_compatible import ChatSummarizer  # noqa: PLC0415 - as above

        url, _, name = model.partition("#")
        if not name:
            raise SettingsError("model", f"{model!r} does not name a model: append its name as #name")
        return ChatSummarizer(url, name)
    from holdfast.models.pydantic_ai import PydanticAiSummarizer  # noqa: PLC0415 - as above

    return PydanticAiSummarizer(model)
