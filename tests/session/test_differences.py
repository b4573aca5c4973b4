"""Recall says what changed between two readings of a file."""

import json
from typing import Any

import pytest

from holdfast import Session
from holdfast.core.recall.diff import MAX_DIFF_LINE_CHARS, MAX_DIFF_LINES
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import MalformedInputError, UnknownReferenceError
from holdfast.recall import RecallQuery
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message

NOW = 1_700_000_000_000
TIME = "2023-11-14 22:13"
OLD = "def total(rows):\n    return sum(rows)\n\n\ndef mean(rows):\n    return total(rows) / len(rows)\n"
NEW = OLD.replace("return sum(rows)", "return sum(rows, start=0)")
CHANGED = ["@@ -1,5 +1,5 @@", " def total(rows):", "-    return sum(rows)", "+    return sum(rows, start=0)"]
DIFF = "\n".join(["--- #2", "+++ #6", *CHANGED, " ", " ", " def mean(rows):"])


async def opened(**settings: Any) -> Session:
    return await Session.open("d1", store=MemoryStore(), model="gpt-5", clock=lambda: NOW, **settings)


async def read(session: Session, number: str, text: str, path: str = "src/report/totals.py", **more: object) -> None:
    asked = tool_call_message(number, arguments={"path": path, **more})
    await session.record([asked, tool_result_message(number, text)])


async def edited() -> Session:
    """Return a session in which a file was read, written, read again, and another was read once."""
    session = await opened()
    await session.record([user_message("Mend the totals.")])
    await read(session, "a", OLD)
    wrote = {"path": "src/report/totals.py", "content": NEW}
    await session.record([tool_call_message("b", name="write_file", arguments=wrote), tool_result_message("b", "ok")])
    await read(session, "c", NEW)
    await read(session, "d", "x = 1\n", path="src/report/other.py")
    return session


@pytest.mark.parametrize(
    "asking",
    [
        RecallQuery(refs="#2, #6", diff=True),
        RecallQuery(refs="#6", diff=True),
        RecallQuery(refs="c", diff=True),
        RecallQuery(file="src/report/totals.py", diff=True),
        RecallQuery(file="totals.py", diff=True),
    ],
)
async def test_two_readings_of_a_file_are_compared(asking: RecallQuery) -> None:
    session = await edited()

    found = await session.recall(asking)

    assert found.diff is not None
    assert found.diff.text == DIFF
    assert (found.excerpts, found.next_query, found.notes) == ((), None, ())
    heading = f"[Recall: what changed in src/report/totals.py from #2 ({TIME}) to #6 ({TIME}), for reference only.]"
    assert str(found) == f"{heading}\n{DIFF}"


async def test_a_model_asks_for_it_with_its_tool() -> None:
    session = await edited()
    tool = session.recall_tool()

    whole = await tool.call({"ref": "#6", "diff": True})
    plain = await tool.call({"ref": "#6", "diff": "false"})

    assert whole.endswith(DIFF)
    assert plain.startswith("[Recall: 1, to the letter, for reference only.]")
    assert "diff" in json.dumps(tool.parameters)


async def test_readings_that_say_the_same_are_told_so() -> None:
    session = await opened()
    await read(session, "a", OLD)
    await read(session, "b", OLD)

    found = await session.recall(RecallQuery(refs="#3", diff=True))

    assert str(found) == f"[Recall: nothing changed in src/report/totals.py from #1 ({TIME}) to #3 ({TIME}).]"


async def test_numbers_of_lines_are_no_change() -> None:
    session = await opened()
    await read(session, "a", "     1\tone\n     2\ttwo\n")
    await read(session, "b", "     1\tzero\n     2\tone\n     3\ttwo\n")

    found = await session.recall(RecallQuery(refs="#1 #3", diff=True))

    assert found.diff is not None
    assert found.diff.text.splitlines()[2:] == ["@@ -1,2 +1,3 @@", "+zero", " one", " two"]


async def test_the_reading_before_is_one_of_the_same_lines_where_there_is_one() -> None:
    session = await opened()
    await read(session, "a", "one\n", start_line=1, end_line=1)
    await read(session, "b", "seven\n", start_line=7, end_line=7)
    await read(session, "c", "uno\n", start_line=1, end_line=1)
    await read(session, "d", "nine\n", start_line=9, end_line=9)

    same = await session.recall(RecallQuery(refs="#5", diff=True))
    other = await session.recall(RecallQuery(refs="#7", diff=True))

    assert (same.diff.before.ref if same.diff else "", same.notes) == ("#1", ())
    assert (other.diff.before.ref if other.diff else "") == "#5"
    assert other.notes == ("the two readings are of different lines of the file",)


