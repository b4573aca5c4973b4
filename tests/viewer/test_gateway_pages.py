"""The gateway serves the same pages under /ui, to whoever has the token of its control API."""

import json
import re
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.apps.gateway.access import Access, KeyEntry, Keys, create_key, key_hash, load_keys
from holdfast.apps.gateway.app import close_gateway, gateway_app
from holdfast.stores.memory import MemoryStore
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream
from tests.viewer.visiting import record_conversation

TOKEN, ADDRESS = "t0ken", "http://127.0.0.1:8787"


def client_of(store: MemoryStore, access: Access) -> tuple[httpx.AsyncClient, object]:
    app = gateway_app(store=store, access=access)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ADDRESS, follow_redirects=True)
    return client, app


async def sign_in(client: httpx.AsyncClient, token: str) -> httpx.Response:
    return await client.post("/ui/sign-in", data={"token": token}, headers={"origin": ADDRESS})


async def test_the_pages_of_the_gateway_need_its_token(store: MemoryStore) -> None:
    client, app = client_of(store, Access(control_token=TOKEN))
    async with client:
        before = await client.get("/ui/")
        wrong = await sign_in(client, "guessed")
        signed_in = await sign_in(client, TOKEN)
        session = await client.get("/ui/s/report")
        foreign = await client.get("/ui/s/report", headers={"origin": "http://evil.example"})
    await close_gateway(app)  # pyright: ignore[reportArgumentType]

    assert (before.status_code, wrong.status_code, signed_in.status_code) == (401, 403, 200)
    assert ['action="/ui/sign-in"' in page.text for page in (before, wrong, foreign)] == [True, True, False]
    assert "question 0" in signed_in.text
    assert "parser_3" in session.text
    assert set(re.findall(r'(?:href|src|hx-get)="(/[^"?]*)', session.text)) == {
        link for link in re.findall(r'(?:href|src|hx-get)="(/[^"?]*)', session.text) if link.startswith("/ui/")
    }
    assert foreign.status_code == 403


async def test_the_pages_of_the_gateway_say_which_token_they_need(store: MemoryStore) -> None:
    client, app = client_of(store, Access(control_token=TOKEN))
    async with client:
        answers = [await client.get("/ui/"), await sign_in(client, "guessed"), await client.get("/ui/?token=guessed")]
    await close_gateway(app)  # pyright: ignore[reportArgumentType]

    needed = "the token of the control API, whose file the gateway names when it starts, or a key with control = true"
    said = [re.findall(r"<h1>(.*)</h1>\s*<p>(.*)</p>", answer.text) for answer in answers]
    wrong = ("Sign in", f"this token is wrong; what you need is {needed}")
    assert said == [[("Sign in", f"this page needs {needed}")], [wrong], [wrong]]


async def test_a_browser_stays_signed_in_to_a_gateway_that_another_program_mounts(store: MemoryStore) -> None:
    gateway = gateway_app(store=store, access=Access(control_token=TOKEN))
    transport = httpx.ASGITransport(Starlette(routes=[Mount("/llm", gateway)]))
    async with httpx.AsyncClient(transport=transport, base_url=ADDRESS, follow_redirects=True) as client:
        signed_in = await client.get("/llm/ui/s/report", params={"token": TOKEN})
        elsewhere = await client.get("/llm/ui/")
        paths = [cookie.path for cookie in client.cookies.jar]
    await close_gateway(gateway)

    assert (signed_in.status_code, elsewhere.status_code, paths) == (200, 200, ["/llm/ui"])


