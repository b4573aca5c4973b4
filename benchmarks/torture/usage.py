"""Usage reports and limits, true and false: no request exceeds its budget, and no other endpoint is affected.

A session gets a report with every answer, in the names of each format. Some are true. Others leave the cached tokens
out, are too high or too low, count something else, or have names that nobody knows. Some requests are refused with a
limit that is false. A second session of the same store talks to the same model at another endpoint and reports nothing.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from holdfast import Session, counter_for
from holdfast.core.conversation.tokens import OWN_FACTORS, request_tokens
from holdfast.core.history.events import Usage
from holdfast.core.planning.policy import PRESETS
from holdfast.errors import CannotFitError, ModelOverflowError, SettingsError
from holdfast.session.calibration import ServedModel, UsageCalibrator
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.clock import SimulatedClock
from holdfast.wire.formats import format_named
from holdfast.wire.request import Request
from holdfast.wire.usage import read_usage

MODELS = ("gpt-5", "gpt-4", "qwen3-32b", "deepseek-v3", "kimi-k2")
"""Models whose own vocabulary we have."""
ENDPOINT, OTHER_ENDPOINT = "https://gateway.example/v1", "https://other.example/v1"
WORDS = "The flood comes six hours behind the ebb. "
TOKENS_PER_SENTENCE = 9
QUIET_WORDS = 40

REPORTS: Mapping[str, Callable[[Usage], Mapping[str, Any]]] = {
    "own": lambda usage: {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
    },
    "openai-chat": lambda usage: {
        "prompt_tokens": usage.all_input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.all_input_tokens + usage.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "audio_tokens": None,
        },
        "completion_tokens_details": {"reasoning_tokens": 0},
    },
    "litellm": lambda usage: {
        "prompt_tokens": usage.all_input_tokens,
        "completion_tokens": usage.output_tokens,
        "prompt_tokens_details": None,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
    },
    "openai-responses": lambda usage: {
        "input_tokens": usage.all_input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.all_input_tokens + usage.output_tokens,
    },
    "anthropic-messages": lambda usage: {
        "input_tokens": usage.input_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write_tokens,
            "ephemeral_1h_input_tokens": 0,
        },
        "output_tokens": usage.output_tokens,
        "service_tier": "standard",
        "server_tool_use": None,
    },
    "bedrock": lambda usage: {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.all_input_tokens + usage.output_tokens,
        "cacheReadInputTokens": usage.cache_read_tokens,
        "cacheWriteInputTokens": usage.cache_write_tokens,
    },
    "pydantic-ai": lambda usage: {
        "input_tokens": usage.all_input_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "requests": 1,
        "details": {},
    },
}
"""By format, how it reports what was billed."""
READ_ONLY_REPORTS: Mapping[str, Callable[[Usage], Mapping[str, Any]]] = {
    "gemini": lambda usage: {
        "promptTokenCount": usage.all_input_tokens,
        "cachedContentTokenCount": usage.cache_read_tokens,
        "candidatesTokenCount": usage.output_tokens,
        "thoughtsTokenCount": None,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": usage.all_input_tokens}],
        "totalTokenCount": usage.all_input_tokens + usage.output_tokens,
    },
    "deepseek": lambda usage: {
        "prompt_tokens": usage.all_input_tokens,
        "prompt_cache_hit_tokens": usage.cache_read_tokens,
        "prompt_cache_miss_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
    },
    "kimi": lambda usage: {
        "prompt_tokens": usage.all_input_tokens,
        "completion_tokens": usage.output_tokens,
        "cached_tokens": usage.cache_read_tokens,
    },
}
"""The same for formats that report what was read from the cache only."""
ALL_REPORTS = {**REPORTS, **READ_ONLY_REPORTS}
FALSE_REPORTS: Mapping[str, Callable[[Usage], Mapping[str, Any]]] = {
    "cached tokens left out": lambda usage: {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
    "only the answer": lambda usage: {"completion_tokens": usage.output_tokens},
    "nulls": lambda _: {"prompt_tokens": None, "completion_tokens": None},
    "always the same": lambda _: {"prompt_tokens": 1_500, "completion_tokens": 3},
    "unknown names": lambda usage: {"input": usage.input_tokens, "cacheRead": usage.cache_read_tokens},
    "an unknown name": lambda usage: {"prompt_tokens": usage.input_tokens, "cacheRead": usage.cache_read_tokens},
    "negative": lambda usage: {"prompt_tokens": -usage.input_tokens - 1},
}
REPORT = st.fixed_dictionaries(
    {
        "names": st.sampled_from([*ALL_REPORTS, *FALSE_REPORTS]),
        "ratio": st.one_of(st.just(1.0), st.floats(0.01, 8)),
        "cached": st.floats(0, 1),
        "written": st.floats(0, 1),
    }
)
TURN = st.fixed_dictionaries(
    {
        "share": st.floats(0.01, 0.4),
        "report": st.one_of(st.none(), REPORT),
        "refused_at": st.one_of(st.none(), st.none(), st.none(), st.integers(1, 200_000)),
    }
)
STRATEGIES = (
    st.fixed_dictionaries(
        {
            "model": st.sampled_from(MODELS),
            "preset": st.sampled_from(sorted(PRESETS)),
            "budget": st.one_of(st.integers(2_000, 12_000), st.integers(2_000, 100_000)),
            "turns": st.lists(TURN, min_size=1, max_size=12),
        }
    ),
)


def split_bill(tokens: int, *, cached: float, written: float, has_writes: bool = True) -> Usage:
    """Return the bill for a request: a share of its tokens from the cache, and a share of the rest written to it."""
    read = int(tokens * cached)
    write = int((tokens - read) * written) if has_writes else 0
    return Usage(input_tokens=tokens - read - write, output_tokens=20, cache_read_tokens=read, cache_write_tokens=write)


def check(case: Mapping[str, Any]) -> None:
    """Run a case, and check every request of both sessions."""
    asyncio.run(_converse(case))


async def _converse(case: Mapping[str, Any]) -> None:
    store, budget, model = MemoryStore(), int(case["budget"]), str(case["model"])
    quiet = await _quiet_request(MemoryStore(), case)
    policy, clock = str(case["preset"]), SimulatedClock().time_ms
    async with Session.open("c", store=store, model=model, policy=policy, clock=clock, endpoint=ENDPOINT) as session:
        for number, turn in enumerate(case["turns"]):
            words = WORDS * max(1, int(turn["share"] * budget / TOKENS_PER_SENTENCE))
            await session.record([user_message(f"Question {number}? {words}")])
            try:
                request = await session.prepare(budget)
            except CannotFitError:
                # This turn alone is larger than the budget.
                continue
            _check_request(request, budget, model)
            assert request.receipt.budget.source == "user", "a learned limit replaced the user's budget"
            if turn["refused_at"] is not None:
                await _refuse(session, request, turn["refused_at"], budget, model)
            await _answer(session, request, turn["report"])
    learned = await UsageCalibrator(store).calibration(ServedModel(model, ENDPOINT))
    assert OWN_FACTORS[0] <= learned.factor <= OWN_FACTORS[1], "the factor is far from 1"
    assert await _quiet_request(store, case) == quiet, "another endpoint's reports had an effect"


async def _quiet_request(store: MemoryStore, case: Mapping[str, Any]) -> Request:
    """Return the request of a session at another endpoint, which reports nothing."""
    clock = SimulatedClock().time_ms
    async with Session.open("quiet", store=store, model=case["model"], endpoint=OTHER_ENDPOINT, clock=clock) as session:
        await session.record([user_message(f"Question {number}? {WORDS * QUIET_WORDS}") for number in range(3)])
        return await session.prepare()


async def _refuse(session: Session, request: Request, limit: int, budget: int, model: str) -> None:
    text = f"prompt is too long: {request.tokens.total + limit} tokens > {limit} maximum"
    try:
        _check_request(await session.retry(text, status=400), budget, model)
    except (CannotFitError, ModelOverflowError):
        return


async def _answer(session: Session, request: Request, report: Mapping[str, Any] | None) -> None:
    """Record an answer with its report, or without one if the report is refused."""
    answer, said = [assistant_message(f"It does. {WORDS}")], None
    if report is not None:
        names = report["names"]
        has_writes = names not in READ_ONLY_REPORTS
        tokens = max(1, int(request.tokens.counted * report["ratio"]))
        bill = split_bill(tokens, cached=report["cached"], written=report["written"], has_writes=has_writes)
        said = {**ALL_REPORTS, **FALSE_REPORTS}[names](bill)
        if names in ALL_REPORTS:
            assert read_usage(said) == bill, "a report is read wrong"
    try:
        await session.record(answer, usage=said)
    except SettingsError:
        is_false = report is not None and report["names"] in FALSE_REPORTS
        assert is_false, "a true report is refused"
        await session.record(answer)


def _check_request(request: Request, budget: int, model: str) -> None:
    wire = format_named("openai-chat")
    decoded = [wire.decode(native, index) for index, native in enumerate(request.messages)]

    assert request_tokens(decoded, counter_for(model)) <= budget, "over budget"
