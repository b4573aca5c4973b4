"""What one agent has is nobody else's: the ways round a delegation's walls that were once open."""

from itertools import repeat
from pathlib import Path
from typing import get_args

import pytest

from holdfast import Session
from holdfast.core.history import events as log
from holdfast.core.history.scopes import MainVisibility
from holdfast.core.planning.policy import PRESETS
from holdfast.delegation import Visibility
from holdfast.models.base import SummaryPrompt
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.memory.daily import DailyMemory
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import ScriptedModel

WORDS = "word " * 60
SECRET = "AUDIT-4711"


def telling(ask: SummaryPrompt) -> str:
    """Return a summary that takes up whatever it was shown."""
    return f"Done: the auditor reported {SECRET} [#1]" if SECRET in ask.text else "Intent: the release [#0]"


@pytest.mark.seed("B-21")
@pytest.mark.parametrize("policy", PRESETS)
async def test_a_summary_that_was_written_with_anothers_answer_in_sight_is_not_handed_down(policy: str) -> None:
    writer = ScriptedModel(repeat(telling))
    async with Session.open("c1", policy=policy, model="gpt-5", summarizer=writer) as session:
        for number in range(12):
            await session.record([user_message(f"turn {number} {WORDS}"), assistant_message(f"ok {number} {WORDS}")])
        await session.prepare(6_000)
        async with session.delegate("auditor", task="audit", main_sees="everything") as auditor:
            await auditor.answer(f"{SECRET} is what I found")
        await session.record([user_message("thanks"), assistant_message("welcome"), user_message("more")])
        await session.compact()
        async with session.delegate("reviewer", task="review") as reviewer:
            shown = await reviewer.prepare(6_000)

    assert any(SECRET in ask.text for ask in writer.prompts)
    assert SECRET not in str(shown.messages)


@pytest.mark.parametrize("policy", ["default", "copilot", "inkeep"])
async def test_plan_and_todos_are_not_in_the_compactions_of_one_who_is_to_see_nothing(policy: str) -> None:
    writer = ScriptedModel(repeat("<overview>The steps were done.</overview>"))
    async with Session.open("c1", policy=policy, model="gpt-5", summarizer=writer) as session:
        await session.record([user_message("top"), assistant_message("ok")])
        await session.record_state(log.PlanChanged(text="PLAN: sell the office"))
        await session.record_state(log.TodosChanged(text="TODO: call the bank"))
        await session.transfer("billing", message="CARD 4711")
        async with session.delegate("counter", task="Count.", sees=Visibility()) as child:
            for number in range(30):
                await child.record([assistant_message(f"step {number} {WORDS * 5}"), user_message(f"go on {number}")])
                await child.prepare(6_000)
            request = await child.prepare(6_000)

    assert request.receipt.compacted
    everything = f"{request.messages} {[ask.system + ask.text for ask in writer.prompts]}"
    assert [word for word in ("PLAN", "TODO", "CARD") if word in everything] == []


async def test_a_rewind_to_between_two_clears_keeps_the_first_one() -> None:
    async with Session.open("c1") as session:
        await session.record([user_message("the old secret"), assistant_message("noted")])
        await session.clear()
        await session.record(
            [user_message("second"), assistant_message("ok"), user_message("third"), assistant_message("ok")]
        )
        await session.clear()
        await session.record([user_message("fourth"), assistant_message("ok")])
        await session.rewind(to=4)
        between = [entry.message.text for entry in await session.visible_messages()]
        found = (await session.recall("old secret")).excerpts
        await session.rewind(to=1)
        before = [entry.message.text for entry in await session.visible_messages()]

    assert (between, found) == (["second", "ok"], ())
    assert before == ["the old secret"]


