"""One meaning of "full": for every model, calibration, budget and preset, compaction begins before anything is dropped.

A conversation grows turn by turn, or by the tool calls of one running turn, until it exceeds its limit. Under
`default`, `copilot` and `inkeep` every request is complete until the first compaction has started. Under `co-cli` and
`cowagent` a message is missing only if their rule has removed it, or if the receipt says that the conversation is too
long. The report on the context, the receipts, the events and the thresholds of the rule all show one limit, and no
request exceeds it.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from holdfast import Session
from holdfast.core.conversation.tokens import Calibration, Provenance
from holdfast.core.history import events as log
from holdfast.core.planning.policy import PRESETS
from holdfast.counters.models import known_models
from holdfast.counters.vocabularies import model_family
from holdfast.session.calibration import UsageCalibrator
from holdfast.session.prepare import RequestOptions
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import ScriptedModel
from holdfast.wire.request import Request

CHANGES = log.CompactionCompleted | log.OutputsOffloaded | log.TurnsReducedToText
COMPACTING_PRESETS = frozenset({"default", "copilot", "inkeep"})
"""The presets that drop nothing before they compact."""
UNKNOWN_MODELS = ["unknown-model", "http-server-model"]
FULL_CHARS, CHARS_PER_TOKEN = 4_000, 4
"""About how many characters fill a request, and how many of other text are a token."""
FILLER = "#"
"""The character that counts as many tokens as the limit requires."""
TOO_LONG = "the conversation is longer than"
OVERFILL = 1.2
"""A conversation grows to this multiple of its limit."""
CASES = st.fixed_dictionaries(
    {
        "preset": st.sampled_from(sorted(PRESETS)),
        "model": st.sampled_from(known_models()) | st.sampled_from(UNKNOWN_MODELS) | st.none(),
        "factor": st.none() | st.integers(90, 150).map(lambda percent: percent / 100),
        "budget": st.none() | st.integers(2_000, 300_000),
        "max_prompt_tokens": st.none() | st.integers(2_000, 300_000),
        "system": st.integers(0, 25).map(lambda percent: percent / 100),
        "tools": st.integers(0, 25).map(lambda percent: percent / 100),
        # Copilot CLI never compacts fewer than four messages; three of this size are not too long yet.
        "turn": st.integers(5, 20).map(lambda percent: percent / 100),
        "is_one_run": st.booleans(),
    }
)
STRATEGIES = (CASES,)


@dataclass(frozen=True, slots=True)
class ScaledCounter:
    """Counts one character as many tokens, so that even a large window is filled with little text."""

    provenance: Provenance
    scale: int = 1
    name: str = "scaled"

    def count(self, text: str) -> int:
        """Return the tokens of a text."""
        fillers = text.count(FILLER)
        return (len(text) - fillers) // CHARS_PER_TOKEN + fillers * self.scale


def check(case: dict[str, Any]) -> None:
    """Check one conversation from its beginning to beyond its limit."""
    asyncio.run(_check(case))


async def _check(case: dict[str, Any]) -> None:
    calibration = Calibration() if case["factor"] is None else Calibration(case["factor"], samples=5, spread=0.02)
    counter = ScaledCounter(model_family(case["model"]).provenance)

    async def calibrated(*_: object) -> Calibration:
        return calibration

    def counter_for(*_: object) -> ScaledCounter:
        return counter

    with (
        patch.object(UsageCalibrator, "calibration", calibrated),
        patch("holdfast.session.prepare.counter_for", counter_for),
    ):
        session = await Session.open(
            "grown",
            policy=case["preset"],
            model=case["model"],
            summarizer=ScriptedModel(repeat("They went on.")),
            max_prompt_tokens=case["max_prompt_tokens"],
        )
        try:
            limit = (await session.context_breakdown(budget=case["budget"])).budget
            counter = ScaledCounter(counter.provenance, max(1, limit // FULL_CHARS))
            await _grow(session, case, int(limit / calibration.factor), counter.scale)
        finally:
            await session.close()


async def _grow(session: Session, case: dict[str, Any], limit: int, scale: int) -> None:
    """Record messages and prepare requests until a compaction begins or the limit is exceeded for good."""
    system, name = (FILLER * int(case[part] * limit / scale) for part in ("system", "tools"))
    size = 0
    for messages in _messages(case, max(1, int(case["turn"] * limit / scale))):
        await session.record(messages)
        size += int(case["turn"] * limit)
        request = await session.prepare(case["budget"], system=system, tools=[{"name": name}])
        events = await session.events()
        await _check_numbers(session, case, request, events)
        has_changed = any(isinstance(event, CHANGES) for event in events)
        has_begun = has_changed or any(isinstance(event, log.CompactionStarted) for event in events)
        if not has_changed and request.receipt.kept != tuple(range(len(session))):
            assert case["preset"] not in COMPACTING_PRESETS, f"incomplete before a compaction: {request.receipt}"
            assert any(TOO_LONG in reason for reason in request.receipt.reasons), str(request.receipt)
        if has_begun and case["preset"] in COMPACTING_PRESETS:
            return
        if size > OVERFILL * limit:
            break
    assert case["preset"] not in COMPACTING_PRESETS, "no compaction, however long the conversation is"


def _messages(case: dict[str, Any], chars: int) -> Iterator[list[JsonMessage]]:
    """Yield the messages before each request: a prompt after an answer, or the result of a tool."""
    yield [user_message(FILLER * chars)]
    for number in count():
        if case["is_one_run"]:
            yield [tool_call_message(f"c{number}"), tool_result_message(f"c{number}", FILLER * chars)]
        else:
            yield [assistant_message(FILLER * (chars // 2)), user_message(FILLER * (chars // 2 + 1))]


async def _check_numbers(session: Session, case: dict[str, Any], request: Request, events: list[log.Event]) -> None:
    """Check that everything that shows a limit shows the same, and that the request keeps it."""
    report = await session.context_breakdown(budget=case["budget"])
    engine = session._engine  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    options = RequestOptions(budget=case["budget"], model=session.model)
    plan_input = engine.builder.plan_input(options, await engine.calibrator.calibration(options.served_model))
    measured = [event.token_limit for event in events if isinstance(event, log.UsageMeasured)][-1]
    assert request.receipt.limit == report.budget == measured == plan_input.situation.billed_limit
    assert request.tokens.counted <= plan_input.situation.limit
    truncated = [event.token_limit for event in events if isinstance(event, log.RequestTruncated)]
    assert {*truncated} <= {measured}
    rule = session.policy.compaction
    assert rule is not None
    acts_at = {one.at for one in rule.thresholds(plan_input.situation, plan_input.window) if one.unit == "tokens"}
    if report.threshold is not None and report.threshold.unit == "tokens":
        assert report.threshold.limit in {*map(plan_input.situation.billed_tokens, acts_at)}
