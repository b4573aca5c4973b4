"""Models that a server on this machine offers: Ollama, found at its usual address, and any OpenAI-compatible endpoint.

Nothing is sent but a request for the list of models. Ollama cuts a prompt that is longer than its window without an
error, so the window of its models is taken to be the one that Ollama opens by default, unless a variable or the
settings say otherwise.
"""

import os
from collections.abc import Mapping
from typing import cast

from holdfast.text import lazy_pattern

OLLAMA_PREFIX = "ollama:"
OLLAMA_PORT, LOOPBACK_ADDRESS = 11434, "127.0.0.1"
_EVERY_ADDRESS = frozenset({"", "0.0.0.0", "[::]"})  # noqa: S104 - where it listens, not where it is reached
_HOST_AND_PORT = lazy_pattern(r"(?P<host>\[[^\]]*\]|[^:]*)(?P<port>:[0-9]+)?")
OLLAMA_WINDOW = 4_096
PROBE_SECONDS = 0.5
LISTING_SECONDS = 10.0
MAX_LISTING_BYTES = 4_000_000


def ollama_url(environ: Mapping[str, str]) -> str:
    """Return the address of Ollama's OpenAI-compatible API; `OLLAMA_HOST` is read as Ollama reads it.

    With a scheme, the port is that of the scheme, as behind a proxy; without one, it is Ollama's own.
    """
    address = environ.get("OLLAMA_HOST", "").strip(" \t\r\n\"'")
    scheme, has_scheme, rest = address.rpartition("://")
    place, _, path = rest.partition("/")
    found = _HOST_AND_PORT.fullmatch(place)
    host, port = (found["host"], found["port"]) if found else (f"[{place}]", None)
    host = LOOPBACK_ADDRESS if host in _EVERY_ADDRESS else host
    port = port or ("" if has_scheme else f":{OLLAMA_PORT}")
    return f"{scheme or 'http'}://{host}{port}/{path}".rstrip("/") + "/v1"


def ollama_window(environ: Mapping[str, str]) -> int:
    """Return the window that Ollama gives its models, as far as the environment says."""
    length = environ.get("OLLAMA_CONTEXT_LENGTH", "")
    return int(length) if length.isdecimal() and int(length[:9]) > 0 else OLLAMA_WINDOW


def find_ollama_models(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the models of Ollama on this machine, as `ollama:NAME`; empty if it does not run."""
    try:
        names = list_served_models(ollama_url(environ), timeout_seconds=PROBE_SECONDS)
    except OSError:
        return []
    return [f"{OLLAMA_PREFIX}{name}" for name in names]


def list_served_models(
    base_url: str, api_key: str | None = None, *, timeout_seconds: float = LISTING_SECONDS
) -> list[str]:
    """Return the names of an endpoint's models; raises an `OSError` if it does not answer."""
    import json  # noqa: PLC0415 - this module is imported at every start
    from http.client import HTTPException  # noqa: PLC0415 - as above
    from urllib.request import ProxyHandler, Request, build_opener  # noqa: PLC0415 - as above

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = Request(f"{base_url.rstrip('/')}/models", headers=headers)  # noqa: S310 - the user's own endpoint
    try:
        # Without the proxies of the environment, because the server is usually on this machine.
        with build_opener(ProxyHandler({})).open(request, timeout=timeout_seconds) as response:
            answer = json.loads(response.read(MAX_LISTING_BYTES))
    except (HTTPException, ValueError, RecursionError) as error:
        raise OSError(str(error)) from error
    listed = cast("dict[str, object]", answer).get("data") if isinstance(answer, dict) else None
    rows = cast("list[object]", listed) if isinstance(listed, list) else []
    names = [cast("dict[str, object]", row).get("id") for row in rows if isinstance(row, dict)]
    return [name for name in names if isinstance(name, str)]
