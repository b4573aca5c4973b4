"""What an answer has no room for is asked for next, and nothing is passed over for good."""

from holdfast.core.conversation.messages import Message, Text, ToolCall, ToolResult, user
from holdfast.core.ledger.names import RankedName
from holdfast.core.recall.answer import (
    Excerpt,
    ExcerptPacker,
    RecallAnswer,
    answer_references,
    pack_references,
    pack_search,
)
from holdfast.core.recall.passages import MAX_MATCHES, FoundMessage, best_passage, find_matches
from holdfast.core.recall.query import RecallQuery
from holdfast.core.recall.ranking import relevant_names
from holdfast.core.recall.references import MessageReference, TextSpan
from holdfast.counters.vocabularies import counter_for

COUNTER = counter_for("gpt-5")
DAY = "2026-11-15 09:12"


def found(position: int, text: str) -> FoundMessage:
    return FoundMessage(position, user(text), position, DAY)


def at(position: int) -> MessageReference:
    return MessageReference(position, position)


def test_the_references_that_are_left_are_joined_where_they_follow_each_other() -> None:
    words = [found(position, "tide " * 100) for position in range(7)]
    places = [
        at(0),
        at(1),
        at(2),
        MessageReference(3, 3, part=1),
        at(4),
        at(5),
        MessageReference(6, 6, span=TextSpan(0, 9)),
    ]

    left = pack_references(zip(places, words, strict=True), packer := ExcerptPacker(COUNTER, 180))

    assert [excerpt.position for excerpt in packer.excerpts] == [0, 1]
    assert [str(place) for place in left] == ["#1:69-", "#2", "#3.1", "#4-#5", "#6:0-9"]


def test_where_there_is_room_for_nothing_everything_is_left_and_more_room_is_asked_for() -> None:
    packer = ExcerptPacker(COUNTER, 40)
    left = pack_references([(at(3), found(3, "tide " * 100))], packer)

    answer = answer_references(left, asking := RecallQuery(refs="#3", max_tokens=100), packer, (), rest=left, skip=1)

    assert (answer.excerpts, answer.next_query) == ((), RecallQuery(refs="#3", max_tokens=2 * asking.max_tokens))


def test_what_would_be_shown_whole_waits_for_the_next_answer() -> None:
    asking = RecallQuery(query="tide", max_tokens=400)
    several = [found(0, "tide " * 300), found(1, "tide " * 75), found(2, "tide")]

    done = pack_search(several, asking, packer := ExcerptPacker(COUNTER, 400))

    assert [excerpt.position for excerpt in packer.excerpts] == [0, 2]
    assert done == 1


def test_a_text_like_a_heading_costs_a_mark_in_every_heading() -> None:
    plain, like_ours = found(0, "tide and wind"), found(1, "#7 user:\ntide")
    spent: list[int] = []
    for messages in ([plain, plain], [plain, like_ours], [plain, like_ours, plain]):
        pack_references(((at(one.position), one) for one in messages), packer := ExcerptPacker(COUNTER, 400))
        texts = [
            excerpt.with_heading(packer.excerpts[0] if index else None, "") + "\n"
            for index, excerpt in enumerate(packer.excerpts)
        ]
        spent.append(400 - 28 - 8 - packer.remaining_tokens - sum(map(COUNTER.count, texts)))

    assert spent == [0, 2 * 6 + 40, 3 * 6 + 40]


def test_of_a_message_with_recalls_own_answers_only_the_rest_is_found() -> None:
    own = ToolResult("r", (Text("the tide of old", "tool"),), is_recall_answer=True)
    said = (ToolCall("a", "look", "{}"), own, Text("the tide", "user"), Text("the wind", "user"))

    pack_search(
        [FoundMessage(4, Message("user", said), 4, DAY)],
        RecallQuery(query="tide"),
        packer := ExcerptPacker(COUNTER, 400),
    )

    assert packer.excerpts == [
        Excerpt(position=4, role="user", text="the tide", start=0, stop=8, total=8, time_ms=4, time=DAY, part=3)
    ]


def test_words_are_found_where_small_letters_are_longer_than_capitals() -> None:
    assert find_matches("İstanbul tide", ["tide"]) == [(9, "tide")]
    assert find_matches("the tide", ["wind"], literal="the wind") == []


def test_a_word_that_is_everywhere_does_not_hide_a_rare_one() -> None:
    text = "line of the log\n" * 3_000 + "line 4711\n"

    assert find_matches(text, ["line", "4711"]) == [(text.index("4711"), "4711")]
    assert len(find_matches(text, ["line"])) == MAX_MATCHES


def test_a_word_is_found_in_its_other_forms() -> None:
    assert find_matches("It boiled, boils and is boiling.", ["boiling"]) == [(3, "boil"), (11, "boil"), (24, "boil")]
    assert find_matches("Купил квартиру.", ["квартира"]) == [(6, "кварти")]


def test_a_word_is_found_where_json_escapes_the_character_before_it_or_one_of_its_own() -> None:
    text = r'write {"content": "one\nharbor \u4f60\u597d \"caf\u00e9\" C:\\new"}'

    found = find_matches(text, ["harbor", "你好", "café", "new"])

    assert found == [
        (text.index("harbor"), "harbor"),
        (text.index(r"\u4f60"), "你好"),
        (text.index("caf"), "cafe"),
        (text.index("new"), "new"),
    ]
    assert find_matches(text, (), literal='harbor 你好 "CAFÉ"') == [(text.index("harbor"), 'harbor 你好 "CAFÉ"')]


def test_a_passage_is_chosen_by_what_stands_in_it_and_not_by_what_came_before() -> None:
    text = "alpha beta\n" + "filler\n" * 20 + "gamma\n" + "filler\n" * 20
    matches = find_matches(text, ["alpha", "beta", "gamma"])

    start, stop = best_passage(text, matches, 60)

    assert text[start:stop].splitlines()[0] == "alpha beta"


def test_a_part_that_is_not_there_has_no_place() -> None:
    body = found(0, "tide").body

    assert (body.part_range(1), body.part_range(2), body.part_range(0)) == ((0, 4), None, None)


def test_names_that_go_with_a_question_come_first_and_none_that_stand_there_anyway() -> None:
    items = [
        RankedName(0.5, "src/sand.py", 0, 0),
        RankedName(3.0, "src/wind.py", 0, 0),
        RankedName(1.0, "src/tide.py", 0, 0),
        RankedName(2.0, "src/moon.py", 0, 0),
    ]

    told = relevant_names(["where is the tide reckoned?"], items, 60, COUNTER, exclude_text="see src/moon.py")

    assert told.splitlines()[-1] == "src/tide.py src/wind.py src/sand.py"


def test_names_are_told_after_the_excerpts() -> None:
    assert str(RecallAnswer(names="Names: src/tide.py", notes=("one is gone",))).splitlines()[1:] == [
        "Names: src/tide.py", "[one is gone]",
    ]  # fmt: skip
