"""Wrong settings and odd arguments give an error that says what to change, and never a traceback."""

import pytest

from holdfast import Session
from holdfast.core.planning.policy import read_policy
from holdfast.core.planning.rules.default import DefaultCompaction
from holdfast.errors import MalformedInputError, SettingsError
from holdfast.testing.chat import user_message


async def test_a_clock_may_count_fractions_of_milliseconds() -> None:
    async with Session.open("s", clock=lambda: 1_700_000_000_000.75) as session:
        await session.record([user_message("hello")])

        assert session.clock() == 1_700_000_000_000


@pytest.mark.parametrize("now", ["soon", None, float("nan"), True])
async def test_a_clock_that_returns_no_number_is_refused_by_name(now: object) -> None:
    with pytest.raises(SettingsError, match="clock: must return milliseconds as a number, not"):
        async with Session.open("s", clock=lambda: now) as session:  # pyright: ignore[reportArgumentType]
            await session.record([user_message("hello")])


@pytest.mark.parametrize("arguments", [None, [], "focus", {"focus": 5}])
async def test_a_model_may_call_the_compaction_tool_with_anything(arguments: object) -> None:
    async with Session.open("s") as session:
        await session.record([user_message("hello")])

        answer = await session.compact_tool().call(arguments)  # pyright: ignore[reportArgumentType]

    assert answer.startswith("[compact_context: nothing was changed:")


def test_a_share_of_one_is_said_to_be_excluded() -> None:
    with pytest.raises(SettingsError, match=r"policy\.fit\.digest_share: must be below 1, not 1"):
        read_policy("fit.digest_share=1")


def test_a_number_as_text_is_said_to_be_no_number() -> None:
    with pytest.raises(SettingsError, match=r"policy\.compaction\.soft_share: must be a number, not '0\.7'"):
        DefaultCompaction(soft_share="0.7")  # pyright: ignore[reportArgumentType]


def test_the_share_that_leaves_no_room_is_named() -> None:
    with pytest.raises(SettingsError, match=r"policy\.compaction\.tail_share: is 0\.9; .* must stay below 1"):
        DefaultCompaction(tail_share=0.9)


async def test_a_position_that_no_message_has_is_refused_with_how_many_there_are() -> None:
    async with Session.open("s") as session:
        await session.record([user_message("hello")])

        with pytest.raises(
            MalformedInputError, match=r"^session\.rewound: there is no message 9; there are 1, counted"
        ):
            await session.rewind(to=9)
        with pytest.raises(MalformedInputError, match=r"^message\.pinned: there is no message 9; there are 1, counted"):
            await session.pin(9)
        with pytest.raises(MalformedInputError, match=r"^session\.forked: there is no message 9; there are 1, counted"):
            await session.fork("t", at=9)


async def test_state_that_is_no_event_is_refused_with_the_events_that_are() -> None:
    async with Session.open("s") as session:
        with pytest.raises(MalformedInputError, match=r"^record_state: takes one of PlanChanged, .*not a str"):
            await session.record_state("1. Read the log.")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