@pytest.mark.parametrize("max_tokens", [100, 200, 1_000])
async def test_asking_for_more_gives_every_line_of_it_once_and_never_more_than_was_allowed(max_tokens: int) -> None:
    session = await opened()
    await read(session, "a", "".join(f"line {number} of the first reading\n" for number in range(120)))
    await read(session, "b", "".join(f"line {number} of the second reading\n" for number in range(120)))
    whole = await session.recall(RecallQuery(refs="#3", diff=True, max_tokens=20_000))
    assert whole.diff is not None

    lines, asking = list[str](), RecallQuery(refs="#3", diff=True, max_tokens=max_tokens)
    while asking is not None:
        found = await session.recall(asking)
        assert counter_for("gpt-5").count(str(found)) <= asking.max_tokens
        lines += found.diff.text.splitlines() if found.diff else []
        asking = found.next_query

    assert lines == whole.diff.text.splitlines()
    assert whole.diff.total_lines == len(lines)


async def test_any_two_messages_and_pieces_of_them_can_be_compared() -> None:
    session = await edited()
    await session.record(
        [assistant_message("first\nsecond\n"), assistant_message("first\nthird\n" + "x" * 2 * MAX_DIFF_LINE_CHARS)]
    )

    found = await session.recall(RecallQuery(refs="#9 #10:L1-L2", diff=True))
    long = await session.recall(RecallQuery(refs="#9 #10", diff=True))

    assert found.diff is not None
    assert found.diff.text == "--- #9\n+++ #10:L1-L2\n@@ -1,2 +1,2 @@\n first\n-second\n+third"
    assert str(found).startswith("[Recall: what changed from #9 ")
    assert f"… ({2 * MAX_DIFF_LINE_CHARS + 1:,} characters)" in str(long)


@pytest.mark.parametrize(
    ("asking", "problem"),
    [
        ({"refs": "#0"}, "#0 is no reading of a file; give two refs"),
        ({"refs": "#2"}, "src/report/totals.py was not read before #2"),
        ({"refs": "#8"}, "src/report/other.py was not read before #8"),
        ({"file": "src/report/other.py"}, "src/report/other.py was not read twice here"),
        ({"refs": "#1 #2 #3"}, "takes two refs such as #12, #40, or one, or a file"),
        ({"refs": "#1-#2"}, "takes two refs such as #12, #40, or one, or a file"),
        ({"query": "totals"}, "takes two refs such as #12, #40, or one, or a file"),
    ],
)
async def test_what_cannot_be_compared_is_refused_in_words(asking: dict[str, str], problem: str) -> None:
    session = await edited()

    with pytest.raises(MalformedInputError, match=problem):
        await session.recall(RecallQuery(diff=True, **asking))  # pyright: ignore[reportArgumentType]
    assert problem in await session.recall_tool().call({**asking, "diff": True})


async def test_what_is_not_there_or_too_long_is_refused() -> None:
    session = await opened()
    await read(session, "a", "x\n" * (MAX_DIFF_LINES + 1))
    await read(session, "b", "x\n")

    with pytest.raises(UnknownReferenceError):
        await session.recall(RecallQuery(refs="#3 #99", diff=True))
    with pytest.raises(MalformedInputError, match="#1 is too long to compare"):
        await session.recall(RecallQuery(refs="#1 #3", diff=True))


async def test_nothing_before_a_clear_is_compared() -> None:
    session = await edited()
    await session.clear()
    await read(session, "e", OLD)

    with pytest.raises(MalformedInputError, match="was not read before"):
        await session.recall(RecallQuery(refs="#10", diff=True))
    with pytest.raises(UnknownReferenceError):
        await session.recall(RecallQuery(refs="#2 #10", diff=True))


async def test_failed_readings_are_none() -> None:
    session = await opened()
    await read(session, "a", OLD)
    await read(session, "b", NEW)
    await session.record([tool_call_message("c", arguments={"path": "src/report/totals.py"})])
    await session.record([tool_result_message("c", "Error: no such file")])

    found = await session.recall(RecallQuery(file="totals.py", diff=True))

    assert found.diff is not None
    assert (found.diff.before.ref, found.diff.after.ref) == ("#1", "#3")
