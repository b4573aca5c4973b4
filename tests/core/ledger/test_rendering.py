"""The whole ledger as a text."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import counter_for
from holdfast.core.conversation.messages import Entry, user
from holdfast.core.ledger.constraints import MAX_CONSTRAINTS
from holdfast.core.ledger.ledger import Ledger
from holdfast.core.ledger.render import render_ledger
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.sessions import generate_session
from holdfast.testing.strategies.chat import chat_histories
from holdfast.wire.formats import format_named

COUNTER = counter_for("gpt-5")
LedgerOf = Callable[..., Ledger]

SESSION = (
    user_message("Fix parseConfig. Never touch src/lexer.py."),
    tool_call_message("a", arguments={"path": "src/parser.py"}),
    tool_result_message("a", "def parse_tabs(): ..."),
    tool_call_message("b", name="run", arguments={"cmd": "cd /repo && pytest -q"}),
    tool_result_message("b", "E  AssertionError: tabs"),
    tool_call_message("c", name="grep", arguments={"pattern": "tabs", "path": "src"}),
    tool_result_message("c", "src/parser.py:3: tabs"),
    assistant_message("Let's use expandTabs."),
)


def test_it_says_what_to_keep_to_what_was_done_and_which_names_were_used(ledger: LedgerOf) -> None:
    assert render_ledger(ledger(*SESSION), 4_000, COUNTER) == (
        "[Ledger of earlier messages, made by rule, for reference only; #n is where a line comes from.]\n"
        "The user asked to keep to:\n"
        "- “Never touch src/lexer.py.” #0\n"
        "Decided:\n"
        "- “Let's use expandTabs.” #7\n"
        "Files:\n"
        "- src/parser.py: read #2\n"
        "Commands:\n"
        "- pytest -q: failed #4\n"
        "Went wrong:\n"
        "- pytest -q: E AssertionError: tabs #4\n"
        "Searches:\n"
        "- tabs in src: 1 hits #6\n"
        "Identifiers used so far, most likely needed first:\n"
        "/repo parseConfig parse_tabs"
    )


@pytest.mark.parametrize("allowance", [10, 40, 100, 400, 1_500])
def test_it_keeps_to_its_allowance(ledger: LedgerOf, allowance: int) -> None:
    text = render_ledger(ledger(*generate_session(300), *SESSION), allowance, COUNTER)

    assert COUNTER.count(text) <= allowance
    assert not text or text.startswith("[Ledger")


def test_most_of_it_is_left_to_the_names_where_there_are_many(ledger: LedgerOf) -> None:
    kept = ledger(*(tool_call_message(f"{n}", arguments={"path": f"src/module_{n}.py"}) for n in range(900)), *SESSION)

    above, _, names = render_ledger(kept, 1_000, COUNTER).partition("Identifiers")

    assert COUNTER.count(above) < COUNTER.count(names) / 2


def test_what_the_user_asked_for_has_a_share_of_a_large_ledger(ledger: LedgerOf) -> None:
    wishes = [
        user_message(f"Please keep module {number} small and never make it depend on another.") for number in range(90)
    ]
    names = tool_result_message("a", " ".join(f"src/part_{number}/file_{number}.py" for number in range(3_000)))
    text = render_ledger(ledger(*wishes, tool_call_message("a"), names), 6_000, COUNTER)

    asked = "\n".join(line for line in text.splitlines() if line.startswith("- “"))
    assert 0.13 < COUNTER.count(asked) / 6_000 <= 0.15


def test_a_message_without_a_position_comes_after_the_one_before() -> None:
    kept = Ledger()
    for entry in (
        Entry(user("Never touch a.py."), 4),
        Entry(user("Never touch b.py.")),
        Entry(user("Never touch c.py.")),
    ):
        kept.observe(entry)

    assert [one.sources for one in kept.constraints] == [(4,), (5,), (6,)]


def test_what_holds_stands_before_what_no_longer_does(ledger: LedgerOf) -> None:
    kept = ledger(user_message("Use npm."), user_message("Never push."), user_message("Use pnpm instead of npm."))

    assert render_ledger(kept, 2_000, COUNTER).splitlines()[2:5] == [
        "- “Never push.” #1",
        "- “Use pnpm instead of npm.” #2",
        "- “Use npm.” #0 (superseded by #2)",
    ]


def test_an_explicit_order_is_not_pushed_out_by_newer_constraints(ledger: LedgerOf) -> None:
    orders = ["Always name the source of a figure.", "Please never push to main.", "Antworte immer auf Deutsch."]
    wishes = [f"Use the colour number {number} for the part with the name {number * 7}." for number in range(60)]
    kept = ledger(*map(user_message, [*orders, *wishes]))

    text = render_ledger(kept, 300, COUNTER)

    assert [order for order in orders if order in text] == orders


def test_a_full_ledger_evicts_constraints_before_orders(ledger: LedgerOf) -> None:
    wishes = [f"Use the colour {number} for part {number * 7}." for number in range(MAX_CONSTRAINTS + 10)]
    kept = ledger(*map(user_message, ["Never push to main.", *wishes]))

    texts = [one.text for one in kept.constraints]

    assert len(texts) == MAX_CONSTRAINTS
    assert texts[:2] == ["Never push to main.", wishes[11]]


@given(chat_histories(), st.integers(-5, 300))
def test_any_history_has_a_ledger_that_fits(messages: list[JsonMessage], allowance: int) -> None:
    reader, kept = format_named("openai-chat"), Ledger()
    for index, native in enumerate(messages):
        kept.observe(Entry(reader.decode(native, index), index))

    assert COUNTER.count(render_ledger(kept, allowance, COUNTER)) <= max(0, allowance)


@pytest.mark.parametrize("allowance", range(110, 400, 7))
def test_names_never_crowd_out_what_the_user_laid_down(ledger: LedgerOf, allowance: int) -> None:
    names = " ".join(f"src/part_{number}/module_{number}.py" for number in range(60))
    kept = ledger(
        user_message("Do not add a dependency to requirements-prod.txt."),
        tool_call_message("a"),
        tool_result_message("a", names),
    )

    text = render_ledger(kept, allowance, COUNTER)

    assert "- “Do not add a dependency to requirements-prod.txt.” #0" in text
    assert COUNTER.count(text) <= allowance
