"""Addresses of every kind at the viewer, the control API and the MCP endpoint, over sessions with hostile content.

Whatever is asked, by whatever method, with whatever numbers and bytes: an answer below 500 that shows no trace of our
code, and HTML in which nothing that somebody said is an element. Changes that were made by the way leave every session
whole.
"""

import asyncio
import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from starlette.types import ASGIApp

from benchmarks.torture.asgi_client import AsgiRequest, ask, quiet_loggers
from benchmarks.torture.fuzzing import mutate_json
from benchmarks.torture.observed import differing_requests
from benchmarks.torture.odd_values import ODD_VALUES, json_bytes
from holdfast import HoldfastError, Session
from holdfast.apps.gateway.access import Access
from holdfast.apps.gateway.app import close_gateway, gateway_app
from holdfast.apps.viewer.access import ViewerAccess
from holdfast.apps.viewer.app import viewer_app
from holdfast.apps.viewer.rendering import session_slug
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message

TOKEN = "torture-token"  # noqa: S105 - of a gateway in this process
SCRIPT = "<script>alert(1)</script>"
HOSTILE = f'{SCRIPT}"><img src=x onerror=alert(1)> \x1b]0;x\x07 \ud800 \0 {{{{7*7}}}} </textarea>'
SESSIONS = ["talk", 'a/b "><script>~%2F?x=1#y ünïcode☃', "0"]
NUMBERS = ["0", "1", "2", "3", "-1", "00", "1.5", "1e3", "9" * 30, "9" * 5_000, "٣", "", "x", "%00", "²"]
WORDS = [
    "", "..", "%2e%2e", "~", "~7", "~zz", "~ff~fe", "%ff", "%00", "%0a", "null", "undefined", "undo", "rewind",
    "compact", "delete", "pin", "fork", "static", "app.css", "../../etc/passwd", "x" * 3_000, "%F0%9F%98", "{}", "?",
]  # fmt: skip
VIEWER_PATHS = [
    "/", "/live", "/sign-in", "/favicon.ico", "/static/WORD", "/WORD/WORD", "/s/SLUG", "/s/SLUG/live", "/s/SLUG/plot",
    "/s/SLUG/messages/NUMBER", "/s/SLUG/requests/NUMBER", "/s/SLUG/requests/NUMBER/body", "/s/SLUG/changes/NUMBER",
    "/s/SLUG/compact", "/s/SLUG/compare", "/s/SLUG/export", "/s/SLUG/do/WORD", "/s/WORD", "/s/WORD/messages/NUMBER",
]  # fmt: skip
CONTROL_PATHS = [
    "/holdfast", "/holdfast/v1/WORD", "/holdfast/v1/openapi.json", "/holdfast/v1/sessions", "/mcp", "/mcp/WORD",
    "/.well-known/WORD", *(
        f"/holdfast/v1/sessions/ID{rest}" for rest in (
            "", "/messages", "/requests", "/requests/NUMBER", "/requests/NUMBER/receipt", "/events", "/receipts",
            "/export", "/settings", "/recall", "/preview", "/compact", "/undo", "/redo", "/rewind", "/pin", "/unpin",
            "/fork", "/WORD",
        )
    ),
]  # fmt: skip
QUERIES = [
    "format", "from", "request", "scope", "live", "q", "after", "limit", "state", "token", "policy", "budget", "with",
    "policies", "csrf", "columns", "at",
]  # fmt: skip
BODIES = [
    {"to": 3}, {"position": 1}, {"query": "boats", "tokens": 300}, {"budget": 600, "focus": "x"}, {"id": "f", "at": 2},
    {"policy": "co-cli", "compaction": "ask", "budget": 900}, {"preview": "x"}, {"draft": "y"}, {}, [], None, 7,
    {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "recall", "arguments": {"query": "a"}}},
]  # fmt: skip


def _requests(paths: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    values = st.one_of(st.sampled_from(NUMBERS), st.sampled_from(WORDS), st.text(max_size=4))
    return st.fixed_dictionaries(
        {
            "method": st.sampled_from(
                ["GET", "GET", "GET", "POST", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "BREW"]
            ),
            "path": st.sampled_from(paths),
            "session": st.integers(0, len(SESSIONS) - 1),
            "number": st.sampled_from(NUMBERS),
            "word": st.sampled_from(WORDS),
            "query": st.lists(st.tuples(st.sampled_from(QUERIES), values), max_size=3),
            "body": st.one_of(st.sampled_from(BODIES), mutate_json(st.sampled_from(BODIES)), ODD_VALUES),
            "is_form": st.booleans(),
            "is_signed_in": st.sampled_from([True, True, True, False]),
            "accept": st.sampled_from(
                ["", "text/event-stream", "application/json", "application/json, text/event-stream"]
            ),
        }
    )


def _visits(app: str, paths: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"app": st.just(app), "requests": st.lists(_requests(paths), min_size=1, max_size=12)})


STRATEGIES = (
    _visits("viewer", VIEWER_PATHS),
    _visits("gateway", CONTROL_PATHS),
    _visits("gateway", [f"/ui{path}" for path in VIEWER_PATHS]),
)


