"""The table of models: context window, longest answer, prices; and which models bind their thinking.

`scripts/build_model_table.py` makes the table. A user's setting and a provider's own answer override it.
"""

import json
from collections.abc import Mapping
from functools import cache, lru_cache

from holdfast.core.conversation.json_values import replace_surrogates
from holdfast.core.history.events import Usage
from holdfast.core.planning.situation import (
    DEFAULT_WINDOW,
    MILLION,
    Budget,
    Prices,
    last_name_part,
    without_provider,
)
from holdfast.dataclass import dataclass
from holdfast.text import lazy_pattern

NAME_SIMILARITY = 0.75
"""How alike two names must be for one to be suggested for the other."""
MAX_NAME_CHARS = 200
"""A longer name is like none; comparing takes quadratic time."""
MAKERS = ("deepseek", "gemini", "mistral", "moonshot", "xai", "zai")
"""Who serves its own models under names without a prefix, as the table calls them."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A row of the table; prices are dollars per million tokens."""

    name: str
    max_input_tokens: int
    max_output_tokens: int | None = None
    input_price: float | None = None
    output_price: float | None = None
    cache_read_price: float | None = None
    cache_write_price: float | None = None


@cache
def _rows() -> Mapping[str, list[float | None]]:
    # Without `pathlib` and `importlib.resources`, which take longer to import than the table to read.
    with open(f"{__file__.rpartition('.')[0]}.json", encoding="utf-8") as table:  # noqa: PTH123
        return json.load(table)["models"]


@cache
def _rows_by_name() -> Mapping[str, list[float | None]]:
    """Return the rows by name; rows of routers by their bare name too, if no other has it."""
    rows = _rows()
    bare: dict[str, list[float | None]] = {}
    for name, row in rows.items():
        last = last_name_part(name)
        # If routers disagree, only the smallest window is safe.
        if last not in rows and (last not in bare or (row[0] or 0) < (bare[last][0] or 0)):
            bare[last] = row
    return {**bare, **rows}


def known_models() -> list[str]:
    """Return the names of all models of the table."""
    return sorted(_rows())


@lru_cache
def find_model(name: str | None) -> ModelInfo | None:
    """Return the row of a model, whatever provider, date or dot its name contains; None if it is unknown."""
    if not name:
        return None
    table = _rows_by_name()
    for candidate in _spellings(name.lower()):
        row = table.get(candidate)
        if row is not None:
            window, output, *prices = row
            return ModelInfo(candidate, int(window or 0), None if output is None else int(output), *prices)
    return None


def _spellings(name: str) -> list[str]:
    bare = without_provider(name)
    last = last_name_part(bare)
    whole = [] if bare == name else [name.replace(":", "/", 1)]
    if "/" not in bare and bare not in _rows():
        # Its maker's own service takes a model by its bare name; routers have smaller windows and other prices.
        whole += [f"{maker}/{bare}" for maker in MAKERS]
    whole += [name, bare, last, last.replace(".", "-")]
    shortened: list[str] = []
    for stem in (last, last.replace(".", "-")):
        parts = stem.split("-")
        # A name with a date or a suffix falls back to the model without it.
        shortened += ["-".join(parts[:count]) for count in range(len(parts) - 1, 1, -1)]
    return whole + shortened


