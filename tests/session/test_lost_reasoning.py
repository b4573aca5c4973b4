"""OpenAI refuses an item by its id if the reasoning before it is not sent; without the id it takes the item."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast import Session, govern, validate
from holdfast.core.conversation.pairing import Repair
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.stores.memory import MemoryStore

NOTE = "left out an item id: the reasoning before the item is not sent"


def said(item_id: str, text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": item_id, "role": "assistant", "status": "completed", "content": content}


def reasoned(item_id: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": item_id, "summary": [], "encrypted_content": "g" * 60}


def turn(number: int) -> list[dict[str, Any]]:
    """Return a turn in which the model reasons before its calls, and again before its answer."""
    calls = [
        {"type": "function_call", "id": f"fc_{number}{one}", "call_id": f"c{number}{one}", "name": "read"}
        for one in "ab"
    ]
    return [
        {"role": "user", "content": f"question {number} " + "word " * 100},
        reasoned(f"rs_{number}"),
        said(f"msg_{number}", "let me look"),
        *({**call, "arguments": "{}"} for call in calls),
        *({"type": "function_call_output", "call_id": call["call_id"], "output": "r " * 200} for call in calls),
        reasoned(f"rs_{number}z"),
        said(f"msg_{number}z", "done " * 20),
    ]


ITEMS = [*(item for number in range(14) for item in turn(number)), {"role": "user", "content": "last"}]


def orphans(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of items that the model said after reasoning that is not among the items."""
    needed: dict[str, str] = {}
    reasoning = ""
    for item in ITEMS:
        if item.get("type") == "reasoning":
            reasoning = item["id"]
        elif item.get("type") in {"message", "function_call"}:
            needed[item["id"]] = reasoning
    sent = {item.get("id") for item in items}
    return [item["id"] for item in items if "id" in item and needed.get(item["id"], item["id"]) not in sent]


def test_an_item_whose_reasoning_was_dropped_is_sent_without_its_id_and_the_receipt_says_so() -> None:
    items = [*turn(0), *turn(1), {"role": "user", "content": "last"}]

    request = govern(items, budget=700, format="openai-responses", model="gpt-5", policy="cowagent")

    kept = [{key: value for key, value in items[at].items() if key != "id"} for at in (8, 17)]
    assert request.messages == [items[0], kept[0], items[9], kept[1], items[18]]
    assert request.receipt.repairs == (Repair(8, NOTE), Repair(17, NOTE))
    assert request.receipt.kept == (0, 9, 18)


@pytest.mark.parametrize("policy", ["default", "cowagent", "co-cli", "copilot", "inkeep"])
def test_no_list_that_was_shortened_asks_for_reasoning_that_it_lacks(policy: str) -> None:
    for pin in (None, 66, 75):
        for budget in (1_500, 2_500, 4_000):
            pins = [] if pin is None else [pin]
            request = govern(ITEMS, budget=budget, format="openai-responses", model="gpt-5", policy=policy, pins=pins)

            assert (orphans(request.messages), validate(request.messages, "openai-responses")) == ([], [])


@pytest.mark.parametrize(
    ("policy", "budget"),
    [("default", 2_500), ("cowagent", 2_500), ("co-cli", 2_500), ("copilot", 2_500), ("inkeep", 60_000)],
)
async def test_no_request_of_a_session_asks_for_reasoning_that_it_lacks_and_each_is_rebuilt(
    policy: str, budget: int
) -> None:
    store = MemoryStore()
    repairs = 0
    async with Session.open("s", store=store, model="gpt-5", policy=policy, format="openai-responses") as session:
        for item in ITEMS:
            await session.record([item])
            if item.get("role") == "user" or (item.get("call_id", "").endswith("b") and "output" in item):
                request = await session.prepare(budget)
                repairs += sum(one.description == NOTE for one in request.receipt.repairs)
                assert orphans(request.messages) == []
        events = await session.events()

    assert [one.is_same for one in rebuilt_requests(events)] == [True] * 29
    assert (repairs > 0) is (policy not in {"default", "co-cli"})  # these two cut between responses


async def test_an_answer_that_replaces_a_rewound_one_keeps_its_id() -> None:
    items = turn(0)
    async with Session.open("s", store="memory://", model="gpt-5", format="openai-responses") as session:
        await session.record(items[:3])
        await session.rewind(to=1)
        await session.record([said("msg_x", "no reasoning here"), {"role": "user", "content": "next"}])

        request = await session.prepare(10_000)

    assert request.messages == [items[0], said("msg_x", "no reasoning here"), {"role": "user", "content": "next"}]
