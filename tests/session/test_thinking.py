"""Sessions with models that bind their thinking to the request it was said in."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.torture import thinking
from holdfast import Request, Session, validate
from holdfast.core.history import events as log
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.stores.base import Store
from holdfast.wire.thinking import prefix_hash

FORMAT, MODEL, SYSTEM = "anthropic-messages", "claude-sonnet-5-5", "Be brief."
TOOLS = [{"name": "run", "input_schema": {"type": "object"}}]
EXTRAS: dict[str, Any] = {"system": SYSTEM, "tools": TOOLS}


def prompt(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def answer(name: str, *, calls: bool = False) -> dict[str, Any]:
    content: list[dict[str, object]] = [{"type": "thinking", "thinking": "hm", "signature": name}]
    if calls:
        return {
            "role": "assistant",
            "content": [*content, {"type": "tool_use", "id": name, "name": "run", "input": {}}],
        }
    return {"role": "assistant", "content": [*content, {"type": "text", "text": "Yes."}]}


def result(name: str, words: int = 200) -> dict[str, object]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": "word " * words}]}


def signatures(request: Request) -> list[str]:
    blocks = [block for message in request.messages for block in message["content"] if isinstance(block, Mapping)]
    return [block["signature"] for block in blocks if block["type"] == "thinking"]


async def say(session: Session, name: str, budget: int = 100_000) -> Request:
    """Ask, answer, and return the request that was answered."""
    await session.record([prompt(f"question {name} " + "word " * 60)], format=FORMAT)
    request = await session.prepare(budget, **EXTRAS)
    await session.record([answer(name)], format=FORMAT)
    return request


async def test_thinking_of_the_tail_goes_after_a_compaction_and_new_thinking_stays(store: Store) -> None:
    async with Session.open("s", store=store, model=MODEL) as session:
        for number in range(12):
            await say(session, f"old{number}")
        done = await session.compact(budget=1_500)
        first = await say(session, "new0")
        second = await say(session, "new1")
        known = await session.thinking_prefixes()

    tail = tuple(range(done.span.stop, 24))
    assert done.success
    assert signatures(first) == []
    assert first.receipt.without_thinking == tuple(position for position in tail if position % 2)
    assert signatures(second) == ["new0"]
    assert second.receipt.without_thinking == first.receipt.without_thinking
    assert known["new0"] == {prefix_hash(first.messages, **EXTRAS)}
    assert validate(second.messages, FORMAT, **EXTRAS, thinking_prefixes=known) == []


async def test_the_log_says_in_which_request_each_answer_was_given(store: Store) -> None:
    async with Session.open("s", store=store, model=MODEL) as session:
        request = await say(session, "one")
        events = await session.events()

    (prepared,) = [event for event in events if isinstance(event, log.RequestPrepared)]
    said = [event.prefix_hash for event in events if isinstance(event, log.MessageAppended)]
    assert prepared.prefix_hash == prefix_hash(request.messages, **EXTRAS)
    assert said == [None, prepared.prefix_hash]


async def test_a_session_that_is_opened_again_keeps_the_thinking_that_still_follows_its_request(store: Store) -> None:
    async with Session.open("s", store=store, model=MODEL) as session:
        await say(session, "one")
        await say(session, "two")
    async with Session.open("s", store=store, model=MODEL) as session:
        request = await say(session, "three")

    assert signatures(request) == ["one", "two"]
    assert request.receipt.without_thinking == ()


async def test_undoing_a_compaction_brings_its_thinking_back_and_removes_what_was_said_since(store: Store) -> None:
    async with Session.open("s", store=store, model=MODEL) as session:
        for number in range(6):
            await say(session, f"old{number}")
        await session.compact(budget=800)
        await say(session, "new")
        await session.undo()
        request = await say(session, "last")

    assert signatures(request) == [f"old{number}" for number in range(6)]
    assert request.receipt.without_thinking == (13,)


async def test_another_system_text_or_other_tools_remove_all_thinking(store: Store) -> None:
    async with Session.open("s", store=store, model=MODEL) as session:
        await say(session, "one")
        await session.record([prompt("and?")], format=FORMAT)
        other_system = await session.prepare(system="Be long.", tools=TOOLS)
        other_tools = await session.prepare(system=SYSTEM, tools=[{"name": "look", "input_schema": {}}])
        same = await session.prepare(**EXTRAS)

    assert [signatures(one) for one in (other_system, other_tools, same)] == [[], [], ["one"]]


async def test_thinking_recorded_before_any_request_counts_as_said_after_the_recorded_messages(store: Store) -> None:
    messages = [prompt("one"), answer("a", calls=True), result("a"), answer("b"), prompt("two")]
    async with Session.open("s", store=store, model=MODEL) as session:
        await session.sync(messages, format=FORMAT)
        whole = await session.prepare(**EXTRAS)
        other = await session.prepare(system="Be long.", tools=TOOLS)

    assert (whole.messages, signatures(other)) == (messages, [])


async def test_requests_without_thinking_are_rebuilt_from_ranges_of_the_log(store: Store) -> None:
    async with Session.open("s", store=store, model=MODEL) as session:
        for number in range(12):
            await say(session, f"old{number}")
        await session.compact(budget=1_500)
        request = await say(session, "new")
        events = await session.events()

    rebuilt = list(rebuilt_requests(events))
    last = [event for event in events if isinstance(event, log.RequestPrepared)][-1]
    assert [one.is_same for one in rebuilt] == [True] * 13
    assert rebuilt[-1].messages == request.messages
    assert all("message" not in piece for piece in last.view)


async def test_a_compaction_waits_until_the_running_tool_round_ends(store: Store) -> None:
    async with Session.open("s", store=store, model=MODEL) as session:
        await session.record([prompt("go")], format=FORMAT)
        number = 0
        while not (sent := await session.prepare(6_000, **EXTRAS)).receipt.reasons:
            await session.record([answer(f"s{number}", calls=True), result(f"s{number}")], format=FORMAT)
            number += 1
        await session.record([answer("end"), prompt("thanks, and now?")], format=FORMAT)
        after = await session.prepare(6_000, **EXTRAS)

    assert sent.receipt.reasons[-1] == (
        "a compaction waits until the running tool round ends, because the round's thinking would be lost"
    )
    assert sent.receipt.is_unchanged
    assert signatures(sent) == [f"s{one}" for one in range(number)]
    assert len(after.messages) < len(sent.messages)
    assert not any("waits" in reason for reason in after.receipt.reasons)


async def test_a_tool_round_that_exceeds_the_budget_is_compacted_without_cutting_call_from_result(store: Store) -> None:
    async with Session.open("s", store=store, model=MODEL) as session:
        await session.record([prompt("go")], format=FORMAT)
        for number in range(60):
            await session.record([answer(f"s{number}", calls=True), result(f"s{number}")], format=FORMAT)
        request = await session.prepare(6_000, **EXTRAS)

    assert request.messages[-1] == result("s59")
    assert request.messages[-2]["content"] == answer("s59", calls=True)["content"][1:]
    assert signatures(request) == []
    assert validate(request.messages, FORMAT, **EXTRAS) == []


async def test_another_model_keeps_its_thinking_and_its_requests_record_no_prefix(store: Store) -> None:
    async with Session.open("s", store=store, model="claude-opus-4-6") as session:
        for number in range(12):
            await say(session, f"old{number}")
        done = await session.compact(budget=1_500)
        request = await say(session, "new")
        events = await session.events()

    assert signatures(request) == [f"old{position // 2}" for position in range(done.span.stop, 24) if position % 2]
    assert {event.prefix_hash for event in events if isinstance(event, log.RequestPrepared)} == {None}


@given(st.one_of(*thinking.STRATEGIES))
def test_no_request_of_a_session_has_thinking_after_a_changed_prefix(case: dict[str, Any]) -> None:
    thinking.check(case)
