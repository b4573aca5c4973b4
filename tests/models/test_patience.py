"""Asking again: what is repeated, how often, after which waits, and what is never repeated."""

import asyncio
from typing import cast

import pytest

from holdfast.core.history.events import Usage
from holdfast.errors import (
    HoldfastError,
    ModelAccessError,
    ModelBusyError,
    ModelOverflowError,
    ModelRefusedError,
    ModelUnreachableError,
    SettingsError,
)
from holdfast.models.base import ModelReply, SummaryPrompt
from holdfast.models.retry import _ABANDONED_CALLS, with_retries
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.models import FailingModel, ScriptedModel

ASK = SummaryPrompt(system="Summarise.", text="a long story", max_output_tokens=100)
PASSING = [
    ModelUnreachableError("m", "reset"),
    ModelBusyError("m", "overloaded"),
    ModelRefusedError("m", "oops", status=502),
]
FINAL = [
    ModelAccessError("m", "401"),
    ModelOverflowError("m", "too long"),
    ModelRefusedError("m", "no", status=400),
    ModelRefusedError("m", "no"),
]


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


async def test_an_answer_at_the_first_try_takes_no_time(clock: SimulatedClock) -> None:
    model = ScriptedModel(["done"])

    answer = await clock.run(with_retries(model, ASK, sleep=clock.sleep))

    assert (answer.text, model.prompts, clock.time_ms()) == ("done", [ASK], 0)


class ForeignModel:
    """A summarizer of a caller, which returns what it is given."""

    name, window = "mine", None

    def __init__(self, reply: object) -> None:
        self.reply = reply

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        del prompt
        return cast("ModelReply", self.reply)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("a summary", "its `write` must return a ModelReply, not 'a summary'"),
        (None, "its `write` must return a ModelReply, not None"),
        (
            ModelReply(text=cast("str", None), model="m"),
            "the text of its ModelReply must be a string, not None",
        ),
        (
            ModelReply(text="a summary", model=cast("str", None)),
            "the model of its ModelReply must be a string, not None",
        ),
        (
            ModelReply(text="a summary", model="m", usage=cast("Usage", {"input_tokens": 3})),
            "the usage of its ModelReply must be a Usage or None, not {'input_tokens': 3}",
        ),
    ],
)
async def test_what_is_no_reply_is_named_as_the_fault_of_its_summarizer(reply: object, problem: str) -> None:
    with pytest.raises(ModelRefusedError) as raised:
        await with_retries(ForeignModel(reply), ASK)

    assert str(raised.value) == f"mine: {problem}; correct the summarizer"


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
async def test_a_transient_failure_is_retried_after_delays_that_double(
    error: HoldfastError, clock: SimulatedClock
) -> None:
    model = ScriptedModel([error, error, "done"])
    heard: list[tuple[HoldfastError, float]] = []

    answer = await clock.run(
        with_retries(model, ASK, sleep=clock.sleep, on_retry=lambda failure, wait: heard.append((failure, wait)))
    )

    assert (answer.text, heard, clock.time_ms()) == ("done", [(error, 1.0), (error, 2.0)], 3_000)


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
async def test_the_last_error_is_raised_when_the_attempts_are_used_up(
    error: HoldfastError, clock: SimulatedClock
) -> None:
    model = ScriptedModel([error] * 9)

    with pytest.raises(HoldfastError) as raised:
        await clock.run(with_retries(model, ASK, attempts=4, sleep=clock.sleep))

    assert raised.value is error
    assert (len(model.prompts), clock.time_ms()) == (4, 7_000)


@pytest.mark.parametrize("error", FINAL, ids=lambda error: type(error).__name__)
async def test_a_permanent_failure_is_not_retried(error: HoldfastError, clock: SimulatedClock) -> None:
    model = ScriptedModel([error, "never"])

    with pytest.raises(HoldfastError) as raised:
        await clock.run(with_retries(model, ASK, sleep=clock.sleep))

    assert raised.value is error
    assert (len(model.prompts), clock.time_ms()) == (1, 0)


async def test_a_provider_is_given_the_time_it_asks_for(clock: SimulatedClock) -> None:
    model = ScriptedModel([ModelBusyError("m", "429", retry_after=20), "done"])

    await clock.run(with_retries(model, ASK, sleep=clock.sleep))

    assert clock.time_ms() == 20_000


async def test_a_provider_that_asks_for_too_long_a_delay_is_not_retried(clock: SimulatedClock) -> None:
    model = ScriptedModel([ModelBusyError("m", "429", retry_after=3_600), "never"])

    with pytest.raises(ModelBusyError) as raised:
        await clock.run(with_retries(model, ASK, sleep=clock.sleep))

    assert (raised.value.retry_after, len(model.prompts), clock.time_ms()) == (3_600, 1, 0)


async def test_waits_do_not_grow_beyond_their_bound(clock: SimulatedClock) -> None:
    model = ScriptedModel([ModelUnreachableError("m", "reset")] * 6)

    with pytest.raises(ModelUnreachableError):
        await clock.run(with_retries(model, ASK, attempts=6, max_wait_seconds=3, sleep=clock.sleep))

    assert clock.time_ms() == (1 + 2 + 3 + 3 + 3) * 1_000


