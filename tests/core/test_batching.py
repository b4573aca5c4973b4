"""Batches as formats carry them: runs of items, and turns."""

from holdfast.core.conversation.batching import CALL_AND_RESPONSE_TURNS, CALLS_AS_ITEMS, Batching
from holdfast.core.conversation.messages import Entry, Message, Text, Thinking, ToolCall, ToolResult, assistant, user
from holdfast.core.conversation.messages import tool_result as result
from holdfast.core.conversation.pairing import Repair
from holdfast.core.conversation.repair import RepairedEntries, is_valid_history, repair_entries
from tests.support import legal_cuts

HM = Message("assistant", (Thinking("hm", "sig"),))


def call(call_id: str, name: str = "run") -> Message:
    return assistant("", ToolCall(call_id, name, "{}"))


def mended(batching: Batching, *messages: Message, is_interrupted: bool = False) -> RepairedEntries:
    entries = [Entry(message, index) for index, message in enumerate(messages)]
    once = repair_entries(entries, is_interrupted=is_interrupted, batching=batching)
    twice = repair_entries(once.entries, is_interrupted=is_interrupted, batching=batching)
    assert (twice.entries, twice.repairs, twice.pending) == (once.entries, [], once.pending)
    return once


def said(result: RepairedEntries) -> list[Message]:
    return [entry.message for entry in result.entries]


def what(result: RepairedEntries) -> list[str]:
    return [repair.description for repair in result.repairs]


def test_a_run_of_items_and_then_its_results_is_sound() -> None:
    items = [
        user("go"),
        HM,
        assistant("Looking."),
        call("a"),
        HM,
        call("b"),
        result("b", "2"),
        result("a", "1"),
        call("c"),
        result("c", "3"),
    ]

    assert is_valid_history([Entry(item) for item in items], CALLS_AS_ITEMS)
    assert said(mended(CALLS_AS_ITEMS, *items)) == items


def test_calls_of_one_run_wait_together() -> None:
    waiting = mended(CALLS_AS_ITEMS, user("go"), call("a"), call("b"), result("b", "2"))

    assert waiting.pending == ("a",)
    assert waiting.repairs == []


def test_a_result_that_is_missing_is_made_up_after_the_run() -> None:
    broken = mended(CALLS_AS_ITEMS, user("go"), call("a"), call("b"), result("b", "2"), user("well?"))

    made_up = Message("tool", (ToolResult("a", (Text("Interrupted by user.", "tool"),), is_error=True),))
    assert said(broken) == [user("go"), call("a"), call("b"), result("b", "2"), made_up, user("well?")]
    assert [(repair.position, repair.description) for repair in broken.repairs] == [
        (1, "made up a result for call 'a'")
    ]


def test_results_that_are_scattered_come_together_after_their_run() -> None:
    broken = mended(
        CALLS_AS_ITEMS,
        user("go"),
        call("a"),
        call("b"),
        result("a", "1"),
        call("c"),
        result("b", "2"),
        user("wait"),
        result("c", "3"),
        user("so?"),
    )

    assert said(broken) == [
        user("go"),
        call("a"),
        call("b"),
        result("a", "1"),
        result("b", "2"),
        call("c"),
        result("c", "3"),
        user("wait"),
        user("so?"),
    ]


def test_one_id_twice_in_a_run_gets_a_result_each() -> None:
    broken = mended(CALLS_AS_ITEMS, user("go"), call("a"), call("a"), result("a", "1"), result("a", "2"))

    assert said(broken)[1:] == [call("a"), call("a_2_0"), result("a", "1"), result("a_2_0", "2")]


def test_reasoning_without_an_item_after_it_is_removed() -> None:
    broken = mended(CALLS_AS_ITEMS, user("go"), HM, user("and?"), HM, call("a"), result("a", "1"), HM)

    assert said(broken) == [user("go"), user("and?"), HM, call("a"), result("a", "1")]
    assert what(broken) == ["removed reasoning without an answer after it"] * 2


