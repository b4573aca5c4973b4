"""Facts planted in a conversation, and which of them are counted where."""

from benchmarks.needles import Needle, counted, in_turns, planted, table
from holdfast.testing.chat import answered, called, returned, said, told
from holdfast.testing.sessions import generated_session

NEEDLES = [Needle("pilot of Alby", "amber-heron-1001"), Needle("berth of Lindor", "teal-egret-1002")]


def test_facts_stand_in_prompts_answers_and_large_results_alike() -> None:
    messages, needles = planted(generated_session(120), each=3)

    places = [message["role"] for needle in needles for message in messages if needle.text in str(message["content"])]
    assert places == ["user"] * 3 + ["assistant"] * 3 + ["tool"] * 3
    assert len({needle.name for needle in needles} | {needle.value for needle in needles}) == 18


def test_the_conversation_that_facts_are_planted_in_is_left_as_it_was() -> None:
    messages = generated_session(120)

    planted(messages, each=3)

    assert messages == generated_session(120)


def test_a_request_is_due_behind_a_prompt_and_behind_all_results_of_a_step() -> None:
    begin, step, rest = (
        [told("Be brief."), said("Look.")],
        [called("a", "b"), returned("a"), returned("b")],
        answered("So."),
    )

    turns = in_turns([*begin, *step, rest, said("And?")])

    assert turns == [begin, step, [rest, said("And?")]]


def test_a_fact_counts_as_in_view_as_seen_by_the_summariser_or_as_found() -> None:
    row = {
        "name": "way",
        "messages": [said(f"We heard: {NEEDLES[0].text}")],
        "shown": ["nothing of it", f"a file says {NEEDLES[1].value}"],
        "found": [None, f"#3 {NEEDLES[1].text}"],
    }

    figures = counted(row, NEEDLES)

    del figures["largest"]
    reached = {"gone": 1, "reached": 1, "calls": 2, "reachable": 2, "has_tool": True}
    assert figures == {"name": "way", "needles": 2, "in_view": 1, **reached}


def test_a_way_without_a_summariser_or_a_tool_has_dashes_and_a_star() -> None:
    row = {"name": "window", "messages": [said(NEEDLES[0].text)], "shown": None, "found": [None, None]}

    written = table([counted(row, NEEDLES), {"name": "absent", "failed": "cannot be installed"}]).splitlines()[2:]

    assert written == [
        "| window | 50% | – | – | – | 50%* |",
        "| absent | **failed:** cannot be installed |  |  |  |  |",
    ]
