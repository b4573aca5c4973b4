"""`holdfast gateway`: the server, and the keys of its clients."""

import argparse
import asyncio
import gc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from holdfast.apps.cli.config import settings_for
from holdfast.apps.cli.output import port_number, print_result, warn, write_notice
from holdfast.apps.settings.build import delete_session_files, memory_from
from holdfast.apps.settings.policies import load_policy_file
from holdfast.apps.settings.settings import Settings
from holdfast.apps.threads import run_at_low_priority
from holdfast.core.planning.policy import PRESETS, Policy
from holdfast.errors import SettingsError
from holdfast.models.http_endpoint import is_loopback
from holdfast.stores.base import Store
from holdfast.stores.open import open_store
from holdfast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from holdfast.apps.gateway.upstream_summarizer import Payment

MEGABYTE_BYTES = 1 << 20


async def run_gateway(args: argparse.Namespace, store: Store) -> int:
    """Serve clients of OpenAI, Anthropic and Gemini at one address, and record their conversations.

    A client changes its base URL to http://HOST:PORT/v1 (OpenAI) or http://HOST:PORT (Anthropic, Gemini) and nothing
    else. The providers' keys come from the clients or from the environment, and are never stored.

    holdfast gateway --port 8787
    holdfast gateway --upstream openai=http://127.0.0.1:8000/v1 --store sqlite:///chats.db
    """
    del store
    # What is imported here stays: looking for cycles in it takes a tenth of the start. The server enables it again.
    gc.disable()
    try:
        return await _serve(args)
    finally:
        gc.enable()


async def _serve(args: argparse.Namespace) -> int:
    settings = settings_for(args)
    # Others on this machine may be serving.
    await run_at_low_priority(_import_gateway)
    from holdfast.apps.gateway.access import Access, control_token, load_keys  # noqa: PLC0415 - an extra
    from holdfast.apps.gateway.app import gateway_app, start_jobs, stop_live_streams  # noqa: PLC0415 - as above
    from holdfast.apps.gateway.relay import RelaySettings  # noqa: PLC0415 - as above
    from holdfast.apps.gateway.upstream import PhaseTimeouts  # noqa: PLC0415 - as above
    from holdfast.apps.serving import serve_app  # noqa: PLC0415 - as above

    keys = load_keys(args.keys) if args.keys else None
    access = Access(host=args.host, hosts=frozenset(settings.gateway_hosts), keys=keys)
    token = token_file = None  # beyond loopback, keys take its place
    if is_loopback(args.host):
        token, token_file = control_token(await asyncio.to_thread(control_token_file, settings))
    app = gateway_app(
        store=settings.store,
        policy=settings.effective_policy,
        policies=_policies(settings),
        budget=settings.max_context_tokens,
        summarizer=_summarizer(settings),
        payment=cast("Payment", settings.gateway_summaries),
        offers_recall=settings.gateway_recall,
        memory=memory_from(settings),
        delete_files=partial(delete_session_files, settings),
        upstreams=_named(
            [*settings.gateway_upstreams, *args.upstream], "--upstream", "NAME=URL", "openai=http://127.0.0.1:8000/v1"
        ),
        access=replace(access, control_token=token),
        timeouts=PhaseTimeouts(
            connect_seconds=settings.gateway_connect_seconds,
            first_byte_seconds=settings.gateway_first_byte_seconds,
            silence_seconds=settings.gateway_silence_seconds,
        ),
        settings=RelaySettings(
            max_body_bytes=settings.gateway_body_mb * MEGABYTE_BYTES,
            is_strict=args.strict,
            ping_seconds=settings.gateway_ping_seconds,
        ),
    )
    if settings.gateway_jobs or args.jobs:
        await start_jobs(app, per_minute=settings.gateway_jobs_per_minute)
    if token_file is not None:
        warn(f"the token of the control API, and of the pages at /ui, is in {token_file}")
    return await serve_app(
        app,
        name="gateway",
        host=args.host,
        port=args.port,
        remedy="choose another with --port and --host",
        drain_seconds=settings.gateway_drain_seconds,
        announce=lambda address: write_notice(f"listening on {address}"),
        on_stop=lambda: stop_live_streams(app),
    )


