"""What recall is asked at its limits: odd ids, endless numbers, many references, long messages, other sessions."""

import time
from pathlib import Path

import pytest

from holdfast import Session
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import MalformedInputError
from holdfast.recall import RecallQuery
from holdfast.session.recall import search as search_module
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import tool_call_message, tool_result_message, user_message

ENDLESS = "9" * 5_000


@pytest.mark.parametrize(
    "call_id",
    ["call_abc", "7f3a9b2c1", "123456789", "_x1", "c1", "550e8400-e29b-41d4-a716-446655440000", "call/1", "a.b:0|fc=1"],
)
async def test_whatever_ids_calls_have_they_are_references(call_id: str) -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record(
            [
                user_message("go"),
                tool_call_message(call_id),
                tool_result_message(call_id, "what it gave"),
                user_message("q"),
            ]
        )

        found = await session.recall(RecallQuery(refs=call_id))

    assert [(one.ref, one.text) for one in found.excerpts] == [("#2", "what it gave")]


async def test_a_number_is_the_id_of_a_call_only_where_no_message_stands_there() -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([user_message("go"), tool_call_message("0"), tool_result_message("0", "what it gave")])

        assert (await session.recall(RecallQuery(refs="0"))).excerpts[0].text == "go"


async def test_a_call_of_long_ago_is_found_by_its_id() -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record(
            [user_message("go"), tool_call_message("call_abc"), tool_result_message("call_abc", "what it gave")]
        )
        await session.record([user_message("q") for _ in range(4_200)])

        assert (await session.recall(RecallQuery(refs="call_abc"))).excerpts[0].text == "what it gave"


@pytest.mark.parametrize("arguments", [
    {"last": ENDLESS}, {"ref": f"#{ENDLESS}"}, {"last": 10**4_400}, {"ref": 10**4_400}, {"ref": [10**4_400]},
    {"max_tokens": 10**4_400}, {"query": 10**4_400}, {10**4_400: 1}, {"query": {"a": 10**4_400}},
])  # fmt: skip
async def test_a_model_gets_words_back_for_numbers_without_end(arguments: dict[str, object]) -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([user_message("go")])

        answer = await session.recall_tool().call(arguments)

    assert answer.startswith("[Recall: ")
    assert len(answer) < 300


@pytest.mark.parametrize("source", ["#9", "#0-#9999", f"#{ENDLESS}", "#0, #9"])
async def test_every_message_that_a_source_names_is_checked(source: str) -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([user_message("top")])
        child = await session.delegate("a", task="go").__aenter__()

        with pytest.raises(MalformedInputError, match="can see"):
            await child.answer("done", sources=[source])

        await child.answer("done", sources=["#0-#1", "#todo", "src/a.py"])


@pytest.mark.parametrize("before", [10, 199_990, 199_996, 390_000])
async def test_words_are_found_wherever_they_stand_in_a_long_message(before: int) -> None:
    filler = "filler words " * 32_000
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([user_message(f"{filler[:before]} needle {filler[before:]}")])

        (found,) = (await session.recall("needle")).excerpts

    assert "needle" in found.text


async def test_an_answer_says_where_not_all_words_were_searched() -> None:
    text = " ".join(f"word{number}" for number in range(90_000))
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([user_message("hello"), user_message(text)])

        found = await session.recall("word89999")

        assert found.notes == ("not all words of #1 were searched: look there by a literal text",)
        assert [one.ref for one in (await session.recall(RecallQuery(text="word89999"))).excerpts] == ["#1"]


async def test_an_image_is_found_by_the_words_of_its_name() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/architecture-diagram.png"}}
    async with Session.open("r1", model="gpt-5") as session:
        await session.record(
            [{"role": "user", "content": [{"type": "text", "text": "look"}, image]}, user_message("and?")]
        )

        for asked in (RecallQuery(query="architecture diagram"), RecallQuery(file="architecture-diagram.png")):
            assert (await session.recall(asked)).excerpts[0].ref == "#0"


