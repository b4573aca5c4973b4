"""One request through a running gateway, and what became of it: for `holdfast doctor --gateway`."""

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request

from holdfast.apps.cli.gateway import control_token_file
from holdfast.apps.cli.wrap import DEFAULT_PORT, health_of, is_health_of_gateway, opener_for
from holdfast.apps.settings.models import PROVIDER_KEYS, bare_model_name, provider_of
from holdfast.apps.settings.settings import Settings
from holdfast.models.anthropic_messages import ANTHROPIC_VERSION
from holdfast.models.base import EMBEDDED_MODEL
from holdfast.models.http_endpoint import split_http_url
from holdfast.models.local_servers import OLLAMA_PREFIX

ANSWER_SECONDS = 60.0
MAX_READ_BYTES = 1 << 20
MAX_QUOTED_CHARS = 200
MAX_ANSWER_TOKENS = 16
LOCAL_PROVIDER = OLLAMA_PREFIX.removesuffix(":")
PROMPT = "Say ok."
MESSAGES_PATH = "/v1/messages"
TOKEN_VARIABLE = "HOLDFAST_CONTROL_TOKEN"  # noqa: S105 - the name of a variable
DEFAULT_ADDRESS = f"http://127.0.0.1:{DEFAULT_PORT}"


class GatewayFinding(NamedTuple):
    """What was found, whether it is well, and what to do about it."""

    state: Literal["ok", "warn", "fail"]
    said: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    headers: Message = field(default_factory=Message)
    """A proxy may have written the names in other letters."""

    @property
    def quoted(self) -> str:
        return " ".join(self.body.decode(errors="replace").split())[:MAX_QUOTED_CHARS]


def check_gateway(url: str, settings: Settings) -> Iterator[GatewayFinding]:
    """Send a prompt of two words through a gateway, look for it on record, and delete it again."""
    address = _gateway_address(url)
    if address is None:
        yield GatewayFinding("fail", f"{url!r:.200} is no address of a gateway", f"one is like {DEFAULT_ADDRESS}")
        return
    url = address
    health = health_of(url)
    if not health:
        yield GatewayFinding("fail", f"no gateway answers at {url}", "start one: holdfast gateway")
        return
    if not is_health_of_gateway(health):
        remedy = "check the address, or start a gateway on another port: holdfast gateway --port N"
        yield GatewayFinding("fail", f"what answers at {url} is no Holdfast gateway", remedy)
        return
    session, (path, body) = f"doctor-{secrets.token_hex(4)}", _request(settings)
    began = time.monotonic()
    headers = {"content-type": "application/json"}
    if key := os.environ.get(TOKEN_VARIABLE):
        headers["x-holdfast-key"] = key  # which only a gateway with keys reads, and no gateway passes on
    if path == MESSAGES_PATH:
        headers["anthropic-version"] = ANTHROPIC_VERSION
    answer = _send(f"{url}/s/{session}{path}", body, headers)
    is_known = "x-holdfast-session" in answer.headers
    if answer.status == HTTPStatus.OK:
        yield GatewayFinding("ok", f"{url}{path} answered in {time.monotonic() - began:.1f} s")
    else:
        is_refused = answer.status == HTTPStatus.UNAUTHORIZED and not is_known
        remedy = f"set {TOKEN_VARIABLE} to a key of that gateway with control = true"
        said = f"{url}{path} answered {answer.status}: {answer.quoted}"
        yield GatewayFinding("fail", said, remedy if is_refused else _remedy(answer.status, settings))
    if problem := answer.headers.get("x-holdfast-error"):
        yield GatewayFinding("fail", f"the request was forwarded, and {problem}", "check the store of the gateway")
    elif is_known:
        yield from _check_record(url, session, body, settings)
    elif answer.status != HTTPStatus.UNAUTHORIZED:  # a gateway with keys of its own says who it is in its refusal
        yield GatewayFinding(
            "fail", "the answer does not say which session it belongs to", "is this a Holdfast gateway?"
        )


def _gateway_address(text: str) -> str | None:
    """Return the address of a gateway, also from that of its clients; None if it is none."""
    address = (text if "://" in text else f"http://{text}").rstrip("/").removesuffix("/v1")
    parts = split_http_url(address)
    is_plain = parts is not None and not (parts.query or parts.fragment or "@" in parts.netloc)
    return address if is_plain and not any(char.isspace() for char in address) else None


def _check_record(url: str, session: str, body: bytes, settings: Settings) -> Iterator[GatewayFinding]:
    token = os.environ.get(TOKEN_VARIABLE) or _read(control_token_file(settings))
    stays = f"session {session} stays on record there"
    if not token:
        said = f"the control API was not asked, because there is no token, so {stays}"
        yield GatewayFinding("warn", said, f"set {TOKEN_VARIABLE}, or use the same --store as the gateway")
        return
    base, headers = f"{url}/holdfast/v1/sessions/{session}", {"authorization": f"Bearer {token}"}
    listed = _send(f"{base}/messages", None, headers)
    if listed.status != HTTPStatus.OK:
        remedy = f"set {TOKEN_VARIABLE} to the token of that gateway"
        said = f"the control API answered {listed.status}: {listed.quoted}; {stays}"
        yield GatewayFinding("fail", said, remedy)
        return
    count = len(json.loads(listed.body)["messages"])
    is_same = _send(f"{base}/requests/1", None, headers).body == body
    is_deleted = b"true" in _send(base, None, headers, "DELETE").body
    proof = "the request went out as it came" if is_same else "the bytes of the request differ"
    said = f"{count} messages were on record, and {proof}; {'they are deleted again' if is_deleted else stays}"
    yield GatewayFinding("ok" if count and is_same and is_deleted else "fail", said)


def _remedy(status: int, settings: Settings) -> str:
    if not status:
        return "look at its output"
    if settings.model == EMBEDDED_MODEL and status in {400, 404}:  # no provider has a model of that name
        return "name a model of the provider, such as --model openai:gpt-5-mini"
    return "check --upstream and the provider's key of the gateway"


def _request(settings: Settings) -> tuple[str, bytes]:
    """Return a short request in the API of the model that is set, with the name that its provider has for it."""
    provider, model = provider_of(settings.model), bare_model_name(settings.model)
    if provider in {*PROVIDER_KEYS, LOCAL_PROVIDER}:
        model = model.partition(":")[2]
    if provider == "google":
        contents = [{"role": "user", "parts": [{"text": PROMPT}]}]
        return f"/v1beta/models/{quote(model)}:generateContent", json.dumps({"contents": contents}).encode()
    body: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": PROMPT}]}
    if provider == "anthropic":
        return MESSAGES_PATH, json.dumps({**body, "max_tokens": MAX_ANSWER_TOKENS}).encode()
    return "/v1/chat/completions", json.dumps(body).encode()  # no limit: OpenAI's newer models refuse `max_tokens`


def _send(url: str, body: bytes | None, headers: Mapping[str, str], method: str | None = None) -> _Answer:
    request = Request(url, body, dict(headers), method=method or ("POST" if body else "GET"))  # noqa: S310 - HTTP only
    try:
        with opener_for(url).open(request, timeout=ANSWER_SECONDS) as answer:
            return _Answer(answer.status, answer.read(MAX_READ_BYTES), answer.headers)
    except HTTPError as error:
        with error:
            return _Answer(error.code, error.read(MAX_READ_BYTES), error.headers)
    except (URLError, OSError, ValueError, HTTPException) as error:
        return _Answer(0, str(error).encode())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