@pytest.mark.parametrize("mount", ["", "/llm"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_the_address_of_the_pages_without_its_slash_leads_to_them_and_goes_to_no_provider(
    mount: str, method: str, store: MemoryStore
) -> None:
    async with FaultyUpstream(FaultyAnswer(pieces=[b"{}"])) as upstream:
        gateway = gateway_app(store=store, access=Access(control_token=TOKEN), upstreams={"openai": upstream.url})
        transport = httpx.ASGITransport(Starlette(routes=[Mount(mount, gateway)]))
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
            answer = await client.request(method, f"{mount}/ui", params={"token": TOKEN})
        await close_gateway(gateway)

    assert (answer.status_code, answer.headers["location"]) == (307, f"{mount}/ui/?token={TOKEN}")
    assert upstream.requests == []


async def test_a_change_goes_through_the_session_that_the_gateway_holds(store: MemoryStore) -> None:
    client, app = client_of(store, Access(control_token=TOKEN))
    async with client:
        await sign_in(client, TOKEN)
        page = (await client.get("/ui/s/report")).text
        found = re.search(r'name="csrf" value="([^"]+)"', page)
        assert found
        done = await client.post("/ui/s/report/do/undo", data={"csrf": found[1], "times": "1"})
        told = await client.get("/ui/s/report", params={"format": "json"})
    await close_gateway(app)  # pyright: ignore[reportArgumentType]

    assert done.status_code == 200
    assert json.loads(told.text)["changes"][-1]["is_undone"] is True


async def test_the_pages_preview_the_compaction_by_the_policy_that_was_chosen_for_the_session(
    store: MemoryStore,
) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    client, app = client_of(store, Access(control_token=TOKEN))
    async with client:
        await client.post("/holdfast/v1/sessions/report/settings", json={"policy": "inkeep"}, headers=headers)
        await sign_in(client, TOKEN)
        page = (await client.get("/ui/s/report/compact", params={"format": "json"})).json()
        preview = (await client.post("/holdfast/v1/sessions/report/preview", headers=headers)).json()
    await close_gateway(app)  # pyright: ignore[reportArgumentType]

    assert (page["start"], page["stop"], page["texts"]) == (preview["start"], preview["stop"], preview["summary"])
    assert page["texts"][0].startswith("[Summary of the conversation so far")


async def test_a_key_sees_the_sessions_of_its_own_namespace_only(store: MemoryStore) -> None:
    await record_conversation(store, "alice/own", turns=1)
    keys = Keys([KeyEntry(name="alice", sha256=key_hash("hf-a"), namespace="alice", control=True)])
    client, app = client_of(store, Access(keys=keys))
    async with client:
        listed = await sign_in(client, "hf-a")
        own, other = await client.get("/ui/s/own"), await client.get("/ui/s/report")
        searched = await client.get("/ui/", params={"q": "parser_3"})
    await close_gateway(app)  # pyright: ignore[reportArgumentType]

    assert (listed.status_code, own.status_code, other.status_code) == (200, 200, 404)
    assert re.findall(r'href="(/ui/s/[^"]*)"', listed.text) == ["/ui/s/own"]
    assert {link.partition("?")[0] for link in re.findall(r'href="(/ui/s/[^"]*)"', searched.text)} == {"/ui/s/own"}
    assert "question 3" not in searched.text


async def test_a_browser_is_signed_out_when_its_key_is_removed_from_the_keys_file(
    store: MemoryStore, tmp_path: Path
) -> None:
    path = tmp_path / "keys.toml"
    key = create_key(path, "alice", control=True)
    client, app = client_of(store, Access(keys=load_keys(path)))
    async with client:
        listed = await sign_in(client, key)
        path.write_text("")
        later = await client.get("/ui/")
    await close_gateway(app)  # pyright: ignore[reportArgumentType]

    assert (listed.status_code, later.status_code) == (200, 401)


async def test_a_request_through_the_gateway_is_shown_with_the_bytes_that_were_sent() -> None:
    reply = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Noted."}, "finish_reason": "stop"}]}
    body = b'{ "model": "gpt-5",\n  "messages": [ {"role": "user", "content": "f\xc3\xbcr J\xc3\xbcrgen"} ] }'
    async with FaultyUpstream(FaultyAnswer(pieces=[json.dumps(reply).encode()])) as upstream:
        app = gateway_app(access=Access(control_token=TOKEN), upstreams={"openai": upstream.url})
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS, follow_redirects=True) as client:
            headers = {"content-type": "application/json", "x-holdfast-session": "s"}
            answered = await client.post("/v1/chat/completions", content=body, headers=headers)
            await sign_in(client, TOKEN)
            page, raw = await client.get("/ui/s/s/requests/1"), await client.get("/ui/s/s/requests/1/body")
        await close_gateway(app)

    assert answered.status_code == 200
    assert [one.body for one in upstream.requests] == [raw.content] == [body]
    assert f"Its {len(body)} bytes are on record" in page.text
    assert "f\u00fcr J\u00fcrgen" in page.text
