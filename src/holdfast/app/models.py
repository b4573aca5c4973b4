"""What is known of the model that answers: the user's word first, then the table's."""

from dataclasses import replace

from holdfast.app.settings import Settings
from holdfast.app.tables import ModelOverrides
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
