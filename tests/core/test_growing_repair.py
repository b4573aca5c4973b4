"""A view that grows is repaired exchange by exchange, as if it were repaired as a whole each time."""

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast import counter_for
from holdfast.core.conversation.batching import (
    CALL_AND_RESPONSE_TURNS,
    CALLS_AS_ITEMS,
    ONE_RESULT_PER_MESSAGE,
    RESULTS_IN_ONE_MESSAGE,
    Batching,
)
from holdfast.core.conversation.messages import (
    Entry,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    system,
    tool_result,
    user,
)
from holdfast.core.conversation.repair import GrowingRepair, positioned, positioned_repair, repair_entries
from holdfast.core.conversation.tokens import message_tokens

COUNTER = counter_for("gpt-5")
IDS = st.sampled_from(["a", "b", "c", "a_1_0", "", "not plain!"])
CALLS = st.builds(ToolCall, IDS, st.sampled_from(["read", "write"]), st.just("{}"))
RESULTS = st.builds(ToolResult, IDS, st.just((Text("done", "tool"),)))
CHAT_MESSAGES = st.one_of(
    st.sampled_from([user("go on"), user(" "), assistant("yes"), assistant(""), system("be brief")]),
    st.lists(CALLS, min_size=1, max_size=3).map(lambda calls: assistant("look", *calls)),
    IDS.map(lambda call_id: tool_result(call_id, "done")),
)
GROUPED_MESSAGES = st.one_of(
    CHAT_MESSAGES.filter(lambda message: message.role != "tool"),
    st.lists(RESULTS, min_size=1, max_size=3).map(lambda results: Message("user", (*results,))),
    st.lists(RESULTS, min_size=1, max_size=2).map(lambda results: Message("user", (*results, Text("and?", "user")))),
)
ITEMS = st.one_of(CHAT_MESSAGES, st.just(Message("assistant", (Thinking("hm"),))))
VIEWS: st.SearchStrategy[tuple[Batching, list[Message]]] = st.one_of(
    st.tuples(st.just(ONE_RESULT_PER_MESSAGE), st.lists(CHAT_MESSAGES, max_size=14)),
    st.tuples(st.just(CALLS_AS_ITEMS), st.lists(ITEMS, max_size=14)),
    st.tuples(
        st.sampled_from([RESULTS_IN_ONE_MESSAGE, CALL_AND_RESPONSE_TURNS]), st.lists(GROUPED_MESSAGES, max_size=14)
    ),
)


ROUND = [user("go on"), assistant("look", ToolCall("a", "read", "{}")), tool_result("a", "done"), assistant("yes")]


@example((ONE_RESULT_PER_MESSAGE, 3 * ROUND), 0, [False] * 14)  # the id of a settled call comes again
@given(VIEWS, st.integers(0, 5), st.lists(st.booleans(), min_size=14, max_size=14))
def test_a_view_that_grew_is_repaired_like_the_whole(
    drawn: tuple[Batching, list[Message]], offset: int, interruptions: list[bool]
) -> None:
    batching, messages = drawn
    view = [Entry(message, index + offset) for index, message in enumerate(messages)]
    growing = GrowingRepair(batching, COUNTER)

    for length, is_interrupted in zip(range(1, len(view) + 1), interruptions, strict=False):
        part = view[:length]
        tokens = sum(sum(message_tokens(entry.message, COUNTER)) for entry in part)
        done = growing.extend(part, tokens, is_interrupted=is_interrupted)

        numbered = [Entry(entry.message, index) for index, entry in enumerate(part)]
        whole = repair_entries(numbered, is_interrupted=is_interrupted, batching=batching)
        assert done.entries == [positioned(entry, part) for entry in whole.entries]
        assert done.repairs == [positioned_repair(repair, part) for repair in whole.repairs]
        assert done.pending == whole.pending
        assert done.tokens == sum(sum(message_tokens(entry.message, COUNTER)) for entry in whole.entries)
