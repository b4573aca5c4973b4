"""Apply settings to a policy.

A setting belongs to different rules in different presets. In a preset without such a rule it has no effect, and
`holdfast config` says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import cast

from holdfast.apps.settings.paths import display_path
from holdfast.apps.settings.toml_lines import key_lines, parse_toml
from holdfast.core.planning.policy import Policy, read_policy, with_policy_changes
from holdfast.core.planning.rules.clip_tool_outputs import KeepEnds, KeepHeads
from holdfast.core.planning.rules.co_cli import CoCliCompaction
from holdfast.core.planning.rules.copilot import CopilotCompaction
from holdfast.core.planning.rules.cowagent import CowAgentCompaction
from holdfast.core.planning.rules.default import DefaultCompaction, Offload
from holdfast.core.planning.rules.inkeep import FixedLimits, InkeepCompaction
from holdfast.errors import SettingsError


@dataclass(frozen=True, slots=True)
class PolicyLink:
    """The place of a setting in a policy that has a certain rule."""

    rule_type: type | None
    """None for a field of the policy itself."""
    path: tuple[str, ...]
    is_off_at_zero: bool = False
    """Whether 0 switches the rule off."""
    unlimited: int | None = None
    """The value that means no limit."""


POLICY_LINKS: Mapping[str, tuple[PolicyLink, ...]] = {
    "max_context_tokens": (PolicyLink(CowAgentCompaction, ("compaction", "max_tokens"), unlimited=10**12),),
    "max_context_turns": (PolicyLink(CowAgentCompaction, ("compaction", "max_turns"), unlimited=10**9),),
    "max_history_messages": (PolicyLink(CoCliCompaction, ("compaction", "max_messages")),),
    "tool_output_trim_chars": (
        PolicyLink(KeepHeads, ("outputs", "max_chars")),
        PolicyLink(KeepEnds, ("outputs", "max_chars"), is_off_at_zero=True),
        PolicyLink(Offload, ("offload", "max_chars"), is_off_at_zero=True),
    ),
    "background_compaction_threshold": (
        PolicyLink(CopilotCompaction, ("compaction", "triggers", "background")),
        PolicyLink(DefaultCompaction, ("compaction", "soft_share")),
    ),
    "buffer_exhaustion_threshold": (
        PolicyLink(CopilotCompaction, ("compaction", "triggers", "exhausted")),
        PolicyLink(DefaultCompaction, ("compaction", "hard_share")),
    ),
    "min_compaction_messages": (
        PolicyLink(CopilotCompaction, ("compaction", "triggers", "min_messages")),
        PolicyLink(DefaultCompaction, ("compaction", "min_messages")),
    ),
    "compression_threshold": (PolicyLink(InkeepCompaction, ("compaction", "fraction")),),
    "retrieved_messages": (PolicyLink(FixedLimits, ("limits", "max_retrieved")),),
    "fallback_messages": (PolicyLink(FixedLimits, ("limits", "max_messages")),),
    "fallback_tokens": (PolicyLink(FixedLimits, ("limits", "max_tokens")),),
    "max_steps": (PolicyLink(None, ("max_steps",)),),
    "retention_days": (PolicyLink(None, ("retention_days",)),),
}
REQUEST_LIMITS = frozenset({"max_context_tokens", "max_context_turns", "max_history_messages"})
"""Settings that limit every request if no rule of the preset has them."""


def find_policy_link(policy: Policy, name: str) -> PolicyLink | None:
    """Return the place of a setting in a policy; None if no rule has it."""
    return next(
        (
            link
            for link in POLICY_LINKS.get(name, ())
            if link.rule_type is None or type(getattr(policy, link.path[0])) is link.rule_type
        ),
        None,
    )


def linked_value(policy: Policy, link: PolicyLink) -> object:
    """Return the value at the place of a setting."""
    return attrgetter(".".join(link.path))(policy)


def policy_with_settings(policy: Policy, values: Mapping[str, object]) -> Policy:
    """Return a policy with settings applied all at once, because rules check some of them against each other."""
    table: dict[str, object] = {}
    names: dict[str, str] = {}
    for name, value in values.items():
        link = find_policy_link(policy, name)
        if link is None:
            continue
        names[".".join(("policy", *link.path))] = name
        if value == 0 and link.is_off_at_zero:
            table[link.path[0]] = False
        else:
            set_nested(table, link.path, link.unlimited if value is None else value)
    try:
        return with_policy_changes(policy, table)
    except SettingsError as error:
        setting = _setting_at(error.setting, names)
        if error.setting in names:
            raise SettingsError(setting, error.problem) from error
        other = _setting_with(policy, error.setting) or error.setting
        raise SettingsError(setting, f"does not go with {other}: {error.problem}") from error


def _setting_with(policy: Policy, place: str) -> str | None:
    """Return the setting whose place in a policy this is, whether or not it has a value of its own."""
    links = ((name, find_policy_link(policy, name)) for name in POLICY_LINKS)
    return next((name for name, link in links if link and ".".join(("policy", *link.path)) == place), None)


def _setting_at(place: str, names: Mapping[str, str]) -> str:
    """Return the setting at a place, or else the last one of the same rule."""
    rule = place.split(".")[:2]
    same_rule = [name for other, name in names.items() if other.split(".")[:2] == rule]
    return names.get(place) or (same_rule or list(names.values()))[-1]


def set_nested(table: dict[str, object], path: Sequence[str], value: object) -> None:
    """Set a value in nested tables; do nothing if the path leads through another value, such as a rule that is off."""
    for step in path[:-1]:
        inner = table.setdefault(step, {})
        if not isinstance(inner, dict):
            return
        table = cast("dict[str, object]", inner)
    table[path[-1]] = value


def load_policy_file(path: Path, base: str) -> Policy:
    """Return the policy of a file; an error names its line."""
    file = display_path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("policy", f"cannot be read: {error}; check the file", where=file) from error
    parse_toml(text, file)
    try:
        return read_policy(text, base=base)
    except SettingsError as error:
        line = key_lines(text).get(tuple(error.setting.split(".")[1:]))
        where = f"{file}:{line}" if line else file
        raise SettingsError(error.setting, error.problem, where=where) from error
