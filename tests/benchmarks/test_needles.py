"""Facts planted in a conversation, and which of them are counted where."""

from benchmarks.needles import Needle, count_needles, plant_needles, render_table, split_turns
from holdfast.testing.chat import (
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.sessions import generate_session

NEEDLES = [Needle("pilot of Alby", "amber-heron-1001"), Needle("berth of Lindor", "teal-egret-1002")]


def test_facts_stand_in_prompts_answers_and_large_results_alike() -> None:
    messages, needles = plant_needles(generate_session(120), each=3)

    places = [message["role"] for needle in needles for message in messages if needle.text in str(message["content"])]
    assert places == ["user"] * 3 + ["assistant"] * 3 + ["tool"] * 3
    assert len({needle.name for needle in needles} | {needle.value for needle in needles}) == 18


def test_the_conversation_that_facts_are_planted_in_is_left_as_it_was() -> None:
    messages = generate_session(120)

    plant_needles(messages, each=3)

    assert messages == generate_session(120)


def test_a_request_is_due_after_a_prompt_and_after_all_results_of_a_step() -> None:
    begin, step, rest = (
        [system_message("Be brief."), user_message("Look.")],
        [tool_call_message("a", "b"), tool_result_message("a"), tool_result_message("b")],
        assistant_message("So."),
    )

    turns = split_turns([*begin, *step, rest, user_message("And?")])

    assert turns == [begin, step, [rest, user_message("And?")]]


def test_a_fact_counts_as_in_view_as_seen_by_the_summarizer_or_as_found() -> None:
    row = {
        "name": "way",
        "messages": [user_message(f"We heard: {NEEDLES[0].text}")],
        "shown": ["nothing of it", f"a file says {NEEDLES[1].value}"],
        "found": [None, f"#3 {NEEDLES[1].text}"],
    }

    figures = count_needles(row, NEEDLES)

    del figures["largest"]
    reached = {"gone": 1, "reached": 1, "calls": 2, "reachable": 2, "has_tool": True}
    assert figures == {"name": "way", "needles": 2, "in_view": 1, **reached}


def test_a_way_without_a_summarizer_or_a_tool_has_dashes_and_a_star() -> None:
    row = {"name": "window", "messages": [user_message(NEEDLES[0].text)], "shown": None, "found": [None, None]}

    written = render_table(
        [count_needles(row, NEEDLES), {"name": "absent", "failed": "cannot be installed"}]
    ).splitlines()[2:]

    assert written == [
        "| window | 50% | – | – | – | 50%* |",
        "| absent | **failed:** cannot be installed |  |  |  |  |",
    ]
