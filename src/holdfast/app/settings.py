"""The settings of a program: a value that never changes, and for each setting where it came from.

What was said about settings is kept in the order in which it counts, so that a change at run time is one more word,
and everything is settled anew from all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias, cast

from holdfast.app.declarations import DECLARATIONS, Values, canonical, choices, keys
from holdfast.app.kinds import WrongValueError
from holdfast.app.places import Places, shortened
from holdfast.app.policies import LIMITS, LINKS, changed, link_of, policy_in, value_in
from holdfast.app.trust import is_trusted, refusal, trust_command
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.presets import policy_of
from holdfast.errors import SettingsError

__all__ = ["Given", "Row", "Settings", "Source", "canonical", "changed_to", "checked", "choices", "keys", "settled"]

SourceKind: TypeAlias = Literal[
    "default", "preset", "policy", "user", "project", "environment", "command line", "session"
]
"""Who gave a value; `user` and `project` have a `holdfast.toml` and a `config.json` each."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value came from."""

    kind: SourceKind
    name: str = ""
    """The file, the variable, the flag or the preset."""
    line: int | None = None

    def __str__(self) -> str:
        """The place, as one would look it up."""
        if self.kind in {"preset", "policy"}:
            return f"{self.kind} {self.name}"
        if self.kind == "session":
            return "changed in this session"
        return f"{self.name}:{self.line}" if self.line else self.name or self.kind


@dataclass(frozen=True, slots=True)
class Given:
    """One setting as somebody gave it, checked."""

    name: str
    value: object
    source: Source


