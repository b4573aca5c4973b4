"""Models of servers on this machine, and of any OpenAI-compatible endpoint."""

import asyncio
from pathlib import Path

import pytest

from holdfast.apps.cli.chat import endpoint_model
from holdfast.apps.settings.build import request_budget
from holdfast.apps.settings.models import configured_model
from holdfast.apps.settings.sources import load_settings
from holdfast.errors import SettingsError
from holdfast.models import local_servers
from holdfast.models.local_servers import (
    OLLAMA_WINDOW,
    find_ollama_models,
    list_served_models,
    ollama_url,
    ollama_window,
)
from holdfast.models.open import parse_endpoint

LISTING = b'{"object": "list", "data": [{"id": "qwen3:8b"}, {"id": "llama3"}, {"no": "id"}, 7]}'


async def serve(body: bytes, heads: list[str]) -> asyncio.Server:
    """Answer each request with a listing of models."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 -\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


async def test_ollama_is_found_by_itself_and_an_endpoint_is_asked_for_its_models_with_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_servers, "PROBE_SECONDS", 60.0)  # on a busy machine, half a second may not be enough
    heads: list[str] = []
    server = await serve(LISTING, heads)
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    found = await asyncio.to_thread(find_ollama_models, {"OLLAMA_HOST": host})
    listed = await asyncio.to_thread(list_served_models, f"http://{host}/v1/", "secret")
    monkeypatch.setenv("MY_KEY", "abc")
    named = endpoint_model(f"http://{host}/v1", "llama3", "MY_KEY")
    endpoint = parse_endpoint(named)
    with pytest.raises(SettingsError, match="which of its models\\? qwen3:8b, llama3"):
        await asyncio.to_thread(endpoint_model, f"http://{host}/v1", None, None)
    server.close()

    assert found == ["ollama:qwen3:8b", "ollama:llama3"]
    assert listed == ["qwen3:8b", "llama3"]
    assert "GET /v1/models" in heads[0]
    assert "Authorization: Bearer secret" in heads[1]
    assert "Authorization: Bearer abc" in heads[2]
    assert endpoint is not None
    assert (named, endpoint.api_key) == (f"http://{host}/v1#llama3", "abc")
    monkeypatch.delenv(endpoint.key_variable)


async def test_the_only_model_of_an_endpoint_need_not_be_named() -> None:
    server = await serve(b'{"data": [{"id": "llama3"}]}', [])
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"

    named = await asyncio.to_thread(endpoint_model, url, None, None)
    server.close()

    assert named == f"{url}#llama3"


async def test_a_listing_that_is_nested_too_deeply_is_none() -> None:
    server = await serve(b"[" * 100_000, [])
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    found = await asyncio.to_thread(find_ollama_models, {"OLLAMA_HOST": host})
    server.close()

    assert found == []


def test_a_server_that_does_not_run_offers_nothing_and_an_address_that_is_none_is_refused() -> None:
    assert find_ollama_models({"OLLAMA_HOST": "127.0.0.1:9"}) == []
    for url, model, key, problem in (
        ("localhost:1", "m", None, "is not an address"),
        ("http://127.0.0.1:9/v1", None, None, "does not list its models"),
        ("http://127.0.0.1:9/v1", "m", "UNSET_VARIABLE", "UNSET_VARIABLE is not set"),
    ):
        with pytest.raises(SettingsError, match=problem):
            endpoint_model(url, model, key)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),  # noqa: S104 - where it listens
        ("box:9000", "http://box:9000/v1"),
        ("box", "http://box:11434/v1"),
        (":9000", "http://127.0.0.1:9000/v1"),
        ("'box'", "http://box:11434/v1"),
        # With a scheme, Ollama takes the port of the scheme: getOllamaHost in its envconfig/config.go.
        ("https://box", "https://box/v1"),
        ("http://box:9000/", "http://box:9000/v1"),
        ("https://box/ollama/", "https://box/ollama/v1"),
        ("::1", "http://[::1]:11434/v1"),
        ("[::1]", "http://[::1]:11434/v1"),
        ("[::]:9000", "http://127.0.0.1:9000/v1"),
    ],
)
def test_the_address_of_ollama_is_its_usual_one_unless_a_variable_says_otherwise(host: str, url: str) -> None:
    assert ollama_url({"OLLAMA_HOST": host}) == url


def test_a_model_of_ollama_has_the_window_that_ollama_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(flags={"model": "ollama:qwen3"}, cwd=tmp_path, environ={"HOLDFAST_HOME": str(tmp_path)})
    known = configured_model(settings)

    assert known is not None
    assert known.max_input_tokens == OLLAMA_WINDOW
    assert request_budget(settings).tokens <= OLLAMA_WINDOW
    monkeypatch.setenv("OLLAMA_CONTEXT_LENGTH", "32768")
    assert request_budget(settings).tokens > OLLAMA_WINDOW
    assert [ollama_window({"OLLAMA_CONTEXT_LENGTH": text}) for text in ("0", "many", "8192")] == [4_096, 4_096, 8_192]
