"""Read settings from two files of the user, two of the project, the environment and the command line.

A later source in this order overrides an earlier one. Every error names its file and line, variable or flag.
"""

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TypeAlias, cast

from holdfast.apps.settings.paths import HOME_VARIABLE, JSON_SETTINGS_FILE, ProgramPaths, display_path, find_paths
from holdfast.apps.settings.schema import SETTING_DECLARATIONS, VARIABLE_PREFIX, setting_name
from holdfast.apps.settings.settings import (
    Settings,
    SettingSource,
    SettingValue,
    SourceKind,
    check_value,
    resolve_settings,
)
from holdfast.apps.settings.tables import NamedTables
from holdfast.apps.settings.toml_lines import TomlKey, key_lines, parse_toml
from holdfast.errors import SettingsError
from holdfast.models.open import ENDPOINT_KEY_PREFIX
from holdfast.redaction import redact_text, redact_url

JSON_KEY_PREFIX = "agent_"
"""The prefix of our keys in a `config.json`; all others belong to other programs."""
NOT_SETTINGS = frozenset({HOME_VARIABLE, "HOLDFAST_KILLS", "HOLDFAST_MODEL_TURNS"})
VARIABLE_SIMILARITY = 0.8
NO_COLOR = "NO_COLOR"
MAX_SETTINGS_BYTES = 1_000_000

SourceItem: TypeAlias = SettingValue | SettingsError | str
"""A value, an error, or a note."""


def load_settings(
    *,
    flags: Mapping[str, object] | None = None,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    is_tolerant: bool = False,
    flag_names: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings for a working folder, an environment, and flags, which are named like settings.

    `flag_names` has the flag of a setting that is not named like it, such as `--policy` of `preset`.
    Raise the first error. With `is_tolerant`, ignore wrong values instead and list them in `problems`.
    """
    known = os.environ if environ is None else environ
    where = find_paths(known, cwd)
    found = [
        *_read_toml(where.user_file, "user"),
        *_read_json_files(where),
        *(_read_toml(where.project_file, "project") if where.project_file else ()),
        *_read_environment(known, where.cwd),
        *_read_flags(flags or {}, where.cwd, flag_names or {}),
    ]
    wrong = [one for one in found if isinstance(one, SettingsError)]
    values = [one for one in found if isinstance(one, SettingValue)]
    settings = resolve_settings(values, where, wrong, [one for one in found if isinstance(one, str)])
    if settings.problems and not is_tolerant:
        raise settings.problems[0]
    return settings


def _read_toml(path: Path, kind: SourceKind) -> Iterator[SourceItem]:
    file = display_path(path)
    try:
        text = _read_file(path)
        table = parse_toml(text, file)
    except FileNotFoundError:
        return
    except SettingsError as error:
        yield error
        return
    lines = key_lines(text)
    first: dict[str, str] = {}
    for key, value in table.items():
        source = SettingSource(kind, file, lines.get((key,)))
        try:
            name = setting_name(key, where=str(source))
        except SettingsError as error:
            yield error
        else:
            is_repeated = first.setdefault(name, key) != key
            if is_repeated:
                yield SettingsError(key, f"is another name of {first[name]}; keep one of them", where=str(source))
            for piece in () if is_repeated else _split_tables(name, value):
                item = _checked(key, piece, source, path.parent, lines)
                yield from _value_per_table(item, key, lines) if isinstance(item, SettingValue) else [item]
        yield from _secret_notes(key, value, source)


def _checked(
    key: str, raw: object, source: SettingSource, folder: Path, lines: Mapping[TomlKey, int] | None = None
) -> SettingValue | SettingsError:
    try:
        return SettingValue(setting_name(key), check_value(key, raw, source, folder, lines), source)
    except SettingsError as error:
        return error


def _split_tables(name: str, value: object) -> list[object]:
    """Return named tables separately, so that an error in one does not affect the others; keep other values whole."""
    if (
        not isinstance(SETTING_DECLARATIONS[name].value_type, NamedTables)
        or not isinstance(value, Mapping)
        or not value
    ):
        return [value]
    return [{inner: table} for inner, table in cast("Mapping[str, object]", value).items()]


def _value_per_table(setting: SettingValue, key: str, lines: Mapping[TomlKey, int]) -> Iterator[SettingValue]:
    """Yield a value for each named table, each with its own line number."""
    if not isinstance(setting.value, Mapping):
        yield setting
        return
    for name, table in cast("Mapping[str, object]", setting.value).items():
        yield SettingValue(
            setting.name, {name: table}, replace(setting.source, line=lines.get((key, name), setting.source.line))
        )


def _content(path: Path) -> bytes:
    """Return the content of a settings file; that of a stranger's project may have any size, and a pipe never ends."""
    if path.is_fifo():
        raise OSError(errno.EINVAL, "it is a pipe")
    with path.open("rb") as file:
        content = file.read(MAX_SETTINGS_BYTES + 1)
    if len(content) > MAX_SETTINGS_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_SETTINGS_BYTES:,} bytes")
    return content


