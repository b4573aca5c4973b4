"""A summary that the conversation's own model is asked for is read from its provider's cache: a real server says so."""

import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast import Session
from holdfast.core.history.events import Usage
from holdfast.models.base import CachedPrefix, ModelReply, SummaryPrompt
from holdfast.models.embedded.server import EmbeddedServer
from holdfast.models.openai_compatible import ChatSummarizer
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.testing.chat import assistant_message, user_message

N_CTX, BUDGET, TURNS, MAX_ANSWER = 4_096, 2_600, 6, 8
SYSTEM = "You keep the harbour's log."
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look_up", "description": "Look a ship up.", "parameters": {"type": "object"}},
    }
]
ENTRY = (
    "Entry {number}: the Aurora came in with timber from Riga, berth {number}. The pilot boarded outside the "
    "breakwater, the wind was from the west and freshening, and two lines parted while she was warped in. The harbour "
    "master wants the dues reckoned before the evening tide, and a note of who signed for the cargo."
)


class Watched(ChatSummarizer):
    """A writer whose answers are looked at, and short: a small model would write for minutes."""

    asks: list[SummaryPrompt]
    answers: list[ModelReply]

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        answer = await super().write(replace(prompt, max_output_tokens=MAX_ANSWER))
        self.asks.append(prompt)
        self.answers.append(answer)
        return replace(answer, is_cut_off=False)


@pytest_asyncio.fixture
async def writer(shallow_weights: Path) -> AsyncGenerator[Watched]:
    async with EmbeddedServer(weights=shallow_weights, n_ctx=N_CTX) as server:
        watched = Watched(server.base_url, "embedded", api_key=server.api_key, window=N_CTX)
        watched.asks, watched.answers = [], []
        yield watched


async def conversed(session: Session, writer: ChatSummarizer) -> int:
    """Say something and have it answered by the model; return what the last request was billed as."""
    usage = Usage()
    for number in range(TURNS):
        await session.record([user_message(f"Write entry {number}.")])
        request = await session.prepare(BUDGET, system=SYSTEM, tools=TOOLS)
        if number < TURNS - 1:
            await session.record([assistant_message(ENTRY.format(number=number))])
            continue
        *before, last = request.messages
        prefix = CachedPrefix(format="openai-chat", messages=before, system=SYSTEM, tools=TOOLS)
        ask = SummaryPrompt(
            system="", text=str(last["content"]), max_output_tokens=MAX_ANSWER, interaction="turn", prefix=prefix
        )
        usage = (await writer.write(ask)).usage or usage
    return usage.input_tokens + usage.cache_read_tokens


@pytest.mark.seed("C-13")
@pytest.mark.seed("C-13a")
async def test_the_conversation_after_which_a_summary_is_asked_for_comes_from_the_cache_and_the_bill_says_so(
    writer: Watched,
) -> None:
    how = CompactionOptions(automatic=writer)
    async with Session.open("harbour", model="embedded", policy="copilot", compaction=how) as session:
        billed = await conversed(session, writer)
        await session.record([assistant_message("Noted.")])

        done = await session.compact()

    _, ask = writer.asks
    usage = done.summary.usage
    assert ask.prefix is not None
    assert usage is not None
    asked = usage.input_tokens + usage.cache_read_tokens
    sys.stdout.write(f"{usage.cache_read_tokens:,} of {asked:,} tokens of the summary call came from the cache\n")
    assert usage == writer.answers[1].usage
    assert usage.cache_read_tokens > 0.99 * billed, "all of the conversation; what is new is the question"
