"""A draft lists the facts that its compaction would remove from view, each with the message it came from."""

from typing import Any

from holdfast import Session
from holdfast.core.history import events as log
from holdfast.recall import RecallQuery
from holdfast.session.compaction.compactor import CompactionOptions, SummaryDraft
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import ScriptedModel

PART = "src/components/step_{:02}/a_generated_part_of_the_whole_with_a_name_that_is_long_enough_to_be_left_out.py"
BRIEF = f"The assistant wrote {PART.format(0)}. [#1-2]"


async def worked(**settings: Any) -> Session:
    """Return a session in which more was done than a small summary can hold."""
    session = await Session.open("l1", store=MemoryStore(), model="gpt-5", **settings)
    await session.record([user_message("Write the parts. Never touch src/lexer.py.")])
    for number in range(30):
        await session.record(_wrote(number))
        if number == 20:  # early enough to be compacted
            ran = tool_call_message("t", name="run", arguments={"cmd": "pytest"})
            await session.record([ran, tool_result_message("t", "E  HalfError: x")])
    await session.record([user_message("So?"), assistant_message("All are written.")])
    return session


def _wrote(number: int) -> list[JsonMessage]:
    arguments = {"path": PART.format(number), "content": "x = 1\n" * 40}
    return [
        tool_call_message(f"w{number}", name="write_file", arguments=arguments),
        tool_result_message(f"w{number}", "ok"),
    ]


def written(*numbers: int) -> tuple[str, ...]:
    return tuple(f"Written: {PART.format(number)} [#{2 * number + 2}]" for number in numbers)


async def test_a_draft_lists_what_was_put_back_and_what_is_one_recall_away() -> None:
    session = await worked(summarizer=ScriptedModel([BRIEF]))

    draft = await session.preview(draft=True, budget=1_000)

    assert draft.summary.put_back[0] == "Went wrong, unresolved: pytest: E HalfError: x [#44]"
    assert all(
        line.split(" [#")[0].removeprefix("Written: ") in draft.replacement[0] for line in draft.summary.put_back[1:]
    )
    assert draft.summary.left_out == written(*range(len(draft.summary.left_out), 0, -1))
    assert not any(PART.format(number) in draft.replacement[0] for number in range(1, len(draft.summary.left_out) + 1))
    assert PART.format(1) in str(await session.recall(RecallQuery(refs="#3-#4")))
    assert draft.summary.score is not None
    assert draft.summary.score < 1


async def test_a_preview_by_rule_lists_what_would_not_be_in_view_any_more() -> None:
    session = await worked()

    would = await session.preview(budget=2_000)

    assert would.summary.put_back == ()
    assert would.summary.left_out[-2:] == written(1, 0)
    assert not any(line.startswith("The user asked") for line in would.summary.left_out), "a rule of the user's stays"
    assert (await session.preview(budget=100_000)).summary.left_out == ()


async def test_whoever_approves_a_summary_is_told_what_it_leaves_out_and_the_receipt_counts_it() -> None:
    drafts: list[SummaryDraft] = []

    async def agree(draft: SummaryDraft) -> bool:
        drafts.append(draft)
        return True

    session = await worked(compaction=CompactionOptions(automatic=ScriptedModel([BRIEF]), approve=agree))

    compaction = await session.compact(budget=1_000)

    (receipt,) = await session.receipts()
    assert (drafts[0].summary.put_back, drafts[0].summary.left_out) == (
        compaction.summary.put_back,
        compaction.summary.left_out,
    )
    assert (receipt.summary.put_back, receipt.summary.left_out) == (
        compaction.summary.put_back,
        compaction.summary.left_out,
    )
    assert f", {len(compaction.summary.put_back)} restored, {len(compaction.summary.left_out)} left to recall" in str(
        receipt
    )
    (noted,) = [event for event in await session.events() if isinstance(event, log.SummaryWritten)]
    assert (noted.summary.put_back, noted.summary.left_out) == (
        compaction.summary.put_back,
        compaction.summary.left_out,
    )


async def test_nobody_says_what_a_summary_leaves_out_that_was_edited_or_brought_back_from() -> None:
    async def edit(_: SummaryDraft) -> str:
        return "Written by hand."

    session = await worked(compaction=CompactionOptions(automatic=ScriptedModel([BRIEF]), approve=edit))

    edited = await session.compact(budget=2_000)
    await session.restore_messages([1, 2])

    assert (edited.summary.score, edited.summary.put_back, edited.summary.left_out) == (None, (), ())
    assert [(one.summary.put_back, one.summary.left_out) for one in await session.receipts()] == [((), ())] * 2


async def test_what_looks_like_a_key_is_not_listed() -> None:
    session = await Session.open("l2", store=MemoryStore(), model="gpt-5")
    await session.record([user_message("Look."), tool_call_message("a", name="run", arguments={"cmd": "deploy"})])
    await session.record([tool_result_message("a", "Error: the key sk-abcdefghijklmnop was refused")])
    for number in range(40):
        await session.record(_wrote(number))
    await session.record([user_message("So?"), assistant_message("Done.")])

    would = await session.preview(budget=1_000)

    assert would.summary.left_out
    assert "abcdefghijklmnop" not in "\n".join(would.summary.left_out)
