"""What is known of the model that answers: the user's word first, then the table's.

Which providers could be asked: whose keys are in the environment. None of them is chosen because of that.
"""

from collections.abc import Mapping
from dataclasses import replace

from holdfast.apps.settings.settings import Settings
from holdfast.apps.settings.tables import ModelOverrides
from holdfast.counters.models import ModelInfo, find_model
from holdfast.models.embedded.weights import EMBEDDED_MODEL as EMBEDDED


def configured_model(settings: Settings, name: str | None = None) -> ModelInfo | None:
    """Return what is known of a model, of the one that answers if none is named; None where nobody knows it."""
    wanted = name or settings.model
    facts = settings.models.get(wanted) or settings.models.get(bare_model_name(wanted))
    if wanted == EMBEDDED:
        return _with_overrides(ModelInfo(EMBEDDED, settings.n_ctx), facts)
    known = find_model(bare_model_name(wanted))
    if facts is None:
        return known
    if known is None and facts.window is None:
        return None
    return _with_overrides(known or ModelInfo(wanted, 0), facts)


def bare_model_name(model: str) -> str:
    """Return the name of a model without the address of its endpoint."""
    return model.partition("#")[2] if model.startswith(("http://", "https://")) else model


def _with_overrides(known: ModelInfo, facts: ModelOverrides | None) -> ModelInfo:
    if facts is None:
        return known
    told = {
        "max_input_tokens": facts.window,
        "max_output_tokens": facts.output,
        "input_price": facts.input_price,
        "output_price": facts.output_price,
        "cache_read_price": facts.cache_read_price,
        "cache_write_price": facts.cache_write_price,
    }
    return replace(known, **{name: value for name, value in told.items() if value is not None})


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
"""The variables that pydantic-ai's providers read, any one of which will do."""

PROVIDER_ALIASES = {"openai-chat": "openai", "openai-responses": "openai", "google-gla": "google"}


def provider_of(model: str) -> str:
    """Return the provider in front of a model's name; `openai-responses` is OpenAI by another of its APIs."""
    name = model.partition(":")[0] if ":" in model else ""
    return PROVIDER_ALIASES.get(name, name)


def missing_key(model: str, environ: Mapping[str, str]) -> str | None:
    """Return the variable that a model's provider reads its key from, where it is not set."""
    variables = PROVIDER_KEYS.get(provider_of(model), ())
    return None if any(environ.get(variable) for variable in variables) or not variables else variables[0]


def available_providers(environ: Mapping[str, str]) -> list[str]:
    """Return the providers whose keys are set."""
    return [provider for provider, variables in PROVIDER_KEYS.items() if any(environ.get(one) for one in variables)]