async def test_a_model_that_hangs_costs_its_timeouts_and_no_more(clock: SimulatedClock) -> None:
    model = FailingModel("hanging")

    with pytest.raises(ModelUnreachableError) as raised:
        await clock.run(with_retries(model, ASK, timeout_seconds=30, attempts=2, sleep=clock.sleep))

    assert str(raised.value) == "failing:hanging: no answer within 30 s; ask again, or allow more time"
    assert (len(model.prompts), clock.time_ms()) == (2, 61_000)


async def test_a_call_that_ignores_cancellation_is_abandoned_at_its_timeout(
    clock: SimulatedClock,
) -> None:
    model = FailingModel("stubborn", seconds=600, sleep=clock.sleep)

    with pytest.raises(ModelUnreachableError, match="no answer within 30 s"):
        await clock.run(with_retries(model, ASK, timeout_seconds=30, attempts=2, sleep=clock.sleep))

    assert (len(model.prompts), clock.time_ms(), len(_ABANDONED_CALLS)) == (2, 61_000, 2)
    await clock.advance(600)
    assert not _ABANDONED_CALLS, "what it said at last was heard by nobody"


async def test_cancelling_does_not_wait_for_a_model_that_goes_on(clock: SimulatedClock) -> None:
    model = FailingModel("stubborn", seconds=600, sleep=clock.sleep)
    task = asyncio.create_task(with_retries(model, ASK, timeout_seconds=900, sleep=clock.sleep))
    await clock.advance(1)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert (clock.time_ms(), len(_ABANDONED_CALLS)) == (1_000, 1)
    await clock.advance(600)
    assert not _ABANDONED_CALLS


async def test_a_slow_reply_within_the_timeout_is_returned(clock: SimulatedClock) -> None:
    model = FailingModel("slow", seconds=59, sleep=clock.sleep)

    answer = await clock.run(with_retries(model, ASK, timeout_seconds=60, sleep=clock.sleep))

    assert (answer.model, clock.time_ms()) == ("failing:slow", 59_000)


async def test_cancelling_reaches_the_call_at_once(clock: SimulatedClock) -> None:
    ended: list[str] = []

    class Hanging(ScriptedModel):
        async def write(self, prompt: SummaryPrompt) -> ModelReply:
            try:
                return await super().write(prompt)
            finally:
                ended.append("call")

    task = asyncio.create_task(
        with_retries(Hanging(["late"], seconds=600, sleep=clock.sleep), ASK, timeout_seconds=900, sleep=clock.sleep)
    )
    await clock.advance(1)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert (ended, clock.time_ms()) == (["call"], 1_000)


async def test_cancelling_reaches_the_wait_between_two_calls(clock: SimulatedClock) -> None:
    model = ScriptedModel([ModelUnreachableError("m", "reset"), "never"])
    task = asyncio.create_task(with_retries(model, ASK, sleep=clock.sleep))
    await clock.advance(0.5)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(model.prompts) == 1


class GivesUp:
    """A writer whose own library cancels the call."""

    name, window = "m", None

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        del prompt
        raise asyncio.CancelledError


async def test_a_call_that_its_library_cancels_is_a_failure_and_cancels_nothing_else(clock: SimulatedClock) -> None:
    with pytest.raises(ModelRefusedError, match="the model's library cancelled the call"):
        await clock.run(with_retries(GivesUp(), ASK, sleep=clock.sleep))


async def test_an_error_of_a_foreign_summarizer_becomes_ours(clock: SimulatedClock) -> None:
    model = ScriptedModel([ConnectionResetError("gone"), ValueError("odd")])

    with pytest.raises(ModelRefusedError, match="ValueError: odd") as raised:
        await clock.run(with_retries(model, ASK, sleep=clock.sleep))

    assert isinstance(raised.value.__cause__, ValueError)
    assert len(model.prompts) == 2


@pytest.mark.parametrize(
    ("attempts", "timeout_seconds", "setting"), [(0, 1.0, "attempts"), (1, 0.0, "timeout_seconds")]
)
async def test_settings_that_cannot_work_are_named(attempts: int, timeout_seconds: float, setting: str) -> None:
    with pytest.raises(SettingsError) as raised:
        await with_retries(ScriptedModel([]), ASK, attempts=attempts, timeout_seconds=timeout_seconds)

    assert raised.value.setting == setting


class EndlessModel:
    """Never answers, and notes that its call was cancelled."""

    name = "endless"
    window = None

    def __init__(self) -> None:
        self.asked, self.stopped = asyncio.Event(), asyncio.Event()

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        del prompt
        self.asked.set()
        try:
            return await asyncio.Future[ModelReply]()
        finally:
            self.stopped.set()


@pytest.mark.parametrize("rounds", range(4))
async def test_a_call_ends_however_soon_its_caller_is_cancelled_again(rounds: int) -> None:
    model = EndlessModel()
    caller = asyncio.create_task(with_retries(model, ASK))
    await model.asked.wait()

    caller.cancel()
    for _ in range(rounds):
        await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait({caller})

    await model.stopped.wait()
    assert caller.cancelled()
