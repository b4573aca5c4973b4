"""What recall is asked at its limits: odd ids, endless numbers, many references, long messages, other sessions."""

import pytest

from holdfast import Session
from holdfast.errors import MalformedInputError
from holdfast.session.recall import Recall
from holdfast.testing.chat import called, returned, said

ENDLESS = "9" * 5_000


@pytest.mark.parametrize(
    "call_id",
    ["call_abc", "7f3a9b2c1", "123456789", "_x1", "c1", "550e8400-e29b-41d4-a716-446655440000", "call/1", "a.b:0|fc=1"],
)
async def test_whatever_ids_calls_have_they_are_references(call_id: str) -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([said("go"), called(call_id), returned(call_id, "what it gave"), said("q")])

        found = await session.recall_for(Recall(refs=call_id))

    assert [(one.ref, one.text) for one in found.excerpts] == [("#2", "what it gave")]


async def test_a_number_is_the_id_of_a_call_only_where_no_message_stands_there() -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([said("go"), called("0"), returned("0", "what it gave")])

        assert (await session.recall_for(Recall(refs="0"))).excerpts[0].text == "go"


async def test_a_call_of_long_ago_is_found_by_its_id() -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([said("go"), called("call_abc"), returned("call_abc", "what it gave")])
        await session.record([said("q") for _ in range(4_200)])

        assert (await session.recall_for(Recall(refs="call_abc"))).excerpts[0].text == "what it gave"


@pytest.mark.parametrize("arguments", [
    {"last": ENDLESS}, {"ref": f"#{ENDLESS}"}, {"last": 10**4_400}, {"ref": 10**4_400}, {"ref": [10**4_400]},
    {"max_tokens": 10**4_400}, {"query": 10**4_400}, {10**4_400: 1}, {"query": {"a": 10**4_400}},
])  # fmt: skip
async def test_a_model_gets_words_back_for_numbers_without_end(arguments: dict[str, object]) -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([said("go")])

        answer = await session.recall_tool().call(arguments)

    assert answer.startswith("[Recall: ")
    assert len(answer) < 300


@pytest.mark.parametrize("source", ["#9", "#0-#9999", f"#{ENDLESS}", "#0, #9"])
async def test_every_message_that_a_source_names_is_checked(source: str) -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([said("top")])
        child = await session.delegate("a", task="go").__aenter__()

        with pytest.raises(MalformedInputError, match="can see"):
            await child.answer("done", sources=[source])

        await child.answer("done", sources=["#0-#1", "#todo", "src/a.py"])
