"""Opens a summarizer by its name, and finds the address and the key of an endpoint."""

import os

from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError
from holdfast.models.base import EMBEDDED_MODEL as EMBEDDED
from holdfast.models.base import Summarizer, is_embedded
from holdfast.models.local_servers import OLLAMA_PREFIX, ollama_url
from holdfast.text import lazy_pattern

ON_DEMAND_PREFIX = "anthropic-compaction:"
ENDPOINT_KEY_PREFIX = "HOLDFAST_KEY_"
_NOT_IN_VARIABLES = lazy_pattern(r"[^A-Z0-9]+")


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """A model of an endpoint."""

    url: str
    name: str

    @property
    def key_variable(self) -> str:
        """The environment variable with its key; it names the host, so that no other host receives the key."""
        from urllib.parse import urlsplit  # noqa: PLC0415 - only endpoints need it

        host = urlsplit(self.url).netloc.rpartition("@")[2].upper()
        return ENDPOINT_KEY_PREFIX + _NOT_IN_VARIABLES.sub("_", host).strip("_")

    @property
    def api_key(self) -> str | None:
        """The key, if the variable is set."""
        return os.environ.get(self.key_variable) or None


def parse_endpoint(model: str) -> ModelEndpoint | None:
    """Return the endpoint in a model's name, `http://…/v1#name` or `ollama:name`; None if the name holds none."""
    if model.startswith(OLLAMA_PREFIX):
        return ModelEndpoint(ollama_url(os.environ), model.removeprefix(OLLAMA_PREFIX))
    if not model.startswith(("http://", "https://")):
        return None
    url, _, name = model.partition("#")
    if not name:
        raise SettingsError("model", f"{model!r} does not name a model: append its name as #name")
    from holdfast.models.http_endpoint import split_http_url  # noqa: PLC0415 - only endpoints need it

    if split_http_url(url) is None:
        raise SettingsError("model", f"{model!r} is not an address such as http://127.0.0.1:8000/v1#name")
    return ModelEndpoint(url, name)


def is_summarizer_name(model: str) -> bool:
    """Return whether `open_summarizer` can open a model: one with its provider or its endpoint, or a known name."""
    return ":" in model or model in {EMBEDDED, "test"}  # pydantic-ai's own test model


def open_summarizer(model: str) -> Summarizer:
    """Return a summarizer by its name.

    That is `embedded`, `embedded:FILE.gguf`, `ollama:NAME`, `anthropic-compaction:NAME` for the provider's own
    compaction, a model of an endpoint as `http://…/v1#NAME` (chat completions), `http://…/v1/responses#NAME` or
    `http://…/v1/messages#NAME`, or the name of any pydantic-ai model.
    """
    if is_embedded(model):
        from holdfast.models.embedded.server import EmbeddedServer, EmbeddedSummarizer  # noqa: PLC0415 - an extra
        from holdfast.models.embedded.weights import weights_file  # noqa: PLC0415 - as above

        return EmbeddedSummarizer(EmbeddedServer(weights=weights_file(model)))
    if model.startswith(ON_DEMAND_PREFIX):
        from holdfast.models.anthropic_messages import MessagesSummarizer  # noqa: PLC0415 - as above

        return MessagesSummarizer(model.removeprefix(ON_DEMAND_PREFIX), compacts_on_demand=True)
    if (endpoint := parse_endpoint(model)) is not None:
        return _open_endpoint(endpoint)
    from holdfast.models.pydantic_ai import PydanticAiSummarizer  # noqa: PLC0415 - as above

    return PydanticAiSummarizer(model)


def _open_endpoint(endpoint: ModelEndpoint) -> Summarizer:
    """Return a summarizer of an endpoint; the end of its address says which API it speaks."""
    url = endpoint.url.rstrip("/")
    if url.endswith("/v1/messages"):
        from holdfast.models.anthropic_messages import MessagesSummarizer  # noqa: PLC0415 - an optional extra

        base_url = url.removesuffix("/v1/messages")
        return MessagesSummarizer(endpoint.name, base_url=base_url, api_key=endpoint.api_key)
    if url.endswith("/responses"):
        from holdfast.models.openai_responses import ResponsesSummarizer  # noqa: PLC0415 - as above

        return ResponsesSummarizer(url.removesuffix("/responses"), endpoint.name, api_key=endpoint.api_key)
    from holdfast.models.openai_compatible import ChatSummarizer  # noqa: PLC0415 - as above

    return ChatSummarizer(url, endpoint.name, api_key=endpoint.api_key)
