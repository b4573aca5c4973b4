"""What a chat shows a reader stays within its budget, also if an answer of recall grows into what the view leaves."""

from pathlib import Path
from typing import Any

from benchmarks.memory.chats import measure_chat

BUDGET, ANSWER_TOKENS = 4_000, 1_000


def recorded_chat() -> dict[str, Any]:
    """Return a chat of about 9,000 tokens, with one question about a message near its beginning."""
    messages = [
        {
            "role": "user" if number % 2 else "assistant",
            "content": f"Stop {number} of the walk was quiet. " + f"We saw bird number {number} by the water. " * 6,
            "x_id": f"D{number}",
        }
        for number in range(120)
    ]
    messages[7]["content"] = "The ferry to Hydra leaves from gate E8 at dawn."
    probe = {"question": "From which gate does the ferry leave?", "answer": "E8", "category": 4, "evidence": ["D7"]}
    return {"id": "walk", "messages": messages, "probes": [probe]}


async def test_a_view_and_an_answer_that_grows_fill_one_budget_and_do_not_exceed_it(tmp_path: Path) -> None:
    figures = await measure_chat(recorded_chat(), tmp_path, BUDGET, ANSWER_TOKENS)

    assert {name: figures[name] for name in ("questions", "grown questions", "grown over")} == {
        "questions": (1.0, 1.0),
        "grown questions": (1.0, 1.0),
        "grown over": (0.0, 1.0),
    }
    tokens, of = figures["grown tokens"]
    assert of == BUDGET
    assert tokens > BUDGET - ANSWER_TOKENS
