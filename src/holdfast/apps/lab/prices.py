"""Price lists by name: the price models that come with the engine, any model of the table, or a file."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from holdfast.core.planning.situation import PROVIDER_PRICES, Prices
from holdfast.core.schema import is_number
from holdfast.counters.models import find_model, prices_of
from holdfast.errors import SettingsError

PRICE_ALIASES = {"openai": "gpt-5", "claude": "anthropic"}
REQUIRED_PRICES = ("read", "write", "output")


def prices_for(names: str) -> list[Prices]:
    """Return the prices for a list of names, without duplicates; raise `SettingsError` for a name without prices."""
    listed = [name for one in names.split(",") if (name := one.strip())]
    found = {prices.name: prices for name in listed for prices in _find_prices(name)}
    if not found:
        raise SettingsError(
            "--prices", f"names no price list; choose from {', '.join(PROVIDER_PRICES)}, a model, or a file"
        )
    return list(found.values())


def _find_prices(name: str) -> list[Prices]:
    if name.endswith(".toml"):
        return _read_price_file(Path(name))
    if PRICE_ALIASES.get(name, name) in PROVIDER_PRICES:
        return [PROVIDER_PRICES[PRICE_ALIASES.get(name, name)]]
    known = find_model(name)
    prices = prices_of(known) if known else None
    if prices is None:
        what = "has no prices in the table of models" if known else "is not known"
        raise SettingsError(
            "--prices", f"{name!r} {what}; choose from {', '.join(PROVIDER_PRICES)}, or write a file: prices.toml"
        )
    return [prices]


def _read_price_file(path: Path) -> list[Prices]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError("--prices", f"{path} cannot be read: {error}") from error
    found = [_parse_prices(path, name, table) for name, table in tables.items()]
    if not found:
        raise SettingsError(
            "--prices", f"{path} has no prices; write a table for each list: [name] with read, write and output"
        )
    return found


def _parse_prices(path: Path, name: str, table: object) -> Prices:
    fields = cast("Mapping[str, object]", table if isinstance(table, Mapping) else {})
    for key in REQUIRED_PRICES:
        value = fields.get(key)
        if not is_number(value) or value < 0:
            raise SettingsError(
                "--prices", f"{path}: [{name}] needs {key}: the price of such a token relative to a plain input token"
            )
    numbers = {key: float(cast("float", fields[key])) for key in REQUIRED_PRICES}
    ttl = fields.get("ttl_seconds", 300)
    return Prices(name=name, **numbers, ttl_seconds=float(ttl) if isinstance(ttl, int | float) else None)
