"""The ledger that ranks identifiers."""

from holdfast import counter_for
from holdfast.core.conversation.view import Entry
from holdfast.core.history.ledger import HEADING, Ledger, pack
from holdfast.testing.chat import Json, answered, called, returned, said
from holdfast.wire.formats import format_named

COUNTER = counter_for("gpt-5")


def ledger(*messages: Json) -> Ledger:
    reader, kept = format_named("openai-chat"), Ledger()
    for index, native in enumerate(messages):
        kept.observe(Entry(reader.decode(native, index), index))
    return kept


def test_what_was_said_outranks_what_only_stood_in_an_output() -> None:
    kept = ledger(
        said("fix parseConfig"), called("a", arguments={"path": "src/a.py"}), returned("a", "otherName someThing")
    )

    assert [item.text for item in kept.ranked()] == ["src/a.py", "parseConfig", "otherName", "someThing"]


def test_recent_and_frequent_uses_outrank_old_ones() -> None:
    filler = [answered("fine")] * 400
    kept = ledger(said("oldName"), said("usedTwice"), *filler, said("newName"), said("usedTwice"))

    assert [item.text for item in kept.ranked()] == ["usedTwice", "newName", "oldName"]
    assert next(item for item in kept.ranked() if item.text == "usedTwice")[1:3] == (1, 403)


def test_a_ledger_keeps_to_its_allowance_and_repeats_nothing_that_stands_inside_another() -> None:
    names = [
        "src/app/handlers/login_view.py",
        "login_view.py",
        "login_view",
        *(f"module_{number}" for number in range(500)),
    ]

    text = pack(names, 200, COUNTER)

    assert text.startswith(f"{HEADING}\nsrc/app/handlers/login_view.py module_0 module_1 ")
    assert COUNTER.count(text) <= 200
    assert pack(names, 5, COUNTER) == ""


def test_the_same_messages_give_the_same_ledger() -> None:
    messages = [said("aName bName"), returned("x", "cName dName")]

    assert ledger(*messages).pack(100, COUNTER) == ledger(*messages).pack(100, COUNTER)