@dataclass(frozen=True, slots=True)
class Row:
    """One setting, to be shown."""

    name: str
    value: object
    text: str
    source: Source
    help: str
    note: str
    """Why it has no effect; empty where it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Values):
    """What a program is set up with."""

    places: Places
    rules: Policy
    """The policy that preset, file and settings make together."""
    given: tuple[Given, ...] = ()
    """All that was said, the later counts."""
    sources: Mapping[str, Source] = field(default_factory=dict[str, Source])
    notes: tuple[str, ...] = ()
    """What the user should know, a line each."""
    problems: tuple[SettingsError, ...] = ()
    """What was left out because it is wrong."""

    def value(self, key: str) -> object:
        """Return the value of a setting by any of its names."""
        return getattr(self, canonical(key))

    def source(self, key: str) -> Source:
        """Return where a setting came from; `mcp.NAME` is where that table stands."""
        if key in self.sources:
            return self.sources[key]
        return self.sources.get(canonical(key), Source("default"))

    def shown(self, key: str) -> str:
        """Return the value of a setting as people read it."""
        name = canonical(key)
        return DECLARATIONS[name].kind.shown(getattr(self, name))

    def rows(self) -> list[Row]:
        """Return every setting, in the order of the documentation."""
        return [
            Row(name, getattr(self, name), self.shown(name), self.source(name), one.help, self._without_effect(name))
            for name, one in DECLARATIONS.items()
        ]

    def with_change(self, key: str, text: str) -> "Settings":
        """Return the settings with another value for one of them, from now on until the program ends."""
        name = canonical(key)
        new = Given(name, changed_to(key, text, self.value(name), self.places.cwd), Source("session"))
        kept = [one for one in self.given if one.name != new.name or one.source.kind != "session"]
        after = settled([*kept, new], self.places, self.problems)
        if len(after.problems) > len(self.problems):
            raise after.problems[-1]
        return after

    def _without_effect(self, name: str) -> str:
        if name not in LINKS or name in LIMITS or link_of(self.rules, name) is not None:
            return ""
        if name == "tool_output_trim_chars" and self.tool_output_trim_chars == 0:
            return ""
        return f"no effect with {_rules_named(self.preset, self.policy)}"


def checked(
    key: str, given: object, source: Source, folder: Path, lines: Mapping[tuple[str, ...], int] | None = None
) -> object:
    """Return the value that was given to a setting, as its kind wants it; a text is read first.

    `lines` are those of a file: inside of a table, what is wrong is told by its own.
    """
    kind = DECLARATIONS[canonical(key)].kind
    try:
        return kind.checked(kind.read(given) if isinstance(given, str) else given, folder)
    except WrongValueError as error:
        path = (key, *error.within)
        place = replace(source, line=(lines or {}).get(path, source.line))
        raise _wrong(".".join(path), error.problem, place) from error


def _wrong(key: str, problem: str, source: Source) -> SettingsError:
    """Return the error for a setting, named so that one finds it."""
    if source.kind in {"command line", "environment"}:
        return SettingsError(source.name, problem)
    return SettingsError(key, problem, where="" if source.kind == "session" else str(source))


def changed_to(key: str, text: str, present: object, folder: Path) -> object:
    """Return the value that somebody types for a setting; of a list, `+word` makes one more."""
    is_more = DECLARATIONS[canonical(key)].kind.is_list and text.lstrip().startswith("+")
    value = checked(key, text.lstrip().removeprefix("+") if is_more else text, Source("session"), folder)
    if not is_more:
        return value
    there = cast("tuple[object, ...]", present)
    return tuple(dict.fromkeys([*there, *cast("tuple[object, ...]", value)]))


def settled(
    given: Sequence[Given], where: Places, problems: Sequence[SettingsError] = (), notes: Sequence[str] = ()
) -> Settings:
    """Return the settings that all of what was given makes; what cannot be is left out and told in `problems`."""
    told, wrong = list(notes), list(problems)
    values: dict[str, object] = {
        "store": where.store,
        "checkpoints": where.checkpoints,
        "memory": where.memory,
        "boards": where.boards,
    }
    sources: dict[str, Source] = {}
    for one in given if _is_trusted(given, where) else _permitted(given, where, told):
        _take(one, values, sources)
    preset, file = cast("str", values.get("preset", "default")), cast("Path | None", values.get("policy"))
    base, origin = _base_policy(preset, file, sources, wrong)
    linked = {name: values[name] for name in LINKS if name in values}
    rules = _ruled(base, linked, sources, wrong)
    for name in LINKS:
        link = link_of(base, name)
        if name not in linked and link is not None:
            values[name], sources[name] = value_in(base, link), origin
        values.setdefault(name, None)
    bare = Settings(
        places=where, rules=rules, given=tuple(given), sources=MappingProxyType(sources), problems=tuple(wrong)
    )
    settings = replace(bare, **values)
    told += [f"{row.source}: {row.name} has {row.note}" for row in settings.rows() if row.note and row.name in linked]
    return replace(settings, notes=tuple(dict.fromkeys(told)))


def _is_trusted(given: Sequence[Given], where: Places) -> bool:
    trusted = [
        path
        for one in given
        if one.name == "trust" and one.source.kind != "project"
        for path in cast("tuple[Path, ...]", one.value)
    ]
    return is_trusted(where.project_folder, trusted)


def _permitted(given: Sequence[Given], where: Places, notes: list[str]) -> Sequence[Given]:
    """Return what counts where the project is not trusted; a note tells of each setting that is left out."""
    own = [one for one in given if one.source.kind != "project"]
    if len(own) == len(given):
        return given
    present = settled(own, where)
    permitted: list[Given] = []
    for one in given:
        is_own, rule = one.source.kind != "project", DECLARATIONS[one.name].untrusted
        if is_own or (reason := refusal(rule, one.value, present.value(one.name))) is None:
            permitted.append(one)
        else:
            remedy = f"to trust this project: {trust_command(where.project_folder)}"
            notes.append(f"{one.source}: {one.name} is left out, because {reason}; {remedy}")
    return permitted


def _take(one: Given, values: dict[str, object], sources: dict[str, Source]) -> None:
    """Let a setting count; tables are added to those that are there, by their names."""
    sources[one.name] = one.source
    if isinstance(one.value, Mapping):
        tables = cast("Mapping[str, object]", one.value)
        values[one.name] = MappingProxyType({**cast("dict[str, object]", values.get(one.name, {})), **tables})
        sources.update({f"{one.name}.{name}": one.source for name in tables})
    else:
        values[one.name] = one.value


def _base_policy(
    preset: str, file: Path | None, sources: Mapping[str, Source], problems: list[SettingsError]
) -> tuple[Policy, Source]:
    if file is not None:
        try:
            return policy_in(file, preset), Source("policy", shortened(file))
        except SettingsError as error:
            problems.append(_wrong("policy", str(error), sources["policy"]))
    return policy_of(preset), Source("preset", preset)


def _ruled(
    base: Policy, linked: dict[str, object], sources: dict[str, Source], problems: list[SettingsError]
) -> Policy:
    """Return the policy with the settings in it; those that cannot stand there are taken out of `linked`."""
    while linked:
        try:
            return changed(base, linked)
        except SettingsError as error:
            problems.append(_wrong(error.setting, error.problem, sources[error.setting]))
            del linked[error.setting], sources[error.setting]
    return base


def _rules_named(preset: str, file: Path | None) -> str:
    return f"the rules in {shortened(file)}" if file else f"preset {preset}"