async def test_a_session_that_was_named_is_not_crowded_out_by_those_that_were_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    async with Session.open("trip-2025", store=url) as session:
        await session.record(
            [user_message("For the ferry we paid a lot, and the harbour master told us of pier 3. " * 3)]
        )
        for number in range(10):
            async with session.open_sibling(f"other-{number}") as other:
                await other.record([user_message(f"ferry pier leaves {place}") for place in range(30)])
        async with session.open_sibling("now") as now:
            found = await now.recall("Which pier does the ferry leave from?", earlier=["trip-2025"])
            referred = await now.recall("trip-2025#0", earlier=["trip-2025"])

    assert [one.session for one in found.earlier_sessions] == ["trip-2025"]
    assert (referred.session, referred.excerpts[0].ref) == ("trip-2025", "#0")


async def test_a_model_gets_no_more_than_its_share_of_the_window_and_how_to_go_on() -> None:
    rows = "\n".join(f"row {number} value {number * number}" for number in range(380))
    async with Session.open("r1", policy="inkeep", model="gpt-5") as session:
        await session.record(
            [user_message("top"), tool_call_message("call_1"), tool_result_message("call_1", rows), user_message("x")]
        )
        await session.prepare(8_000, has_recall=True)

        answer = await session.recall_tool().call({"ref": "#2", "max_tokens": 4_000})

    assert 2_000 < counter_for("gpt-5").count(answer) <= 2_400
    assert answer.splitlines()[-1].startswith('[More: recall {"ref": "#2:')


MANY = {
    "missing": "#0," + ",".join(f"#{number}" for number in range(9_000, 9_199)),
    "every other": ",".join(f"#{number}" for number in range(0, 50, 2)),
    "lines": ",".join(f"#{number}:L1-L5" for number in range(50)),
}


@pytest.mark.parametrize("refs", MANY.values(), ids=MANY.keys())
@pytest.mark.parametrize("allowance", [100, 150, 400])
async def test_many_references_are_answered_within_the_allowance_and_none_is_lost(refs: str, allowance: int) -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([user_message(f"zebra {number} " + "hello world " * 5) for number in range(50)])
        asked: RecallQuery | None = RecallQuery(refs=refs, max_tokens=allowance)
        shown: list[int] = []
        while asked:
            found = await session.recall(asked)
            assert counter_for("gpt-5").count(str(found)) <= allowance
            shown += [one.position for one in found.excerpts if one.start == 0]
            asked = found.next_query

    wanted = [int(place.lstrip("#").split(":")[0]) for place in refs.split(",")]
    assert list(dict.fromkeys(shown)) == [position for position in wanted if position < 50]


async def test_what_earlier_sessions_say_stays_within_the_allowance_whatever_their_names() -> None:
    name = "old-" + "trip-name-very-long-" * 10
    async with Session.open(name, model="gpt-5") as session:
        await session.record([user_message(f"zebra number {number} walked") for number in range(30)])
        async with session.open_sibling("now") as now:
            await now.record([user_message("zebra hello") for _ in range(50)])
            found = await now.recall(RecallQuery(query="zebra", max_tokens=400), earlier=[name])

    assert counter_for("gpt-5").count(str(found)) <= 400


async def test_a_search_through_large_messages_takes_no_time() -> None:
    async with Session.open("r1", model="gpt-5") as session:
        await session.record(
            [user_message("ab " * 1_000_000), user_message("\n" * 2_000_000 + "needle"), user_message("what is b")]
        )
        start = time.process_time()

        await session.recall("artifact id b")
        (last,) = (await session.recall("#1:L2000001-")).excerpts

    assert last.text == "needle"
    assert time.process_time() - start < 3


async def test_a_long_look_back_says_where_it_stopped_and_goes_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "MAX_SCANNED_MESSAGES", 3)
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([user_message(f"zebra {number}") for number in range(8)])
        asked: RecallQuery | None = RecallQuery(role="user")
        answers: list[tuple[list[int], tuple[str, ...]]] = []
        while asked:
            found = await session.recall(asked)
            answers.append(([one.position for one in found.excerpts], found.notes))
            asked = found.next_query

    assert answers == [
        ([7, 6, 5], ("messages before #5 were not looked at yet",)),
        ([4, 3, 2], ("messages before #2 were not looked at yet",)),
        ([1, 0], ()),
    ]


