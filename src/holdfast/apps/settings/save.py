"""One setting kept in a file, where every other line stays as its author wrote it."""

import json
import os
import secrets
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias, cast

from holdfast.apps.settings.paths import SETTINGS_FILE, display_path
from holdfast.apps.settings.schema import SETTING_DECLARATIONS, setting_name
from holdfast.apps.settings.settings import Settings, SettingSource, check_value, parse_change
from holdfast.apps.settings.toml_lines import BYTE_ORDER_MARK, TomlStatement, TomlTable, parse_statements, parse_toml
from holdfast.errors import SettingsError, redact_text

SettingsScope: TypeAlias = Literal["user", "project"]
USER_FILE_MODE, USER_FOLDER_MODE, PROJECT_FILE_MODE = 0o600, 0o700, 0o644


def save_setting(settings: Settings, key: str, text: str, *, scope: SettingsScope = "user") -> Path:
    """Keep a setting in the user's file or in the project's, and return which; a wrong value changes nothing."""
    name = setting_name(key)
    names, path = SETTING_DECLARATIONS[name].names, settings_file(settings, scope)
    if redact_text(text) != text:
        problem = "looks like it holds a key or a password, which no file should; keep it in the environment"
        raise SettingsError(key, problem)
    if name == "trust" and scope == "project":
        raise SettingsError(key, "is the user's own business: a project cannot trust itself; use --user")
    before = _read_settings_text(path)
    table = parse_toml(before, display_path(path))
    present = _value_in_file(table, names, path.parent)
    value = parse_change(key, text, settings.value(name) if present is None else present, settings.paths.cwd)
    after = with_setting(before, name, SETTING_DECLARATIONS[name].value_type.to_file(value, path.parent))
    parse_toml(after, display_path(path))
    _write_atomically(path, after, is_private=scope == "user")
    return path


def _value_in_file(table: TomlTable, names: tuple[str, ...], folder: Path) -> object:
    """Return the value that a file has now; one that is wrong is as good as none."""
    with suppress(SettingsError):
        return next(
            (check_value(name, table[name], SettingSource("user"), folder) for name in names if name in table), None
        )
    return None


def remove_setting(settings: Settings, key: str, *, scope: SettingsScope = "user") -> Path:
    """Take a setting out of the user's file or the project's, and return which; where it is not, nothing changes."""
    names, path = SETTING_DECLARATIONS[setting_name(key)].names, settings_file(settings, scope)
    before = _read_settings_text(path)
    parse_toml(before, display_path(path))
    lines = before.split("\n")
    for one in reversed(parse_statements(before)):
        if one.is_top and one.keys[0][0] in names:
            del lines[one.start : one.stop]
    if (after := "\n".join(lines)) != before:
        _write_atomically(path, after, is_private=scope == "user")
    return path


def settings_file(settings: Settings, scope: SettingsScope) -> Path:
    """Return the file that a setting would be kept in."""
    if scope == "user":
        return settings.paths.user_file
    return settings.paths.project_file or settings.paths.project_folder / SETTINGS_FILE


def with_setting(text: str, name: str, value: object) -> str:
    """Return a document with a value for a setting; comments, order and line endings stay."""
    mark, ending = (BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""), ("\r\n" if "\r\n" in text else "\n")
    lines = text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n").split("\n")
    said = parse_statements(text)
    names = SETTING_DECLARATIONS[name].names
    line = f"{name} = {to_toml(value)}"
    there = next((one for one in said if one.is_top and one.keys[0][0] in names), None)
    if there is not None:
        lines[there.start : there.stop] = [line + _trailing_comment(lines[there.start : there.stop])]
    else:
        at = _insertion_line(lines, said)
        gap = [""] if at < len(lines) and lines[at].strip() else []
        lines[at:at] = [line, *gap] if at < len(lines) else [line, ""]
    return mark + ending.join(lines)


def to_toml(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(to_toml(one) for one in cast('list[object]', value))}]"
    if isinstance(value, int | float):
        return repr(value)
    # JSON's texts are TOML's, but for one character.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _trailing_comment(lines: list[str]) -> str:
    """Return the comment behind a statement of one line, with the space before it."""
    if len(lines) != 1:
        return ""
    line = lines[0]
    for at, char in enumerate(line):
        if char != "#":
            continue
        with suppress(tomllib.TOMLDecodeError):
            if tomllib.loads(line[:at]) == tomllib.loads(line):
                bare = line[:at].rstrip()
                return line[len(bare) :]
    return ""


def _insertion_line(lines: list[str], said: list[TomlStatement]) -> int:
    """Return before which line a new setting stands: behind the others, and before the first table."""
    before = [one.stop for one in said if one.is_top]
    if before:
        return before[-1]
    head = next((one.start for one in said if one.is_head), None)
    if head is None:
        return len(lines) - 1 if lines and not lines[-1] else len(lines)
    # What is said about a table stands right above it.
    while head and lines[head - 1].lstrip().startswith("#"):
        head -= 1
    return head


def _read_settings_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("the file", f"cannot be read: {error}; mend it first", where=display_path(path)) from error


def _write_atomically(path: Path, text: str, *, is_private: bool) -> None:
    """Put a file in the place of an older one: there is always the one or the other, whole."""
    # A link, such as into a folder of dotfiles, stays one.
    target = path.resolve()
    try:
        target.parent.mkdir(USER_FOLDER_MODE if is_private else 0o777, parents=True, exist_ok=True)
        mode = USER_FILE_MODE if is_private else target.stat().st_mode & 0o777 if target.exists() else PROJECT_FILE_MODE
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        remedy = "let this user write there"
        raise SettingsError(
            "the file", f"cannot be written: {error.strerror}; {remedy}", where=display_path(path)
        ) from error
