"""The settings of a program: an immutable value, with the source of each setting.

`Settings` keeps the values of all sources in the order of their precedence. A change at run time adds one more value
and resolves all settings again.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias, cast

from holdfast.apps.settings.paths import ProgramPaths, display_path
from holdfast.apps.settings.policies import (
    POLICY_LINKS,
    REQUEST_LIMITS,
    find_policy_link,
    linked_value,
    load_policy_file,
    policy_with_settings,
)
from holdfast.apps.settings.schema import SETTING_DECLARATIONS, DeclaredSettings, setting_name
from holdfast.apps.settings.trust import is_trusted, refusal, trust_command
from holdfast.apps.settings.values import InvalidValueError
from holdfast.core.planning.policy import Policy, policy_named
from holdfast.errors import SettingsError

SourceKind: TypeAlias = Literal[
    "default", "preset", "policy", "user", "project", "environment", "command line", "session"
]
"""The kind of a source; `user` and `project` mean a `holdfast.toml` or a `config.json`."""


@dataclass(frozen=True, slots=True)
class SettingSource:
    """The source of a value."""

    kind: SourceKind
    name: str = ""
    """The file, the variable, the flag or the preset."""
    line: int | None = None

    def __str__(self) -> str:
        """The place, such as `holdfast.toml:3`."""
        if self.kind in {"preset", "policy"}:
            return f"{self.kind} {self.name}"
        if self.kind == "session":
            return "changed in this session"
        return f"{self.name}:{self.line}" if self.line else self.name or self.kind


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A checked value from one source."""

    name: str
    value: object
    source: SettingSource


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting for display."""

    name: str
    value: object
    text: str
    source: SettingSource
    note: str
    """Why it has no effect; empty if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(DeclaredSettings):
    """The values of all settings, their sources, and the policy that results."""

    paths: ProgramPaths
    effective_policy: Policy
    """The policy of the preset or the policy file, with the settings applied."""
    explicit_values: tuple[SettingValue, ...] = ()
    """The values of all sources; a later one overrides an earlier one."""
    sources: Mapping[str, SettingSource] = field(default_factory=dict[str, SettingSource])
    notes: tuple[str, ...] = ()
    """Notes for the user, a line each."""
    problems: tuple[SettingsError, ...] = ()
    """The errors of values that were ignored because they are wrong."""

    def value(self, key: str) -> object:
        """Return the value of a setting for any of its names."""
        return getattr(self, setting_name(key))

    def source(self, key: str) -> SettingSource:
        """Return the source of a setting, or of one table such as `mcp.NAME`."""
        if key in self.sources:
            return self.sources[key]
        return self.sources.get(setting_name(key), SettingSource("default"))

    def render_value(self, key: str) -> str:
        """Return the value of a setting as text for people."""
        name = setting_name(key)
        return SETTING_DECLARATIONS[name].value_type.render(getattr(self, name))

    def store_option(self) -> str:
        """Return ` --store URL` if the command line named the store, for a command that is to reach the same one."""
        if self.source("store").kind != "command line":
            return ""
        return f" --store {shlex.quote(self.render_value('store'))}"

    def rows(self) -> list[SettingRow]:
        """Return every setting, in the order of the documentation."""
        return [
            SettingRow(
                name, getattr(self, name), self.render_value(name), self.source(name), self._without_effect(name)
            )
            for name in SETTING_DECLARATIONS
        ]

    def with_change(self, key: str, text: str) -> "Settings":
        """Return the settings with another value for one of them; nothing is saved."""
        name = setting_name(key)
        new = SettingValue(name, parse_change(key, text, self.value(name), self.paths.cwd), SettingSource("session"))
        kept = [one for one in self.explicit_values if one.name != new.name or one.source.kind != "session"]
        after = resolve_settings([*kept, new], self.paths, self.problems)
        if len(after.problems) > len(self.problems):
            raise after.problems[-1]
        return after

    def _without_effect(self, name: str) -> str:
        is_used = name in REQUEST_LIMITS or find_policy_link(self.effective_policy, name) is not None
        if name not in POLICY_LINKS or is_used or (name == "tool_output_trim_chars" and self.value(name) == 0):
            return ""
        rules = f"the rules in {display_path(self.policy)}" if self.policy else f"preset {self.preset}"
        return f"no effect with {rules}"


def check_value(
    key: str, raw: object, source: SettingSource, folder: Path, lines: Mapping[tuple[str, ...], int] | None = None
) -> object:
    """Return the checked value of a setting; text is parsed first.

    With the `lines` of a file, an error inside a table names its own line.
    """
    kind = SETTING_DECLARATIONS[setting_name(key)].value_type
    try:
        return kind.check(kind.parse(raw) if isinstance(raw, str) else raw, folder)
    except InvalidValueError as error:
        path = (key, *error.path)
        place = replace(source, line=(lines or {}).get(path, source.line))
        raise _setting_error(".".join(path), error.problem, place) from error


