"""Gateways leave their summaries to jobs, which all gateways on one store share."""

import json

import pytest
from starlette.applications import Starlette

from holdfast.apps.gateway.recording.exchange import ClientRequest
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.apps.gateway.upstream_summarizer import ClientAccess
from holdfast.core.history import events as log
from holdfast.errors import SettingsError
from holdfast.gateway import close_gateway, gateway_app, start_jobs
from holdfast.jobs import BackgroundJobs
from holdfast.stores.memory import MemoryStore
from holdfast.testing.endpoint import ScriptedEndpoint, http_response
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events
from tests.jobs.conversing import WORDS
from tests.jobs.test_background_jobs import SUMMARY, Author, completed

BUDGET = 10_000


async def converse_until_queued(recorder: Recorder, access: ClientAccess | None = None) -> str:
    """Converse through a gateway until it has left a compaction to a job, and return the owner of that."""
    said: list[dict[str, str]] = []
    while True:
        said.append({"role": "user", "content": f"message {len(said)}: {WORDS}"})
        body = json.dumps({"model": "gpt-5", "stream": True, "messages": said}).encode()
        headers = {"x-session-id": "s"}
        request = ClientRequest("openai-chat", "/v1/chat/completions", None, headers, body, "", "openai", access=access)
        exchange = await recorder.receive(request)
        answer = f"answer {len(said)}: {WORDS}"
        for name, event in stream_events("openai-chat", ProviderReply(answer), len(said)):
            exchange.feed(event_bytes(name, event))
        await exchange.finish("complete", 200)
        said.append({"role": "assistant", "content": answer})
        async with recorder.session("s") as opened:
            started = [one for one in await opened.session.events() if isinstance(one, log.CompactionStarted)]
        if started:
            return started[0].owner


async def outcome_in(app: Starlette, access: ClientAccess | None = None) -> tuple[str, list[tuple[bool, str | None]]]:
    """Return what came of the first job of a gateway, and how the compaction ended after the next request."""
    recorder: Recorder = app.state.recorder
    owner = await converse_until_queued(recorder, access)
    assert BackgroundJobs.running is not None
    outcome = await BackgroundJobs.running.result(owner)
    async with recorder.session("s") as opened:
        await opened.session.prepare(BUDGET)
        return outcome, [(success, by) for success, by, _ in await completed(opened.session)]


async def test_the_summaries_of_a_gateway_are_jobs(new_file: str) -> None:
    app = gateway_app(store=new_file, summarizer=Author(), budget=BUDGET)
    await start_jobs(app)
    try:
        assert await outcome_in(app) == ("summary", [(True, "author")])
    finally:
        await close_gateway(app)


async def test_a_summary_with_the_key_of_a_client_is_a_job_of_the_gateway_that_has_the_key(new_file: str) -> None:
    said = {"model": "gpt-5", "choices": [{"message": {"role": "assistant", "content": SUMMARY}}]}
    async with ScriptedEndpoint(lambda _: http_response(200, said)) as provider:
        access = ClientAccess(f"{provider.url}/chat/completions", {"authorization": "Bearer sk-client"}, is_login=False)
        app = gateway_app(store=new_file, payment="key", budget=BUDGET)
        await start_jobs(app, per_minute=60)
        try:
            assert await outcome_in(app, access) == ("summary", [(True, "gpt-5")])
        finally:
            await close_gateway(app)
        assert {request.headers["authorization"] for request in provider.requests} == {"Bearer sk-client"}


@pytest.mark.parametrize("store", ["memory://", MemoryStore()])
async def test_a_store_that_is_not_on_disk_has_no_jobs(store: str | MemoryStore) -> None:
    app = gateway_app(store=store)

    with pytest.raises(SettingsError, match=r"background jobs need .* postgresql://… or sqlite:///file"):
        await start_jobs(app)
    await close_gateway(app)
