"""Policies written down: TOML in, a policy out, and a clear word about what is wrong with it.

`base` names the preset to begin with (without one, the default), each table changes the settings of one rule,
`rule` in it takes another rule, and `false` in the place of a table switches it off.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import cast, get_type_hints

from holdfast.core.planning.policy import Policy
from holdfast.core.planning.presets import DEFAULT, policy_named
from holdfast.core.planning.settings import types_in
from holdfast.errors import SettingsError


def read_policy(text: str, *, base: str | Policy = DEFAULT) -> Policy:
    """Return the policy that a TOML document describes; `base` is what it begins with where it does not say so."""
    if not isinstance(text, str):
        raise SettingsError("policy", f"must be TOML text, not {type(text).__name__}")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError("policy", f"is not TOML that can be read: {error}") from error
    return with_policy_changes(policy_named(table.pop("base", base)), {"name": "custom", **table})


def with_policy_changes(policy: Policy, table: Mapping[str, object]) -> Policy:
    """Return a policy with the settings of a table in their place."""
    return cast("Policy", _with_changes(policy, table, "policy"))


def _with_changes(settings: object, table: Mapping[str, object], place: str) -> object:
    """Return settings with those of a table in their place."""
    kind = type(settings)
    hints = get_type_hints(kind)
    known = [item.name for item in fields(cast("type", kind))]
    changes: dict[str, object] = {}
    for name, value in table.items():
        if name not in known:
            raise SettingsError(f"{place}.{name}", f"is not a setting{_suggestion(name, known)}")
        changes[name] = _changed_value(getattr(settings, name), value, hints[name], f"{place}.{name}")
    return replace(settings, **changes)  # pyright: ignore[reportArgumentType, reportUnknownVariableType]


def _changed_value(current: object, value: object, hint: object, place: str) -> object:
    rules = [kind for kind in types_in(hint) if is_dataclass(kind)]
    if not rules:
        return value
    if value is False:
        return None
    if not isinstance(value, dict):
        raise SettingsError(place, f"must be a table of settings, or false, not {value!r:.60}")
    table = dict(cast("dict[str, object]", value))
    named: dict[str, type] = {getattr(rule, "RULE", rule.__name__): rule for rule in rules}
    wanted = table.pop("rule", None)
    if wanted is not None and (not isinstance(wanted, str) or wanted not in named):
        raise SettingsError(f"{place}.rule", f"{wanted!r:.60} is not known; choose one of: {', '.join(named)}")
    begin = named[wanted]() if isinstance(wanted, str) else current if current is not None else rules[0]()
    if type(begin) is type(current):
        begin = current
    return _with_changes(begin, table, place)


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known)}"
