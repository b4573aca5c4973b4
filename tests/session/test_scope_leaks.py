"""What one agent has is nobody else's: the ways round a delegation's walls that were once open."""

from itertools import repeat
from pathlib import Path
from typing import get_args

import pytest

from holdfast import Session
from holdfast.core.history import events as log
from holdfast.core.history.scope import MainSees
from holdfast.core.planning.presets import PRESETS
from holdfast.models.base import Ask
from holdfast.session.child import Sees
from holdfast.session.compactor import Compaction
from holdfast.session.memory.daily import DailyMemory
from holdfast.testing.chat import answered, called, returned, said
from holdfast.testing.models import ScriptedModel

WORDS = "word " * 60
SECRET = "AUDIT-4711"


def telling(ask: Ask) -> str:
    """Return a summary that takes up whatever it was shown."""
    return f"Done: the auditor reported {SECRET} [#1]" if SECRET in ask.text else "Intent: the release [#0]"


@pytest.mark.seed("B-21")
@pytest.mark.parametrize("policy", PRESETS)
async def test_a_summary_that_was_written_with_anothers_answer_in_sight_is_not_handed_down(policy: str) -> None:
    writer = ScriptedModel(repeat(telling))
    async with Session.open("c1", policy=policy, model="gpt-5", summariser=writer) as session:
        for number in range(12):
            await session.record([said(f"turn {number} {WORDS}"), answered(f"ok {number} {WORDS}")])
        await session.prepare(6_000)
        async with session.delegate("auditor", task="audit", main_sees="everything") as auditor:
            await auditor.answer(f"{SECRET} is what I found")
        await session.record([said("thanks"), answered("welcome"), said("more")])
        await session.compact()
        async with session.delegate("reviewer", task="review") as reviewer:
            shown = await reviewer.prepare(6_000)

    assert any(SECRET in ask.text for ask in writer.asks)
    assert SECRET not in str(shown.messages)


@pytest.mark.parametrize("policy", ["default", "copilot", "inkeep"])
async def test_plan_and_todos_are_not_in_the_folds_of_one_who_is_to_see_nothing(policy: str) -> None:
    writer = ScriptedModel(repeat("<overview>The steps were done.</overview>"))
    async with Session.open("c1", policy=policy, model="gpt-5", summariser=writer) as session:
        await session.record([said("top"), answered("ok")])
        await session.note(log.PlanChanged(text="PLAN: sell the office"))
        await session.note(log.TodosChanged(text="TODO: call the bank"))
        await session.transfer("billing", message="CARD 4711")
        async with session.delegate("counter", task="Count.", sees=Sees()) as child:
            for number in range(30):
                await child.record([answered(f"step {number} {WORDS * 5}"), said(f"go on {number}")])
                await child.prepare(6_000)
            request = await child.prepare(6_000)

    assert request.receipt.folded
    everything = f"{request.messages} {[ask.system + ask.text for ask in writer.asks]}"
    assert [word for word in ("PLAN", "TODO", "CARD") if word in everything] == []


async def test_a_rewind_to_between_two_clears_keeps_the_first_one() -> None:
    async with Session.open("c1") as session:
        await session.record([said("the old secret"), answered("noted")])
        await session.clear()
        await session.record([said("second"), answered("ok"), said("third"), answered("ok")])
        await session.clear()
        await session.record([said("fourth"), answered("ok")])
        await session.rewind(to=4)
        between = [entry.message.text for entry in await session.shown()]
        found = (await session.recall_for("old secret")).excerpts
        await session.rewind(to=1)
        before = [entry.message.text for entry in await session.shown()]

    assert (between, found) == (["second", "ok"], ())
    assert before == ["the old secret"]


@pytest.mark.seed("B-18")
@pytest.mark.parametrize("limit", get_args(MainSees))
async def test_of_a_delegates_delegate_the_main_agent_sees_no_more_than_of_the_delegate(limit: MainSees) -> None:
    async with Session.open("c1") as session:
        await session.record([said("top")])
        async with session.delegate("child", task="one", main_sees=limit) as child:
            async with child.delegate("grandchild", task="two", main_sees="everything") as grandchild:
                await grandchild.record([called("b"), returned("b", "deep result")])
                await grandchild.answer("deep answer")
            await child.answer("the answer")
        shown = str((await session.prepare(20_000)).messages)

    words = [word for word in ("one", "two", "deep result", "deep answer", "the answer") if f"{word}'" in shown]
    assert (
        words
        == {
            "everything": ["one", "two", "deep result", "deep answer", "the answer"],
            "answers": ["the answer"],
            "nothing": [],
        }[limit]
    )


@pytest.mark.seed("D-24")
async def test_what_was_cleared_while_a_delegate_is_at_work_is_gone_for_it_and_for_those_it_sends() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record([said("the secret"), called("m1"), returned("m1", "line\n" * 3_000), answered("done")])
        async with session.delegate("reviewer", task="go on") as child:
            await session.clear()
            shown = [entry.message.text for entry in await child.shown()]
            artifacts = await session.artifacts(scope=child.scope)
            async with child.delegate("nested", task="look") as nested:
                inner = [entry.message.text for entry in await nested.shown()]

    assert (shown, artifacts) == (["go on"], [])
    assert [text.splitlines()[-1] for text in inner] == ["go on", "look"]


async def test_a_fold_that_was_handed_down_is_gone_with_what_it_tells_of_when_that_is_cleared() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        for number in range(30):
            await session.record([said(f"SECRET {number} {WORDS}"), answered(f"ok {WORDS}")])
        await session.compact()
        async with session.delegate("reviewer", task="go on") as child:
            before = str([entry.message.text for entry in await child.shown()])
            await session.clear()
            after = [entry.message.text for entry in await child.shown()]
            await session.undo()
            back = str([entry.message.text for entry in await child.shown()])

    assert ("SECRET" in before, after, back == before) == (True, ["go on"], True)


async def test_what_an_agent_is_told_is_nowhere_told_as_the_users_word(tmp_path: Path) -> None:
    memory = DailyMemory(tmp_path)
    how = Compaction(memory=memory)
    task = "Delete the old branches without asking."
    async with Session.open("c1", policy="inkeep", model="gpt-5", compaction=how) as session:
        await session.record([said("Is the release ready?"), answered("I ask.")])
        async with session.delegate("reviewer", task=task, main_sees="everything") as child:
            own = await child.prepare(8_000)
            await child.answer("All deleted.")
        await session.record([said("thanks")])
        request = await session.prepare(8_000)
        scope = child.scope
        await session.clear()

    (day,) = await memory.days()
    note = await memory.day(day)
    assert own.messages[-1] == said(task)
    assert said(f"[Told to the agent {scope}, and not by the user:]\n{task}") in request.messages
    assert f"Agents were told:\n- (#2) “{task}”" in note
    assert "The user asked:\n- (#0) “Is the release ready?”\n- (#4) “thanks”" in note


async def test_a_summariser_is_told_what_is_a_task_and_what_the_user_said() -> None:
    writer = ScriptedModel(repeat("Intent: the release [#0]"))
    async with Session.open("c1", policy="inkeep", model="gpt-5", summariser=writer) as session:
        await session.record([said("Is the release ready?"), answered("I ask.")])
        async with session.delegate("reviewer", task="Delete the branches.", main_sees="everything") as child:
            await child.answer("All deleted.")
        await session.record([said("thanks"), answered("welcome")])
        await session.compact()

    (ask,) = writer.asks
    assert "[#0 user]\nIs the release ready?" in ask.text
    assert "[#2 task]\nDelete the branches." in ask.text
