"""The account of a request, for people."""

from holdfast import govern
from holdfast.testing.chat import answered, called, returned, said, told
from holdfast.testing.sessions import generated_session


def test_a_receipt_reads_well() -> None:
    output = "line of output\n" * 2_000
    messages = [told("be"), said("read"), called("a"), returned("a", output), called("b"), said("and now?")]

    receipt = govern(messages, budget=4_000, model="gpt-5").receipt

    assert str(receipt) == (
        "            messages      tokens\n"
        "before             6       8,079\n"
        "sent               7         359  (counted)\n"
        "budget             –       4,000  (user)\n"
        "kept               5  #0–#2, #4–#5\n"
        "clipped            1  #3\n"
        "mended             1\n"
        "            #4: made up a result for call 'b'\n"
        "because the conversation is longer than its budget"
    )


def test_a_receipt_of_an_untouched_list_is_short() -> None:
    receipt = govern([said("hi"), answered("yes"), said("go")], budget=1_000, model="gpt-5").receipt

    assert str(receipt).splitlines()[1:] == [
        "before             3          18",
        "sent               3          18  (counted)",
        "budget             –       1,000  (user)",
        "kept               3  #0–#2",
    ]


def test_the_size_of_what_was_too_long_to_count_is_called_an_estimate() -> None:
    receipt = govern(generated_session(1_000), budget=8_000, model="gpt-5").receipt

    assert receipt.tokens_before.provenance == "estimated"
    assert receipt.tokens.provenance == "counted"
    assert "≈" in str(receipt).splitlines()[1]
    assert receipt.tokens_before.total > 100_000


def test_positions_are_listed_in_order_even_where_a_late_result_was_moved() -> None:
    messages = [said("go"), called("a"), said("wait"), returned("a"), said("on")]

    receipt = govern(messages, budget=1_000, model="gpt-5").receipt

    assert receipt.kept == (0, 1, 3, 2, 4)
    assert "kept               5  #0–#4" in str(receipt).splitlines()
