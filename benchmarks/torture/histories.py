"""Broken histories: every request is valid for every provider, within its budget, and reproducible.

A session grows in three steps, with a request after each, so that compactions build on each other. It runs under every
preset and in every format that can be read; each request is checked against the rules of every provider.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from hypothesis import strategies as st

from holdfast import Session, convert, counter_for, validate
from holdfast.core.conversation.tokens import request_tokens
from holdfast.core.planning.policy import PRESETS
from holdfast.errors import CannotFitError, EmptyConversationError, MalformedInputError
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.models import ScriptedModel
from holdfast.testing.strategies.every_format import HISTORIES_BY_FORMAT
from holdfast.wire.formats import format_named
from holdfast.wire.validate.provider import PROVIDER_VALIDATION_RULES

BUDGETS = [300, 600, 1_500, 4_000, 100_000]
TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object", "properties": {}}}}]
MODEL = "gpt-5"
SUMMARY = "[Summary of the conversation so far.]"
EXPECTED_ERRORS = (CannotFitError, EmptyConversationError, MalformedInputError)
"""The errors that may be raised instead of a request."""


def make_cases(source: str, preset: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for cases of one format under one preset."""
    return st.fixed_dictionaries(
        {
            "format": st.just(source),
            "preset": st.just(preset),
            "budget": st.sampled_from(BUDGETS),
            "has_summarizer": st.booleans(),
            "grows": st.lists(HISTORIES_BY_FORMAT[source], min_size=1, max_size=3),
        }
    )


STRATEGIES = tuple(make_cases(source, preset) for source in HISTORIES_BY_FORMAT for preset in PRESETS)


def check(case: dict[str, Any]) -> None:
    """Run a case twice, and check every request."""
    source, budget = str(case["format"]), int(case["budget"])
    once = play_case(case)
    again = play_case(json.loads(json.dumps(case)))

    assert json.dumps(once) == json.dumps(again), "the same history gave two requests"
    for sent in once:
        if isinstance(sent, list):
            assert broken_rules(sent, source) == [], "not valid"
            assert count_tokens(sent, source) <= budget, "over budget"
    if isinstance(sent := once[-1], list):
        assert broken_elsewhere(sent, source) == {}, "not valid elsewhere"


def play_case(case: Mapping[str, Any]) -> list[list[Any] | str]:
    """Return the request after each step, or the name of the error."""
    return asyncio.run(_play_session(case))


async def _play_session(case: Mapping[str, Any]) -> list[list[Any] | str]:
    summarizer = ScriptedModel(repeat(SUMMARY)) if case["has_summarizer"] else None
    sent: list[list[Any] | str] = []
    async with Session.open("s", policy=case["preset"], model=MODEL, summarizer=summarizer) as session:
        for addition in case["grows"]:
            try:
                await session.record(addition, format=case["format"])
                await session.interrupt()
                sent.append(list((await session.prepare(case["budget"])).messages))
            except EXPECTED_ERRORS as error:
                sent.append(type(error).__name__)
            await SimulatedClock().advance(0)
    return sent


def broken_rules(sent: Sequence[Mapping[str, Any]], source: str) -> list[str]:
    """Return the rules of its own provider that a request breaks."""
    return [str(violation) for violation in validate(sent, source)]


def broken_elsewhere(sent: Sequence[Mapping[str, Any]], source: str) -> dict[str, list[str]]:
    """Return the broken rules by provider, after converting a request to the format of each other provider."""
    found: dict[str, list[str]] = {}
    for provider in PROVIDER_VALIDATION_RULES:
        if provider != source:
            turned = convert(sent, source=source, target=provider)
            violations = validate(turned.messages, provider, system=turned.system, tools=TOOLS)
            found |= {provider: [str(violation) for violation in violations]} if violations else {}
    return found


def count_tokens(sent: Sequence[Mapping[str, Any]], source: str) -> int:
    """Return the tokens of a request, counted independently."""
    reader = format_named(source)
    return request_tokens([reader.decode(native, index) for index, native in enumerate(sent)], counter_for(MODEL))
