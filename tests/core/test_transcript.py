"""A list that goes on in two ways: each is weighed as if the other had never been."""

from typing import Any

from holdfast import Request, govern
from holdfast.testing.chat import answered, said, told

BEGUN: list[Any] = [
    told("Be brief."),
    *[said("a long question " * 30), answered("a long answer " * 30)] * 8,
    said("so?"),
]


def send(messages: list[Any], previous: Request | None = None) -> Request:
    return govern(messages, budget=1_200, model="gpt-5", previous=previous)


def test_two_continuations_of_one_list_do_not_see_each_other() -> None:
    first = send(BEGUN)
    one, other = [*BEGUN, answered("yes"), said("and then?")], [*BEGUN, told("Hurry."), answered("no"), said("why?")]

    taken = [send(messages, first).messages for messages in (one, other, one)]

    assert taken == [send(messages).messages for messages in (one, other, one)]


def test_a_list_that_was_cut_back_goes_on_from_there() -> None:
    longer = send([*BEGUN, answered("yes"), said("and then?")], send(BEGUN))

    assert send(BEGUN, longer).messages == send(BEGUN).messages
    assert (
        send([*BEGUN, answered("no"), said("why?")], longer).messages
        == send([*BEGUN, answered("no"), said("why?")]).messages
    )