def test_reasoning_goes_with_the_empty_item_after_it() -> None:
    assert said(mended(CALLS_AS_ITEMS, user("go"), HM, assistant("  "), user("and?"))) == [user("go"), user("and?")]


def test_no_cut_separates_a_call_from_what_follows_it_up_to_its_result() -> None:
    items = [user("go"), HM, call("a"), assistant("Meanwhile."), result("a", "1"), HM, assistant("Done.")]

    assert legal_cuts(items) == [1, 5]


def calls(*parts: ToolCall) -> Message:
    return assistant("", *parts)


def results(*ids: str) -> Message:
    return Message("user", tuple(ToolResult(call_id, (Text(call_id, "tool"),)) for call_id in ids))


def test_ids_by_name_may_come_again_in_the_next_turn() -> None:
    twice = [user("go"), *[calls(ToolCall("run#1", "run", "{}")), results("run#1")] * 2]

    assert said(mended(CALL_AND_RESPONSE_TURNS, *twice)) == twice
    assert is_valid_history([Entry(message) for message in twice], CALL_AND_RESPONSE_TURNS)


def test_a_result_without_an_id_goes_by_the_name_of_the_tool() -> None:
    named = mended(
        CALL_AND_RESPONSE_TURNS,
        user("go"),
        calls(ToolCall("x", "run", "{}"), ToolCall("y", "run", "{}"), ToolCall("z", "look", "{}")),
        results("look#1", "run#1", "run#2"),
    )

    assert named.entries[2].message.outline.result_ids == ("z", "x", "y")
    assert set(what(named)) == {
        "gave a result the id 'x' of its call",
        "gave a result the id 'y' of its call",
        "gave a result the id 'z' of its call",
        "moved the results of one batch to the start of one message",
    }


def test_a_result_without_an_id_finds_its_call_though_another_tool_is_called_with_the_same_id() -> None:
    repeated = mended(
        CALL_AND_RESPONSE_TURNS,
        user("go"),
        calls(ToolCall("a", "look", "{}"), ToolCall("a", "run", "{}"), ToolCall("look#1", "look", "{}")),
        results("look#1"),
    )

    answer = Message("user", (ToolResult("a", (Text("look#1", "tool"),)),))
    assert said(repeated)[1:] == [
        calls(ToolCall("a", "look", "{}"), ToolCall("a_1_1", "run", "{}"), ToolCall("look#1", "look", "{}")),
        answer,
    ]
    assert repeated.pending == ("a_1_1", "look#1")


def test_a_late_result_without_an_id_finds_its_call() -> None:
    late = mended(
        CALL_AND_RESPONSE_TURNS, user("go"), calls(ToolCall("run#1", "run", "{}")), user("wait"), results("run#1")
    )

    assert said(late) == [user("go"), calls(ToolCall("run#1", "run", "{}")), results("run#1"), user("wait")]


def test_where_a_turn_of_the_users_is_gone_its_place_is_marked() -> None:
    torn = mended(
        CALL_AND_RESPONSE_TURNS,
        user("go"),
        assistant("Well."),
        user(" "),
        calls(ToolCall("a", "run", "{}")),
        results("a"),
    )

    assert said(torn)[1:4] == [
        assistant("Well."),
        user("[No new message from the user.]", trust="system"),
        calls(ToolCall("a", "run", "{}")),
    ]


def test_calls_after_another_turn_of_the_model_join_it() -> None:
    torn = mended(
        CALL_AND_RESPONSE_TURNS, user("go"), assistant("Looking."), calls(ToolCall("a", "run", "{}")), results("a")
    )

    assert said(torn) == [user("go"), assistant("Looking.", ToolCall("a", "run", "{}")), results("a")]
    assert torn.repairs == [
        Repair(2, "joined a turn with calls to the turn of the model before it"),
        Repair(1, "joined a turn of the model with the calls after it"),
    ]
