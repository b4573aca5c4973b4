"""`holdfast doctor`: checks of versions, settings, the model, the store, the clock and the disk.

Each check is a function that yields findings. A finding about a problem says what to do.
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
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal, TypeAlias

from holdfast.apps.cli.config import settings_for
from holdfast.apps.cli.output import escape_line, print_json
from holdfast.apps.settings.models import (
    PROVIDER_KEYS,
    available_providers,
    bare_model_name,
    configured_model,
    missing_key,
    provider_of,
    window_remedy,
)
from holdfast.apps.settings.paths import display_path
from holdfast.apps.settings.settings import Settings
from holdfast.counters.models import describe_unknown_model
from holdfast.distribution import DISTRIBUTION_NAME, install_command
from holdfast.errors import HoldfastError, SettingsError, redact_text
from holdfast.models.base import EMBEDDED_MODEL as EMBEDDED
from holdfast.models.base import SummaryPrompt, is_embedded
from holdfast.models.embedded.server import EmbeddedSummarizer
from holdfast.models.embedded.weights import SMOLLM2, cache_folder, cached_weights, weights_file
from holdfast.models.http_endpoint import split_http_url
from holdfast.models.open import open_summarizer, parse_endpoint
from holdfast.stores.base import Store
from holdfast.stores.files import is_missing
from holdfast.stores.open import open_store
from holdfast.stores.sqlite.store import SqliteStore

DoctorState: TypeAlias = Literal["ok", "warn", "fail"]
CHECKED_PACKAGES = ("splintr-rs", "pydantic-ai-slim", "httpx", "xllamacpp", "psycopg", "opentelemetry-api")
EARLIEST_CLOCK_SECONDS = 1_730_000_000
"""A clock with an earlier time is wrong, because this program is newer."""
MAX_CLOCK_SKEW_MS = 3_600_000
LOW_DISK_BYTES, MIN_DISK_BYTES = 1 << 30, 100 << 20
DOCTOR_CONNECT_SECONDS = 3.0
GROUP_AND_OTHERS_MODE = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check."""

    state: DoctorState
    what: str
    said: str
    remedy: str = ""


async def run_doctor(args: argparse.Namespace, store: Store) -> int:
    """Check versions, settings, model, store, clock and disk, and say how to fix each problem.

    holdfast doctor --ask
    holdfast doctor --gateway
    holdfast doctor --store postgresql://holdfast@db.example/holdfast
    """
    del store
    settings = settings_for(args, is_tolerant=True)
    findings = [*_check_versions(), *_check_settings(settings)]
    findings += _check_model(settings, has_gateway=args.gateway is not None)
    findings += [one async for one in _check_reachable(settings, is_asked=args.ask)]
    findings += [one async for one in _check_mcp_servers(settings)]
    findings += [one async for one in _check_store(settings)]
    if settings.store.startswith(("postgresql://", "postgres://")) and findings[-1].state != "fail":
        from holdfast.stores.postgres_check import check_postgres  # noqa: PLC0415 - an optional extra

        findings += [
            DoctorFinding(one.state, "store", one.said, one.remedy) for one in await check_postgres(settings.store)
        ]
    findings += [*_check_clock(), *_check_disk(settings)]
    if args.gateway is not None:
        from holdfast.apps.cli.gateway_check import check_gateway  # noqa: PLC0415 - only if it is asked for

        found = await asyncio.to_thread(lambda: list(check_gateway(args.gateway, settings)))
        findings += [DoctorFinding(one.state, "gateway", one.said, one.remedy) for one in found]
    # People attach this to reports; an address of a model may hold a password.
    findings = [replace(one, said=redact_text(one.said), remedy=redact_text(one.remedy)) for one in findings]
    if args.json:
        print_json([asdict(one) for one in findings])
    else:
        for one in findings:
            remedy = f"; {one.remedy}" if one.remedy else ""
            print(escape_line(f"{one.state:<5} {one.what:<9} {one.said}{remedy}"))
    return int(any(one.state == "fail" for one in findings))


def _check_versions() -> Iterator[DoctorFinding]:
    machine = f"{platform.system()} {platform.machine()}"
    yield DoctorFinding(
        "ok", "python", f"{platform.python_version()} on {machine}, {display_path(Path(sys.executable))}"
    )
    found = {name: _package_version(name) for name in (DISTRIBUTION_NAME, *CHECKED_PACKAGES)}
    installed = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    missing = ", ".join(name for name, number in found.items() if not number)
    if found["splintr-rs"] is None:
        yield DoctorFinding("fail", "packages", "splintr-rs is not installed", install_command())
    yield DoctorFinding("ok", "packages", installed + (f" (not installed: {missing})" if missing else ""))


