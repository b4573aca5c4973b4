"""What each provider reports as billed, read in full; what is no report of one is refused by name."""

from types import SimpleNamespace
from typing import Any

import pytest
from anthropic.types import CacheCreation
from anthropic.types import Usage as AnthropicUsage
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CompletionUsage
from openai.types.completion_usage import PromptTokensDetails
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart
from pydantic_ai.usage import RequestUsage, RunUsage

from benchmarks.torture.usage import ALL_REPORTS, READ_ONLY_REPORTS, split_bill
from holdfast.core.history.events import Usage
from holdfast.errors import SettingsError
from holdfast.wire.usage import read_usage

ADVICE = (
    "pass the provider's usage object as it came, or input_tokens, output_tokens, cache_read_tokens and "
    "cache_write_tokens"
)


class Slotted:
    """An object without `__dict__`."""

    __slots__ = ("cached_content_token_count", "prompt_token_count")

    def __init__(self) -> None:
        self.prompt_token_count = 100
        self.cached_content_token_count = 60


REPORTS: list[tuple[str, Any, Usage]] = [
    (
        "OpenAI chat",
        {
            "prompt_tokens": 100,
            "completion_tokens": 12,
            "total_tokens": 112,
            "prompt_tokens_details": {"cached_tokens": 60, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 7, "accepted_prediction_tokens": 0},
        },
        Usage(input_tokens=40, output_tokens=12, cache_read_tokens=60),
    ),
    (
        "OpenRouter",
        {
            "prompt_tokens": 100,
            "completion_tokens": 12,
            "total_tokens": 112,
            "cost": 0.00095,
            "is_byok": False,
            "prompt_tokens_details": {"cached_tokens": 50, "cache_write_tokens": 20, "video_tokens": 0},
            "cost_details": {"upstream_inference_cost": None},
        },
        Usage(input_tokens=30, output_tokens=12, cache_read_tokens=50, cache_write_tokens=20),
    ),
    (
        "Groq",
        {"queue_time": 0.01, "prompt_tokens": 100, "prompt_time": 0.02, "completion_tokens": 12, "total_tokens": 112},
        Usage(input_tokens=100, output_tokens=12),
    ),
    (
        "a rate",
        {"prompt_tokens": 100, "completion_tokens": 12, "completion_tokens_per_sec": 83.5},
        Usage(input_tokens=100, output_tokens=12),
    ),
    (
        "vLLM",
        {"prompt_tokens": 100, "total_tokens": 112, "completion_tokens": 12, "prompt_tokens_details": None},
        Usage(input_tokens=100, output_tokens=12),
    ),
    (
        "a gateway that leaves the cached tokens out of the prompt",
        {"prompt_tokens": 10, "completion_tokens": 12, "prompt_tokens_details": {"cached_tokens": 90}},
        Usage(input_tokens=10, output_tokens=12, cache_read_tokens=90),
    ),
    (
        "OpenAI Responses",
        {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 60},
            "output_tokens": 12,
            "output_tokens_details": {"reasoning_tokens": 7},
            "total_tokens": 112,
        },
        Usage(input_tokens=40, output_tokens=12, cache_read_tokens=60),
    ),
    (
        "Anthropic",
        {
            "input_tokens": 4,
            "cache_creation_input_tokens": 20,
            "cache_read_input_tokens": 76,
            "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 12,
            "service_tier": "standard",
            "inference_geo": "not_available",
            "server_tool_use": {"web_search_requests": 0},
        },
        Usage(input_tokens=4, output_tokens=12, cache_read_tokens=76, cache_write_tokens=20),
    ),
    (
        "Anthropic, by the lifetime of the cache alone",
        {
            "input_tokens": 4,
            "output_tokens": 12,
            "cache_read_input_tokens": None,
            "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 5},
        },
        Usage(input_tokens=4, output_tokens=12, cache_write_tokens=25),
    ),
    (
        "Gemini",
        {
            "promptTokenCount": 100,
            "cachedContentTokenCount": 60,
            "candidatesTokenCount": 5,
            "thoughtsTokenCount": 7,
            "toolUsePromptTokenCount": 30,
            "totalTokenCount": 142,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 100}],
            "cacheTokensDetails": [{"modality": "TEXT", "tokenCount": 60}],
            "trafficType": "ON_DEMAND",
        },
        Usage(input_tokens=40, output_tokens=12, cache_read_tokens=60),
    ),
    (
        "Gemini, with the object around it",
        {"usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 12}},
        Usage(input_tokens=100, output_tokens=12),
    ),
    (
        "Gemini's library",
        {"prompt_token_count": 100, "cached_content_token_count": 60, "candidates_token_count": None},
        Usage(input_tokens=40, cache_read_tokens=60),
    ),
    (
        "Bedrock",
        {
            "inputTokens": 4,
            "outputTokens": 12,
            "totalTokens": 112,
            "cacheReadInputTokens": 76,
            "cacheWriteInputTokens": 20,
        },
        Usage(input_tokens=4, output_tokens=12, cache_read_tokens=76, cache_write_tokens=20),
    ),
    (
        "our own names",
        {"input_tokens": 4, "output_tokens": 12, "cache_read_tokens": 76, "cache_write_tokens": 20},
        Usage(input_tokens=4, output_tokens=12, cache_read_tokens=76, cache_write_tokens=20),
    ),
    ("our own object", Usage(input_tokens=4, cache_read_tokens=76), Usage(input_tokens=4, cache_read_tokens=76)),
    (
        "pydantic-ai",
        RequestUsage(input_tokens=100, output_tokens=12, cache_read_tokens=60, cache_write_tokens=10),
        Usage(input_tokens=30, output_tokens=12, cache_read_tokens=60, cache_write_tokens=10),
    ),
    (
        "a pydantic-ai run of one request",
        RunUsage(requests=1, tool_calls=2, input_tokens=100, output_tokens=12, cache_read_tokens=60),
        Usage(input_tokens=40, output_tokens=12, cache_read_tokens=60),
    ),
    (
        "a recorded pydantic-ai response",
        ModelMessagesTypeAdapter.dump_python(
            [ModelResponse(parts=[TextPart("x")], usage=RequestUsage(input_tokens=100, cache_read_tokens=60))],
            mode="json",
        )[0]["usage"],
        Usage(input_tokens=40, cache_read_tokens=60),
    ),
    (
        "an object of OpenAI's library",
        CompletionUsage(
            prompt_tokens=100,
            completion_tokens=12,
            total_tokens=112,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=60),
        ),
        Usage(input_tokens=40, output_tokens=12, cache_read_tokens=60),
    ),
    (
        "an object of Anthropic's library",
        AnthropicUsage(
            input_tokens=4,
            output_tokens=12,
            cache_read_input_tokens=76,
            cache_creation=CacheCreation(ephemeral_1h_input_tokens=0, ephemeral_5m_input_tokens=20),
        ),
        Usage(input_tokens=4, output_tokens=12, cache_read_tokens=76, cache_write_tokens=20),
    ),
    (
        "an object with attributes",
        SimpleNamespace(prompt_tokens=100, prompt_tokens_details=SimpleNamespace(cached_tokens=60)),
        Usage(input_tokens=40, cache_read_tokens=60),
    ),
    ("an object without a dictionary", Slotted(), Usage(input_tokens=40, cache_read_tokens=60)),
    ("nulls", {"prompt_tokens": None, "completion_tokens": None}, Usage()),
]

