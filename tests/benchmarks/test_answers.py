"""The command that writes prompts for a real model can also have a model write the summaries, and counts its faults."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.memory.answers import jobs_of, print_counts, replay, rows_of
from holdfast.testing.endpoint import ReceivedRequest, ResponsePiece, ScriptedEndpoint, text_stream

SUMMARY = "Intent: they talk about birds [#0]. Gina saw a robin in Zanzibar, and Jon counted 4711 of them."
FILLER = " ".join(f"word{number}" for number in range(150))


def recorded_chat() -> dict[str, Any]:
    """Return a chat of two people that does not fit in 8,000 tokens, with one question about it."""
    texts = [f"Gina: on day {number} I saw a robin, Jon. {FILLER}" for number in range(60)]
    messages = [
        {"role": "user" if number % 2 == 0 else "assistant", "content": text, "x_id": f"D{number}"}
        for number, text in enumerate(texts)
    ]
    question = {"question": "What did Gina see?", "answer": "a robin", "category": 4, "evidence": ["D3"]}
    return {"id": "birds", "messages": messages, "probes": [question]}


async def write_chat(summarizer: str | None = None) -> Sequence[dict[str, Any]]:
    """Return the rows of the chat."""
    replays = await asyncio.gather(*map(replay, jobs_of(recorded_chat(), summarizer)))
    return rows_of(recorded_chat(), replays)


async def test_a_summarizer_writes_for_every_policy_and_what_it_invents_is_counted() -> None:
    def reply(_: ReceivedRequest) -> list[ResponsePiece]:
        return text_stream(SUMMARY)

    async with ScriptedEndpoint(reply) as server:
        context, question, *counts = await write_chat(f"{server.url}#m")

    by_arm = {count["arm"]: count for count in counts}
    arms = {"default", "preset co-cli", "preset inkeep", "preset copilot", "preset cowagent"}
    assert set(by_arm) == arms | {f"{arm}_summary" for arm in arms}
    assert {by_arm[arm]["written"] for arm in arms} == {0}
    default = by_arm["default_summary"]
    assert (default["invented"], default["rejected"], default["answers_in_view"]) == (["4711", "Zanzibar"], [], 1)
    assert default["facts"] == 3 * default["written"] > 0
    assert {arm for arm in context["ctx"] if SUMMARY.partition(". ")[0] in context["ctx"][arm]} == {
        f"{arm}_summary" for arm in arms
    }
    assert set(question["recalls"]) == set(by_arm)
    assert all("robin" in recalled for recalled in question["recalls"].values())


async def test_without_a_summarizer_nothing_is_asked_and_nothing_is_counted() -> None:
    context, *rows = await write_chat()

    assert [row["kind"] for row in rows] == ["q"]
    assert "default_summary" not in context["ctx"]


async def test_evidence_names_the_arms_that_show_all_that_the_answer_needs() -> None:
    context, question = await write_chat()

    [needed] = [message["content"] for message in recorded_chat()["messages"] if message["x_id"] == "D3"]
    by_policy = [*question["recalls"]]
    assert {"full", "oracle"} <= set(question["evidence"])
    assert [arm for arm in by_policy if f"{arm} alone" in question["evidence"]] == [
        arm for arm in by_policy if needed in context["ctx"][arm]
    ]
    assert [arm for arm in by_policy if arm in question["evidence"]] == [
        arm for arm in by_policy if needed in context["ctx"][arm] + question["recalls"][arm]
    ]
    assert "tail" not in question["evidence"]


def test_the_sums_of_all_chats_are_printed_with_the_reasons_of_rejections(capsys: pytest.CaptureFixture[str]) -> None:
    count = {
        "arm": "default_summary", "written": 2, "by_rule": 1, "rejected": ["cut off"], "put_back": 3, "names": 10,
        "names_in_view": 9, "facts": 1_200, "invented": ["4711"], "answers_in_view": 1, "questions": 4,
    }  # fmt: skip

    print_counts([count, count | {"rejected": ["cut off", "empty"]}])

    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["default_summary", "4", "2", "3", "6", "2,400", "2", "0.900", "0.250"],
        ["2", "×", "cut", "off"],
        ["1", "×", "empty"],
    ]
