"""The choice of turns to quote keeps stems for the next compaction, as many as take little memory."""

from holdfast.core.conversation.messages import Entry, assistant, user
from holdfast.core.planning.replacement import _Stems as Stems
from holdfast.core.planning.replacement import most_informative

TALK = ["The port is 8080 in Lisbon.", "Noted: Lisbon, 8080.", "And the port in Porto?", "It is 9090 there."]


def chosen(texts: list[str], allowance: int = 20) -> list[int | None]:
    made = (user, assistant)
    turns = [Entry(made[place % 2](text), place) for place, text in enumerate(texts)]
    return [entry.position for entry in most_informative(turns, allowance, [10] * len(turns), {})]


def test_what_an_earlier_compaction_has_kept_changes_no_choice() -> None:
    Stems.keep(Stems())
    first = chosen(TALK)
    kept = Stems.kept()

    assert kept["Lisbon"] == "lisbon"
    assert [chosen(TALK), chosen([*reversed(TALK)]), chosen(TALK)] == [first, chosen([*reversed(TALK)]), first]
    assert Stems.kept() is kept


def test_a_word_of_megabytes_is_not_kept() -> None:
    Stems.keep(Stems())
    chosen([*TALK, "x" * (Stems.MAX_KEPT_CHARS + 1)])

    assert list(Stems.kept()) == []