def nearest_model(name: str) -> str | None:
    """Return the known name that is most like a name, if one is; providers and letter case do not count."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for unknown names

    if len(name) > MAX_NAME_CHARS:
        return None
    last = last_name_part(without_provider(name.lower()))
    return next(iter(get_close_matches(last, _rows_by_name(), n=1, cutoff=NAME_SIMILARITY)), None)


@lru_cache
def describe_unknown_model(name: str, window: int = DEFAULT_WINDOW) -> str:
    """Return a sentence about a model that is not in the table: the nearest name, and the assumed window."""
    near = nearest_model(name)
    hint = f" (did you mean {near}?)" if near else ""
    # The name may come from a client: it neither begins a line of a log nor fills it.
    shown = name if name.isprintable() else repr(name)
    shown = shown if len(shown) <= MAX_NAME_CHARS else f"{shown[:MAX_NAME_CHARS]}…"
    return f"{shown} is not in the table of models{hint}; a window of {window:,} tokens is assumed"


@lru_cache
def _warn_about_unknown_model(name: str, window: int) -> None:
    """Log a warning once for each name."""
    # A handler that writes to a file or a pipe cannot encode a lone surrogate.
    import logging  # noqa: PLC0415 - only for unknown names

    logging.getLogger("holdfast").warning("%s", describe_unknown_model(replace_surrogates(name), window))


@lru_cache
def prices_of(model: ModelInfo) -> Prices | None:
    """Return the prices of a model relative to one plain input token; None if they are unknown."""
    if not model.input_price or model.output_price is None:
        return None
    read = model.cache_read_price if model.cache_read_price is not None else model.input_price
    return Prices(
        name=model.name,
        read=read / model.input_price,
        write=(model.cache_write_price or model.input_price) / model.input_price,
        output=model.output_price / model.input_price,
        dollars=model.input_price,
    )


@lru_cache
def prices_of_model(model: str | None) -> Prices | None:
    """Return the prices of a model by its name; None if they are unknown."""
    known = find_model(model)
    return prices_of(known) if known else None


def dollars_of(usage: Usage, model: str) -> float | None:
    """Return the cost of a call at the table's prices; None if they are unknown."""
    prices = prices_of_model(model)
    if prices is None or prices.dollars is None:
        return None
    fresh, read, write = usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens
    units = fresh + prices.read * read + prices.write * write + prices.output * usage.output_tokens
    return units * prices.dollars / MILLION


def budget_for(
    model: str | None,
    user: int | Budget | None = None,
    *,
    max_prompt_tokens: int | None = None,
    provider_window: int | None = None,
    unknown_window: int = DEFAULT_WINDOW,
) -> Budget:
    """Return the budget for a model: from the user, the provider, the table, or the window of unknown models."""
    known = None if user is not None else find_model(model)
    if known is None and model and user is None and provider_window is None and max_prompt_tokens is None:
        _warn_about_unknown_model(model, unknown_window)
    return Budget.resolve(
        user=user,
        max_prompt_tokens=max_prompt_tokens,
        provider_window=provider_window,
        table_window=known.max_input_tokens if known else None,
        max_output=known.max_output_tokens if known else None,
        unknown_window=unknown_window,
    )


_FIRST_BINDING_VERSIONS: Mapping[str, tuple[int, int]] = {
    "opus": (5, 5),
    "sonnet": (5, 5),
    "haiku": (5, 5),
    "fable": (5, 1),
    "mythos": (5, 0),
}
"""For each family of Claude models, the first version that binds its thinking."""
_CLAUDE = lazy_pattern(r"claude|\b(?:opus|sonnet|haiku|fable|mythos)\b")
_NAMED_VERSION = lazy_pattern(r"(opus|sonnet|haiku|fable|mythos)-(\d{1,2})(?:[.-](\d{1,2}))?(?!\d)")
_OLD_NAME = lazy_pattern(r"claude-(?:instant|v?[1-4]\b)")


@lru_cache
def binds_thinking(model: str | None, format_name: str) -> bool:
    """Return whether a model accepts its thinking only after the exact request that it was said in.

    A Claude model of an unknown name counts as a newer one that does. So does Anthropic's own format without a model.
    """
    if format_name not in {"anthropic-messages", "pydantic-ai"}:
        return False
    if model is None:
        return format_name == "anthropic-messages"
    name = model.lower()
    if not _CLAUDE.search(name) or _OLD_NAME.search(name):
        return False
    version = _NAMED_VERSION.search(name)
    if version is None:
        return True
    return (int(version[2]), int(version[3] or 0)) >= _FIRST_BINDING_VERSIONS[version[1]]
