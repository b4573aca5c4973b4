"""Recall's own answers: never found again, never shortened without need, and nothing else is taken for one."""

from typing import Any, cast

import pytest

from holdfast import Session
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message

ANSWER = "[Recall: 1]\n" + "\n".join(f"excerpt line {number} value {number * number}" for number in range(360))
OUTPUT = "\n".join(f"other line {number} value {number * number}" for number in range(1_500))


def used(call_id: str, name: str) -> dict[str, object]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {"path": "a.py"}}


def gave(call_id: str, text: str) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": text}


BATCH: list[dict[str, Any]] = [
    user_message("look at it"),
    {"role": "assistant", "content": [used("t1", "recall"), used("t2", "read_file")]},
    {"role": "user", "content": [gave("t1", f"giraffe {ANSWER}"), gave("t2", f"the zebra limit is 4711\n{OUTPUT}")]},
    assistant_message("ok"),
]


async def found(session: Any, words: str) -> list[tuple[str, str]]:
    return [(one.ref, one.text.split("\n")[0]) for one in (await session.recall(words)).excerpts]


async def test_what_stands_in_one_message_with_an_answer_of_recall_is_found() -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record(BATCH, format="anthropic-messages")

        assert (await found(session, "zebra limit"))[0] == ("#2.2", "the zebra limit is 4711")
        assert await found(session, "giraffe") == []


async def test_what_stands_beside_an_answer_of_recall_is_found_after_a_restart() -> None:
    store = MemoryStore()
    async with Session.open("r1", store=store, model="gpt-5") as session:
        await session.record(BATCH, format="anthropic-messages")
        await session.record([user_message(f"more {number}") for number in range(120)], format="anthropic-messages")

    async with Session.open("r1", store=store, model="gpt-5") as session:
        assert (await found(session, "zebra limit"))[0] == ("#2.2", "the zebra limit is 4711")
        assert await found(session, "giraffe") == []


async def test_another_agents_call_with_the_same_id_is_no_recall() -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([user_message("top")])
        async with session.delegate("a", task="go A") as a, session.delegate("b", task="go B") as b:
            await a.record([tool_call_message("call_0", name="recall")])
            await b.record([tool_call_message("call_0"), tool_result_message("call_0", "the zebra limit is 4711")])
            await a.record([tool_result_message("call_0", "[Recall: giraffe words]")])

            assert ("#5", "the zebra limit is 4711") in await found(b, "zebra limit")
            assert await found(a, "giraffe") == []


async def test_a_call_with_the_id_of_an_interrupted_recall_is_no_recall() -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([user_message("top"), tool_call_message("call_0", name="recall")])
        await session.interrupt()
        await session.record(
            [
                user_message("go on"),
                tool_call_message("call_0"),
                tool_result_message("call_0", "the zebra limit is 4711"),
            ]
        )

        assert ("#4", "the zebra limit is 4711") in await found(session, "zebra limit")


@pytest.mark.parametrize("policy", ["default", "co-cli", "inkeep", "copilot", "cowagent"])
async def test_no_preset_shortens_an_answer_of_recall_while_other_output_can_go(policy: str) -> None:
    async with Session.open("r1", policy=policy, model="gpt-5") as session:
        await session.record([user_message("go")])
        sent: list[str] = []
        for number in range(8):
            await session.record([tool_call_message(f"o{number}"), tool_result_message(f"o{number}", OUTPUT)])
            await session.record(
                [tool_call_message(f"r{number}", name="recall"), tool_result_message(f"r{number}", ANSWER)]
            )
            request = await session.prepare(16_000, has_recall=True)
            sent += [str(one["content"]) for one in request.messages if str(one.get("tool_call_id")).startswith("r")]

    assert set(sent) == {ANSWER}


async def test_in_one_exchange_other_output_is_shortened_before_an_answer_of_recall() -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record(BATCH[:-1], format="anthropic-messages")

        request = await session.prepare(8_000, has_recall=True)

    blocks = cast("list[dict[str, object]]", request.messages[-1]["content"])
    first, second = (str(block["content"]) for block in blocks)
    assert first == f"giraffe {ANSWER}"
    assert "characters cut: recall #2.2 …]" in second


async def test_an_answer_of_recall_that_is_too_large_for_the_window_is_shortened() -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record(
            [user_message("go"), tool_call_message("r1", name="recall"), tool_result_message("r1", ANSWER * 10)]
        )

        request = await session.prepare(8_000, has_recall=True)

    assert "characters cut: recall #2 …]" in str(request.messages[-1]["content"])
