"""The MCP server on the gateway's port."""

import asyncio
import json
import sys
import threading
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from holdfast import Session
from holdfast.apps.gateway.access import Access, Keys, create_key, load_keys
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import user_message
from holdfast.testing.upstream import FaultyUpstream
from tests.gateway.serving import Seen, ask, running_gateway

TOKEN = "control-token"
LIST = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()


async def stored() -> MemoryStore:
    """Return a store with a conversation of the machine's user and one of a key's."""
    store = MemoryStore()
    for name, text in (("boats", "the harbour code is KESTREL"), ("alice/cars", "the garage code is ROBIN")):
        async with Session.open(name, store=store) as session:
            await session.record([user_message(text)])
    return store


def said(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def post(url: str, path: str = "/mcp", **headers: str) -> Seen:
    return await ask(url, path=path, body=LIST, accept="application/json, text/event-stream", **headers)


async def test_a_client_of_the_protocol_recalls_with_the_token_of_the_control_api() -> None:
    async with FaultyUpstream() as upstream:
        options = {"store": await stored(), "access": Access(control_token=TOKEN)}
        async with running_gateway(upstream.url, **options) as url:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            http = httpx2.AsyncClient(headers=headers)
            async with http, Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client:
                tools = [tool.name for tool in (await client.list_tools()).tools]
                found = await client.call_tool("recall", {"conversation": "boats", "query": "harbour code"})
                listed = await client.call_tool("sessions", {})

        assert tools == ["recall", "show", "sessions", "memory_search"]
        assert "the harbour code is KESTREL" in said(found)
        assert {line.split(" · ")[0] for line in said(listed).splitlines()} == {"boats", "alice/cars"}
        assert upstream.requests == []


async def test_nobody_else_is_served_and_no_token_reaches_a_provider() -> None:
    async with FaultyUpstream() as upstream:
        async with running_gateway(upstream.url, access=Access(control_token=TOKEN)) as url:
            token = f"Bearer {TOKEN}"
            missing, wrong = await post(url), await post(url, authorization="Bearer another")
            page = await post(url, authorization=token, origin="https://evil.example")
            lured = await post(url, authorization=token, host="evil.example")
            below = await post(url, "/mcp/more", authorization=token)
            login = [
                await ask(url, "GET", f"/.well-known/oauth-protected-resource{path}", authorization=token)
                for path in ("", "/mcp")
            ]
            streamed = await ask(url, "GET", "/mcp", accept="text/event-stream", authorization=token)

        assert [one.status for one in (missing, wrong, page, lured, below)] == [401, 401, 403, 403, 404]
        assert missing.header("www-authenticate") == "Bearer"
        assert [one.status for one in login] == [404, 404]
        assert streamed.status == 405
        assert upstream.requests == []


async def test_a_key_sees_the_conversations_of_its_own_namespace_if_it_may_use_the_control_api(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    alice, bob = create_key(path, "alice", control=True), create_key(path, "bob")
    keys: Keys = load_keys(path)
    call = {"name": "sessions", "arguments": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
    accept = "application/json, text/event-stream"
    async with FaultyUpstream() as upstream:
        async with running_gateway(upstream.url, store=await stored(), access=Access(keys=keys)) as url:
            own = await ask(url, path="/mcp", body=body, accept=accept, authorization=f"Bearer {alice}")
            refused = await ask(url, path="/mcp", body=body, accept=accept, authorization=f"Bearer {bob}")

        assert json.loads(own.body)["result"]["content"][0]["text"] == "cars · 1 event"
        assert (refused.status, "control = true" in refused.body.decode()) == (403, True)


async def test_a_request_with_half_a_character_is_answered() -> None:
    asked = {"name": "recall", "arguments": {"conversation": "boats", "query": "harbour code \ud83d"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}).encode()
    accept, token = "application/json, text/event-stream", f"Bearer {TOKEN}"
    options = {"store": await stored(), "access": Access(control_token=TOKEN)}
    async with FaultyUpstream() as upstream, running_gateway(upstream.url, **options) as url:
        seen = await ask(url, path="/mcp", body=body, accept=accept, authorization=token)
        whole = await ask(
            url, path="/mcp", body=body.replace(b"\\ud83d", b"\\ud83d\\ude80"), accept=accept, authorization=token
        )
        wrong = await ask(url, path="/mcp", body=body[:-1], accept=accept, authorization=token)

    assert [one.status for one in (seen, whole, wrong)] == [200, 200, 400]
    assert "the harbour code is KESTREL" in json.loads(seen.body)["result"]["content"][0]["text"]


async def test_without_its_packages_it_says_which_extra_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "holdfast.apps.mcp", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    async with FaultyUpstream() as upstream:
        async with running_gateway(upstream.url, access=Access(control_token=TOKEN)) as url:
            seen = await post(url, authorization=f"Bearer {TOKEN}")

        assert seen.status == 501
        assert "pip install 'holdfast-context[mcp]'" in seen.body.decode()


class ImportObserver:
    """Notes in which threads a module is looked for."""

    def __init__(self, name: str) -> None:
        self.name, self.threads = name, list[threading.Thread]()

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == self.name:
            self.threads.append(threading.current_thread())


async def test_its_packages_are_loaded_while_streams_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = ImportObserver("holdfast.apps.mcp")
    monkeypatch.delitem(sys.modules, observer.name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [observer, *sys.meta_path])
    access, token = Access(control_token=TOKEN), f"Bearer {TOKEN}"
    async with FaultyUpstream() as upstream, running_gateway(upstream.url, access=access) as url:
        seen = await asyncio.gather(post(url, authorization=token), post(url, authorization=token))

    assert [one.status for one in seen] == [200, 200]
    assert observer.threads != []
    assert threading.main_thread() not in observer.threads