REFUSED: list[tuple[str, Any, str]] = [
    ("nothing", {}, f"usage: an empty object says nothing about tokens; {ADVICE}"),
    (
        "names of nobody",
        {"input": 90, "cacheRead": 10},
        f"usage: 'input, cacheRead' says nothing about tokens; {ADVICE}",
    ),
    (
        "a misspelled name",
        {"input_tokens": 4, "cache_reads_tokens": 76},
        f"usage.cache_reads_tokens: is not known beside input_tokens; {ADVICE}",
    ),
    (
        "a name of another format",
        {"prompt_tokens": 4, "cacheReadInputTokens": 76},
        f"usage.cacheReadInputTokens: is not known beside prompt_tokens; {ADVICE}",
    ),
    (
        "unknown details",
        {"prompt_tokens": 4, "cache_info": {"read": 76}},
        f"usage.cache_info: is not known beside prompt_tokens; {ADVICE}",
    ),
    ("a total alone", {"total_tokens": 9}, f"usage: 'total_tokens' says nothing about tokens; {ADVICE}"),
    ("a number", 5, "usage: must be an object with counts of tokens, not 5"),
    ("a list", [{"input_tokens": 5}], "usage: must be an object with counts of tokens, not [{'input_tokens': 5}]"),
    ("text", {"prompt_tokens": "5"}, "usage.prompt_tokens: must be a whole number of tokens from 0 on, not '5'"),
    ("a boolean", {"input_tokens": True}, "usage.input_tokens: must be a whole number of tokens from 0 on, not True"),
    ("less than nothing", {"inputTokens": -1}, "usage.inputTokens: must be a whole number of tokens from 0 on, not -1"),
    (
        "details that are none",
        {"prompt_tokens": 5, "prompt_tokens_details": 3},
        "usage.prompt_tokens_details: must be an object, not 3",
    ),
    (
        "several requests",
        RunUsage(requests=3, input_tokens=900),
        "usage: is the sum of 3 requests; pass the usage of the last response",
    ),
]


@pytest.mark.parametrize(("report", "usage"), [case[1:] for case in REPORTS], ids=[case[0] for case in REPORTS])
def test_the_usage_object_of_each_provider_is_read_in_full(report: object, usage: Usage) -> None:
    assert read_usage(report) == usage


@pytest.mark.parametrize(("report", "told"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_is_no_usage_report_is_refused_by_name(report: object, told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_usage(report)

    assert str(refused.value) == told


@given(st.sampled_from(sorted(ALL_REPORTS)), st.integers(0, 10**9), st.floats(0, 1), st.floats(0, 1))
def test_the_same_bill_is_read_from_every_format(names: str, tokens: int, cached: float, written: float) -> None:
    bill = split_bill(tokens, cached=cached, written=written, has_writes=names not in READ_ONLY_REPORTS)

    assert read_usage(ALL_REPORTS[names](bill)) == bill
