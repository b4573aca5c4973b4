"""A list that goes on in two ways: each is weighed as if the other had never been."""

from typing import Any

from holdfast import Request, govern
from holdfast.testing.chat import (
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)

BEGUN: list[Any] = [
    system_message("Be brief."),
    *[user_message("a long question " * 30), assistant_message("a long answer " * 30)] * 8,
    user_message("so?"),
]


def send(messages: list[Any], previous: Request | None = None) -> Request:
    return govern(messages, budget=1_200, model="gpt-5", previous=previous)


def test_two_continuations_of_one_list_do_not_see_each_other() -> None:
    first = send(BEGUN)
    one, other = (
        [*BEGUN, assistant_message("yes"), user_message("and then?")],
        [*BEGUN, system_message("Hurry."), assistant_message("no"), user_message("why?")],
    )

    taken = [send(messages, first).messages for messages in (one, other, one)]

    assert taken == [send(messages).messages for messages in (one, other, one)]


def test_a_list_that_was_cut_back_goes_on_from_there() -> None:
    longer = send([*BEGUN, assistant_message("yes"), user_message("and then?")], send(BEGUN))

    assert send(BEGUN, longer).messages == send(BEGUN).messages
    assert (
        send([*BEGUN, assistant_message("no"), user_message("why?")], longer).messages
        == send([*BEGUN, assistant_message("no"), user_message("why?")]).messages
    )


def test_long_arguments_of_a_call_count_as_text_does() -> None:
    call = tool_call_message("c-1", arguments={"text": "word " * 3_000})
    request = send([*BEGUN[:1], user_message("write it"), call, tool_result_message("c-1", "done"), *BEGUN[-1:]])

    assert request.tokens.total <= 1_200
    assert request.receipt.tokens_before.total > 3_000
