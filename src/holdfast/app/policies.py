"""What the settings change in a policy.

A setting belongs to different rules in different presets, or to none; where there is none it has no effect, and that
is said.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from holdfast.app.places import shortened
from holdfast.app.statements import lines_of, parsed
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.policy_file import changed_policy, read_policy
from holdfast.core.planning.rules.checkpoint import FoldToCheckpoint
from holdfast.core.planning.rules.deep import FoldDeep
from holdfast.core.planning.rules.everything import FixedLimits, FoldEverything
from holdfast.core.planning.rules.offload import Offload
from holdfast.core.planning.rules.outputs import KeepEnds, KeepHeads
from holdfast.core.planning.rules.turns import HalveTurns
from holdfast.core.planning.rules.window import FoldMiddle
from holdfast.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Link:
    """Where a setting stands in a policy that has a rule."""

    rule: type | None
    """None for what belongs to the policy itself."""
    path: tuple[str, ...]
    is_off_at_zero: bool = False
    """Whether 0 switches the rule off; others know what 0 means."""
    unlimited: int | None = None
    """What stands there when there is to be no limit."""


LINKS: Mapping[str, tuple[Link, ...]] = {
    "max_context_tokens": (Link(HalveTurns, ("fold", "max_tokens"), unlimited=10**12),),
    "max_context_turns": (Link(HalveTurns, ("fold", "max_turns"), unlimited=10**9),),
    "max_history_messages": (Link(FoldMiddle, ("fold", "max_messages")),),
    "tool_output_trim_chars": (
        Link(KeepHeads, ("outputs", "max_chars")),
        Link(KeepEnds, ("outputs", "max_chars"), is_off_at_zero=True),
        Link(Offload, ("offload", "max_chars"), is_off_at_zero=True),
    ),
    "background_compaction_threshold": (
        Link(FoldToCheckpoint, ("fold", "lines", "background")),
        Link(FoldDeep, ("fold", "soft_share")),
    ),
    "buffer_exhaustion_threshold": (
        Link(FoldToCheckpoint, ("fold", "lines", "exhausted")),
        Link(FoldDeep, ("fold", "hard_share")),
    ),
    "min_compaction_messages": (
        Link(FoldToCheckpoint, ("fold", "lines", "min_messages")),
        Link(FoldDeep, ("fold", "min_messages")),
    ),
    "compression_threshold": (Link(FoldEverything, ("fold", "fraction")),),
    "retrieved_messages": (Link(FixedLimits, ("limits", "max_retrieved")),),
    "fallback_messages": (Link(FixedLimits, ("limits", "max_messages")),),
    "fallback_tokens": (Link(FixedLimits, ("limits", "max_tokens")),),
    "max_steps": (Link(None, ("max_steps",)),),
    "retention_days": (Link(None, ("retention_days",)),),
}
LIMITS = frozenset({"max_context_tokens", "max_context_turns", "max_history_messages"})
"""Settings that limit every request where no rule of the preset knows them."""


def link_of(policy: Policy, name: str) -> Link | None:
    """Return where a setting stands in a policy, or None where no rule of it knows the setting."""
    return next(
        (link for link in LINKS[name] if link.rule is None or type(getattr(policy, link.path[0])) is link.rule), None
    )


def value_in(policy: Policy, link: Link) -> object:
    """Return the value that stands there."""
    value: object = policy
    for name in link.path:
        value = getattr(value, name)
    return value


def changed(policy: Policy, values: Mapping[str, object]) -> Policy:
    """Return a policy with settings in their places, all at once: some are held against each other."""
    table: dict[str, object] = {}
    names: dict[str, str] = {}
    for name, value in values.items():
        link = link_of(policy, name)
        if link is None:
            continue
        names[".".join(("policy", *link.path))] = name
        if value == 0 and link.is_off_at_zero:
            table[link.path[0]] = False
        else:
            _put(table, link.path, link.unlimited if value is None else value)
    try:
        return changed_policy(policy, table)
    except SettingsError as error:
        raise SettingsError(_named(error.setting, names), error.problem) from error


def _named(place: str, names: Mapping[str, str]) -> str:
    """Return the setting that stands at a place, or that its neighbours there are held against."""
    rule = place.split(".")[:2]
    beside = [name for other, name in names.items() if other.split(".")[:2] == rule]
    return names.get(place) or (beside or list(names.values()))[-1]


def _put(table: dict[str, object], path: tuple[str, ...], value: object) -> None:
    if len(path) == 1:
        table[path[0]] = value
        return
    inner = table.setdefault(path[0], {})
    if isinstance(inner, dict):  # else the rule is switched off
        _put(cast("dict[str, object]", inner), path[1:], value)


def policy_in(path: Path, base: str) -> Policy:
    """Return the policy of a file; what is wrong with it is named by line."""
    file = shortened(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("policy", f"cannot be read: {error}; check the file", where=file) from error
    parsed(text, file)
    try:
        return read_policy(text, base=base)
    except SettingsError as error:
        line = lines_of(text).get(tuple(error.setting.split(".")[1:]))
        where = f"{file}:{line}" if line else file
        raise SettingsError(error.setting, error.problem, where=where) from error