def _setting_error(key: str, problem: str, source: SettingSource) -> SettingsError:
    if source.kind in {"command line", "environment"}:
        return SettingsError(source.name, problem)
    return SettingsError(key, problem, where="" if source.kind == "session" else str(source))


def parse_change(key: str, text: str, current: object, folder: Path) -> object:
    """Return the value of typed text; for a list, `+word` adds one element."""
    is_addition = SETTING_DECLARATIONS[setting_name(key)].value_type.is_list and text.lstrip().startswith("+")
    value = check_value(key, text.lstrip().removeprefix("+") if is_addition else text, SettingSource("session"), folder)
    if not is_addition:
        return value
    return tuple(dict.fromkeys([*cast("tuple[object, ...]", current), *cast("tuple[object, ...]", value)]))


def resolve_settings(
    explicit: Sequence[SettingValue],
    paths: ProgramPaths,
    problems: Sequence[SettingsError] = (),
    notes: Sequence[str] = (),
) -> Settings:
    """Return the settings that result from all values; ignore wrong values and list them in `problems`."""
    all_notes, wrong = list(notes), list(problems)
    folders = {name: paths.data_folder / name for name in ("checkpoints", "memory", "boards")}
    values: dict[str, object] = {"store": paths.store, **folders}
    sources: dict[str, SettingSource] = {}
    for one in explicit if _is_trusted(explicit, paths) else _permitted(explicit, paths, all_notes):
        _apply_value(one, values, sources)
    preset, file = cast("str", values.get("preset", "default")), cast("Path | None", values.get("policy"))
    base, origin = _base_policy(preset, file, sources, wrong)
    linked = {name: values[name] for name in POLICY_LINKS if name in values}
    rules = _apply_to_policy(base, linked, sources, wrong)
    for name in POLICY_LINKS:
        link = find_policy_link(base, name)
        if name not in linked and link is not None:
            values[name], sources[name] = linked_value(base, link), origin
        values.setdefault(name, None)
    bare = Settings(
        paths=paths,
        effective_policy=rules,
        explicit_values=tuple(explicit),
        sources=MappingProxyType(sources),
        problems=tuple(wrong),
    )
    settings = replace(bare, **values)
    all_notes += [
        f"{one.source}: {one.name} has {one.note}" for one in settings.rows() if one.note and one.name in linked
    ]
    return replace(settings, notes=tuple(dict.fromkeys(all_notes)))


def _is_trusted(explicit: Sequence[SettingValue], paths: ProgramPaths) -> bool:
    trusted = [
        path
        for one in explicit
        if one.name == "trust" and one.source.kind != "project"
        for path in cast("tuple[Path, ...]", one.value)
    ]
    return is_trusted(paths.project_folder, trusted)


def _permitted(explicit: Sequence[SettingValue], paths: ProgramPaths, notes: list[str]) -> Sequence[SettingValue]:
    """Return the user's values and those that an untrusted project may set; add a note for each ignored value."""
    own = [one for one in explicit if one.source.kind != "project"]
    if len(own) == len(explicit):
        return explicit
    present = resolve_settings(own, paths)
    permitted: list[SettingValue] = []
    for one in explicit:
        is_own, rule = one.source.kind != "project", SETTING_DECLARATIONS[one.name].untrusted
        if is_own or (reason := refusal(rule, one.value, present.value(one.name))) is None:
            permitted.append(one)
        else:
            remedy = f"to trust this project: {trust_command(paths.project_folder)}"
            notes.append(f"{one.source}: {one.name} is ignored, because {reason}; {remedy}")
    return permitted


def _apply_value(one: SettingValue, values: dict[str, object], sources: dict[str, SettingSource]) -> None:
    """Apply one value; named tables are added to those of earlier sources."""
    sources[one.name] = one.source
    if isinstance(one.value, Mapping):
        tables = cast("Mapping[str, object]", one.value)
        values[one.name] = MappingProxyType({**cast("dict[str, object]", values.get(one.name, {})), **tables})
        sources.update({f"{one.name}.{name}": one.source for name in tables})
    else:
        values[one.name] = one.value


def _base_policy(
    preset: str, file: Path | None, sources: Mapping[str, SettingSource], problems: list[SettingsError]
) -> tuple[Policy, SettingSource]:
    if file is not None:
        try:
            return load_policy_file(file, preset), SettingSource("policy", display_path(file))
        except SettingsError as error:
            problems.append(_setting_error("policy", str(error), sources["policy"]))
    return policy_named(preset), SettingSource("preset", preset)


def _apply_to_policy(
    base: Policy, linked: dict[str, object], sources: dict[str, SettingSource], problems: list[SettingsError]
) -> Policy:
    """Return the policy with the settings applied; a wrong one is removed from `linked`."""
    while linked:
        try:
            return policy_with_settings(base, linked)
        except SettingsError as error:
            problems.append(_setting_error(error.setting, error.problem, sources[error.setting]))
            del linked[error.setting], sources[error.setting]
    return base
