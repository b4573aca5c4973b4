"""The commands about settings: what is set and why, and what models there are and where the preset acts with them."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

from holdfast.app.build import policy_from
from holdfast.app.declarations import DECLARATIONS, canonical
from holdfast.app.lines import Line, lines_for
from holdfast.app.models import model_of
from holdfast.app.places import shortened
from holdfast.app.saving import file_for, forget, save
from holdfast.app.settings import Row, Settings
from holdfast.app.sources import load
from holdfast.cli.terminal import print_json, print_table, say, warn
from holdfast.counters.models import known_models
from holdfast.errors import SettingsError
from holdfast.models.embedded.weights import NAME as EMBEDDED
from holdfast.stores.base import Store


def settings_of(args: argparse.Namespace, *, is_tolerant: bool = False) -> Settings:
    """Return the settings for a command line: its arguments with the names of settings count as flags."""
    names = [name for one in DECLARATIONS.values() for name in one.names]
    flags = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
    return load(flags=flags, is_tolerant=is_tolerant)


async def configure(args: argparse.Namespace, store: Store) -> int:
    """Show every setting with its value and where it came from; show, set or forget one.

    holdfast config max_steps 30 --project
    """
    del store
    if args.value is not None or args.unset:
        return _changed(args)
    settings = settings_of(args, is_tolerant=True)
    if args.key is None:
        _show_all(args, settings)
    else:
        _show_one(args, settings, canonical(args.key))
    return _complained(settings)


def _show_all(args: argparse.Namespace, settings: Settings) -> None:
    rows = settings.rows()
    if args.json:
        print_json([_facts(row) for row in rows])
        return
    shown = [(row.name, row.text, str(row.source) if not row.note else row.note) for row in rows]
    print_table(("SETTING", "VALUE", "FROM"), shown)
    if not settings.places.user_file.exists():
        warn(f"your own settings go to {shortened(settings.places.user_file)}: holdfast config KEY VALUE")


def _show_one(args: argparse.Namespace, settings: Settings, name: str) -> None:
    row, one = next(row for row in settings.rows() if row.name == name), DECLARATIONS[name]
    if args.json:
        print_json(_facts(row))
        return
    print(f"{name} = {row.text}\n  from {row.source}" + (f", {row.note}" if row.note else ""))
    if isinstance(row.value, Mapping):
        for inner, table in cast("Mapping[str, object]", row.value).items():
            print(f"  {inner}: {table}  ({settings.source(f'{name}.{inner}')})")
    print(f"  {one.help}\n  takes {one.kind.asks}")
    print(f"  also {', '.join([*one.also, *(f'${variable}' for variable in one.variables)])}")


def _facts(row: Row) -> dict[str, object]:
    one = DECLARATIONS[row.name]
    return {
        "name": row.name,
        "value": _plain(row.value, row.text),
        "text": row.text,
        "source": {**asdict(row.source), "text": str(row.source)},
        "help": row.help,
        "note": row.note,
        "also": one.also,
        "variables": one.variables,
    }


def _plain(value: object, text: str) -> object:
    """Return a value that JSON can carry, without what may be secret."""
    if isinstance(value, Mapping):
        return {name: str(inner) for name, inner in cast("Mapping[str, object]", value).items()}
    if isinstance(value, tuple):
        return [str(inner) for inner in cast("tuple[object, ...]", value)]
    if isinstance(value, Path):
        return str(value)
    return text if isinstance(value, str) or not isinstance(value, bool | int | float | None) else value


def _changed(args: argparse.Namespace) -> int:
    """Keep a setting, or forget it, and say which value counts now."""
    settings = settings_of(args, is_tolerant=True)
    name, scope = canonical(args.key or ""), "project" if args.project else "user"
    path = forget(settings, name, scope=scope) if args.unset else save(settings, args.key, args.value, scope=scope)
    now = settings_of(args, is_tolerant=True)
    did = "forgotten in" if args.unset else "kept in"
    source = now.source(name)
    facts = {"file": str(path), "name": name, "value": now.shown(name), "source": str(source)}
    say(args, f"{name} = {now.shown(name)}, {did} {shortened(file_for(settings, scope))}", facts)
    counting_less = {"default", "preset", "policy", *(["user"] if scope == "project" else [])}
    if not args.unset and source.name != shortened(path) and source.kind not in counting_less:
        warn(f"{source} counts more than this file, so {name} stays {now.shown(name)}")
    return _complained(now)


def _complained(settings: Settings) -> int:
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
    settings = settings_of(args)
    names = _names(settings, args.filter)
    if not names:
        raise SettingsError("models", f"no model's name has {args.filter!r} in it; holdfast models lists all")
    rows = [(name, model_of(settings, name), lines_for(settings, name)) for name in names]
    policy = policy_from(settings).name
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
        (name, _number(model and model.max_input_tokens), _number(model and model.max_output_tokens), *_cells(lines))
        for name, model, lines in rows
    ]
    titles = [f"{line.what} at" if line.unit == "tokens" else line.what for line in rows[0][2]]
    print_table(("MODEL", "WINDOW", "OUTPUT", *(title.upper() for title in titles)), shown)
    return 0


def _names(settings: Settings, wanted: str) -> list[str]:
    own = [settings.model, EMBEDDED, *settings.models]
    return [name for name in dict.fromkeys([*own, *known_models()]) if wanted.lower() in name.lower()]


def _cells(lines: Sequence[Line]) -> list[str]:
    return [f"{line.at:,}" if line.unit == "tokens" else f"{line.at:,} {line.unit}" for line in lines]


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