def _package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_settings(settings: Settings) -> Iterator[DoctorFinding]:
    files = [path for path in (settings.paths.user_file, settings.paths.project_file) if path and not is_missing(path)]
    listed = (
        ", ".join(map(display_path, files)) or f"no file yet; {display_path(settings.paths.user_file)} would be read"
    )
    if not settings.problems:
        yield DoctorFinding("ok", "settings", listed)
    for problem in settings.problems:
        yield DoctorFinding("fail", "settings", str(problem))
    for note in settings.notes:
        yield DoctorFinding("warn", "settings", note)
    user = settings.paths.user_file
    if _permissions(user) & (stat.S_IWGRP | stat.S_IWOTH):
        said = f"other users can write to {display_path(user)}, and settings can start programs"
        yield DoctorFinding("warn", "settings", said, f"chmod 600 {display_path(user)}")


def _check_model(settings: Settings, *, has_gateway: bool) -> Iterator[DoctorFinding]:
    """Yield whether the model can be called, as far as that can be checked without a call.

    With a gateway, its key needs to be in the environment of the gateway only.
    """
    model = settings.model
    if is_embedded(model):
        yield from _check_embedded() if model == EMBEDDED else _check_weights_file(model)
    elif model.startswith(("http://", "https://")):
        yield from _check_endpoint(model)
    else:
        yield from _check_named_model(settings, has_gateway=has_gateway)
        return
    if configured_model(settings) is None:
        yield _unknown_window(settings)
    if model == EMBEDDED and (providers := available_providers(os.environ)):
        said = f"there are keys for {', '.join(providers)}, which are not used"
        yield DoctorFinding("ok", "model", said, f"to use one: holdfast config model {providers[0]}:NAME")


def _check_weights_file(model: str) -> Iterator[DoctorFinding]:
    """Yield whether the file of a local model is one."""
    try:
        yield DoctorFinding("ok", "model", f"{weights_file(model)} is a GGUF file")
    except SettingsError as error:
        yield DoctorFinding("fail", "model", error.problem, "check the path in the setting `model`")


def _check_named_model(settings: Settings, *, has_gateway: bool) -> Iterator[DoctorFinding]:
    """Yield the problems of a model that is named with its provider, or that there are none."""
    model, is_known = settings.model, configured_model(settings) is not None
    if find_spec("pydantic_ai") is None:
        yield from _check_package(model, "pydantic_ai", "pydantic-ai")
    elif ":" not in model or (not is_known and provider_of(model) not in PROVIDER_KEYS):
        said = f"{model} names no provider" if is_known else f"{model} is unknown"
        yield DoctorFinding(
            "fail", "model", said, "name a provider and its model, such as openai:gpt-5; see holdfast models"
        )
    elif (variable := missing_key(model, os.environ)) and has_gateway:
        said = f"{model} has no key here, and needs none if the gateway has one"
        yield DoctorFinding("warn", "model", said, f"to use the model without the gateway, set {variable}")
    elif variable:
        yield DoctorFinding("fail", "model", f"{model} needs a key", f"set {variable}")
    elif is_known:
        yield DoctorFinding("ok", "model", model)
    else:
        yield _unknown_window(settings)


def _unknown_window(settings: Settings) -> DoctorFinding:
    said = describe_unknown_model(bare_model_name(settings.model), settings.effective_policy.unknown_window)
    return DoctorFinding("warn", "model", said, window_remedy(settings.model))


def _check_embedded() -> Iterator[DoctorFinding]:
    if find_spec("xllamacpp") is None or find_spec("httpx") is None:
        yield DoctorFinding(
            "fail",
            "model",
            "the engine of the embedded model is not installed",
            install_command("embedded"),
        )
    if path := cached_weights():
        yield DoctorFinding("ok", "model", f"embedded, weights in {display_path(path)}")
    else:
        said = f"embedded; its weights ({SMOLLM2.size // 10**6} MB) are downloaded on first use"
        yield DoctorFinding("warn", "model", said, "connect to a package index before that")


def _check_endpoint(model: str) -> Iterator[DoctorFinding]:
    """Yield whether the address of a model is one."""
    try:
        parse_endpoint(model)
    except SettingsError as error:
        yield DoctorFinding("fail", "model", error.problem)
    else:
        yield from _check_package(model, "httpx", "http")


def _check_package(model: str, module: str, extra: str) -> Iterator[DoctorFinding]:
    if find_spec(module) is None:
        yield DoctorFinding("fail", "model", f"{model} needs the package {module}", install_command(extra))
    else:
        yield DoctorFinding("ok", "model", model)


