"""The facts about a model, where the user's settings override the table, and which providers have a key."""

import os
from collections.abc import Mapping
from dataclasses import fields, replace

from holdfast.apps.settings.settings import Settings
from holdfast.apps.settings.tables import ModelOverrides
from holdfast.counters.models import ModelInfo, describe_unknown_model, find_model
from holdfast.models.base import is_embedded
from holdfast.models.local_servers import OLLAMA_PREFIX, ollama_window
from holdfast.models.open import parse_endpoint


def configured_model(settings: Settings, name: str | None = None) -> ModelInfo | None:
    """Return the facts about a model, by default the one that answers; None if it is unknown."""
    model = name or settings.model
    overrides = settings.models.get(model) or settings.models.get(bare_model_name(model))
    if is_embedded(model):
        known = ModelInfo(model, settings.n_ctx)
    elif model.startswith(OLLAMA_PREFIX):
        known = ModelInfo(model, ollama_window(os.environ))
    else:
        known = find_model(bare_model_name(model))
    if overrides is None or (known is None and overrides.window is None):
        return known
    return _with_overrides(known or ModelInfo(model, 0), overrides)


def bare_model_name(model: str) -> str:
    """Return the name of a model without the URL of its endpoint."""
    return model.partition("#")[2] if model.startswith(("http://", "https://")) else model


def _with_overrides(known: ModelInfo, overrides: ModelOverrides) -> ModelInfo:
    names = {"window": "max_input_tokens", "output": "max_output_tokens"}
    values = {names.get(item.name, item.name): getattr(overrides, item.name) for item in fields(overrides)}
    return replace(known, **{name: value for name, value in values.items() if value is not None})


PROVIDER_KEYS: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "openrouter": ("OPENROUTER_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "groq": ("GROQ_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "xai": ("XAI_API_KEY",),
    "cohere": ("CO_API_KEY",),
    "together": ("TOGETHER_API_KEY",),
    "fireworks": ("FIREWORKS_API_KEY",),
    "cerebras": ("CEREBRAS_API_KEY",),
    "moonshotai": ("MOONSHOTAI_API_KEY",),
    "alibaba": ("ALIBABA_API_KEY", "DASHSCOPE_API_KEY"),
    "zai": ("ZAI_API_KEY",),
    "huggingface": ("HF_TOKEN",),
}
"""The variables that pydantic-ai's providers read; one of them is enough."""

PROVIDER_ALIASES = {"openai-chat": "openai", "openai-responses": "openai", "google-gla": "google"}


def provider_of(model: str) -> str:
    """Return the provider in a model's name; `openai-responses` is another API of OpenAI."""
    name = model.partition(":")[0] if ":" in model else ""
    return PROVIDER_ALIASES.get(name, name)


def missing_key(model: str, environ: Mapping[str, str]) -> str | None:
    """Return the variable for the API key of a model's provider if it is not set, else None."""
    variables = PROVIDER_KEYS.get(provider_of(model), ())
    return None if any(environ.get(variable) for variable in variables) or not variables else variables[0]


def key_variables(model: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that may hold the API key of a model: those that are set, else all; empty if unknown."""
    if (endpoint := parse_endpoint(model)) is not None:
        return (endpoint.key_variable,)
    variables = PROVIDER_KEYS.get(provider_of(model), ())
    return tuple(variable for variable in variables if environ.get(variable)) or variables


def unknown_model_notice(settings: Settings) -> str | None:
    """Return what is assumed about a model that neither the table nor the settings know; None if they know it.

    The names at an endpoint of one's own are not misspelled, so nothing is said about them; `holdfast doctor` does.
    """
    if configured_model(settings) is not None or parse_endpoint(settings.model) is not None:
        return None
    said = describe_unknown_model(bare_model_name(settings.model), settings.effective_policy.unknown_window)
    return f"{said}; {window_remedy(settings.model)}"


def window_remedy(model: str) -> str:
    """Return how to say what the window of an unknown model is."""
    return f'write [models."{bare_model_name(model)}"] with window = … into holdfast.toml'


def available_providers(environ: Mapping[str, str]) -> list[str]:
    """Return the providers whose keys are set."""
    return [provider for provider, variables in PROVIDER_KEYS.items() if any(environ.get(one) for one in variables)]
