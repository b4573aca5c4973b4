"""An agent that reads again what was compacted is told what it already knows, and where."""

import pytest

from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.session.session import Session
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message

CONTENT = "".join(f"value_{number} = {number}\n" for number in range(40))
NOTE = "[Unchanged since you read it at #2: what you found there still holds, and it need not be read again.]"


def read(number: int, path: str = "src/app.py", text: str = CONTENT) -> list[dict[str, object]]:
    return [tool_call_message(f"c{number}", arguments={"path": path}), tool_result_message(f"c{number}", text)]


async def begun(store: MemoryStore) -> Session:
    session = await Session.open("c1", store=store, model="gpt-5")
    await session.record([user_message("Never use tabs."), *read(0), assistant_message("Read it.")])
    for number in range(1, 20):
        await session.record(
            [user_message(f"step {number}"), *read(number, f"src/b{number}.py", f"b = {number}\n" * 30)]
        )
        await session.record([assistant_message("ok")])
    await session.compact()
    return session


async def test_a_repeated_read_of_something_unchanged_is_noticed() -> None:
    store = MemoryStore()
    session = await begun(store)
    await session.record([user_message("look again"), *read(90)])

    request = await session.prepare(16_000)
    again = await Session.open("c1", store=store, model="gpt-5")

    assert request.messages[-1] == tool_result_message("c90", f"{CONTENT}\n{NOTE}")
    assert (await again.prepare(16_000)).messages == request.messages
    assert (await session.messages())[-1] == tool_result_message("c90", CONTENT)
    assert len(session) - 1 in request.receipt.kept
    assert all(rebuilt.is_same for rebuilt in rebuilt_requests(await session.events()))


@pytest.mark.parametrize(
    ("path", "text"),
    [("src/app.py", CONTENT + "# new\n"), ("src/other.py", CONTENT), ("src/app.py", "Error: not found")],
)
async def test_what_has_changed_or_was_not_read_is_shown_as_it_is(path: str, text: str) -> None:
    session = await begun(MemoryStore())
    await session.record([user_message("look again"), *read(90, path, text)])

    request = await session.prepare(16_000)

    assert request.messages[-1] == tool_result_message("c90", text)


async def test_a_read_of_what_is_still_in_view_is_left_alone() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record([user_message("look"), *read(0), assistant_message("ok"), user_message("again"), *read(1)])

        assert (await session.prepare(16_000)).messages[-1] == tool_result_message("c1", CONTENT)


async def test_a_delegates_reads_are_its_own() -> None:
    session = await begun(MemoryStore())
    async with session.delegate("x", task="look", main_sees="nothing") as child:
        await child.record(read(91))

        assert (await child.prepare(16_000)).messages[-1] == tool_result_message("c91", CONTENT)


async def test_a_decision_against_what_the_user_asked_for_is_on_the_receipt() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record([user_message("Never use tabs in the source files."), assistant_message("Good.")])
        await session.record([user_message("Go on."), assistant_message("I decided to use tabs in the source files.")])
        for number in range(1, 20):
            await session.record([user_message(f"step {number}"), *read(number), assistant_message("ok")])
        before = await session.prepare(16_000)
        await session.compact()
        await session.record([user_message("and now?")])
        after = await session.prepare(16_000)

    assert before.receipt.conflicts == ()
    assert after.receipt.conflicts == (
        "the model decided “I decided to use tabs in the source files.” #3,"
        " the user asked for “Never use tabs in the source files.” #0",
    )
    assert "conflict  the model decided" in str(after.receipt)


async def test_an_agent_that_reads_the_same_files_again_after_a_compaction_is_known_to_make_no_progress() -> None:
    session = await Session.open("c1", store=MemoryStore(), model="gpt-5")
    await session.record([user_message("Make the tests pass.")])
    files = [f"src/part_{number}.py" for number in range(12)]
    for turn in range(2):
        for number, path in enumerate(files):
            await session.record(read(100 * turn + number, path, f"# {path}\n{CONTENT}"))
        if not turn:
            await session.compact(budget=4_000)

    contents = await session.context_breakdown(budget=4_000)

    assert contents.loop_reason.startswith("the agent made no progress since the last compaction: 12 calls returned")
