"""A long conversation with a real model in a small window: every request is taken, and most of it from the cache."""

import os
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest_asyncio

from holdfast import Session, validate
from holdfast.core.history.events import Usage
from holdfast.errors import ModelOverflowError
from holdfast.models.base import CachedPrefix, ModelReply, SummaryPrompt
from holdfast.models.embedded.server import EmbeddedServer
from holdfast.models.openai_compatible import ChatSummarizer
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, system_message, user_message
from holdfast.wire.request import Request

ASKED = int(os.environ.get("HOLDFAST_MODEL_TURNS", "0"))
"""`make test-model` asks for 200 in a window of 2,048 tokens with the whole model; the suite has as many as fill a
smaller one once."""
TURNS, N_CTX, MAX_ANSWER = (ASKED, 2_048, 16) if ASKED else (8, 512, 8)
STORY = (
    "The pilot boarded outside the breakwater, the wind was from the west and freshening, and two lines parted "
    "while she was warped in. The harbour master wants the dues reckoned before the evening tide, and a note of "
    "who signed for the cargo. "
)
MOST_REFUSALS = 3
LEAST_CACHED = 0.6
SHIPS = ("Aurora", "Bounty", "Cutty Sark", "Discovery", "Endeavour", "Fram", "Gjoa")
CARGOES = ("timber from Riga", "salt and cod", "coal, forty tons of it", "letters for the governor", "copper plates")


@dataclass(frozen=True)
class Turn:
    """A request and what became of it."""

    request: Request
    usage: Usage
    refusals: int
    is_rewritten: bool
    """Whether it does not begin with the request before it."""

    @property
    def cached(self) -> float:
        return self.usage.cache_read_tokens / (self.usage.cache_read_tokens + self.usage.input_tokens)


@pytest_asyncio.fixture
async def writer(weights: Path, shallow_weights: Path) -> AsyncGenerator[ChatSummarizer]:
    async with EmbeddedServer(weights=weights if ASKED else shallow_weights, n_ctx=N_CTX) as server:
        yield server.summarizer()


def prompt(number: int) -> str:
    ship, cargo = SHIPS[number % len(SHIPS)], CARGOES[number % len(CARGOES)]
    return (
        f"Entry {number}: the {ship} came in at {number % 24:02}:15 with {cargo}, berth {number % 9 + 1}. "
        f"{STORY if ASKED else ''}In one short sentence: which ship is entry {number} about?"
    )


async def sent(writer: ChatSummarizer, request: Request) -> ModelReply:
    """Send a request as it is: the writer puts what is asked behind the conversation."""
    *before, last = request.messages
    prefix = CachedPrefix(format="openai-chat", messages=before)
    ask = SummaryPrompt(
        system="", text=str(last["content"]), max_output_tokens=MAX_ANSWER, interaction="turn", prefix=prefix
    )
    return await writer.write(ask)


async def turn(session: Session, writer: ChatSummarizer, number: int, before: Request | None) -> Turn:
    """Say something and get an answer; a request that is refused as too long is made smaller."""
    await session.record([user_message(prompt(number))])
    request, refusals = await session.prepare(N_CTX - MAX_ANSWER), 0
    while True:
        assert validate(request.messages, "openai") == []
        try:
            answer = await sent(writer, request)
            break
        except ModelOverflowError as error:
            refusals += 1
            assert refusals <= MOST_REFUSALS, "the conversation ends here"
            request = await session.retry(error)
    usage = answer.usage
    assert usage is not None
    billed = {"input_tokens": usage.input_tokens, "cache_read_tokens": usage.cache_read_tokens}
    await session.record([assistant_message(answer.text or "…")], usage=billed)
    is_rewritten = before is not None and request.messages[: len(before.messages)] != before.messages
    return Turn(request, usage, refusals, is_rewritten)


async def test_a_conversation_goes_on_in_a_small_window_and_most_of_it_is_read_from_the_cache(
    writer: ChatSummarizer,
) -> None:
    began, turns = time.monotonic(), list[Turn]()
    async with Session.open("harbour", store=MemoryStore(), model="embedded") as session:
        await session.record([system_message("You keep the harbour's log. Answer in one short sentence.")])
        for number in range(TURNS):
            turns.append(await turn(session, writer, number, turns[-1].request if turns else None))
        same = [request.is_same for request in rebuilt_requests(await session.events())]

    grown = [one for one in turns[1:] if not one.is_rewritten]
    rewritten = [one for one in turns[1:] if one.is_rewritten]
    cached, whole = sum(one.cached for one in grown) / len(grown), sum(one.cached for one in turns[1:]) / (TURNS - 1)
    sys.stdout.write(
        f"{TURNS} turns in {time.monotonic() - began:.0f} s; read from the cache: {cached:.0%} where a request only "
        f"grew, {whole:.0%} of all; compacted {len(rewritten)} times\n"
    )
    assert [one.refusals for one in turns] == [0] * TURNS
    assert [one.request.tokens.total for one in turns if one.request.tokens.total > N_CTX - MAX_ANSWER] == []
    assert same == [True] * TURNS
    assert len(rewritten) in range(1, TURNS // 8 + 1)
    assert [one.request.receipt for one in rewritten if not one.request.receipt.reasons] == []
    assert [one.request.receipt.reasons for one in grown if one.cached < LEAST_CACHED / 2] == []
    assert cached >= LEAST_CACHED
