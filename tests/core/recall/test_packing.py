"""What an answer has no room for is asked for next, and nothing is passed over for good."""

from holdfast.core.conversation.messages import Message, Text, ToolCall, ToolResult, user
from holdfast.core.history.ledger.names import Item
from holdfast.core.history.recall.answer import Excerpt, Recalled
from holdfast.core.history.recall.asking import Recall
from holdfast.core.history.recall.names import names_for
from holdfast.core.history.recall.packing import Found, Packer, answered_places, packed_places, packed_search
from holdfast.core.history.recall.passages import matches_in
from holdfast.core.history.recall.references import Reference, Span
from holdfast.counters.vocabularies import counter_for

COUNTER = counter_for("gpt-5")
DAY = "2026-11-15 09:12"


def found(position: int, text: str) -> Found:
    return Found(position, user(text), position, DAY)


def at(position: int) -> Reference:
    return Reference(position, position)


def test_the_references_that_are_left_are_joined_where_they_follow_each_other() -> None:
    words = [found(position, "tide " * 100) for position in range(7)]
    places = [at(0), at(1), at(2), Reference(3, 3, part=1), at(4), at(5), Reference(6, 6, span=Span(0, 9))]

    left = packed_places(zip(places, words, strict=True), packer := Packer(COUNTER, 180))

    assert [excerpt.position for excerpt in packer.excerpts] == [0, 1]
    assert [str(place) for place in left] == ["#1:69-", "#2", "#3.1", "#4-#5", "#6:0-9"]


def test_where_there_is_room_for_nothing_everything_is_left_and_more_room_is_asked_for() -> None:
    packer = Packer(COUNTER, 40)
    left = packed_places([(at(3), found(3, "tide " * 100))], packer)

    answer = answered_places(left, asking := Recall(refs="#3", max_tokens=100), packer, (), rest=left, skip=1)

    assert (answer.excerpts, answer.more) == ((), Recall(refs="#3", max_tokens=2 * asking.max_tokens))


def test_what_would_be_shown_whole_waits_for_the_next_answer() -> None:
    asking = Recall(query="tide", max_tokens=400)
    several = [found(0, "tide " * 300), found(1, "tide " * 75), found(2, "tide")]

    done = packed_search(several, asking, packer := Packer(COUNTER, 400))

    assert [excerpt.position for excerpt in packer.excerpts] == [0, 2]
    assert done == 1


def test_of_a_message_with_recalls_own_answers_only_the_rest_is_found() -> None:
    own = ToolResult("r", (Text("the tide of old", "tool"),), is_recalled=True)
    said = (ToolCall("a", "look", "{}"), own, Text("the tide", "user"), Text("the wind", "user"))

    packed_search([Found(4, Message("user", said), 4, DAY)], Recall(query="tide"), packer := Packer(COUNTER, 400))

    assert packer.excerpts == [
        Excerpt(position=4, role="user", text="the tide", start=0, stop=8, total=8, time_ms=4, time=DAY, part=3)
    ]


def test_words_are_found_where_small_letters_are_longer_than_capitals() -> None:
    assert matches_in("İstanbul tide", ["tide"]) == [(9, "tide")]
    assert matches_in("the tide", ["wind"], literal="the wind") == []


def test_a_part_that_is_not_there_has_no_place() -> None:
    body = found(0, "tide").body

    assert (body.part(1), body.part(2), body.part(0)) == ((0, 4), None, None)


def test_names_that_go_with_a_question_come_first_and_none_that_stand_there_anyway() -> None:
    items = [Item(3.0, "src/wind.py", 0, 0), Item(1.0, "src/tide.py", 0, 0), Item(2.0, "src/moon.py", 0, 0)]

    told = names_for(["where is the tide reckoned?"], items, 60, COUNTER, beside="see src/moon.py")

    assert told.splitlines()[-1] == "src/tide.py src/wind.py"


def test_names_are_told_behind_the_excerpts() -> None:
    assert str(Recalled(names="Names: src/tide.py", notes=("one is gone",))).splitlines()[1:] == [
        "Names: src/tide.py", "[one is gone]",
    ]  # fmt: skip
