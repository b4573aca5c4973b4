"""The command that writes prompts for a real model can also have a model write the summaries, and counts its faults."""

from pathlib import Path
from typing import Any

from benchmarks.memory.answers import write_chat
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
    assert set(by_arm) == {"default_summary", "preset co-cli", "preset inkeep", "preset copilot", "preset cowagent"}
    default = by_arm["default_summary"]
    assert (default["invented"], default["rejected"], default["answers_in_view"]) == (["4711", "Zanzibar"], [], 1)
    assert default["facts"] == 3 * default["written"] > 0
    assert SUMMARY.partition(". ")[0] in context["ctx"]["default_summary"]
    assert "robin" in question["recall_summary"]


async def test_without_a_summarizer_nothing_is_asked_and_nothing_is_counted(tmp_path: Path) -> None:
    context, *rows = await write_chat(recorded_chat(), tmp_path)

    assert [row["kind"] for row in rows] == ["q"]
    assert "default_summary" not in context["ctx"]
