"""The identifiers of a ledger: ranked, bounded, packed."""

import gc
import json
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast import counter_for
from holdfast.core.conversation.frames import IDENTIFIERS_HEADING
from holdfast.core.history.snapshot import from_snapshot_json, to_snapshot_json
from holdfast.core.ledger import names
from holdfast.core.ledger.ledger import Ledger
from holdfast.core.ledger.names import UsedNames, pack_names
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message

COUNTER = counter_for("gpt-5")
LedgerOf = Callable[..., Ledger]


@given(st.text("abXY19_/.é", min_size=4, max_size=24), st.data())
def test_a_name_within_another_is_found_by_its_ending(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 4))
    short = text[start : data.draw(st.integers(start + 4, len(text)))]
    assume(names.is_name_in(short, text))

    assert names._ending(short) in names._endings_in(text)


def test_what_was_said_outranks_what_only_stood_in_an_output(ledger: LedgerOf) -> None:
    kept = ledger(
        user_message("fix parseConfig"),
        tool_call_message("a", arguments={"path": "src/a.py"}),
        tool_result_message("a", "otherName someThing"),
    )

    assert [item.text for item in kept.names.ranked()] == ["src/a.py", "parseConfig", "someThing", "otherName"]


def test_a_use_weighs_as_much_as_whoever_made_it(ledger: LedgerOf) -> None:
    kept = ledger(
        user_message("fix by_users"),
        assistant_message("I look at by_model."),
        tool_call_message("a", arguments={"path": "by/files"}),
        tool_result_message("a", "by_tools"),
    )

    weights = {item.text: 3 * 2 ** (item.rank - item.last / 100) for item in kept.names.ranked()}
    assert weights == pytest.approx({"by/files": 6.0, "by_model": 3.0, "by_users": 1.0, "by_tools": 0.5})


def test_a_use_weighs_half_as_much_as_one_a_hundred_messages_later() -> None:
    used = UsedNames()
    used.observe({"old_name": 1.0}, 0)
    used.observe({"new_name": 1.0}, 100)

    newer, older = used.ranked()
    assert (newer.text, older.text, newer.rank - older.rank) == ("new_name", "old_name", pytest.approx(1.0))


def test_short_numbers_count_only_where_somebody_has_used_them(ledger: LedgerOf) -> None:
    table = "\n".join(f"row {number} of order 12345678" for number in range(1_000, 1_200))
    kept = ledger(
        user_message("is port 8080 free?"),
        tool_call_message("a", arguments={"row": 1100}),
        tool_result_message("a", table),
    )

    assert {item.text for item in kept.names.ranked()} == {"8080", "1100", "12345678"}


def test_recent_and_frequent_uses_outrank_old_ones(ledger: LedgerOf) -> None:
    filler = [assistant_message("fine")] * 400
    kept = ledger(
        user_message("oldName1"), user_message("useTwice"), *filler, user_message("newName1"), user_message("useTwice")
    )

    assert [item[1:] for item in kept.names.ranked()] == [
        ("useTwice", 1, 403),
        ("newName1", 402, 402),
        ("oldName1", 0, 0),
    ]


def test_the_best_are_the_beginning_of_all(ledger: LedgerOf) -> None:
    kept = ledger(*(user_message(f"name{number % 70}Of{number % 30}") for number in range(300)))

    assert [kept.names.ranked(limit) for limit in (0, 1, 50, 200, 999)] == [
        kept.names.ranked()[:limit] for limit in (0, 1, 50, 200, 999)
    ]


def test_a_ledger_keeps_to_its_allowance_and_repeats_nothing_that_stands_inside_another() -> None:
    paths = ["login_view.py", "src/app/handlers/login_view.py", "login_view", "handlers/login_view.py"]
    modules = [f"module_{number}" for number in range(500)]

    text = pack_names([*paths, *modules], 200, COUNTER)

    assert text.startswith(f"{IDENTIFIERS_HEADING}\nsrc/app/handlers/login_view.py module_0 module_1 module_2 ")
    assert COUNTER.count(text) <= 200
    assert pack_names(modules, 5, COUNTER) == ""


def test_a_name_that_merely_begins_like_another_is_kept() -> None:
    assert pack_names(["page_1", "page_10", "page_1.py"], 100, COUNTER) == f"{IDENTIFIERS_HEADING}\npage_10 page_1.py"


def test_what_stands_beside_the_ledger_is_left_out_of_it(ledger: LedgerOf) -> None:
    kept = ledger(user_message("firstName secondName thirdName"))

    assert (
        kept.names.pack(100, COUNTER, exclude_text="see firstName, and thirdNames")
        == f"{IDENTIFIERS_HEADING}\nthirdName secondName"
    )


@pytest.mark.parametrize("allowance", [-1, 0, 5, 20, 200])
def test_a_pack_never_costs_more_than_its_allowance(ledger: LedgerOf, allowance: int) -> None:
    kept = ledger(*(user_message(f"src/module_{number}/näme{number}Ünique.py") for number in range(200)))

    assert COUNTER.count(kept.names.pack(allowance, COUNTER)) <= max(0, allowance)


def test_of_too_many_names_the_best_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_KEPT_NAMES", 20)
    monkeypatch.setattr(names, "MAX_HELD_NAMES", 30)
    kept = UsedNames()

    kept.observe({"usedOften": 3.0, "usedOnce": 0.2}, 0)
    for position in range(1, 500):
        kept.observe({f"name{position}": 0.2, "usedOften": 3.0}, position)
        assert len(kept) <= 30

    held = {item.text for item in kept.ranked()}
    assert {"usedOften", "name499"} <= held
    assert "usedOnce" not in held


def test_the_same_messages_give_the_same_ledger_in_every_process(ledger: LedgerOf) -> None:
    kept = ledger(user_message("aName bName"), tool_result_message("x", "cName dName"))

    assert kept.names.pack(100, COUNTER) == f"{IDENTIFIERS_HEADING}\nbName aName dName cName"


@given(st.lists(st.sampled_from([f"name_{number}" for number in range(9)]), max_size=30), st.integers(1, 9))
def test_the_best_names_are_the_first_of_all_also_among_equals(uses: list[str], limit: int) -> None:
    used = UsedNames()
    for position, name in enumerate(uses):
        used.observe({name: 3.0}, position // 4)

    assert used.ranked(limit) == used.ranked()[:limit]


def test_names_of_a_snapshot_go_on_as_if_they_had_stayed_in_memory() -> None:
    stayed = UsedNames()
    stayed.observe({"src/app.py": 3.0, "build-1234": 0.5}, 3)

    text = to_snapshot_json(stayed)
    resumed = from_snapshot_json(UsedNames, text)

    assert json.loads(text) == [{name.text: [*name] for name in stayed.ranked()}]
    assert resumed.ranked() == stayed.ranked()
    for one in (stayed, resumed):
        one.observe({"src/app.py": 6.0, "tests/test_app.py": 3.0}, 9)
    assert resumed == stayed
    assert resumed.ranked(1) == stayed.ranked(1)
    assert [(name.text, name.first, name.last) for name in resumed.ranked()] == [
        ("src/app.py", 3, 9),
        ("tests/test_app.py", 9, 9),
        ("build-1234", 3, 3),
    ]


def test_thousands_of_names_are_few_objects() -> None:
    weights = {f"module_{number}": 1.0 for number in range(5_000)}
    gc.collect()
    before = len(gc.get_objects())

    used = UsedNames()
    used.observe(weights, 1)

    assert len(used) == 5_000
    assert len(gc.get_objects()) - before < 50
