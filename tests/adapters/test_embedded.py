"""An agent with Holdfast and a real model over HTTP: a conversation longer than the window continues."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast.adapters.pydantic_ai import Holdfast
from holdfast.core.history import events as log
from holdfast.models.embedded.server import EmbeddedServer

N_CTX, MAX_ANSWER, TURNS = 512, 4, 7
in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(shallow_weights: Path) -> AsyncGenerator[OpenAIChatModel]:
    async with EmbeddedServer(weights=shallow_weights, n_ctx=N_CTX) as server:
        client = AsyncOpenAI(base_url=server.base_url, api_key=server.api_key, max_retries=0)
        yield OpenAIChatModel("embedded", provider=OpenAIProvider(openai_client=client))
        await client.close()


def entry(number: int) -> str:
    return (
        f"Entry {number}: a ship came in at {number:02}:15 with timber, and two lines parted while she was warped in. "
        "The pilot boarded outside the breakwater, the wind was from the west and freshening, and the harbour master "
        "wants the dues reckoned before the evening tide. Say yes."
    )


@in_one_loop
async def test_a_conversation_longer_than_the_window_goes_on_and_its_bills_calibrate(model: OpenAIChatModel) -> None:
    governed = Holdfast(session="harbour", budget=N_CTX - MAX_ANSWER)
    agent = Agent(model, capabilities=[governed], instructions="Be brief.", model_settings={"max_tokens": MAX_ANSWER})

    for number in range(TURNS):
        result = await agent.run(entry(number))

    events = await (await governed.open()).events()
    assert len(result.all_messages()) == 2 * TURNS  # pyright: ignore[reportPossiblyUnboundVariable]
    assert any(isinstance(event, log.CompactionCompleted) and event.success for event in events)
    assert governed.last_usage is not None
    assert governed.last_request is not None
    billed = governed.last_usage.input_tokens + governed.last_usage.cache_read_tokens
    assert 0 < billed <= N_CTX
    assert governed.last_request.tokens.provenance == "calibrated"


@in_one_loop
async def test_what_the_server_refuses_as_too_long_is_sent_again_smaller(model: OpenAIChatModel) -> None:
    governed = Holdfast(session="flood", budget=20_000)
    agent = Agent(model, capabilities=[governed], model_settings={"max_tokens": MAX_ANSWER})
    session = await governed.open()
    past = [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": entry(n)}]}
        if n % 2 == 0
        else {"kind": "response", "parts": [{"part_kind": "text", "content": "Yes. " * 30}]}
        for n in range(40)
    ]
    await session.record(past, format="pydantic-ai")

    async with agent.run_stream("Say yes.") as stream:
        said = await stream.get_output()

    prepared = [event for event in await session.events() if isinstance(event, log.RequestPrepared)]
    sizes = [int(str(event.situation["tokens"])) for event in prepared]
    assert said.strip()
    assert len(sizes) > 1
    assert sizes[-1] <= N_CTX < sizes[0]
    assert len(await session.messages()) == 42


@in_one_loop
async def test_a_prompt_larger_than_the_window_is_refused_in_the_servers_own_words(model: OpenAIChatModel) -> None:
    agent = Agent(model, capabilities=[Holdfast(budget=20_000)], model_settings={"max_tokens": MAX_ANSWER})

    with pytest.raises(ModelHTTPError) as refused:
        await agent.run("word " * 2_000)

    assert refused.value.status_code == 400
    assert "Holdfast could not make the request small enough" in refused.value.__notes__[0]
