"""A delegate's answer as typed findings, whose sources are checked by rule."""

import json

import pytest

from holdfast import Session
from holdfast.core.history.scopes import MAX_FINDINGS, DelegateFinding, parse_findings
from holdfast.errors import MalformedInputError
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import tool_call_message, tool_result_message, user_message

CLAIMS = [
    {"claim": "Totals are wrong.", "sources": ["#2", "src/totals.py"], "status": "confirmed"},
    {"claim": "The tax is, too.", "sources": ["src/tax.py", "#99"], "status": "confirmed"},
    {"claim": "Who reads the report?", "status": "open"},
]
CHECKED = (
    DelegateFinding(claim="Totals are wrong.", sources=("#2", "src/totals.py"), status="confirmed"),
    DelegateFinding(claim="The tax is, too.", unverified=("src/tax.py", "#99")),
    DelegateFinding(claim="Who reads the report?", status="open"),
)


async def asked() -> Session:
    session = await Session.open("f", store=MemoryStore(), model="gpt-5")
    await session.record([user_message("Find out what is wrong with the totals.")])
    return session


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"findings": CLAIMS}),
        json.dumps(CLAIMS),
        "This is what I found:\n```json\n" + json.dumps({"findings": CLAIMS}, indent=1) + "\n```\nThat is all.",
    ],
    ids=["an object", "a list", "a fence"],
)
async def test_findings_of_a_delegate_are_values_with_sources_that_were_looked_up(text: str) -> None:
    session = await asked()

    async with session.delegate("reader", task="Read the totals.") as child:
        await child.record(
            [tool_call_message("a", arguments={"path": "src/totals.py"}), tool_result_message("a", "sum(rows) + 1")]
        )
        answer = await child.answer(text)

    assert answer.findings == CHECKED
    assert (answer.text, answer.sources) == (text, ("#2", "src/totals.py"))
    assert str(answer).endswith(
        "These claims name sources that the agent has not seen:\n"
        "The tax is, too. (uncertain; not seen by it: src/tax.py, #99)"
    )
    (delegation,) = await session.delegations()
    assert delegation.findings == CHECKED


async def test_findings_may_be_given_as_values_and_text_alone_is_an_answer() -> None:
    session = await asked()

    async with session.delegate("reader", task="Read src/totals.py.") as child:
        given = await child.answer(
            "See there.", findings=[DelegateFinding(claim="It is short.", sources=("src/totals.py",))]
        )
    async with session.delegate("reader", task="Read it again.") as child:
        plain = await child.answer("It is as short as before.")

    assert (given.findings, given.sources) == (
        (DelegateFinding(claim="It is short.", sources=("src/totals.py",)),),
        ("src/totals.py",),
    )
    assert (plain.findings, str(plain)) == ((), "It is as short as before.")
    async with session.delegate("reader", task="Once more.") as child:
        with pytest.raises(MalformedInputError, match="must be a list of DelegateFinding"):
            await child.answer("x", findings=[{"claim": "x"}])  # pyright: ignore[reportArgumentType]


async def test_a_delegates_own_words_are_no_source() -> None:
    session = await asked()

    async with session.delegate("reader", task="Guess.") as child:
        await child.record([{"role": "assistant", "content": "I think that src/guess.py is wrong."}])
        answer = await child.answer(json.dumps([{"claim": "It is wrong.", "sources": "src/guess.py"}]))

    assert answer.findings == (DelegateFinding(claim="It is wrong.", unverified=("src/guess.py",)),)


@pytest.mark.parametrize(
    "text", ["", "words", "[1, 2]", "{}", '{"findings": "none"}', '[{"claim": " "}, {"status": "open"}]', "[" * 9_999]
)
def test_what_holds_no_findings_is_a_text(text: str) -> None:
    assert parse_findings(text) == ()


def test_findings_are_read_patiently_and_bounded() -> None:
    many = [{"claim": f"claim {number}", "status": "sure", "sources": [1, "#2", "#2"]} for number in range(500)]

    found = parse_findings(json.dumps(many))

    assert len(found) == MAX_FINDINGS
    assert found[0] == DelegateFinding(claim="claim 0", sources=("#2",), status="uncertain")
