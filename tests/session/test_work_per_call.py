"""The work of a call does not grow with the history: counted in operations, so that no clock decides.

What is counted: texts given to the tokenizer, messages encoded and hashed, messages projected, messages repaired, and
records read from the store.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast import Session
from holdfast.apps.mcp import ConversationReader
from holdfast.apps.viewer.export import export_page
from holdfast.apps.viewer.pages import Pages
from holdfast.apps.viewer.session_index import SessionIndexes
from holdfast.core.conversation import repair
from holdfast.core.history.projection import Projection
from holdfast.core.planning import receipt
from holdfast.core.recall.artifacts import large_results
from holdfast.counters.models import find_model
from holdfast.counters.vocabularies import VocabularyCounter, counter_for
from holdfast.errors import MalformedInputError
from holdfast.session import request
from holdfast.session.maintenance.scrub import scrub
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from tests.support import lines_of_the_package

BUDGET = 400_000
MOST_CALLS_OF_A_STEP = 12_000
"""Some milliseconds of work; one for each of 3,000 messages makes more."""


@contextmanager
def counted_operations() -> Generator[Counter[str]]:
    """Count what the package does to messages while the block runs."""
    done: Counter[str] = Counter()

    def count(target: object, name: str, what: str, *, size: bool = False) -> None:
        original: Any = getattr(target, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            done[what] += len(args[0]) if size else 1
            return original(*args, **kwargs)

        patch.setattr(target, name, counting)

    with pytest.MonkeyPatch.context() as patch:
        count(VocabularyCounter, "count", "texts tokenized")
        count(request, "message_hash", "messages hashed")
        count(Projection, "_append", "messages projected")
        count(receipt, "message_tokens", "system messages counted")
        count(repair, "is_valid_history", "messages checked", size=True)
        original_read = MemoryStore.read

        async def read(self: MemoryStore, *args: Any, **kwargs: Any) -> Any:
            records = await original_read(self, *args, **kwargs)
            done["records read"] += len(records)
            return records

        patch.setattr(MemoryStore, "read", read)
        yield done


def exchange(number: int, *, is_answered: bool = True) -> list[JsonMessage]:
    """Return a turn with a tool call; an unanswered call makes the history unsound."""
    call = tool_call_message(f"call_{number}")
    results = [tool_result_message(f"call_{number}", f"output {number}")] if is_answered else []
    return [user_message(f"question {number}"), call, *results, assistant_message(f"answer {number}")]


async def operations_at(length: int, *, is_sound: bool) -> tuple[Counter[str], Counter[str]]:
    """Return what `record` and `prepare` do for one more turn after that many turns."""
    async with Session.open("one", store=MemoryStore(), model="gpt-5") as session:
        await session.record([{"role": "system", "content": "be brief"}])
        for number in range(length):
            await session.record(exchange(number, is_answered=is_sound or number % 5 != 1))
        await session.record([user_message("go on")])
        await session.prepare(BUDGET)
        with counted_operations() as recording:
            await session.record([*exchange(length)[1:], user_message("more")])
        with counted_operations() as preparing:
            await session.prepare(BUDGET)
    return recording, preparing


@pytest.mark.parametrize("is_sound", [True, False], ids=["sound", "with unanswered calls"])
async def test_one_more_turn_takes_the_same_work_after_ten_turns_and_after_two_hundred(is_sound: bool) -> None:  # noqa: FBT001
    short, long = await operations_at(10, is_sound=is_sound), await operations_at(200, is_sound=is_sound)

    assert long == short
    recording, preparing = long
    assert recording["texts tokenized"] > 0
    assert preparing["texts tokenized"] == 0
    assert preparing["messages projected"] == preparing["messages hashed"] == 4
    assert preparing["records read"] == 0
    assert preparing["system messages counted"] == (0 if is_sound else 1)


async def test_a_history_that_was_repaired_is_not_repaired_again() -> None:
    async with Session.open("one", store=MemoryStore(), model="gpt-5") as session:
        for number in range(50):
            await session.record(exchange(number, is_answered=False))
        await session.record([user_message("go on")])
        first = await session.prepare(BUDGET)
        with counted_operations() as done:
            again = await session.prepare(BUDGET)

    assert len(first.receipt.repairs) == 50
    assert again.messages == first.messages
    assert done["messages hashed"] <= 1  # the made-up result of the newest exchange
    assert done["messages checked"] <= 4


@contextmanager
def calls_on_this_thread() -> Generator[Counter[str]]:
    """Count how often the functions of the package are called on this thread."""
    done: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            done[frame.f_code.co_qualname] += 1

    sys.setprofile(note)  # of this thread only
    try:
        yield done
    finally:
        sys.setprofile(None)


async def test_the_event_loop_does_little_for_each_of_many_messages_at_once() -> None:
    talk = [user_message(f"line {number}") if number % 2 else assistant_message("so") for number in range(3_000)]
    find_model("gpt-5")  # the first time, the table of models is read
    async with Session.open("many", store=MemoryStore(), model="gpt-5") as session:
        with calls_on_this_thread() as done:
            await session.record([*talk, user_message("go on")])
            await session.prepare(BUDGET)

    # What the store of a real session does in its own thread, this one does between other tasks.
    encoding = {"encode_json", "_encode_alike", "cast", "JSONEncoder.encode", "JSONEncoder.iterencode"}
    often = {name: count for name, count in done.items() if count > 500 and name not in encoding}
    assert often == {}


@contextmanager
def calls_of_each_step() -> Generator[list[int]]:
    """Count the calls of Python functions in each step of the event loop."""
    steps: list[int] = []
    run_step = asyncio.Handle._run  # every step of the loop is one call of it

    with pytest.MonkeyPatch.context() as patch, calls_on_this_thread() as done:

        def counting(handle: asyncio.Handle) -> None:
            before = done.total()
            run_step(handle)
            steps.append(done.total() - before)

        patch.setattr(asyncio.Handle, "_run", counting)
        yield steps


async def reopen(session: Session) -> None:
    await session.close()
    async with Session.open(session.id, store=session.store, model="gpt-5") as again:
        await again.prepare(BUDGET)


async def export(session: Session) -> None:
    page = await export_page(Pages(SessionIndexes(session.store)), session.id, now_ms=0)
    assert "worker 999 failed" in page


async def show(session: Session, **arguments: object) -> None:
    text, is_error = await ConversationReader(session.store).call("show", {"conversation": session.id, **arguments})
    assert ("question 0" in text, is_error) == (True, False)


LONG_TALK = [
    message
    for number in range(1_000)
    for message in (
        user_message(f"question {number}"),
        tool_call_message(f"call_{number}"),
        tool_result_message(f"call_{number}", f"worker {number} failed with error 404"),
    )
]
OPERATIONS: dict[str, Callable[[Session], Awaitable[object]]] = {
    "clear": lambda session: session.clear(),
    "compact": lambda session: session.compact(),
    "delegations": lambda session: session.delegations(),
    "fork": lambda session: session.fork("other"),
    "list the artifacts": lambda session: session.artifacts(),
    "export as a page": export,
    "list the messages": lambda session: session.messages(),
    "list the visible messages": lambda session: session.visible_messages(),
    "open": reopen,
    "preview": lambda session: session.preview(),
    "recall": lambda session: session.recall("which worker failed?"),
    "receipts": lambda session: session.receipts(),
    "rewind": lambda session: session.rewind(to=1_500),
    "show a request over MCP": lambda session: show(session, at=1),
    "show the context over MCP": show,
    "scrub": lambda session: scrub(session.store, session.id, "failed with", time_ms=session.clock()),
    "switch the model": lambda session: session.switch_model("claude-opus-4-5"),
    "sync": lambda session: session.sync([*LONG_TALK[:1_500], *LONG_TALK]),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
async def test_no_step_of_the_event_loop_goes_through_a_long_history(
    operation: Callable[[Session], Awaitable[object]], tmp_path: Path
) -> None:
    async with Session.open("long", store=f"sqlite:///{tmp_path / 'log.db'}", model="gpt-5") as session:
        await session.record(LONG_TALK)
        await session.prepare(BUDGET)
        with calls_of_each_step() as steps:
            await operation(session)

    assert max(steps) < MOST_CALLS_OF_A_STEP


async def test_one_very_long_message_is_encoded_and_indexed_in_threads() -> None:
    async with Session.open("long", store=MemoryStore(), model="gpt-5") as session:
        with calls_on_this_thread() as done:
            await session.record([user_message("".join(f"{number:x} " for number in range(60_000)))])

    assert done["VocabularyCounter.count"] == done["index_text_of"] == done["_blob_content"] == 0


LONG_MESSAGES: dict[str, dict[str, Any]] = {
    "parts": {"role": "user", "content": [{"type": "text", "text": f"part {number}"} for number in range(4_000)]},
    "calls": {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": f"call_{number}", "name": "look", "input": {"at": number}}
            for number in range(4_000)
        ],
    },
    "arguments": {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": "one", "name": "save", "input": {"rows": [{"at": n} for n in range(4_000)]}}
        ],
    },
}
LONG_MESSAGE_OPERATIONS: dict[str, Callable[[Session, JsonMessage], Awaitable[object]]] = {
    "export as a page": lambda session, _: export_page(Pages(SessionIndexes(session.store)), session.id, now_ms=0),
    "show in the viewer": lambda session, _: Pages(SessionIndexes(session.store)).message(session.id, 1),
    "open": lambda session, _: reopen(session),
    "prepare": lambda session, _: session.prepare(BUDGET),
    "record": lambda session, message: session.record([message]),
    "sync": lambda session, message: session.sync([user_message("go on"), message, user_message("more")]),
    "fork": lambda session, _: session.fork("other"),
    "messages": lambda session, _: session.messages(),
}


@pytest.mark.parametrize("operation", LONG_MESSAGE_OPERATIONS.values(), ids=LONG_MESSAGE_OPERATIONS)
@pytest.mark.parametrize("message", LONG_MESSAGES.values(), ids=LONG_MESSAGES)
async def test_no_step_of_the_event_loop_goes_through_a_long_message(
    message: dict[str, Any], operation: Callable[[Session, JsonMessage], Awaitable[object]], tmp_path: Path
) -> None:
    ids = [part["id"] for part in message["content"] if part["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call_id, "content": "so"} for call_id in ids]
    store = f"sqlite:///{tmp_path / 'log.db'}"
    async with Session.open("long", store=store, model="claude-opus-4-5", format="anthropic") as session:
        await session.record([user_message("go on"), message])
        if results:
            await session.record([{"role": "user", "content": results}])
        with calls_of_each_step() as steps:
            await operation(session, message)

    assert max(steps) < MOST_CALLS_OF_A_STEP


async def test_listing_artifacts_counts_no_text_again_and_reads_no_more_names_than_it_lists() -> None:
    text = "".join(f"src/part_{number}.py fails\n" for number in range(1_000))
    results = [exchange(0)[1], tool_result_message("call_0", text)]
    async with Session.open("large", store=MemoryStore(), model="gpt-5") as session:
        await session.record([user_message("go on"), *results, assistant_message("so")])
        with counted_operations() as done:
            [artifact] = await session.artifacts()
        entries = [session.history.entries[position] for position in range(1, 3)]
        with calls_on_this_thread() as calls:
            again = list(large_results(entries, 1_000, counter_for("gpt-5")))

    names = ", ".join(f"src/part_{number}.py" for number in range(5))
    assert artifact.findings == ("1,000 lines", f"names {names}")
    assert again == [artifact]
    assert done["texts tokenized"] == 0
    assert calls["identifiers"] <= 6  # five names; some versions of Python call a generator once more to close it


@pytest.mark.parametrize("text", ["#12 ", "word "])
async def test_a_recall_of_too_long_a_text_is_refused_before_it_is_read(text: str) -> None:
    async with Session.open("long", store=MemoryStore(), model="gpt-5") as session:
        with calls_on_this_thread() as done, pytest.raises(MalformedInputError) as refused:
            await session.recall(text * 5_000)

    assert str(refused.value) == "recall.query: must have at most 10,000 characters"
    assert done["parse_references"] == 0


async def test_a_long_text_of_few_tokens_is_compacted_in_a_thread() -> None:
    async with Session.open("long", store=MemoryStore(), model="gpt-5") as session:
        await session.record([user_message("go on"), assistant_message("." * 100_000), user_message("more")])
        await session.prepare(BUDGET)
        await session.record([assistant_message("so"), user_message("and more")])
        with calls_on_this_thread() as done:
            request = await session.prepare(1_000)

    assert request.receipt.compacted == (range(2),)
    assert (done["view_of"], done["compaction_completed_event"]) == (1, 0)  # the view after the compaction is short


async def test_many_tools_and_a_long_system_text_are_counted_in_a_thread() -> None:
    async with Session.open("long", store=MemoryStore(), model="claude-opus-4-5", format="anthropic") as session:
        await session.record([user_message("go on, " * 1_000)])  # until then, threads count the tokens
        tools = [{"name": f"tool_{number}", "input_schema": {"type": "object"}} for number in range(1_000)]
        with calls_on_this_thread() as done:
            await session.prepare(BUDGET, system="be brief, " * 10_000, tools=tools)

    assert done["VocabularyCounter.count"] == 0


async def test_many_messages_whose_recording_was_cancelled_are_stored_once() -> None:
    talk = [user_message(f"line {number}") for number in range(1_000)]
    async with Session.open("many", store=MemoryStore(), model="gpt-5") as session:
        for steps in range(0, 60, 3):
            recording = asyncio.ensure_future(session.record(talk))
            for _ in range(steps):
                await asyncio.sleep(0)
            recording.cancel()
            await asyncio.wait([recording])
            if not recording.cancelled():  # its thread was done before
                places = recording.result()
                break
        else:
            places = await session.record(talk)

        assert places == range(1_000)
        assert len(session) == await session.store.length("many") == 1_000


async def lines_at(length: int) -> Counter[str]:
    """Return the lines of one more step of a tool loop after that many steps, in a context that is two thirds full."""

    def step(number: int) -> list[JsonMessage]:
        return [tool_call_message(f"call_{number:04}"), tool_result_message(f"call_{number:04}", f"{number:04} boats")]

    async with Session.open("one", store=MemoryStore(), model="gpt-5") as session:
        await session.record([user_message("go on, " * 1_000)])  # until then, threads count the tokens
        for number in range(length):
            await session.record(step(number))
        budget = (await session.prepare(BUDGET)).receipt.tokens.total * 3 // 2
        for number in range(length, length + 20):  # so that the ledger has read all that it is to read by now
            await session.prepare(budget)
            await session.record(step(number))
        with lines_of_the_package() as done:
            await session.prepare(budget)
            await session.record(step(length + 20))
    return done


async def test_no_loop_of_a_step_runs_over_the_history() -> None:
    short, long = await lines_at(100), await lines_at(400)

    assert long == short
    assert long["Projection.tail_start"] > 0


REPAIRED_STEPS: dict[str, Callable[[int], list[JsonMessage]]] = {
    "a call with the id of all others": lambda number: [
        tool_call_message("call_0"),
        tool_result_message("call_0", f"{number:04} boats"),
    ],
    "an unanswered call": lambda number: [
        user_message(f"question {number:04}"),
        tool_call_message(f"call_{number:04}"),
    ],
}


@pytest.mark.parametrize("step", REPAIRED_STEPS.values(), ids=REPAIRED_STEPS)
async def test_a_request_whose_messages_are_all_repaired_takes_linear_work(
    step: Callable[[int], list[JsonMessage]],
) -> None:
    async def lines_after(length: int) -> int:
        async with Session.open("one", store=MemoryStore(), model="gpt-5") as session:
            await session.record([user_message("go on, " * 1_000)])  # until then, threads count the tokens
            for number in range(length):
                await session.record(step(number))
            await session.record([user_message("go on")])
            await session.prepare(BUDGET)
            await session.record([*step(length), user_message("go on")])
            with lines_of_the_package() as done:
                await session.prepare(BUDGET)
        return done.total()

    short, long = await lines_after(15), await lines_after(150)

    assert long < 10 * short


async def take_turn(session: Session, number: int) -> None:
    await session.record([user_message(f"question {number}")])
    await session.prepare(BUDGET)
    await session.record([assistant_message(f"answer {number}")])


async def test_a_turn_of_plain_text_makes_at_most_318_calls_of_python_functions() -> None:
    async with Session.open("one", store=MemoryStore(), model="gpt-5") as session:
        await session.record([user_message("go on, " * 1_000)])  # until then, threads count the tokens
        await take_turn(session, 1)
        with calls_on_this_thread() as done:
            await take_turn(session, 2)

    assert done.total() <= 318
