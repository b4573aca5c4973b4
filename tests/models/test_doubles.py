"""The models and the clock of the test kit do what they say."""

import asyncio
import gc
import socket
import threading
from itertools import repeat

import pytest

from holdfast.core.history.events import Usage
from holdfast.errors import HoldfastError, ModelAccessError, ModelRefusedError
from holdfast.models.base import CachedPrefix, ModelReply, SummaryPrompt, supports_prefix
from holdfast.models.retry import with_retries
from holdfast.session.heavy_work import plan_in_thread
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.endpoint import ScriptedEndpoint
from holdfast.testing.models import FAILURE_KINDS, GARBAGE, FailingModel, FailureKind, ScriptedModel

ASK = SummaryPrompt(system="Be brief.", text="Tell me of the sea.", max_output_tokens=50)


async def test_a_script_is_read_line_by_line() -> None:
    whole = ModelReply(text="as it is", model="other", is_cut_off=True)
    model = ScriptedModel(["one", whole, lambda ask: ask.text.upper(), ModelAccessError("m", "no")], name="s", window=9)

    answers = [await model.write(ASK) for _ in range(3)]

    assert answers == [
        ModelReply(text="one", model="s", usage=Usage(input_tokens=7, output_tokens=0)),
        whole,
        ModelReply(text="TELL ME OF THE SEA.", model="s", usage=Usage(input_tokens=7, output_tokens=4)),
    ]
    with pytest.raises(ModelAccessError):
        await model.write(ASK)
    with pytest.raises(ModelRefusedError, match="the script has no line for prompt 5"):
        await model.write(ASK)
    assert (model.prompts, model.window) == ([ASK] * 5, 9)


async def outcome(model: FailingModel, clock: SimulatedClock) -> tuple[str, bool] | str:
    try:
        answer = await clock.run(with_retries(model, ASK, timeout_seconds=90, attempts=2, sleep=clock.sleep))
    except HoldfastError as error:
        return type(error).__name__
    return answer.text, answer.is_cut_off


@pytest.mark.parametrize(
    ("failure", "expected", "asked", "seconds"),
    [
        ("slow", ("abcdef", False), 1, 60),
        ("empty", ("", False), 1, 0),
        ("garbage", (GARBAGE, False), 1, 0),
        ("truncated", ("abc", True), 1, 0),
        ("inflated", ("abcdef\nTell me of the sea.\n" * 3, False), 1, 0),
        ("refusing", "ModelRefusedError", 1, 0),
        ("hanging", "ModelUnreachableError", 2, 181),
        ("stubborn", ("abcdef", False), 1, 60),
        ("flaky", ("abcdef", False), 2, 1),
        ("unauthorized", "ModelAccessError", 1, 0),
        ("unreachable", "ModelUnreachableError", 2, 1),
        ("busy", "ModelBusyError", 2, 5),
        ("overflow", "ModelOverflowError", 1, 0),
    ],
)
async def test_each_failure_fails_in_its_own_way(
    failure: FailureKind, expected: tuple[str, bool] | str, asked: int, seconds: int
) -> None:
    clock = SimulatedClock()
    model = FailingModel(failure, text="abcdef", sleep=clock.sleep)

    assert await outcome(model, clock) == expected
    assert (len(model.prompts), clock.time_ms()) == (asked, seconds * 1_000)


def test_every_failure_is_listed() -> None:
    assert len(FAILURE_KINDS) == len(set(FAILURE_KINDS)) == 13


@pytest.mark.parametrize("waits_by", ["run", "advance"])
async def test_no_time_passes_while_a_thread_works(waits_by: str) -> None:
    clock, may_end, ended = SimulatedClock(), threading.Event(), list[int]()

    async def work() -> None:
        await plan_in_thread(may_end.wait)
        ended.append(clock.time_ms())

    sleeper = asyncio.ensure_future(clock.sleep(60))
    asyncio.get_running_loop().call_later(0.001, may_end.set)
    if waits_by == "run":
        await clock.run(work())
        await clock.advance(60)
    else:
        task = asyncio.ensure_future(work())
        await clock.advance(60)
        await task
    await sleeper

    assert (ended, clock.time_ms()) == ([0], 60_000)


async def test_time_passes_only_when_the_test_advances_it() -> None:
    clock = SimulatedClock(start_ms=500)
    woken: list[tuple[str, int]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woken.append((name, clock.time_ms()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("a", 1, 2))
        group.create_task(sleeper("b", 2, 0))
        await clock.advance(0.5)
        assert woken == []
        await clock.advance(10)

    assert woken == [("a", 1_500), ("b", 2_500), ("b", 2_500), ("a", 3_500)]
    assert clock.time_ms() == 11_000


async def test_a_sleeper_that_was_cancelled_does_not_hold_up_the_clock() -> None:
    clock = SimulatedClock()
    task = asyncio.create_task(clock.sleep(5))
    await clock.advance(1)
    task.cancel()

    await clock.run(clock.sleep(10))

    assert (task.cancelled(), clock.time_ms()) == (True, 11_000)


async def test_the_clock_waits_for_work_that_is_real() -> None:
    clock = SimulatedClock()

    assert await clock.run(asyncio.to_thread(sum, [1, 2])) == 3


def test_only_a_summarizer_that_declares_it_reuses_a_prefix() -> None:
    reusing = ScriptedModel(repeat("x"), prefix_formats=["openai-chat"])

    assert [supports_prefix(reusing, "openai-chat"), supports_prefix(reusing, "gemini")] == [True, False]
    assert supports_prefix(ScriptedModel(repeat("x")), "openai-chat") is False


def test_a_prompt_is_for_a_compaction_by_default() -> None:
    ask = SummaryPrompt(system="", text="", max_output_tokens=1, prefix=CachedPrefix(format="openai-chat", messages=[]))

    assert ask.interaction == "conversation-compaction"


@pytest.mark.parametrize("turns", range(8))
def test_an_endpoint_hangs_up_on_a_client_that_came_at_any_moment(turns: int) -> None:
    async def met() -> None:
        async with ScriptedEndpoint([]) as endpoint:
            with socket.create_connection(("127.0.0.1", int(endpoint.url.removesuffix("/v1").rpartition(":")[2]))):
                for _ in range(turns):
                    await asyncio.sleep(0)

    asyncio.run(met())

    gc.collect()  # a socket that was left open is told of here, and fails the test