async def test_of_24_results_after_one_message_each_is_known_by_its_tool() -> None:
    numbers = range(24)
    calls = [
        {"id": f"c{number}", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
        for number in numbers
    ]
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([{"role": "assistant", "content": None, "tool_calls": calls}])
        await session.record([tool_result_message(f"c{number}", f"read_file said {number}") for number in numbers])

        found = await session.recall(RecallQuery(tool="read_file", max_tokens=8_000))

    assert sorted(one.position for one in found.excerpts) == [*range(25)]


@pytest.mark.parametrize("asked", [RecallQuery(file="totals.py"), RecallQuery(tool="read_file")])
async def test_a_file_or_a_tool_alone_is_found_however_long_ago(
    asked: RecallQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "MAX_SCANNED_MESSAGES", 3)
    async with Session.open("r1", model="gpt-5") as session:
        call = tool_call_message("c", name="read_file", arguments={"path": "totals.py"})
        await session.record([user_message("Look."), call, tool_result_message("c", "ok")])
        await session.record([user_message(f"zebra {number}") for number in range(8)])

        found = await session.recall(asked)

    assert (1 in [one.position for one in found.excerpts], found.notes) == (True, ())


@pytest.mark.parametrize(("most", "found"), [(64, [0]), (4, [])])
async def test_what_was_taken_back_hides_nothing_that_is_still_there(
    monkeypatch: pytest.MonkeyPatch, most: int, found: list[int]
) -> None:
    monkeypatch.setattr(search_module, "INDEX_HITS", 2)
    monkeypatch.setattr(search_module, "MAX_INDEX_HITS", most)
    async with Session.open("r1", model="gpt-5") as session:
        await session.record([user_message("zebra of the meadow behind the old house"), user_message("hello")])
        await session.record([user_message("zebra") for _ in range(12)])
        await session.rewind(to=2)

        answer = await session.recall("zebra")

    assert [one.position for one in answer.excerpts][:1] == found


async def test_an_earlier_session_whose_name_alone_is_longer_than_its_share_is_left_out() -> None:
    name = "名𓀀" * 60
    async with Session.open(name, model="gpt-5") as session:
        await session.record([user_message("zebra walked")])
        async with session.open_sibling("now") as now:
            await now.record([user_message("hello")])
            found = await now.recall(RecallQuery(query="zebra", max_tokens=200), earlier=[name])

    assert found.earlier_sessions == ()


async def test_a_call_beside_others_is_found_by_its_own_part() -> None:
    blocks = [
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.txt"}},
        {"type": "tool_use", "id": "toolu_2", "name": "read", "input": {"path": "b.txt"}},
    ]
    async with Session.open("r1", model="claude-sonnet-5-5") as session:
        messages = [{"role": "user", "content": "compare"}, {"role": "assistant", "content": blocks}]
        await session.record(messages, format="anthropic-messages")

        answer = await session.recall(RecallQuery(refs="toolu_2"))

    assert [(one.ref, "b.txt" in one.text, "a.txt" in one.text) for one in answer.excerpts] == [("#1.3", True, False)]


@pytest.mark.parametrize("name", ["user 7, chat 2", "a#1", "#", "x,y#0", "2026-11-19"])
async def test_references_into_an_earlier_session_are_read_whatever_its_id_is(name: str) -> None:
    store = MemoryStore()
    for session_id in ("a", "x", name):
        async with Session.open(session_id, store=store) as before:
            await before.record([user_message(f"{session_id}: {text}") for text in ("one", "two", "three")])
    async with Session.open("now", store=store) as now:
        references = (f"{name}#0", f"{name}#0, {name}#2", f"{name}#0-#1", f"{name}#1-{name}#2")
        found = [await now.recall(RecallQuery(refs=refs), earlier=["a", "x", name]) for refs in references]

    said = [f"{name}: {text}" for text in ("one", "two", "three")]
    assert [[one.text for one in answer.excerpts] for answer in found] == [
        said[:1],
        [said[0], said[2]],
        said[:2],
        said[1:],
    ]
    assert {answer.session for answer in found} == {name}