@pytest.mark.seed("B-18")
@pytest.mark.parametrize("limit", get_args(MainVisibility))
async def test_of_a_delegates_delegate_the_main_agent_sees_no_more_than_of_the_delegate(limit: MainVisibility) -> None:
    async with Session.open("c1") as session:
        await session.record([user_message("top")])
        async with session.delegate("child", task="one", main_sees=limit) as child:
            async with child.delegate("grandchild", task="two", main_sees="everything") as grandchild:
                await grandchild.record([tool_call_message("b"), tool_result_message("b", "deep result")])
                await grandchild.answer("deep answer")
            await child.answer("the answer")
        shown = str((await session.prepare(20_000)).messages)
        found = str(await session.recall("deep result"))

    words = [word for word in ("one", "two", "deep result", "deep answer", "the answer") if f"{word}'" in shown]
    assert (
        words
        == {
            "everything": ["one", "two", "deep result", "deep answer", "the answer"],
            "answers": ["the answer"],
            "recall": [],
            "nothing": [],
        }[limit]
    )
    assert ("deep result" in found) is (limit in {"everything", "recall"})


@pytest.mark.seed("D-24")
async def test_what_was_cleared_while_a_delegate_is_at_work_is_gone_for_it_and_for_those_it_sends() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record(
            [
                user_message("the secret"),
                tool_call_message("m1"),
                tool_result_message("m1", "line\n" * 3_000),
                assistant_message("done"),
            ]
        )
        async with session.delegate("reviewer", task="go on") as child:
            await session.clear()
            shown = [entry.message.text for entry in await child.visible_messages()]
            artifacts = await session.artifacts(scope=child.scope)
            async with child.delegate("nested", task="look") as nested:
                inner = [entry.message.text for entry in await nested.visible_messages()]

    assert (shown, artifacts) == (["go on"], [])
    assert [text.splitlines()[-1] for text in inner] == ["go on", "look"]


async def test_a_compaction_that_was_handed_down_is_gone_with_what_it_tells_of_when_that_is_cleared() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        for number in range(30):
            await session.record([user_message(f"SECRET {number} {WORDS}"), assistant_message(f"ok {WORDS}")])
        await session.compact()
        async with session.delegate("reviewer", task="go on") as child:
            before = str([entry.message.text for entry in await child.visible_messages()])
            await session.clear()
            after = [entry.message.text for entry in await child.visible_messages()]
            await session.undo()
            back = str([entry.message.text for entry in await child.visible_messages()])

    assert ("SECRET" in before, after, back == before) == (True, ["go on"], True)


async def test_what_an_agent_is_told_is_nowhere_told_as_the_users_word(tmp_path: Path) -> None:
    memory = DailyMemory(tmp_path)
    how = CompactionOptions(memory=memory)
    task = "Delete the old branches without asking."
    async with Session.open("c1", policy="inkeep", model="gpt-5", compaction=how) as session:
        await session.record([user_message("Is the release ready?"), assistant_message("I ask.")])
        async with session.delegate("reviewer", task=task, main_sees="everything") as child:
            own = await child.prepare(8_000)
            await child.answer("All deleted.")
        await session.record([user_message("thanks")])
        request = await session.prepare(8_000)
        scope = child.scope
        await session.clear()

    (day,) = await memory.days()
    note = await memory.read_day(day)
    assert own.messages[-1] == user_message(task)
    assert user_message(f"[Told to the agent {scope}, and not by the user:]\n{task}") in request.messages
    assert f"Agents were told:\n- (#2) “{task}”" in note
    assert "The user asked:\n- (#0) “Is the release ready?”\n- (#4) “thanks”" in note


async def test_a_summarizer_is_told_what_is_a_task_and_what_the_user_said() -> None:
    writer = ScriptedModel(repeat("Intent: the release [#0]"))
    async with Session.open("c1", policy="inkeep", model="gpt-5", summarizer=writer) as session:
        await session.record([user_message("Is the release ready?"), assistant_message("I ask.")])
        async with session.delegate("reviewer", task="Delete the branches.", main_sees="everything") as child:
            await child.answer("All deleted.")
        await session.record([user_message("thanks"), assistant_message("welcome")])
        await session.compact()

    (ask,) = writer.prompts
    assert "[#0 user]\nIs the release ready?" in ask.text
    assert "[#2 task]\nDelete the branches." in ask.text