def _read_file(path: Path) -> str:
    file = display_path(path)
    try:
        return _content(path).decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SettingsError("the file", "is not UTF-8; save it as UTF-8", where=f"{file}:{line}") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(file) from error
    except OSError as error:
        remedy = "check its permissions, or move it away"
        raise SettingsError("the file", f"cannot be read: {error.strerror}; {remedy}", where=file) from error


def _secret_notes(key: str, value: object, source: SettingSource) -> Iterator[str]:
    """Yield a note for each text that looks like an API key, because people share settings files."""
    if isinstance(value, str) and (redact_url(value) if key == "store" else redact_text(value)) != value:
        remedy = "keep it in the environment" + (", and write ${NAME} here" if key.startswith("mcp.") else "")
        yield f"{source}: {key} looks like a key or a password; {remedy}"
    elif isinstance(value, dict):
        for name, inner in cast("dict[str, object]", value).items():
            yield from _secret_notes(f"{key}.{name}", inner, source)
    elif isinstance(value, list):
        for inner in cast("list[object]", value):
            yield from _secret_notes(key, inner, source)


def _read_json_files(paths: ProgramPaths) -> Iterator[SourceItem]:
    """Yield the `agent_*` keys of the user's `config.json`, then of the project's nearest one that has any."""
    yield from _read_json(paths.user_folder / JSON_SETTINGS_FILE, "user")
    found = (path for path in paths.project_files(JSON_SETTINGS_FILE) if JSON_KEY_PREFIX in _read_or_empty(path))
    if (nearest := next(found, None)) is not None:
        yield from _read_json(nearest, "project")


def _read_or_empty(path: Path) -> str:
    try:
        return _content(path).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _read_json(path: Path, kind: SourceKind) -> Iterator[SourceItem]:
    text, file = _read_or_empty(path), display_path(path)
    if JSON_KEY_PREFIX not in text:
        return
    try:
        table: object = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        yield SettingsError("the file", f"cannot be read as JSON: {error}; correct this line", where=f"{file}:{line}")
        return
    for key, value in cast("dict[str, object]", table).items() if isinstance(table, dict) else ():
        if not key.startswith(JSON_KEY_PREFIX):
            continue
        source = SettingSource(kind, file, _line_of(key, text))
        try:
            setting_name(key, where=str(source))
        except SettingsError as error:
            yield f"ignored: {error}"
            continue
        yield _checked(key, value, source, path.parent)


def _line_of(key: str, text: str) -> int:
    found = re.search(rf'"{re.escape(key)}"\s*:', text)
    return text.count("\n", 0, found.start()) + 1 if found else 1


def _read_environment(environ: Mapping[str, str], folder: Path) -> Iterator[SourceItem]:
    for name, one in SETTING_DECLARATIONS.items():
        variable = next((variable for variable in one.variables if _is_set(variable, name, environ)), None)
        if variable is None:
            if name == "colour" and environ.get(NO_COLOR):
                yield SettingValue(name, "never", SettingSource("environment", f"${NO_COLOR}"))
            continue
        source = SettingSource("environment", f"${variable}")
        yield _checked(name, environ[variable], source, folder)
    own = [variable for one in SETTING_DECLARATIONS.values() for variable in one.variables]
    for variable in sorted(name for name in environ if name.startswith(VARIABLE_PREFIX)):
        near = (
            []
            if variable in {*own, *NOT_SETTINGS} or variable.startswith(ENDPOINT_KEY_PREFIX)
            else get_close_matches(variable, own, n=1, cutoff=VARIABLE_SIMILARITY)
        )
        if near:
            yield f"${variable} is not a setting; did you mean ${near[0]}?"


def _is_set(variable: str, name: str, environ: Mapping[str, str]) -> bool:
    """Return whether a variable is set; an empty one counts only if the setting may be empty."""
    return bool(environ.get(variable)) or (variable in environ and SETTING_DECLARATIONS[name].default == "")


def _read_flags(flags: Mapping[str, object], folder: Path, names: Mapping[str, str]) -> Iterator[SourceItem]:
    for key, value in flags.items():
        if value is not None:
            source = SettingSource("command line", names.get(key, f"--{key.replace('_', '-')}"))
            yield _checked(key, str(value) if isinstance(value, Path) else value, source, folder)
