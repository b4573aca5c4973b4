"""The tool `memory_search`: excerpts within an allowance, and words for whatever a model does wrong."""

import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.memory.evictions import Eviction
from holdfast.counters.vocabularies import counter_for
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.memory.search_tool import MEMORY_FRAME, MemorySearchTool, memory_excerpt

WHEN = int(datetime(2026, 11, 15, 14, 3).timestamp() * 1000)  # noqa: DTZ001 - the day of whoever sits there


async def remembered(folder: Path, *texts: str) -> MemorySearchTool:
    daily = DailyMemory(folder)
    for place, text in enumerate(texts):
        await daily.add("s1", Eviction(log_index=place, time_ms=WHEN, cause="cleared", ranges=(range(4),)), text)
    return MemorySearchTool(daily)


async def test_an_answer_is_framed_as_reference_and_names_its_source(tmp_path: Path) -> None:
    tool = await remembered(tmp_path, "the keys are in the red box")

    answer = await tool.call({"query": "keys"})

    source = "[2026-11-15 · Cleared Context (14:03) · conversation s1, messages #0-3]"
    assert answer == f"{MEMORY_FRAME}\n\n{source}\nthe keys are in the red box"


async def test_answers_keep_to_their_allowance_and_say_how_to_ask_for_more(tmp_path: Path) -> None:
    texts = [
        f"{number} keys\n" + "\n".join(f"{number} words about boats {line}" for line in range(90))
        for number in range(9)
    ]
    tool = await remembered(tmp_path, *texts)

    first = await tool.call({"query": "keys", "max_tokens": 400})
    seen, asked = {0}, 0
    while "ask again with skip=" in (
        answer := await tool.call({"query": "keys", "skip": max(seen), "max_tokens": 400})
    ):
        seen.add(int(answer.rpartition("skip=")[2].rstrip("]")))
        asked += 1

    assert counter_for(None).count(first) <= 440
    assert "8 keys" in first
    assert "boats" in first
    assert (max(seen) >= 8, asked < 9) == (True, True)


def paragraph(number: int) -> str:
    facts = " ".join(f"fact {number}-{fact} holds." for fact in range(90))
    return f"{facts} Talk {number}: the zebra report moved to PostgreSQL. {facts}"


@pytest.mark.parametrize("tokens", [100, 200, 500, 1_000, 3_000])
async def test_of_a_paragraph_that_does_not_fit_the_piece_with_the_words_is_shown(tmp_path: Path, tokens: int) -> None:
    tool = await remembered(tmp_path, *map(paragraph, range(3)))

    answer = await tool.call({"query": "zebra report", "max_tokens": tokens})

    excerpts = [part.split("\n", 1)[1] for part in answer.split("\n\n") if "Cleared Context" in part]
    skipped = re.findall(r"(\d+) more: ask again with skip=(\d+)", answer)
    assert excerpts
    assert all("zebra report" in text for text in excerpts)
    assert skipped == ([(str(3 - len(excerpts)), str(len(excerpts)))] if len(excerpts) < 3 else [])
    assert counter_for(None).count(answer) <= tokens


async def test_a_day_of_long_paragraphs_is_read_from_its_beginning(tmp_path: Path) -> None:
    tool = await remembered(tmp_path, *map(paragraph, range(3)))

    answer = await tool.call({"day": "2026-11-15", "max_tokens": 200})

    assert "fact 0-0 holds. fact 0-1 holds." in answer
    assert answer.endswith("…")
    assert counter_for(None).count(answer) <= 200


async def test_a_file_that_cannot_be_read_is_told_and_silences_no_others(tmp_path: Path) -> None:
    tool = await remembered(tmp_path, "the keys are in the red box")
    (tmp_path / "2020-01-01.md").symlink_to(tmp_path / "nothing")
    (tmp_path / "2020-01-02.md").mkdir()
    os.mkfifo(tmp_path / "2020-01-03.md")

    found = await tool.call({"query": "keys"})
    nothing = await tool.call({"query": "zebra"})

    told = f"[3 of the files could not be read: {tmp_path}/2020-01-01.md: No such file or directory; check the path]"
    assert "the keys are in the red box" in found
    assert found.endswith(f"\n\n{told}")
    assert nothing.endswith(f"\n\n{told}")


async def test_a_day_can_be_read_and_a_day_without_notes_says_which_have_some(tmp_path: Path) -> None:
    tool = await remembered(tmp_path, "the keys are in the red box")

    assert "the keys are in the red box" in await tool.call({"day": "2026-11-15"})
    assert await tool.call({"day": "2020-01-01"}) == (
        "Nothing was noted on 2020-01-01. Days with notes, the newest first: 2026-11-15."
    )


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ({}, "Give `query`, the words to look for, or `day`, as YYYY-MM-DD."),
        ('{"query": "keys"}', 'The arguments must be an object, not \'{"query": "keys"}\'.'),
        ([], "The arguments must be an object, not []."),
        ({"query": 7}, "Give `query`, the words to look for, or `day`, as YYYY-MM-DD."),
        ({"query": "zebra"}, "Nothing was found. Try other words, fewer of them, or without quotation marks."),
        ({"query": "(a+)+$" * 2_000}, "Nothing was found. Try other words, fewer of them, or without quotation marks."),
        (
            {"day": "../../etc/passwd"},
            "Memory could not be read: day: '../../etc/passwd' is no day; write it as YYYY-MM-DD",
        ),
    ],
)
async def test_what_is_asked_wrongly_is_answered_in_words(tmp_path: Path, arguments: Any, answer: str) -> None:
    tool = await remembered(tmp_path, "the keys are in the red box")

    assert await tool.call(arguments) == answer


async def test_a_number_may_be_written_as_text(tmp_path: Path) -> None:
    tool = await remembered(tmp_path, *(f"{number} keys\n" + "about boats\n" * 300 for number in range(4)))
    second = await tool.call({"query": "keys", "skip": 1, "max_tokens": 200})

    assert second != await tool.call({"query": "keys", "skip": 0, "max_tokens": 200})
    for skip, tokens in (("1", "200"), (" 1 ", 200.0), (1.0, "200.0")):
        assert await tool.call({"query": "keys", "skip": skip, "max_tokens": tokens}) == second


async def test_numbers_that_are_none_count_as_not_given(tmp_path: Path) -> None:
    tool = await remembered(tmp_path, "the keys are in the red box")

    assert await tool.call({"query": "keys", "skip": "x", "max_tokens": -5}) == await tool.call({"query": "keys"})


def test_an_excerpt_keeps_the_lines_with_the_words_and_shows_its_gaps() -> None:
    text = "\n".join(["first line of it", *["something else entirely"] * 40, "the keys are red", "last line"])

    short = memory_excerpt(text, "keys", 40, counter_for(None))

    assert "the keys are red" in short
    assert short.endswith("…")
    assert counter_for(None).count(short) <= 40
