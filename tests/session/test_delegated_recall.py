"""Nothing of one delegation is found by another, however it is asked for."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.delegation import Delegate, Visibility
from holdfast.errors import UnknownReferenceError
from holdfast.recall import RecallQuery
from holdfast.session.session import Session
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "work", "work", "work", "compact"]),
        st.integers(0, 6),
        st.sampled_from([Visibility(everything=True), Visibility(everything=True), Visibility(turns=1), Visibility()]),
    ),
    min_size=4,
    max_size=14,
)


async def grown(session: Session, steps: Any) -> list[Delegate | None]:
    """Return the agents of a random tree of delegations; what each says holds its number."""
    agents: list[Delegate | None] = [None]
    await session.record([user_message("secret agent0 asks")])
    for step, number, sees in steps:
        at = number % len(agents)
        agent = agents[at]
        if step == "begin":
            sender = agent or session
            agents.append(await sender.delegate("x", task=f"secret agent{len(agents)} task", sees=sees).__aenter__())
        elif step == "work":
            call = f"c{len(session)}"
            spoken = [
                tool_call_message(call),
                tool_result_message(call, f"secret agent{at} found"),
                assistant_message(f"secret agent{at} says"),
            ]
            await (agent.record(spoken) if agent else session.record(spoken))
        elif agent is None:
            await session.compact_tool().call({})
        else:
            await agent.compact_tool().call({})
    return agents


@pytest.mark.seed("B-19", "B-21")
@settings(max_examples=25)
@given(STEPS)
async def test_nothing_of_an_unrelated_delegation_is_found_by_recall(steps: Any) -> None:
    async with Session.open("c1", model="gpt-5") as session:
        agents = await grown(session, steps)
        scopes = ["main", *(agent.scope for agent in agents if agent)]
        for agent in agents:
            if agent is None:
                continue
            line = session.history.scopes.lineage(agent.scope)
            foreign = [f"agent{number} " for number, scope in enumerate(scopes) if scope not in line]
            for asked in (
                RecallQuery(query="secret", max_tokens=4_000),
                RecallQuery(text="secret", max_tokens=4_000),
                RecallQuery(last=50),
            ):
                found = str(await agent.recall(asked))
                assert [mark for mark in foreign if mark in found] == []
            told = await agent.recall_tool(max_tokens=4_000).call({"ref": f"#0-#{len(session) - 1}"})
            assert [mark for mark in foreign if mark in told] == []


async def test_what_an_agent_was_told_is_found_as_a_task_also_after_a_restart() -> None:
    store = MemoryStore()
    async with (
        Session.open("t1", store=store) as session,
        session.delegate("scout", task="look for the key") as scout,
    ):
        await scout.record([user_message("look for the key"), assistant_message("found it")])
        (before,) = (await scout.recall("look key")).excerpts[:1]
    async with Session.open("t1", store=store) as session:
        (after,) = (await session.recall("look key", scope=scout.scope)).excerpts[:1]

    assert (before.speaker_label, after.speaker_label) == ("task", "task")


async def test_a_reference_to_another_delegations_message_is_unknown() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record([user_message("go")])
        async with session.delegate("a", task="a") as one, session.delegate("b", task="b") as other:
            positions = await one.record([assistant_message("only a knows")])
            reference = f"#{positions.start}"

            assert "only a knows" in str(await one.recall(reference))
            with pytest.raises(UnknownReferenceError):
                await other.recall(reference)
            assert "only a knows" not in await other.recall_tool().call({"ref": reference})
            assert (await other.recall("knows")).excerpts == ()
