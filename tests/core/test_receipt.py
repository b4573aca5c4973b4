"""The account of a request, for people."""

from holdfast import govern
from holdfast.core.conversation.pairing import Repair
from holdfast.testing.chat import (
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.sessions import generate_session


def test_a_receipt_reads_well() -> None:
    output = "line of output\n" * 2_000
    messages = [
        system_message("be"),
        user_message("read"),
        tool_call_message("a"),
        tool_result_message("a", output),
        tool_call_message("b"),
        user_message("and now?"),
    ]

    receipt = govern(messages, budget=4_000, model="gpt-5").receipt

    assert str(receipt) == (
        "            messages      tokens\n"
        "before             6       8,079\n"
        "sent               7         359  (counted)\n"
        "budget             –       4,000  (user)\n"
        "kept               5  #0–#2, #4–#5\n"
        "clipped            1  #3\n"
        "repaired           1\n"
        "            #4: made up a result for call 'b'\n"
        "because   the conversation is longer than its budget"
    )


def test_a_receipt_of_an_untouched_list_is_short() -> None:
    receipt = govern(
        [user_message("hi"), assistant_message("yes"), user_message("go")], budget=1_000, model="gpt-5"
    ).receipt

    assert str(receipt).splitlines()[1:] == [
        "before             3          18",
        "sent               3          18  (counted)",
        "budget             –       1,000  (user)",
        "kept               3  #0–#2",
    ]


def test_the_size_of_what_was_too_long_to_count_is_called_an_estimate() -> None:
    receipt = govern(generate_session(1_000), budget=8_000, model="gpt-5").receipt

    assert receipt.tokens_before.provenance == "estimated"
    assert receipt.tokens.provenance == "counted"
    assert "≈" in str(receipt).splitlines()[1]
    assert receipt.tokens_before.total > 100_000


def test_positions_are_listed_in_order_even_where_a_late_result_was_moved() -> None:
    messages = [
        user_message("go"),
        tool_call_message("a"),
        user_message("wait"),
        tool_result_message("a"),
        user_message("on"),
    ]

    receipt = govern(messages, budget=1_000, model="gpt-5").receipt

    assert receipt.kept == (0, 1, 3, 2, 4)
    assert "kept               5  #0–#4" in str(receipt).splitlines()


def test_an_output_that_only_lost_blank_texts_is_repaired_and_not_clipped() -> None:
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    said = {"type": "text", "text": "nine fish"}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": ""}, said]}
    listed = [
        {"role": "user", "content": "count"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]

    governed = govern(listed, format="anthropic-messages", budget=10_000)

    receipt = governed.receipt
    assert (receipt.kept, receipt.clipped) == ((0, 1), ())
    assert receipt.repairs == (Repair(2, "removed an empty text"),)
    assert governed.messages == [*listed[:2], {"role": "user", "content": [result | {"content": [said]}]}]
