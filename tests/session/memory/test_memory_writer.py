"""What leaves a session is in a daily file: once, whatever happens meanwhile."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import Session
from holdfast.core.memory.notes import DailySection, parse_sections
from holdfast.models.base import SummaryPrompt
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.memory.daily import DailyMemory
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.models import FailingModel, ScriptedModel

WHEN = int(datetime(2026, 11, 15, 14, 3).timestamp() * 1000)  # noqa: DTZ001 - the day of whoever sits there
DAY = "2026-11-15"
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa " * 6
OVERFLOW = {"error": {"message": "prompt is too long", "type": "invalid_request_error"}}


def summaries() -> ScriptedModel:
    def written(ask: SummaryPrompt) -> str:
        del ask
        return "The user counts in Greek letters [#0]."

    return ScriptedModel(iter(lambda: written, None))


def opening(folder: Path, store: Store, policy: str = "cowagent", **more: Any) -> Any:
    how = CompactionOptions(memory=DailyMemory(folder), automatic=more.get("by"), notice=more.get("notice"))
    return Session.open("c1", store=store, policy=policy, model="gpt-5", compaction=how, clock=lambda: WHEN)


async def talk(session: Session, turns: int, start: int = 0) -> None:
    for number in range(start, start + turns):
        await session.record([user_message(f"question {number}: {WORDS}")])
        await session.prepare(60_000)
        await session.record([assistant_message(f"answer {number}: {WORDS}")])


def noted(folder: Path) -> list[DailySection]:
    path = folder / f"{DAY}.md"
    return parse_sections(path.read_text(), DAY) if path.exists() else []


@pytest.mark.seed("D-10", "D-12")
async def test_trimmed_turns_are_summarized_into_the_daily_file_once(tmp_path: Path) -> None:
    async with opening(tmp_path, MemoryStore(), by=summaries()) as session:
        await talk(session, 21)
        await settled(session)
        await talk(session, 2, start=21)

    (section,) = noted(tmp_path)
    assert (section.title, section.session, section.messages) == ("Trimmed Context (14:03)", "c1", "#0-19")
    assert section.text == "The user counts in Greek letters [#0]."


async def test_memory_switched_off_hears_no_more_and_one_that_is_switched_on_hears_the_rest(
    tmp_path: Path,
) -> None:
    async with opening(tmp_path / "one", MemoryStore(), by=summaries()) as session:
        await talk(session, 21)
        await settled(session)
        await session.set_policy("cowagent", compaction=CompactionOptions(automatic=summaries()))
        await talk(session, 15, start=21)
        await settled(session)
        before = [section.messages for section in noted(tmp_path / "one")]
        await session.set_policy("cowagent", compaction=CompactionOptions(memory=DailyMemory(tmp_path / "two")))
        await session.clear()
        await settled(session)

    assert before == ["#0-19"]
    assert [section.messages for section in noted(tmp_path / "one")] == ["#0-19"]
    assert noted(tmp_path / "two")


@pytest.mark.seed("D-14")
async def test_turns_that_are_over_the_budget_are_written_to_memory_too(tmp_path: Path) -> None:
    async with opening(tmp_path, MemoryStore(), by=summaries()) as session:
        for number in range(6):
            await session.record(
                [user_message(f"question {number}: {WORDS}"), assistant_message(f"answer {number}: {WORDS * 3}")]
            )
        await session.record([user_message("and now?")])
        await session.prepare(1_800)

    (section,) = noted(tmp_path)
    assert section.title == "Trimmed Context (14:03)"
    assert section.messages.startswith("#0-")


@pytest.mark.seed("D-15")
async def test_after_an_overflow_all_current_messages_are_summarized_into_memory(tmp_path: Path) -> None:
    async with opening(tmp_path, MemoryStore(), by=summaries()) as session:
        await talk(session, 6)
        await session.record([user_message("the newest")])
        await session.prepare(60_000)
        await session.retry(OVERFLOW, status=400)
        await session.retry(OVERFLOW, status=400)
        await settled(session)

    (section,) = noted(tmp_path)
    assert (section.title, section.messages) == ("Context Overflow Recovery (14:03)", "#0-12")
    assert section.text == "The user counts in Greek letters [#0]."


@pytest.mark.parametrize(
    "by", [None, FailingModel("empty"), FailingModel("unreachable")], ids=["nobody", "empty", "away"]
)
async def test_without_a_summary_a_digest_is_written(tmp_path: Path, by: Any) -> None:
    async with opening(tmp_path, MemoryStore(), by=by) as session:
        await talk(session, 23)

    (section,) = noted(tmp_path)
    assert section.messages == "#0-19"
    assert "“question 0: alpha beta" in section.text


async def test_messages_whose_summary_repeats_an_earlier_one_are_noted_in_a_digest(tmp_path: Path) -> None:
    async with opening(tmp_path, MemoryStore(), by=summaries()) as session:
        await talk(session, 2)
        await session.clear()
        await settled(session)
        await talk(session, 2, start=2)
        await session.clear()
        await settled(session)

    first, second = noted(tmp_path)
    assert (first.messages, first.text) == ("#0-3", "The user counts in Greek letters [#0].")
    assert second.messages == "#4-7"
    assert [line[:26] for line in second.text.split("\n")] == [
        "The user asked:",
        "- (#4) “question 2: alpha ",
        "- (#6) “question 3: alpha ",
        "",
        "The assistant said:",
        "- (#5) “answer 2: alpha be",
        "- (#7) “answer 3: alpha be",
    ]


async def test_a_summary_that_comes_too_late_is_not_noted_beside_the_digest(tmp_path: Path) -> None:
    store = MemoryStore()
    async with opening(tmp_path, store, by=FailingModel("hanging")) as session:
        await talk(session, 23)
    async with opening(tmp_path, store, by=summaries()) as session:
        await talk(session, 3, start=23)

    spans = [section.messages for section in noted(tmp_path)]
    assert spans[0] == "#0-19"
    assert all(not span.startswith("#0-") for span in spans[1:])


@pytest.mark.parametrize("policy", ["default", "co-cli", "copilot", "inkeep"])
async def test_a_compaction_of_any_policy_is_noted_where_a_folder_is_given(tmp_path: Path, policy: str) -> None:
    async with opening(tmp_path, MemoryStore(), policy, by=summaries()) as session:
        await talk(session, 8)
        await session.record([user_message("so?")])
        await session.prepare(60_000)
        await session.compact()

    (section,) = noted(tmp_path)
    assert section.title == "Trimmed Context (14:03)"
    assert "Greek" in section.text


@pytest.mark.seed("D-23")
@pytest.mark.seed("D-24")
async def test_what_was_cleared_is_forgotten_and_only_memory_search_finds_it(tmp_path: Path) -> None:
    daily = DailyMemory(tmp_path)
    async with opening(tmp_path, MemoryStore(), "default") as session:
        await session.record([user_message("the keys are in the red box"), assistant_message("noted")])
        await session.clear()
        await session.record([user_message("where are the keys?")])
        request = await session.prepare(8_000)

    found = await daily.search("keys")
    assert "red box" not in str(request.messages)
    assert [section.title for section in found.sections] == ["Cleared Context (14:03)"]
    assert "the keys are in the red box" in found.sections[0].text


async def test_a_bare_session_writes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    async with Session.open("c1", policy="cowagent") as session:
        await talk(session, 23)
        await session.clear()

    assert list(tmp_path.rglob("*")) == []


async def test_what_a_crash_left_out_is_written_at_the_next_opening(tmp_path: Path) -> None:
    store, nowhere = MemoryStore(), tmp_path / "nowhere"
    nowhere.write_text("a file where the folder should be")
    async with opening(nowhere, store) as session:
        await talk(session, 23)
        await session.clear()

    for _ in range(2):
        async with opening(tmp_path / "memory", store) as session:
            pass

    assert [(section.title, section.messages) for section in noted(tmp_path / "memory")] == [
        ("Trimmed Context (14:03)", "#0-19"),
        ("Cleared Context (14:03)", "#20-45"),
    ]


class ForgetfulStore(MemoryStore):
    """Loses every fact, as a process does that is killed between a file and the store."""

    async def put_value(self, key: str, value: Any) -> None:
        del key, value


async def test_what_was_written_before_a_crash_is_not_written_again(tmp_path: Path) -> None:
    store = ForgetfulStore()
    for start in (0, 23):
        async with opening(tmp_path, store) as session:
            await talk(session, 23 - start, start=start)

    assert [section.messages for section in noted(tmp_path)] == ["#0-19", "#20-39"]


async def test_a_conversation_with_the_name_of_one_that_was_deleted_is_noted_from_its_beginning(tmp_path: Path) -> None:
    store, moments = MemoryStore(), iter(range(WHEN, WHEN + 1_000))
    for words in ("apples and pears", "rockets and engines"):
        how = CompactionOptions(memory=DailyMemory(tmp_path))
        async with Session.open("c1", store=store, compaction=how, clock=lambda: next(moments)) as session:
            await session.record([user_message(words), assistant_message("noted")])
            await session.clear()
        await store.delete("c1")

    assert ["apples" in section.text for section in noted(tmp_path)] == [True, False]
    assert ["rockets" in section.text for section in noted(tmp_path)] == [False, True]


async def test_a_note_that_a_person_has_deleted_does_not_come_back(tmp_path: Path) -> None:
    store = MemoryStore()
    async with opening(tmp_path, store, "default") as session:
        await session.record([user_message("forget this"), assistant_message("yes")])
        await session.clear()
    (tmp_path / f"{DAY}.md").write_text("")

    async with opening(tmp_path, store, "default") as session:
        await session.record([user_message("go on")])

    assert noted(tmp_path) == []


async def test_a_folder_that_cannot_be_written_is_told_once_and_hurts_nobody(tmp_path: Path) -> None:
    heard: list[str] = []
    (tmp_path / "memory").write_text("a file")
    async with opening(tmp_path / "memory", MemoryStore(), notice=heard.append) as session:
        await talk(session, 23)
        await session.clear()
        await session.record([user_message("still here?")])
        request = await session.prepare(8_000)

    assert len(request.messages) == 1
    (told,) = heard
    assert told.startswith("memory: ")
    assert "move it away" in told


async def test_a_day_that_cannot_be_written_holds_up_no_other_and_is_asked_for_once(tmp_path: Path) -> None:
    heard: list[str] = []
    days, writer = [WHEN], summaries()
    (tmp_path / f"{DAY}.md").write_bytes("caf\xe9\n".encode("latin-1"))
    how = CompactionOptions(memory=DailyMemory(tmp_path), automatic=writer, notice=heard.append)
    async with Session.open(
        "c1", store=MemoryStore(), model="gpt-5", compaction=how, clock=lambda: days[-1]
    ) as session:
        for _ in range(3):
            await talk(session, 2)
            await session.clear()
            await settled(session)
            days.append(days[-1] + 86_400_000)

    later = [parse_sections((tmp_path / f"2026-11-{day}.md").read_text(), DAY) for day in (16, 17)]
    assert (len(heard), len(writer.prompts)) == (1, 3)
    assert "save it in UTF-8" in heard[0]
    assert [[section.messages for section in sections] for sections in later] == [["#4-7"], ["#8-11"]]


async def test_what_was_cleared_is_noted_also_where_a_rewind_follows_before_the_note(tmp_path: Path) -> None:
    async with opening(tmp_path, MemoryStore(), "default") as session:
        await session.record(
            [user_message("the keys are in the red box"), assistant_message("yes"), user_message("forget the boat")]
        )
        await session.rewind(to=2)
        await session.clear()
        await session.rewind(to=0)

    (section,) = noted(tmp_path)
    assert section.title == "Cleared Context (14:03)"
    assert "the keys are in the red box" in section.text
    assert "boat" not in section.text


async def test_what_the_store_has_lost_is_left_out_of_a_note_and_the_rest_is_noted(tmp_path: Path) -> None:
    store, heard = MemoryStore(), list[str]()
    turns = [message for _ in range(40) for message in (user_message("go on"), assistant_message("yes"))]
    async with Session.open("c1", store=store, clock=lambda: WHEN) as session:
        await session.record(
            [*turns, user_message("the keys are in the red box"), assistant_message("so it is " * 10_000), *turns[:40]]
        )
        await session.compact()
    store._blobs.clear()

    async with opening(tmp_path, store, "default", notice=heard.append):
        pass

    (section,) = noted(tmp_path)
    assert (section.title, heard) == ("Trimmed Context (14:03)", [])
    assert "the keys are in the red box" in section.text


async def test_a_fork_does_not_note_again_what_left_its_parent(tmp_path: Path) -> None:
    store = MemoryStore()
    async with opening(tmp_path, store) as session:
        await talk(session, 23)
        fork = await session.fork("c2")
        await fork.close()
        async with session.open_sibling("c2") as fork:
            await fork.clear()

    notes = sorted((section.session, section.messages) for section in noted(tmp_path))
    assert notes == [("c1", "#0-19"), ("c2", "#20-39"), ("c2", "#40-45")]


async def settled(session: Session) -> None:
    """Wait for a summary that is being written, and for what is made of it."""
    await session._compactor.wait()
    if (task := session._compactor.observers._memory_task) is not None:
        await task


async def test_a_model_is_asked_about_four_cleared_messages_and_not_about_two(tmp_path: Path) -> None:
    asked: list[bool] = []
    for turns in (1, 2):
        folder = tmp_path / f"{turns}"
        async with opening(folder, MemoryStore(), by=summaries()) as session:
            await talk(session, turns)
            await session.clear()
            await settled(session)
        (section,) = noted(folder)
        asked.append(section.text == "The user counts in Greek letters [#0].")

    assert asked == [False, True]
