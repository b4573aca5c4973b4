"""What of a long conversation is still in the request after compactions: the user's words, orders and names."""

import pytest

from holdfast import Session, counter_for
from holdfast.errors import CompactionFailedError
from holdfast.session.conversation import MAX_GROWN_RECALL_TOKENS
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    tool_call_message,
    tool_result_message,
    user_message,
)

ROOM = 7_000
COUNTER = counter_for("gpt-5")


async def text_after(messages: list[list[JsonMessage]], room: int = ROOM) -> str:
    """Return the text of the request after some exchanges, each of them prepared for."""
    async with Session.open("s", model="gpt-5") as session:
        for exchange in messages:
            await session.record(exchange)
            await session.prepare(room, has_recall=True)
        await session.record([user_message("?")])
        request = await session.prepare(room, has_recall=True)
    return "\n".join(str(native.get("content") or "") for native in request.messages)


def work(number: int, prompt: str, output: str) -> list[JsonMessage]:
    return [
        user_message(prompt),
        tool_call_message(f"c{number}", arguments={"path": f"src/part_{number}.py"}),
        tool_result_message(f"c{number}", output),
        assistant_message("Done."),
    ]


async def test_old_short_messages_of_the_user_stay_when_newer_long_ones_do_not_fit() -> None:
    corrections = [f"No, the port is {8_000 + number}." for number in range(6)]
    wordy = "It says {0} where another number should be, and nobody knows why. " * 12
    long = [f"Look at part {number} again. {wordy.format(number)}" for number in range(40)]
    exchanges = [work(number, text, "ok " * 300) for number, text in enumerate([*corrections, *long])]

    text = await text_after(exchanges)

    assert [one for one in corrections if one in text] == corrections


async def test_a_chat_quotes_the_side_that_says_little_however_often_it_was_compacted() -> None:
    facts = [f"My locker at the station {number} has the code {number * 37 + 1_000}." for number in range(60)]
    answer = "There are many ways to look at it, and each of them has its merits and its limits. " * 12
    exchanges = [[user_message(fact), assistant_message(f"{answer}({number})")] for number, fact in enumerate(facts)]

    text = await text_after(exchanges)

    assert [fact for fact in facts if fact not in text] == []


async def test_names_that_only_a_tool_printed_stay_in_a_small_window() -> None:
    names = [f"lib/module_{number}/handler.py" for number in range(24)]
    exchanges = [work(0, "List the handlers.", "\n".join(names))]
    exchanges += [work(number, "Go on.", f"line {number} is fine\n" * 400) for number in range(1, 12)]

    text = await text_after(exchanges)

    assert [name for name in names if name not in text] == []


async def test_an_answer_of_recall_grows_into_the_room_that_the_request_leaves() -> None:
    async with Session.open("s", model="gpt-5") as session:
        for number in range(80):
            told = f"Harbour {number}: " + f"the pilot of ship {number} came at {number} o'clock. " * 8
            await session.record([user_message(told), assistant_message("Noted.")])
        await session.prepare(100_000, has_recall=True)
        usual = await session.recall_tool(max_tokens=1_000).call({"query": "harbour pilot"})
        grown = await session.recall_tool().call({"query": "harbour pilot"})
        await session.prepare(12_500, has_recall=True)
        full = await session.recall_tool().call({"query": "harbour pilot"})

    counted = [COUNTER.count(text) for text in (usual, full, grown)]
    assert counted[0] <= 1_000 < counted[2] <= MAX_GROWN_RECALL_TOKENS
    assert counted[0] <= counted[1] <= counted[2]


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_conversation_too_short_for_a_replacement_that_keeps_its_rules_is_not_compacted(turns: int) -> None:
    async with Session.open("s", store="memory://", model="gpt-5") as session:
        await session.record([user_message("Never touch the billing tables."), assistant_message("Understood.")])
        for number in range(turns):
            await session.record([user_message(f"Fix file{number}.py"), assistant_message("I changed a line of it.")])
        await session.record([user_message("go on")])
        before = await session.visible_messages()

        with pytest.raises(CompactionFailedError, match=r"too few to compact: .*“Never touch the billing tables.”"):
            await session.compact()

        assert await session.visible_messages() == before
        assert [*await session.receipts()] == []