async def _check_reachable(settings: Settings, *, is_asked: bool) -> AsyncIterator[DoctorFinding]:
    """Yield whether the model answers: call it with `--ask`, else only connect to its address."""
    if is_asked:
        yield await _check_answer(settings)
    elif parts := split_http_url(settings.model):
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(DOCTOR_CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
                await writer.wait_closed()
            yield DoctorFinding("ok", "model", f"{host}:{port} can be reached")
        except (OSError, TimeoutError) as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else "no answer"
            said = f"{host}:{port} cannot be reached: {why}"
            yield DoctorFinding("fail", "model", said, "start the server, or check the address")


async def _check_answer(settings: Settings) -> DoctorFinding:
    began = time.monotonic()
    prompt = SummaryPrompt(system="", text="Say ok.", max_output_tokens=16, interaction="doctor")
    try:
        model = open_summarizer(settings.model)
        try:
            answer = await model.write(prompt)
        finally:
            if isinstance(model, EmbeddedSummarizer):
                await model.close()
    except HoldfastError as error:
        return DoctorFinding("fail", "model", str(error))
    return DoctorFinding("ok", "model", f"{answer.model} answered in {time.monotonic() - began:.1f} s")


async def _check_mcp_servers(settings: Settings) -> AsyncIterator[DoctorFinding]:
    """Yield whether each MCP server starts."""
    for server in settings.mcp.values():
        from holdfast.apps.chat.agent import mcp_toolset  # noqa: PLC0415 - seconds to load, only for servers

        problems: list[str] = []
        async with mcp_toolset(server, problems.append):
            pass
        if problems:
            yield DoctorFinding("fail", "mcp", problems[0])
        else:
            yield DoctorFinding("ok", "mcp", f"{server.name} starts")


async def _check_store(settings: Settings) -> AsyncIterator[DoctorFinding]:
    """Yield whether the store opens, and whether only its owner can read it."""
    try:
        store = open_store(settings.store)
    except (HoldfastError, ImportError) as error:
        yield DoctorFinding("fail", "store", str(error))
        return
    path = store.path if isinstance(store, SqliteStore) else None
    if path is not None and is_missing(path):
        folder = _existing_folder(path.parent)
        try:
            # Only an attempt shows whether a file can be made there: root may write anywhere but on a read-only disk.
            with TemporaryFile(dir=folder):
                yield DoctorFinding("ok", "store", f"{display_path(path)} is created with the first message")
        except OSError as error:
            said = f"{display_path(path)} cannot be created: {display_path(folder)}: {error.strerror or error}"
            yield DoctorFinding("fail", "store", said, "choose another store")
        return
    was_open = path is not None and bool(_permissions(path) & GROUP_AND_OTHERS_MODE)
    try:
        newest = await store.sessions(limit=1)
        yield DoctorFinding("ok", "store", f"{settings.render_value('store')} opens")
    except HoldfastError as error:
        yield DoctorFinding("fail", "store", str(error))
        return
    finally:
        await store.close()
    if path is not None and path.stat().st_mode & GROUP_AND_OTHERS_MODE:
        yield DoctorFinding(
            "fail", "store", f"other users can read {display_path(path)}", f"chmod 600 {display_path(path)}"
        )
    elif was_open:
        yield DoctorFinding("warn", "store", f"other users could read {display_path(path or Path())}; now they cannot")
    if newest and newest[0].updated_ms > time.time() * 1000 + MAX_CLOCK_SKEW_MS:
        said = f"session {newest[0].id!r} has a time in the future"
        yield DoctorFinding("warn", "clock", said, "set the clock of this machine")


def _check_clock() -> Iterator[DoctorFinding]:
    now = time.time()
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < EARLIEST_CLOCK_SECONDS:
        yield DoctorFinding("fail", "clock", f"{text} is in the past", "set the clock of this machine")
    else:
        yield DoctorFinding("ok", "clock", text)


def _check_disk(settings: Settings) -> Iterator[DoctorFinding]:
    folders = [settings.paths.data_folder, *_store_folders(settings)]
    if is_embedded(settings.model):
        folders.append(cache_folder())
    disks = {folder.stat().st_dev: folder for folder in map(_existing_folder, reversed(folders))}
    for folder in disks.values():
        free = shutil.disk_usage(folder).free
        said = f"{free / (1 << 30):,.1f} GB free in {display_path(folder)}"
        state: DoctorState = "fail" if free < MIN_DISK_BYTES else "warn" if free < LOW_DISK_BYTES else "ok"
        yield DoctorFinding(state, "disk", said, "" if state == "ok" else "free some space, or choose another store")


def _store_folders(settings: Settings) -> list[Path]:
    """Return the folder of a store that is a file."""
    with suppress(HoldfastError, ImportError):
        store = open_store(settings.store)
        return [store.path.parent] if isinstance(store, SqliteStore) else []
    return []


def _existing_folder(folder: Path) -> Path:
    return next(one for one in (folder, *folder.parents) if os.path.exists(one))  # noqa: PTH110 - False if it cannot be checked


def _permissions(path: Path) -> int:
    """Return the permissions of a file; none if there is no file, or if it cannot be checked."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0
