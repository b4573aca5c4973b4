"""A summarizer that calls any model of pydantic-ai: a model name, such as `anthropic:claude-haiku-5-5`, or an object.

It sends a single request without an agent. An agent would repeat a request with an empty reply and hide why a reply
ended. Without the agent's loop no tool can run, and one prompt is one call. pydantic-ai and the provider's library take
a second or two to load, so they are loaded at the first call, in a thread. Needs the extra `pydantic-ai`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

from holdfast.core.history.events import Usage
from holdfast.distribution import install_command
from holdfast.errors import HoldfastError, ModelRefusedError, SettingsError
from holdfast.models.base import INTERACTION_HEADER, CachedPrefix, ModelReply, SummaryPrompt
from holdfast.models.errors import CONTENT_FILTERED, as_model_error
from holdfast.wire.usage import pydantic_ai_usage

if TYPE_CHECKING:
    from pydantic_ai import ModelMessage, ModelRequest, ModelResponse, ModelSettings
    from pydantic_ai.models import Model, ModelRequestParameters

PREFIX_FORMAT = "pydantic-ai"
TOOL_CHOICE_BREAKS_CACHE = frozenset({"anthropic", "bedrock"})
"""Providers whose cache of the messages becomes invalid when `tool_choice` changes."""
FAILED_FINISH_REASONS = {
    "content_filter": CONTENT_FILTERED,
    "error": "the provider failed in mid-answer",
}


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One request of an agent."""

    model: "Model"
    messages: "list[ModelMessage]"
    settings: "ModelSettings"
    parameters: "ModelRequestParameters"


RequestLookup: TypeAlias = Callable[[CachedPrefix], AgentRequest | None]
"""Returns the agent's own request for a prefix, or None if it is unknown."""


class PydanticAiSummarizer:
    """Calls one model through pydantic-ai."""

    request_lookup: RequestLookup | None = None
    """Finds the conversation's own requests, so that a prompt can continue the last one."""

    def __init__(self, model: "str | Model", *, window: int | None = None) -> None:
        """`window` is the context window in tokens; by default that of the model object."""
        if not model:
            raise SettingsError("model", "needs a name, such as anthropic:claude-haiku-5-5")
        if find_spec("pydantic_ai") is None:
            problem = f"{model} needs pydantic-ai: {install_command('pydantic-ai')}"
            raise SettingsError("model", problem)
        self._model_or_name = model
        self._model: Model | None = None if isinstance(model, str) else model
        self.name = model if isinstance(model, str) else model.model_id
        self._window = window

    def __repr__(self) -> str:
        """Show the name of the model only: model objects hold keys."""
        return f"PydanticAiSummarizer({self.name!r})"

    @property
    def window(self) -> int | None:
        """The context window in tokens; None for a model name, which the table of models knows."""
        if self._window is not None or isinstance(self._model_or_name, str):
            return self._window
        return self._model_or_name.context_window

    @property
    def prefix_formats(self) -> frozenset[str]:
        """The formats of requests that it can continue."""
        return frozenset({PREFIX_FORMAT} if self.request_lookup else ())

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Return the reply of the model."""
        try:
            call = self._request_after_prefix(prompt) or await self._standalone_request(prompt)
            from pydantic_ai.direct import model_request  # noqa: PLC0415 - an extra, and a second to load

            response = await model_request(
                call.model,
                call.messages,
                model_settings=_settings(call, prompt),
                model_request_parameters=call.parameters,
            )
        except HoldfastError:
            raise
        except Exception as error:
            raise as_model_error(self.name, error) from error
        return self._to_reply(response)

    async def _standalone_request(self, prompt: SummaryPrompt) -> AgentRequest:
        model = self._model = self._model or await asyncio.to_thread(_load_model, self.name)
        from pydantic_ai.models import ModelRequestParameters  # noqa: PLC0415 - as above

        request = replace(_request(prompt, prompt.text), instructions=prompt.system or None)
        return AgentRequest(model, [request], {}, ModelRequestParameters())

    def _request_after_prefix(self, prompt: SummaryPrompt) -> AgentRequest | None:
        """Return the last request of the conversation, followed by the prompt."""
        if prompt.prefix is None or prompt.prefix.format != PREFIX_FORMAT or self.request_lookup is None:
            return None
        call = self.request_lookup(prompt.prefix)
        if call is None:
            raise ModelRefusedError(self.name, "the conversation's last request is unknown")
        settings: ModelSettings = {**call.settings}
        if call.parameters.function_tools and call.model.system not in TOOL_CHOICE_BREAKS_CACHE:
            settings["tool_choice"] = "none"
        messages = [*call.messages, _request(prompt, f"{prompt.system}\n\n{prompt.text}")]
        return replace(call, messages=call.model.prepare_messages(messages, call.parameters), settings=settings)

    def _to_reply(self, response: "ModelResponse") -> ModelReply:
        if problem := FAILED_FINISH_REASONS.get(response.finish_reason or ""):
            raise ModelRefusedError(self.name, problem)
        return ModelReply(
            text=response.text or "",
            model=response.model_name or self.name,
            usage=usage_from_response(response),
            is_cut_off=response.finish_reason == "length",
            request_id=response.provider_response_id,
        )


def usage_from_response(response: "ModelResponse") -> Usage:
    """Return the billed usage of a response."""
    usage = response.usage
    return pydantic_ai_usage({one.name: getattr(usage, one.name) for one in fields(usage)})


def _load_model(name: str) -> "Model":
    from pydantic_ai.models import infer_model  # noqa: PLC0415 - an extra, and a second to load

    return infer_model(name)


def _request(prompt: SummaryPrompt, text: str) -> "ModelRequest":
    from pydantic_ai import ModelRequest, UserPromptPart  # noqa: PLC0415 - as above

    return ModelRequest(parts=[UserPromptPart(text)], metadata={"interaction_type": prompt.interaction})


def _settings(call: AgentRequest, prompt: SummaryPrompt) -> "ModelSettings":
    """Return the settings of a call, without those that make a model warn that it does not support them."""
    settings: ModelSettings = {**call.settings, "max_tokens": prompt.max_output_tokens}
    if "max_retries" not in call.model.unsupported_settings:
        # We retry ourselves: a client with its own retries would break our limits and timeouts.
        settings["max_retries"] = 0
    if "extra_headers" not in call.model.unsupported_settings:
        settings["extra_headers"] = {**call.settings.get("extra_headers", {}), INTERACTION_HEADER: prompt.interaction}
    return settings
