"""The side of a conversation that says less counts for more."""

from collections.abc import Callable

from holdfast.core.ledger.ledger import Ledger
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message

LedgerOf = Callable[..., Ledger]


def test_the_role_that_has_said_less_in_the_whole_conversation_weighs_more(ledger: LedgerOf) -> None:
    kept = ledger(user_message("a" * 100), assistant_message("b" * 300), user_message("c" * 100))

    assert kept.role_factors() == {"user": 1.25, "assistant": 1.0}


def test_the_weight_of_a_role_is_limited_and_tools_say_nothing(ledger: LedgerOf) -> None:
    kept = ledger(
        user_message("a"), assistant_message("b" * 999), tool_call_message("1"), tool_result_message("1", "c" * 9_999)
    )

    assert kept.role_factors() == {"user": 4.0, "assistant": 1.0}
