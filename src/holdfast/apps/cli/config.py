"""The commands about settings: what is set and why, and what models there are and where the preset acts with them."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

from holdfast.apps.cli.output import print_json, print_result, print_table, warn
from holdfast.apps.settings.build import PolicyThreshold, policy_thresholds
from holdfast.apps.settings.models import configured_model
from holdfast.apps.settings.paths import display_path
from holdfast.apps.settings.save import remove_setting, save_setting, settings_file
from holdfast.apps.settings.schema import SETTING_DECLARATIONS, setting_name
from holdfast.apps.settings.settings import SettingRow, Settings
from holdfast.apps.settings.sources import load_settings
from holdfast.counters.models import known_models
from holdfast.errors import SettingsError
from holdfast.models.embedded.weights import EMBEDDED_MODEL as EMBEDDED
from holdfast.stores.base import Store


def settings_for(args: argparse.Namespace, *, is_tolerant: bool = False) -> Settings:
    """Return the settings for a command line: its arguments with the names of settings count as flags."""
    names = [name for one in SETTING_DECLARATIONS.values() for name in one.names]
    flags = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
    return load_settings(flags=flags, is_tolerant=is_tolerant)


async def config_command(args: argparse.Namespace, store: Store) -> int:
    """Show every setting with its value and where it came from; show, set or forget one.

    holdfast config max_steps 30 --project
    """
    del store
    if args.value is not None or args.unset:
        return _change_setting(args)
    settings = settings_for(args, is_tolerant=True)
    if args.key is None:
        _show_all(args, settings)
    else:
        _show_one(args, settings, setting_name(args.key))
    return _warn_of_problems(settings)


def _show_all(args: argparse.Namespace, settings: Settings) -> None:
    rows = settings.rows()
    if args.json:
        print_json([_row_json(row) for row in rows])
        return
    shown = [(row.name, row.text, str(row.source) if not row.note else row.note) for row in rows]
    print_table(("SETTING", "VALUE", "FROM"), shown)
    if not settings.paths.user_file.exists():
        warn(f"your own settings go to {display_path(settings.paths.user_file)}: holdfast config KEY VALUE")


def _show_one(args: argparse.Namespace, settings: Settings, name: str) -> None:
    row, one = next(row for row in settings.rows() if row.name == name), SETTING_DECLARATIONS[name]
    if args.json:
        print_json(_row_json(row))
        return
    print(f"{name} = {row.text}\n  from {row.source}" + (f", {row.note}" if row.note else ""))
    if isinstance(row.value, Mapping):
        for inner, table in cast("Mapping[str, object]", row.value).items():
            print(f"  {inner}: {table}  ({settings.source(f'{name}.{inner}')})")
    print(f"  {one.help}\n  takes {one.value_type.expects}")
    print(f"  also {', '.join([*one.aliases, *(f'${variable}' for variable in one.variables)])}")


def _row_json(row: SettingRow) -> dict[str, object]:
    one = SETTING_DECLARATIONS[row.name]
    return {
        "name": row.name,
        "value": _json_value(row.value, row.text),
        "text": row.text,
        "source": {**asdict(row.source), "text": str(row.source)},
        "help": row.help,
        "note": row.note,
        "also": one.aliases,
        "variables": one.variables,
    }


def _json_value(value: object, text: str) -> object:
    """Return a value that JSON can carry, without what may be secret."""
    if isinstance(value, Mapping):
        return {name: str(inner) for name, inner in cast("Mapping[str, object]", value).items()}
    if isinstance(value, tuple):
        return [str(inner) for inner in cast("tuple[object, ...]", value)]
    if isinstance(value, Path):
        return str(value)
    return text if isinstance(value, str) or not isinstance(value, bool | int | float | None) else value


def _change_setting(args: argparse.Namespace) -> int:
    """Keep a setting, or forget it, and say which value counts now."""
    settings = settings_for(args, is_tolerant=True)
    name, scope = setting_name(args.key or ""), "project" if args.project else "user"
    path = (
        remove_setting(settings, name, scope=scope)
        if args.unset
        else save_setting(settings, args.key, args.value, scope=scope)
    )
    now = settings_for(args, is_tolerant=True)
    did = "forgotten in" if args.unset else "kept in"
    source = now.source(name)
    facts = {"file": str(path), "name": name, "value": now.render_value(name), "source": str(source)}
    print_result(
        args, f"{name} = {now.render_value(name)}, {did} {display_path(settings_file(settings, scope))}", facts
    )
    counting_less = {"default", "preset", "policy", *(["user"] if scope == "project" else [])}
    if not args.unset and source.name != display_path(path) and source.kind not in counting_less:
        warn(f"{source} counts more than this file, so {name} stays {now.render_value(name)}")
    return _warn_of_problems(now)


def _warn_of_problems(settings: Settings) -> int:
    """Say what is wrong with the settings, and return the exit code for it."""
    for note in settings.notes:
        warn(note)
    for problem in settings.problems:
        warn(f"left out: {problem}")
    return int(bool(settings.problems))


async def list_models(args: argparse.Namespace, store: Store) -> int:
    """List the models that are known: window, longest answer, and where the preset acts.

    holdfast models claude --preset inkeep
    """
    del store
    settings = settings_for(args)
    names = _matching_models(settings, args.filter)
    if not names:
        raise SettingsError("models", f"no model's name has {args.filter!r} in it; holdfast models lists all")
    rows = [(name, configured_model(settings, name), policy_thresholds(settings, name)) for name in names]
    policy = settings.effective_policy.name
    if args.json:
        listed = [
            {
                **(asdict(model) if model else {}),
                "name": name,
                "policy": policy,
                "lines": [asdict(one) for one in lines],
            }
            for name, model, lines in rows
        ]
        print_json(listed)
        return 0
    shown = [
        (
            name,
            _render_number(model and model.max_input_tokens),
            _render_number(model and model.max_output_tokens),
            *_threshold_cells(lines),
        )
        for name, model, lines in rows
    ]
    titles = [f"{line.what} at" if line.unit == "tokens" else line.what for line in rows[0][2]]
    print_table(("MODEL", "WINDOW", "OUTPUT", *(title.upper() for title in titles)), shown)
    return 0


def _matching_models(settings: Settings, wanted: str) -> list[str]:
    own = [settings.model, EMBEDDED, *settings.models]
    return [name for name in dict.fromkeys([*own, *known_models()]) if wanted.lower() in name.lower()]


def _threshold_cells(lines: Sequence[PolicyThreshold]) -> list[str]:
    return [f"{line.at:,}" if line.unit == "tokens" else f"{line.at:,} {line.unit}" for line in lines]


def _render_number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
