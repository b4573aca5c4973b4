"""One meaning of "full": triggers, truncation, fitting, reports, receipts and events share one limit."""

from itertools import repeat
from typing import Any

import pytest
from hypothesis import example, given, settings

from benchmarks.torture import thresholds
from holdfast import Session, SettingsError, govern
from holdfast.core.history import events as log
from holdfast.core.planning.policy import PRESETS
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import ScriptedModel
from tests.support import tool_turn

OVERFLOW = {"error": {"message": "prompt is too long", "type": "invalid_request_error"}}


async def events_of(session: Session, *kinds: type[log.Event]) -> list[Any]:
    return [event for event in await session.events() if isinstance(event, kinds)]


async def grown(session: Session, *, turns: int, words: int) -> list[tuple[int, int]]:
    """Return the tokens of each request, and how many summaries had been started by then."""
    found: list[tuple[int, int]] = []
    for number in range(turns):
        if number:
            await session.record([assistant_message("word " * (words // 2))])
        await session.record([user_message(f"{number} " + "word " * (words // 2))])
        request = await session.prepare()
        started = await events_of(session, log.CompactionStarted)
        found.append((request.tokens.total, len(started)))
    return found


JUMP = {"preset": "default", "model": "ai21.j2-mid-v1", "factor": None, "budget": None, "max_prompt_tokens": None,
        "system": 0.14, "tools": 0.25, "turn": 0.2, "is_one_run": True}  # fmt: skip
"""One output takes a conversation of few messages from below the soft limit to above the budget."""


@settings(max_examples=40, deadline=None)
@example(JUMP)
@given(thresholds.CASES)
def test_compaction_begins_before_anything_is_dropped_and_every_number_is_one_limit(case: dict[str, Any]) -> None:
    thresholds.check(case)


@pytest.mark.seed("C-14", "C-19", "C-23")
async def test_copilot_starts_at_eighty_percent_of_the_prompt_limit_that_the_provider_names() -> None:
    writer = ScriptedModel(repeat("They went on."))
    session = await Session.open("s", policy="copilot", model="gpt-5.1", summarizer=writer, max_prompt_tokens=40_000)

    sizes = await grown(session, turns=16, words=2_400)

    first = next(index for index, (_, started) in enumerate(sizes) if started)
    assert sizes[first - 1][0] < 32_000 <= sizes[first][0] < 38_000
    limits = {event.token_limit for event in await events_of(session, log.UsageMeasured)}
    assert limits == {40_000, (await session.context_breakdown()).budget}
    assert await events_of(session, log.RequestTruncated) == []


@pytest.mark.seed("C-23")
@pytest.mark.parametrize(
    ("model", "max_prompt_tokens", "limit"),
    [("gpt-5.1", 9_000, 9_000), ("gpt-4", None, 6_144), ("nobody-knows", None, 81_600), ("gpt-4", 500, 500)],
)
async def test_the_truncator_keeps_the_prompt_limit_else_the_window_else_the_fallback(
    model: str, max_prompt_tokens: int | None, limit: int
) -> None:
    session = await Session.open("s", policy="copilot", model=model, max_prompt_tokens=max_prompt_tokens)
    await session.record([*(message for number in range(40) for message in tool_turn(number, "word " * limit))])
    await session.record([user_message("now")])

    await session.prepare(max_prompt_tokens=max_prompt_tokens)

    (truncated,) = await events_of(session, log.RequestTruncated)
    assert truncated.token_limit == limit
    assert truncated.post_truncation_tokens <= 0.95 * limit < limit < truncated.pre_truncation_tokens


async def test_a_prompt_limit_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="max_prompt_tokens: must be a whole number"):
        Session.open("s", max_prompt_tokens="many")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("limit", [0, -1, 63])
async def test_a_prompt_limit_that_holds_no_conversation_is_refused_and_not_kept(limit: int) -> None:
    session = await Session.open("s", model="gpt-5")
    await session.record([user_message("hello")])

    with pytest.raises(SettingsError, match=r"max_prompt_tokens: .*at least"):
        await session.prepare(16_000, max_prompt_tokens=limit)
    with pytest.raises(SettingsError, match=r"max_prompt_tokens: .*at least"):
        await session.switch_model("gpt-5", max_prompt_tokens=limit)

    assert (await session.prepare(16_000)).messages == [user_message("hello")]


@pytest.mark.seed("D-4", "D-13")
async def test_cowagent_keeps_its_fifty_thousand_tokens_in_a_running_turn() -> None:
    session = await Session.open("s", policy="cowagent", model="gpt-5")
    await session.record([user_message("go on")])
    for number in range(20):
        call = f"c{number}"
        await session.record([tool_call_message(call), tool_result_message(call, "word " * 4_000)])

    request = await session.prepare()

    assert request.tokens.total <= 50_000
    assert request.receipt.limit == 50_000 == (await session.context_breakdown()).budget
    assert "the conversation is longer than the 50,000 tokens that the policy allows" in request.receipt.reasons


async def test_a_prompt_that_exceeds_the_policys_own_limit_is_sent_if_the_model_accepts_it() -> None:
    session = await Session.open("s", policy="cowagent", model="gpt-5")
    prompt = user_message("word " * 60_000)
    await session.record([prompt])

    request = await session.prepare()

    assert request.messages == [prompt]
    assert request.tokens.total > 60_000


async def test_a_large_compaction_by_a_writer_of_unknown_window_takes_few_calls() -> None:
    writer = ScriptedModel(repeat("They went on."), name="somebodys-model")
    session = await Session.open("s", policy="copilot", model="gpt-5", summarizer=writer)
    for number in range(60):
        await session.record([user_message(f"{number} " + "word " * 8_800), assistant_message("yes")])
    await session.prepare(1_000_000)

    await session.compact(budget=1_000_000)

    assert len(writer.prompts) <= 7


@pytest.mark.seed("C-25")
async def test_an_orphan_in_a_request_that_fits_is_removed_and_only_usage_is_recorded() -> None:
    session = await Session.open("s", policy="copilot", model="gpt-5", store=MemoryStore())
    await session.record([user_message("now"), tool_result_message("gone", "lost")])
    await session.interrupt()

    request = await session.prepare(50_000)

    assert request.messages == [user_message("now")]
    assert await events_of(session, log.RequestTruncated) == []
    assert [event.token_limit for event in await events_of(session, log.UsageMeasured)] == [50_000]
    assert not any("to stay below" in reason for reason in request.receipt.reasons)


@pytest.mark.seed("C-20")
async def test_after_a_context_limit_error_copilot_compacts_even_three_messages() -> None:
    writer = ScriptedModel(["They measured."])
    session = await Session.open("s", policy="copilot", model="gpt-5", compaction=CompactionOptions(automatic=writer))
    await session.record(
        [user_message("measure " * 800), assistant_message("tide " * 800), user_message("and the newest question")]
    )
    await session.prepare(50_000)

    request = await session.retry(OVERFLOW, status=400)

    (done,) = await events_of(session, log.CompactionCompleted)
    assert (done.success, done.trigger) == (True, "context_limit_retry")
    assert "<summary>\nThey measured.\n</summary>" in str(request.messages[0]["content"])
    assert request.messages[-1] == user_message("and the newest question")


# What `govern` applies of a preset.


def chatted(turns: int) -> list[JsonMessage]:
    return [message for number in range(turns) for message in (user_message(f"q{number}"), assistant_message("a"))]


@pytest.mark.seed("A-18", "A-23")
def test_govern_puts_the_static_marker_of_co_cli_in_place_of_the_middle() -> None:
    talk = [*chatted(20), user_message("q20")]

    request = govern(talk, budget=10_000, model="gpt-5", policy="co-cli")

    marker = "[Earlier conversation trimmed — 19 messages removed to stay within context budget]"
    assert request.messages == [*talk[:2], user_message(marker), *talk[-20:]]
    assert request.receipt.compacted == (range(2, 21),)
    assert request.receipt.reasons == ("more than 40 messages: a marker replaces the middle",)


@pytest.mark.seed("D-9")
def test_govern_drops_the_older_half_of_the_turns_under_cowagent() -> None:
    talk = [*chatted(20), user_message("q20")]

    request = govern(talk, budget=10_000, model="gpt-5", policy="cowagent")

    assert request.messages == talk[20:]
    assert request.receipt.dropped == (range(20),)


@pytest.mark.seed("D-4", "D-13")
def test_govern_keeps_the_fifty_thousand_tokens_of_cowagent() -> None:
    talk = [*tool_turn(0, "word " * 30_000), *tool_turn(1, "word " * 30_000), user_message("now")]

    request = govern(talk, model="gpt-5", policy="cowagent")

    assert request.tokens.total <= request.receipt.limit == 50_000
    assert request.messages[-1] == user_message("now")


@pytest.mark.seed("B-6")
def test_govern_keeps_the_fixed_limits_of_inkeep() -> None:
    talk = [*chatted(40), user_message("now")]

    request = govern(talk, budget=100_000, model="gpt-5", policy="inkeep")

    marker = user_message("[Previous conversation history truncated - 31 earlier messages]")
    assert request.messages == [marker, *talk[-50:]]


@pytest.mark.seed("C-26")
def test_govern_truncates_as_copilot_does() -> None:
    talk = [*(message for number in range(8) for message in tool_turn(number, "word " * 200)), user_message("now")]

    request = govern(talk, budget=1_000, model="gpt-5", policy="copilot")

    prompts = [message for message in talk if message["role"] == "user"]
    assert [message for message in request.messages if message["role"] == "user"] == prompts
    assert request.tokens.total <= 1_000
    assert request.receipt.reasons == ("older messages were left out, to stay below 1,000 tokens",)


def test_govern_clips_outputs_as_the_preset_does() -> None:
    talk = [*tool_turn(0, "x" * 25_000), *tool_turn(1, "y")]

    sizes = {
        name: len(str(govern(talk[:-1], budget=100_000, model="gpt-5", policy=name).messages[2]["content"]))
        for name in PRESETS
    }

    assert {name: size for name, size in sizes.items() if size == 25_000} == {
        "default": 25_000, "inkeep": 25_000, "copilot": 25_000,
    }  # fmt: skip
    assert sizes["co-cli"] < 2_100 < sizes["cowagent"] < 20_200


class CountingStore(MemoryStore):
    """Counts how often a limit is read."""

    def __init__(self) -> None:
        super().__init__()
        self.limits_read = 0

    async def get_value(self, key: str) -> Any:
        self.limits_read += key.startswith("limit:")
        return await super().get_value(key)


async def test_the_limit_that_other_sessions_learned_is_read_once_a_minute() -> None:
    now, store = [1_000_000], CountingStore()
    session: Session = await Session.open("c1", store=store, model="gpt-5", clock=lambda: now[0])
    read: list[int] = []
    for passed in (0, 59_999, 1, 0):
        now[0] += passed
        await session.record([user_message("go on"), assistant_message("yes"), user_message("and?")])
        await session.prepare(8_000)
        read.append(store.limits_read)

    assert [count - read[0] for count in read] == [0, 0, 1, 1]
