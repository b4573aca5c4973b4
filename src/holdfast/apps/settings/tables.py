"""The settings that are tables: MCP servers, overrides for models, hooks, and agents."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import cast, get_args

from holdfast.apps.settings.values import (
    InvalidValueError,
    SettingType,
    as_texts,
    check_choice,
    invalid_value_error,
    suggest_name,
)
from holdfast.core.history.scopes import MainVisibility
from holdfast.core.history.visibility import SEES_EVERYTHING, Visibility
from holdfast.core.schema import is_integer, is_number, short_repr
from holdfast.errors import SettingsError, redact_text
from holdfast.session.compaction.hooks import HookCommand, Hooks

MAX_WINDOW_TOKENS, MAX_PRICE = 10**12, 10**6
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A server that offers tools: a program to start, or a URL."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that are added to the environment of the program."""
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def with_environment(self, environ: Mapping[str, str]) -> "McpServer":
        """Return the server with each `${NAME}` replaced by the variable, so that no file needs to hold a key."""

        def fill(text: str) -> str:
            return _VARIABLE.sub(lambda match: self._variable(match[1], environ), text)

        return replace(
            self,
            args=tuple(map(fill, self.args)),
            env={name: fill(value) for name, value in self.env.items()},
            url=fill(self.url) if self.url else None,
            headers={name: fill(value) for name, value in self.headers.items()},
        )

    def _variable(self, name: str, environ: Mapping[str, str]) -> str:
        if name not in environ:
            raise SettingsError(f"mcp.{self.name}", f"needs ${name}, which is not set; set it, or remove the server")
        return environ[name]

    def __str__(self) -> str:
        """The URL or the command, without secrets."""
        return redact_text(self.url or shlex.join((self.command or "", *self.args)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOverrides:
    """The user's values for a model, which override the table of models; prices are dollars per million tokens."""

    window: int | None = None
    output: int | None = None
    input_price: float | None = None
    output_price: float | None = None
    cache_read_price: float | None = None
    cache_write_price: float | None = None

    def __str__(self) -> str:
        """The values, in one line."""
        return ", ".join(
            f"{item.name}={value:,}" for item in fields(self) if (value := getattr(self, item.name)) is not None
        )


class NamedTables(SettingType):
    """A table of named tables."""

    expects = "tables"

    def parse(self, text: str) -> object:
        raise InvalidValueError(f"is a table; write {self.expects} into holdfast.toml, not {text!r:.20}")

    def check(self, value: object, _folder: Path, /) -> object:
        return MappingProxyType(
            {name: self.parse_table(name, _check_table(inner, (name,))) for name, inner in _check_table(value).items()}
        )

    def parse_table(self, name: str, table: Mapping[str, object]) -> object:
        """Return the value of one table."""
        raise NotImplementedError

    def render(self, value: object) -> str:
        return ", ".join(cast("Mapping[str, object]", value)) or "none"


class McpServerTables(NamedTables):
    """MCP servers by name."""

    expects = "[mcp.NAME] with command = … or url = …"

    def parse_table(self, name: str, table: Mapping[str, object]) -> McpServer:
        _check_known_keys(table, ("command", "args", "env", "url", "headers"), name)
        given = {key: value for key in ("command", "url") if (value := table.get(key)) is not None}
        if len(given) != 1:
            raise InvalidValueError('needs either command = "…" or url = "…"', (name,))
        texts = {key: _check_text(value, name, key, may_be_empty=False) for key, value in given.items()}
        url = texts.get("url")
        if url and not url.startswith(("http://", "https://")):
            raise invalid_value_error("an http:// or https:// address", url, name, "url")
        args = as_texts(table.get("args", []))
        if args is None:
            raise invalid_value_error('a list of texts such as ["--quiet"]', table["args"], name, "args")
        return McpServer(
            name=name,
            command=texts.get("command"),
            args=args,
            env=_check_texts(table, "env", name),
            url=url,
            headers=_check_texts(table, "headers", name),
        )


class ModelOverrideTables(NamedTables):
    """The user's values for models, by name."""

    expects = '[models."NAME"] with window = …, output = …, input_price = …'

    def parse_table(self, name: str, table: Mapping[str, object]) -> ModelOverrides:
        known = [item.name for item in fields(ModelOverrides)]
        _check_known_keys(table, known, name)
        for key, value in table.items():
            if key.endswith("_price"):
                if not is_number(value) or not 0 <= value <= MAX_PRICE:
                    raise invalid_value_error("dollars per million tokens", value, name, key)
            elif not is_integer(value) or not 1 <= value <= MAX_WINDOW_TOKENS:
                raise invalid_value_error("a whole number of tokens", value, name, key)
        return ModelOverrides(**cast("dict[str, int]", dict(table)))


class HookTable(SettingType):
    """Programs that run before and after compactions."""

    expects = '[hooks] with pre_compact = [["program", "argument"]]'
    parse = NamedTables.parse

    def check(self, value: object, _folder: Path, /) -> object:
        table = _check_table(value)
        _check_known_keys(table, ("pre_compact", "post_compact", "timeout_seconds"))
        try:
            return Hooks(
                pre_compact=_parse_commands(table, "pre_compact"),
                post_compact=_parse_commands(table, "post_compact"),
                timeout_seconds=cast("float", table.get("timeout_seconds", 30.0)),
            )
        except SettingsError as error:
            raise InvalidValueError(error.problem, (error.setting,)) from error

    def render(self, value: object) -> str:
        hooks = cast("Hooks", value)
        named = [
            f"{when} {redact_text(shlex.join(hook.argv))}"
            for when, listed in (("before:", hooks.pre_compact), ("after:", hooks.post_compact))
            for hook in listed
            if isinstance(hook, HookCommand)
        ]
        return "; ".join(named) or "none"


def _parse_commands(table: Mapping[str, object], key: str) -> tuple[HookCommand, ...]:
    value = table.get(key, [])
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise InvalidValueError(
            f'must be a list of commands such as [["notify", "--quiet"]], not {short_repr(value)}', (key,)
        )
    commands: list[HookCommand] = []
    for one in cast("list[object]", value):
        try:
            argv = tuple(shlex.split(one)) if isinstance(one, str) else as_texts(one)
        except ValueError as error:
            raise InvalidValueError(f"{one!r:.60} is not a command: {error}", (key,)) from error
        if not argv or not argv[0] or any("\0" in word for word in argv):
            raise InvalidValueError(f'{short_repr(one)} is not a command; write it as ["notify", "--quiet"]', (key,))
        commands.append(HookCommand(argv))
    return tuple(commands)


def _check_table(value: object, within: tuple[str, ...] = ()) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InvalidValueError(f"must be a table, not {short_repr(value)}", within)
    return cast("dict[str, object]", value)


def _check_text(value: object, *path: str, may_be_empty: bool = True) -> str:
    if not isinstance(value, str) or not (value or may_be_empty):
        raise invalid_value_error("a text", value, *path)
    return value


def _check_texts(table: Mapping[str, object], key: str, name: str) -> Mapping[str, str]:
    found = _check_table(table.get(key, {}), (name, key))
    return MappingProxyType({inner: _check_text(value, name, key, inner) for inner, value in found.items()})


def _check_known_keys(table: Mapping[str, object], known: Sequence[str], *within: str) -> None:
    for key in table:
        if key not in known:
            raise InvalidValueError(f"is not a setting; {suggest_name(key, known)}", (*within, key))


AGENT_TOOLS = ("read", "edit", "run")
AGENT_VISIBILITY_CHOICES = ("everything", "nothing", "pins", "ledger", "files")
MAIN_VISIBILITY_CHOICES = get_args(MainVisibility)
AGENT_TEXT_KEYS = ("description", "instructions", "model", "main_sees")
AGENT_NUMBER_KEYS = ("turns", "max_tokens", "max_steps", "timeout_seconds")
AGENT_KEYS = (*AGENT_TEXT_KEYS, "tools", "sees", *AGENT_NUMBER_KEYS)
MAX_AGENT_NUMBER = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """An agent that the main agent can delegate to."""

    name: str
    description: str = ""
    """The purpose of the agent, for the main agent."""
    instructions: str = ""
    model: str | None = None
    """None for the model of the main agent."""
    tools: tuple[str, ...] = ("read",)
    sees: Visibility = SEES_EVERYTHING
    main_sees: MainVisibility | None = None
    """None for what the policy says."""
    max_steps: int | None = None
    timeout_seconds: int | None = None

    def __str__(self) -> str:
        """The values that are set, in one line."""
        parts = [
            self.description,
            f"model {self.model}" if self.model else "",
            f"tools {', '.join(self.tools) or 'none'}",
            f"sees {_describe_visibility(self.sees)}",
            f"the main agent sees {self.main_sees} of it"
            if self.main_sees
            else "the preset says what the main agent sees of it",
            f"at most {self.max_steps:,} steps" if self.max_steps else "",
            f"at most {self.timeout_seconds:,} seconds" if self.timeout_seconds else "",
        ]
        return "; ".join(part for part in parts if part)


class AgentTables(NamedTables):
    """Agents by name."""

    expects = '[agents.NAME] with description = "…", instructions = "…"'

    def parse_table(self, name: str, table: Mapping[str, object]) -> AgentSettings:
        _check_known_keys(table, AGENT_KEYS, name)
        texts = {
            key: _check_text(table[key], name, key, may_be_empty=key != "model")
            for key in AGENT_TEXT_KEYS
            if key in table
        }
        numbers = {key: _check_number(name, key, table[key]) for key in AGENT_NUMBER_KEYS if key in table}
        main_sees = texts.get("main_sees")
        if main_sees is not None:
            check_choice(main_sees, MAIN_VISIBILITY_CHOICES, name, "main_sees")
        return AgentSettings(
            name=name,
            description=texts.get("description", ""),
            instructions=texts.get("instructions", ""),
            model=texts.get("model"),
            tools=_check_words(table, ["read"], AGENT_TOOLS, name, "tools"),
            sees=_parse_visibility(name, table, numbers),
            main_sees=cast("MainVisibility | None", main_sees),
            max_steps=numbers.get("max_steps"),
            timeout_seconds=numbers.get("timeout_seconds"),
        )


def _describe_visibility(sees: Visibility) -> str:
    """Describe which messages an agent sees."""
    chosen = [name for name in AGENT_VISIBILITY_CHOICES if name != "nothing" and getattr(sees, name)]
    chosen += [f"turns = {sees.turns:,}"] if sees.turns else []
    limit = "" if sees.max_tokens is None else f" in at most {sees.max_tokens:,} tokens"
    return (", ".join(chosen) or "nothing") + limit


def _parse_visibility(name: str, table: Mapping[str, object], numbers: Mapping[str, int]) -> Visibility:
    """Return what an agent sees: everything, unless the table chooses something."""
    default = [] if "turns" in numbers else ["everything"]
    chosen = _check_words(table, default, AGENT_VISIBILITY_CHOICES, name, "sees")
    return Visibility(
        **{word: word in chosen for word in AGENT_VISIBILITY_CHOICES if word != "nothing"},
        turns=numbers.get("turns", 0),
        max_tokens=numbers.get("max_tokens"),
    )


def _check_words(
    table: Mapping[str, object], default: list[str], known: tuple[str, ...], *path: str
) -> tuple[str, ...]:
    value = table.get(path[-1], default)
    words = as_texts(value)
    if words is None:
        raise invalid_value_error("a list of words", value, *path)
    return tuple(check_choice(word, known, *path) for word in words)


def _check_number(name: str, key: str, value: object) -> int:
    least = 0 if key in {"turns", "max_tokens"} else 1
    if not is_integer(value) or not least <= value <= MAX_AGENT_NUMBER:
        raise invalid_value_error(f"a whole number, {least} or more", value, name, key)
    return value
