"""Opens a summarizer by its name."""

from holdfast.errors import SettingsError
from holdfast.models.base import Summarizer
from holdfast.models.embedded.weights import EMBEDDED_MODEL as EMBEDDED

ON_DEMAND_PREFIX = "anthropic-compaction:"


def open_summarizer(model: str) -> Summarizer:
    """Return a summarizer by its name.

    That is `embedded`, `anthropic-compaction:NAME` for the provider's own compaction, a model of an endpoint as
    `http://…/v1#NAME` (chat completions), `http://…/v1/responses#NAME` or `http://…/v1/messages#NAME`, or the name of
    any pydantic-ai model.
    """
    if model == EMBEDDED:
        from holdfast.models.embedded.server import EmbeddedSummarizer  # noqa: PLC0415 - an optional extra

        return EmbeddedSummarizer()
    if model.startswith(ON_DEMAND_PREFIX):
        from holdfast.models.anthropic_messages import MessagesSummarizer  # noqa: PLC0415 - as above

        return MessagesSummarizer(model.removeprefix(ON_DEMAND_PREFIX), compacts_on_demand=True)
    if model.startswith(("http://", "https://")):
        return _open_endpoint(model)
    from holdfast.models.pydantic_ai import PydanticAiSummarizer  # noqa: PLC0415 - as above

    return PydanticAiSummarizer(model)


def _open_endpoint(model: str) -> Summarizer:
    """Return a summarizer of an endpoint; the end of its address says which API it speaks."""
    url, _, name = model.partition("#")
    if not name:
        raise SettingsError("model", f"{model!r} does not name a model: append its name as #name")
    url = url.rstrip("/")
    if url.endswith("/v1/messages"):
        from holdfast.models.anthropic_messages import MessagesSummarizer  # noqa: PLC0415 - an optional extra

        return MessagesSummarizer(name, base_url=url.removesuffix("/v1/messages"))
    if url.endswith("/responses"):
        from holdfast.models.openai_responses import ResponsesSummarizer  # noqa: PLC0415 - as above

        return ResponsesSummarizer(url.removesuffix("/responses"), name)
    from holdfast.models.openai_compatible import ChatSummarizer  # noqa: PLC0415 - as above

    return ChatSummarizer(url, name)