def _import_gateway() -> None:
    from holdfast.apps.gateway import app  # noqa: PLC0415 - an extra

    del app


def _policies(settings: Settings) -> dict[str, Policy]:
    """Return the policies that requests may name besides the presets."""
    files = _named(settings.gateway_policies, "gateway_policies", "NAME=FILE", "coding=coding.toml")
    return {name: load_policy_file(Path(file).expanduser(), settings.preset) for name, file in files.items()}


def _summarizer(settings: Settings) -> str | None:
    """Return the model that writes summaries, if somebody has set one; it has a key of its own."""
    is_set = settings.source("summarization_model").kind != "default"
    return settings.summarization_model or None if is_set else None


def new_server_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop for the server: uvloop where it is installed."""
    try:
        import uvloop  # noqa: PLC0415 - for this command only
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def add_gateway_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `holdfast gateway`."""
    host = "the address to listen on; beyond loopback --keys is required (default: 127.0.0.1)"
    parser.add_argument("--host", type=_without_brackets, default="127.0.0.1", help=host)
    parser.add_argument("--port", type=port_number, default=8787, help="the port; 0 takes a free one (default: 8787)")
    upstream = "a provider's base URL by name: openai, anthropic, gemini, or any name for /u/NAME/…; may be repeated"
    parser.add_argument("--upstream", action="append", default=[], metavar="NAME=URL", help=upstream)
    policy = f"{', '.join(PRESETS)} (default: the setting `preset`)"
    parser.add_argument("--policy", dest="preset", metavar="NAME", help=policy)
    parser.set_defaults(flag_names={"preset": "--policy"})
    budget = "the largest request in tokens (default: what the model accepts)"
    parser.add_argument("--budget", metavar="TOKENS", help=budget)
    parser.add_argument("--keys", type=Path, metavar="FILE", help="the keys of clients; then each client needs one")
    strict = "refuse a request that cannot be recorded (default: forward it, and say so in a header)"
    parser.add_argument("--strict", action="store_true", help=strict)
    jobs = "leave summaries to background jobs on DBOS, which all gateways on the store share (extra dbos)"
    parser.add_argument("--jobs", action="store_true", help=jobs)


def _without_brackets(host: str) -> str:
    """Return an address without the brackets that an IPv6 address has in a URL."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


async def add_key(args: argparse.Namespace, store: Store) -> int:
    """Make a key for a client, print it once, and add its hash to the keys file.

    The client sends it as its API key. Limits are set in the file: requests_per_minute, tokens_per_day, namespace.

    holdfast gateway key alice --keys keys.toml
    """
    del store
    from holdfast.apps.gateway.access import create_key  # noqa: PLC0415 - for this command only

    key = create_key(args.keys, args.name, control=args.control)
    print_result(args, key, {"name": args.name, "key": key})
    return 0


def add_key_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `holdfast gateway key`."""
    parser.add_argument("name", metavar="NAME", help="the name of the key, which is also its namespace")
    parser.add_argument("--keys", type=Path, required=True, metavar="FILE", help="the keys file")
    parser.add_argument("--control", action="store_true", help="the key may also use the control API")


def _named(texts: Sequence[str], place: str, form: str, example: str) -> dict[str, str]:
    """Return values by their names, from texts of the form `NAME=…`."""
    named: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise SettingsError(place, f"{text!r:.80} must be {form}, such as {example}")
        named[name.strip()] = value.strip()
    return named


def control_token_file(settings: Settings) -> Path:
    """Return the file with the token of the control API, beside the store."""
    store = open_store(settings.store)
    if isinstance(store, SqliteStore):
        return store.path.with_name(f"{store.path.name}.token")
    return settings.paths.data_folder / "gateway.token"