def check(case: Mapping[str, Any]) -> None:
    """Ask for pages of a hostile store."""
    with quiet_loggers(logging.CRITICAL, "holdfast.gateway", "mcp"):
        asyncio.run(_visit(case))


async def _visit(case: Mapping[str, Any]) -> None:
    store = await hostile_store()
    access = ViewerAccess(may_change=True)
    if case["app"] == "viewer":
        app = viewer_app(store, access=access)
        close, base = app.state.close, ""
        sign_in = f"/?token={access.new_token()}"
    else:
        app = gateway_app(store=store, access=Access(control_token=TOKEN))

        async def close() -> None:
            await close_gateway(app)

        base, sign_in = "/ui", f"/ui/?token={TOKEN}"
    try:
        cookie = (await ask(app, AsgiRequest("GET", sign_in))).headers["set-cookie"].partition(";")[0]
        page = (await ask(app, AsgiRequest("GET", f"{base}/s/talk/compact", [("cookie", cookie)]))).body.decode()
        tokens = re.findall(r'name="csrf" value="([^"]+)"', page)
        for asked in case["requests"]:
            await _check_answer(app, asked, cookie, tokens[0] if tokens else "")
        await check_sessions(store)
    finally:
        await close()


async def _check_answer(app: ASGIApp, asked: Mapping[str, Any], cookie: str, csrf: str) -> None:
    name = SESSIONS[asked["session"]]
    path = asked["path"].replace("SLUG", session_slug(name)).replace("NUMBER", asked["number"])
    path = path.replace("WORD", asked["word"]).replace("ID", _quoted(name))
    query = "&".join(f"{key}={value}" for key, value in asked["query"])
    body, headers = json_bytes(asked["body"]), [("accept", asked["accept"])]
    if asked["is_form"]:
        fields = asked["body"] if isinstance(asked["body"], dict) else {"to": asked["body"]}
        pairs = [("csrf", csrf), *fields.items()]
        body = "&".join(f"{key}={value}" for key, value in pairs).encode(errors="replace")
        headers.append(("content-type", "application/x-www-form-urlencoded"))
    if asked["is_signed_in"]:
        headers += [("cookie", cookie), ("authorization", f"Bearer {TOKEN}")]
    # What goes on for ever: the pages that follow a session, and the events of one if a stream is accepted.
    is_stream = path.endswith("/events") and "text/event-stream" in asked["accept"]
    leaves = 0 if "live" in path or is_stream or asked["accept"] == "text/event-stream" else None
    full = f"{path}?{query}" if query else path
    seen = await ask(app, AsgiRequest(asked["method"], full, headers, body, leaves))

    assert 100 <= seen.status < 500, f"{asked['method']} {full[:80]}: {seen.status} {seen.body[:200]!r}"
    text = seen.body.decode(errors="replace")
    assert "Traceback (most recent" not in text, f"{full[:80]}: a traceback"
    media = seen.headers.get("content-type", "").partition(";")[0]
    if media == "text/html":
        assert SCRIPT not in text, f"{full[:80]}: an element of somebody else"
    elif media == "application/json" and text and leaves is None:
        value = json.loads(text)
        if isinstance(value, dict) and "jsonrpc" in value:
            code = value.get("error", {}).get("code", -32600)
            assert code in range(-32700, -32599), f"an internal error: {text[:200]}"


def _quoted(name: str) -> str:
    return "".join(
        char if char.isalnum() and char.isascii() else f"%{byte:02x}" for char in name for byte in char.encode()
    )


async def hostile_store() -> MemoryStore:
    """Return a store in which everything that somebody can write is hostile."""
    store = MemoryStore()
    for number, name in enumerate(SESSIONS):
        async with Session.open(name, store=store, model=f"gpt-5{HOSTILE}" if number == 1 else "gpt-5") as session:
            for turn in range(2 + 2 * (number == 0)):
                await session.record([user_message(f"question {turn} {HOSTILE} " + "boats " * 60)])
                await session.prepare(900, system=f"Be careful. {HOSTILE}")
                call = tool_call_message(f"c{turn}", name="read", arguments={"path": HOSTILE, "size": 10**30})
                await session.record([call, tool_result_message(f"c{turn}", f"{HOSTILE} " * 30)])
                await session.record([assistant_message(f"answer {turn} {HOSTILE}")])
        await store.rename(name, f"{SCRIPT} {{{{7*7}}}}")
    return store


async def check_sessions(store: MemoryStore) -> None:
    """Check that every session that is left is whole."""
    for info in await store.sessions(limit=100):
        async with Session.open(info.id, store=store, model="gpt-5") as session:
            assert session.damage == [], "damaged"
            assert differing_requests(await session.events()) == [], "a request differs when it is rebuilt"
            try:
                await session.record([user_message("And now?")])
                await session.prepare(2_000)
            except HoldfastError as error:
                raise AssertionError(f"{info.id} does not go on: {error}") from error
