"""A session keeps the cache marks that its client set, and sends no more of them than a provider takes."""

from typing import Any

from holdfast import Session, validate
from holdfast.session.maintenance.verify import rebuilt_requests

MARK = {"type": "ephemeral"}
SYSTEM = [{"type": "text", "text": "Hi.", "cache_control": MARK}]


def marked(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text, "cache_control": MARK}]}


def marks_of(messages: Any) -> list[str]:
    return [block["text"] for message in messages for block in message["content"] if "cache_control" in block]


async def test_a_client_that_marks_each_newest_message_is_not_refused_after_the_fourth_turn() -> None:
    async with Session.open("c", model="claude-sonnet-4-5") as session:
        for number in range(6):
            answered = [marked("assistant", f"answer {number}")] if number else []
            await session.record([*answered, marked("user", f"question {number}")], format="anthropic-messages")
            await session.prepare(16_000, system=SYSTEM)
        request = await session.prepare(16_000, system=SYSTEM)
        proofs = list(rebuilt_requests(await session.events()))

    assert validate(request.messages, "anthropic-messages", system=request.system) == []
    assert marks_of(request.messages) == ["question 4", "answer 5", "question 5"]
    assert [proof.is_same for proof in proofs] == [True] * 7
    assert proofs[-1].messages == request.messages
