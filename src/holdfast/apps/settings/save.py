"""Write one setting into a settings file without changing any other line."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias, cast

from holdfast.apps.settings.paths import SETTINGS_FILE, display_path
from holdfast.apps.settings.schema import SETTING_DECLARATIONS, setting_name
from holdfast.apps.settings.settings import (
    Settings,
    SettingSource,
    SettingValue,
    check_value,
    parse_change,
    resolve_settings,
)
from holdfast.apps.settings.toml_lines import (
    BYTE_ORDER_MARK,
    TomlBody,
    TomlEntry,
    TomlTable,
    key_lines,
    parse_document,
    parse_toml,
)
from holdfast.errors import SettingsError
from holdfast.redaction import redact_text, redact_url
from holdfast.stores.files import (
    PRIVATE_FILE_MODE,
    create_private_folder,
    disk_remedy,
    is_missing,
    locked_file,
    replace_file,
)

SettingsScope: TypeAlias = Literal["user", "project"]
PROJECT_FILE_MODE = 0o644


def save_setting(settings: Settings, key: str, text: str, *, scope: SettingsScope = "user") -> Path:
    """Save a setting in the user's or the project's file and return the file; raise before writing if it is wrong."""
    name = setting_name(key)
    names, path = SETTING_DECLARATIONS[name].names, settings_file(settings, scope)
    if redact_text(text) != text or (name == "store" and redact_url(text) != text):
        problem = "looks like a key or a password; keep it in the environment"
        raise SettingsError(key, problem)
    if name == "trust" and scope == "project":
        raise SettingsError(key, "cannot be set by a project, because no project can trust itself; use --user")
    if name == "trust":
        settings.paths.check_cwd()  # `+.` would be the home folder
    with locked_file(path):
        before = _read_settings_text(path)
        table = parse_toml(before, display_path(path))
        present = _value_in_file(table, names, path.parent)
        extended = _lasting_value(settings, name, scope) if present is None else present
        value = parse_change(key, text, extended, settings.paths.cwd)
        _check_with_others(settings, SettingValue(name, value, SettingSource(scope, display_path(path))))
        after = with_setting(before, name, SETTING_DECLARATIONS[name].value_type.to_file(value, path.parent))
        parse_toml(after, display_path(path))
        _write(path, after, is_private=scope == "user")
    return path


def _value_in_file(table: TomlTable, names: tuple[str, ...], folder: Path) -> object:
    """Return the value in the file; None if there is none or it is wrong."""
    with suppress(SettingsError):
        return next(
            (check_value(name, table[name], SettingSource("user"), folder) for name in names if name in table), None
        )
    return None


def _lasting_value(settings: Settings, name: str, scope: SettingsScope) -> object:
    """Return the list that is added to: not one of this process alone, nor of one project for all of the user's."""
    kept = [one for one in settings.explicit_values if one.name != name or one.source.kind not in _passing(scope)]
    return resolve_settings(kept, settings.paths).value(name)


def _passing(scope: SettingsScope) -> set[str]:
    """Return the kinds of sources that do not last, or that only one project has."""
    return {"environment", "command line", *(["project"] if scope == "user" else [])}


def _check_with_others(settings: Settings, new: SettingValue) -> None:
    """Raise if a value for a file does not go with the other lasting values: other commands would stop at it."""
    scope = cast("SettingsScope", new.source.kind)
    kept = [one for one in settings.explicit_values if one.source.kind not in _passing(scope)]
    others = [one for one in kept if (one.name, one.source.kind) != (new.name, scope)]
    before, after = (resolve_settings(values, settings.paths).problems for values in (kept, [*others, new]))
    if len(after) > len(before):
        raise SettingsError(after[-1].setting, after[-1].problem)


