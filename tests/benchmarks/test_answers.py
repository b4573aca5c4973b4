"""The command that writes prompts for a real model can also have a model write the summaries, and counts its faults."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.memory.answers import print_counts, write_chat
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


async def test_a_summarizer_writes_for_every_policy_and_what_it_invents_is_counted(tmp_path: Path) -> None:
    def reply(_: ReceivedRequest) -> list[ResponsePiece]:
        return text_stream(SUMMARY)

    async with ScriptedEndpoint(reply) as server:
        context, question, *counts = await write_chat(recorded_chat(), tmp_path, summarizer=f"{server.url}#m")

    by_arm = {count["arm"]: count for count in counts}
    arms = {"default", "preset co-cli", "preset inkeep", "preset copilot", "preset cowagent"}
    assert set(by_arm) == arms | {f"{arm}_summary" for arm in arms}
    assert {by_arm[arm]["written"] for arm in arms} == {0}
    default = by_arm["default_summary"]
    assert (default["invented"], default["rejected"], default["answers_in_view"]) == (["4711", "Zanzibar"], [], 1)
    assert default["facts"] == 3 * default["written"] > 0
    assert SUMMARY.partition(". ")[0] in context["ctx"]["view_summary"]
    assert SUMMARY.partition(". ")[0] not in context["ctx"]["view"]
    assert "robin" in question["recall_summary"]


async def test_without_a_summarizer_nothing_is_asked_and_nothing_is_counted(tmp_path: Path) -> None:
    context, *rows = await write_chat(recorded_chat(), tmp_path)

    assert [row["kind"] for row in rows] == ["q"]
    assert "view_summary" not in context["ctx"]


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
