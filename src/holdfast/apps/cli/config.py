"""The commands about settings and models: values with their sources, and models with the preset's thresholds."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import cast

from holdfast.apps.cli.output import print_json, print_result, print_table, warn
from holdfast.apps.settings.build import policy_thresholds
from holdfast.apps.settings.models import configured_model
from holdfast.apps.settings.paths import display_path
from holdfast.apps.settings.save import remove_setting, save_setting, settings_file
from holdfast.apps.settings.schema import SETTING_DECLARATIONS, setting_name
from holdfast.apps.settings.settings import SettingRow, Settings
from holdfast.apps.settings.sources import load_settings
from holdfast.counters.models import known_models
from holdfast.errors import SettingsError
from holdfast.models.base import EMBEDDED_MODEL as EMBEDDED
from holdfast.redaction import redact_text
from holdfast.stores.base import Store
from holdfast.stores.files import is_missing


def settings_for(args: argparse.Namespace, *, is_tolerant: bool = False) -> Settings:
    """Return the settings for a command line; an argument with the name of a setting overrides that setting."""
    names = [name for one in SETTING_DECLARATIONS.values() for name in one.names]
    flags = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
    return load_settings(flags=flags, is_tolerant=is_tolerant, flag_names=getattr(args, "flag_names", None))


async def config_command(args: argparse.Namespace, store: Store) -> int:
    """Show every setting with its value and source; show, change or remove one setting.

    A new value is saved in a holdfast.toml: your own, or with --project that of the project.

    holdfast config max_steps 30 --project
    """
    del store
    if args.value is not None or args.unset:
        return _change_setting(args)
    settings = settings_for(args, is_tolerant=True)
    rows = {row.name: row for row in settings.rows()}
    if args.key is not None:
        row = rows[setting_name(args.key)]
        if args.json:
            print_json(_row_json(row))
        else:
            _show_one(settings, row)
    elif args.json:
        print_json([_row_json(row) for row in rows.values()])
    else:
        print_table(
            ("SETTING", "VALUE", "FROM"), [(row.name, row.text, row.note or str(row.source)) for row in rows.values()]
        )
        if is_missing(settings.paths.user_file):
            file = display_path(settings.paths.user_file)
            warn(f"there is no {file} yet; holdfast config KEY VALUE creates it")
    return _warn_of_problems(settings)


def _show_one(settings: Settings, row: SettingRow) -> None:
    name, declaration = row.name, SETTING_DECLARATIONS[row.name]
    print(f"{name} = {row.text}\n  from {row.source}" + (f", {row.note}" if row.note else ""))
    if isinstance(row.value, Mapping):
        for inner, table in cast("Mapping[str, object]", row.value).items():
            print(f"  {inner}: {redact_text(str(table))}  ({settings.source(f'{name}.{inner}')})")
    print(f"  {declaration.help}\n  expects {declaration.value_type.expects}")
    print(
        f"  other names: {', '.join([*declaration.aliases, *(f'${variable}' for variable in declaration.variables)])}"
    )


def _row_json(row: SettingRow) -> dict[str, object]:
    declaration = SETTING_DECLARATIONS[row.name]
    return {
        "name": row.name,
        "value": _json_value(row.value, row.text),
        "text": row.text,
        "source": {**asdict(row.source), "text": str(row.source)},
        "help": declaration.help,
        "note": row.note,
        "also": declaration.aliases,
        "variables": declaration.variables,
    }


def _json_value(value: object, text: str) -> object:
    """Return a value for JSON, without possible secrets."""
    if isinstance(value, Mapping):
        return {name: redact_text(str(inner)) for name, inner in cast("Mapping[str, object]", value).items()}
    if isinstance(value, tuple):
        return [redact_text(str(inner)) for inner in cast("tuple[object, ...]", value)]
    if isinstance(value, Path):
        return str(value)
    return text if isinstance(value, str) or not isinstance(value, bool | int | float | None) else value


def _change_setting(args: argparse.Namespace) -> int:
    """Save or remove a setting, and print the value in force."""
    if args.key is None:
        raise SettingsError("--unset", "needs the name of a setting: holdfast config KEY --unset")
    settings = settings_for(args, is_tolerant=True)
    name, scope = setting_name(args.key or ""), "project" if args.project else "user"
    path = settings_file(settings, scope)
    if args.unset:
        if args.value is not None:
            raise SettingsError("--unset", f"takes no value: holdfast config {args.key} --unset")
        verb = "removed from" if remove_setting(settings, name, scope=scope) else "not set in"
    else:
        save_setting(settings, args.key, args.value, scope=scope)
        verb = "saved in"
    now = settings_for(args, is_tolerant=True)
    source = now.source(name)
    facts = {"file": str(path), "name": name, "value": now.render_value(name), "source": str(source)}
    print_result(args, f"{name} = {now.render_value(name)}, {verb} {display_path(path)}", facts)
    weaker = {"default", "preset", "policy", *(["user"] if scope == "project" else [])}
    if not args.unset and source.name != display_path(path) and source.kind not in weaker:
        warn(f"{source} overrides this file, so {name} stays {now.render_value(name)}")
    return _warn_of_problems(now)


def _warn_of_problems(settings: Settings) -> int:
    """Print the problems of the settings and return the exit code."""
    for note in settings.notes:
        warn(note)
    for problem in settings.problems:
        warn(f"ignored: {problem}")
    return int(bool(settings.problems))


async def list_models(args: argparse.Namespace, store: Store) -> int:
    """List the known models: window, longest answer, and the thresholds of the preset.

    holdfast models claude --preset inkeep
    """
    del store
    settings = settings_for(args)
    own = [settings.model, EMBEDDED, *settings.models]
    names = [name for name in dict.fromkeys([*own, *known_models()]) if args.filter.lower() in name.lower()]
    if not names:
        raise SettingsError("models", f"no model name contains {args.filter!r}; holdfast models lists all")
    rows = [(redact_text(name), configured_model(settings, name), policy_thresholds(settings, name)) for name in names]
    policy = settings.effective_policy.name
    if args.json:
        listed = [
            {
                **(asdict(model) if model else {}),
                "name": name,
                "policy": policy,
                "lines": [asdict(one) for one in thresholds],
            }
            for name, model, thresholds in rows
        ]
        print_json(listed)
        return 0
    shown = [
        (
            name,
            _render_number(model and model.max_input_tokens),
            _render_number(model and model.max_output_tokens),
            *(f"{one.at:,}" if one.unit == "tokens" else f"{one.at:,} {one.unit}" for one in thresholds),
        )
        for name, model, thresholds in rows
    ]
    titles = [f"{one.what} at" if one.unit == "tokens" else one.what for one in rows[0][2]]
    print_table(("MODEL", "WINDOW", "OUTPUT", *(title.upper() for title in titles)), shown)
    return 0


def _render_number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