def remove_setting(settings: Settings, key: str, *, scope: SettingsScope = "user") -> bool:
    """Remove a setting from the user's file or the project's; return whether it was there, raise if it is a table."""
    names, path = SETTING_DECLARATIONS[setting_name(key)].names, settings_file(settings, scope)
    if is_missing(path):
        return False
    with locked_file(path):
        before = _read_settings_text(path)
        parse_toml(before, display_path(path))
        document = parse_document(before)
        statements = _statements(document.body, names)
        for index in reversed(statements):
            del document.body[index]
        after = parse_toml(document.as_string(), display_path(path))
        if (table := next((name for name in names if name in after), None)) is not None:
            # The comments at the end of a table may be about the next one, so nobody else can tell what belongs to it.
            place = SettingSource(scope, display_path(path), key_lines(before).get((table,)))
            raise SettingsError(
                key, f"is a table; remove [{table}], and what is inside it, in the file", where=str(place)
            )
        if statements:
            _write(path, _with_layout_of(before, document.as_string()), is_private=scope == "user")
    return bool(statements)


def settings_file(settings: Settings, scope: SettingsScope) -> Path:
    """Return the file that settings of a scope are saved in."""
    if scope == "user":
        return settings.paths.user_file
    settings.paths.check_cwd()
    return settings.paths.project_file or settings.paths.project_folder / SETTINGS_FILE


def with_setting(text: str, name: str, value: object) -> str:
    """Return a document with a value for a setting; comments, order and line endings stay."""
    import tomlkit  # noqa: PLC0415 - needed only to save a setting

    document = parse_document(text)
    body, new, blank = document.body, (tomlkit.key(name), tomlkit.item(value)), (None, tomlkit.nl())
    if present := _statements(body, SETTING_DECLARATIONS[name].names):
        old, trivia = body[present[0]][1].trivia, new[1].trivia
        trivia.comment_ws, trivia.comment, trivia.trail = old.comment_ws, old.comment, old.trail
        body[present[0]] = new
    elif (at := _insertion_index(body)) == len(body):
        body += [new] if not body or text.endswith("\n") else [blank, new]
    else:
        body[at:at] = [new] if _is_blank(body[at]) else [new, blank]
    return _with_layout_of(text, document.as_string())


def _statements(body: TomlBody, names: tuple[str, ...] | None = None) -> list[int]:
    """Return the indices of statements before the first table: all of them, or those for some names."""
    return [
        index
        for index, (key, item) in enumerate(body)
        if key is not None
        and (key.is_dotted() or not (item.is_table() or item.is_aot()))
        and (names is None or key.key in names)
    ]


def _insertion_index(body: TomlBody) -> int:
    """Return the index for a new setting: after the other settings and before the first table."""
    if statements := _statements(body):
        return statements[-1] + 1
    table = next((index for index, (key, _) in enumerate(body) if key is not None), None)
    if table is None:
        return len(body)
    # A comment right above a table is about the table.
    while table and not _is_blank(body[table - 1]):
        table -= 1
    return table


def _is_blank(entry: TomlEntry) -> bool:
    key, item = entry
    return key is None and not item.as_string().strip()


def _with_layout_of(original: str, text: str) -> str:
    """Return a document with the byte order mark and the line endings of the original."""
    mark = BYTE_ORDER_MARK if original.startswith(BYTE_ORDER_MARK) else ""
    return mark + (text.replace("\n", "\r\n") if "\r\n" in original else text)


def _read_settings_text(path: Path) -> str:
    if os.path.exists(path) and not path.is_file() and not path.is_dir():  # noqa: PTH110 - False if it cannot be checked
        # People link a file to /dev/null to switch it off; a device is not to be replaced, and a pipe never ends.
        raise SettingsError("the file", "is a device or a pipe; remove it first", where=display_path(path))
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            "the file", f"cannot be read: {error}; correct it first", where=display_path(path)
        ) from error


def _write(path: Path, text: str, *, is_private: bool) -> None:
    """Replace a settings file."""
    # A symbolic link, for example into a folder of dotfiles, stays a link.
    target = path.resolve()
    try:
        if is_private:
            create_private_folder(target.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        known = None if is_private or not target.exists() else stat.S_IMODE(target.stat().st_mode)
        replace_file(target, [text.encode()], PRIVATE_FILE_MODE if is_private else PROJECT_FILE_MODE)
        if known is not None:
            target.chmod(known)  # the mask of new files does not hold for one that was there
    except OSError as error:
        problem = f"cannot be written: {error.strerror}; {disk_remedy(error, 'check the permissions')}"
        raise SettingsError("the file", problem, where=display_path(path)) from error
