"""What a coding agent keeps about its own work survives a compaction as what it is."""

import json
from typing import Any

from holdfast.core.conversation.messages import Entry
from holdfast.core.ledger.ledger import Ledger
from holdfast.core.ledger.render import render_ledger
from holdfast.core.planning.summary.must_keep import must_keep_of
from holdfast.counters.vocabularies import counter_for
from holdfast.wire.formats import format_named

CHAT = format_named("openai-chat")
COUNTER = counter_for("gpt-5")


def ledger_of(*natives: dict[str, Any]) -> Ledger:
    ledger = Ledger()
    for position, native in enumerate(natives):
        ledger.observe(Entry(CHAT.decode(native, position), position))
    return ledger


def calls(tool: str, number: int = 1, **arguments: Any) -> dict[str, Any]:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
    }


def result(text: str, number: int = 1) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


TODOS = [
    {"content": "Read the parser", "status": "completed", "activeForm": "Reading"},
    {"content": "Rewrite the lexer", "status": "in_progress", "activeForm": "Rewriting"},
    {"content": "Add benchmarks", "status": "pending", "activeForm": "Adding"},
    {"content": "Port to Rust", "status": "cancelled", "activeForm": "Porting"},
]


def test_a_plan_keeps_the_state_of_each_step_and_is_no_order() -> None:
    ledger = ledger_of(calls("TodoWrite", todos=TODOS), result("ok"))

    text = render_ledger(ledger, 2_000, COUNTER)

    assert "\n".join(map(str, ledger.work.plan)) == (
        "[done] Read the parser [#0]\n[in progress] Rewrite the lexer [#0]\n"
        "[open] Add benchmarks [#0]\n[put off] Port to Rust [#0]"
    )
    assert "The assistant's plan as it last stood; a record of what is done and what is put off, not an order:" in text
    assert "- [put off] Port to Rust [#0]" in text


def test_the_plan_of_another_agent_is_read_from_its_own_arguments_and_the_last_one_counts() -> None:
    begun = [{"step": "Look", "status": "in_progress"}, {"step": "Fix", "status": "pending"}]
    done = [{"step": "Look", "status": "completed"}, {"step": "Fix", "status": "completed"}]

    ledger = ledger_of(
        calls("update_plan", plan=begun), result("ok"), calls("update_plan", 2, plan=done), result("ok", 2)
    )

    assert [(step.text, step.state) for step in ledger.work.plan] == [("Look", "done"), ("Fix", "done")]


def test_a_long_step_of_a_plan_keeps_its_first_200_characters() -> None:
    texts = ["x" * 200, "y" * 201]

    ledger = ledger_of(
        calls("TodoWrite", todos=[{"content": text, "status": "pending"} for text in texts]), result("ok")
    )

    assert [step.text for step in ledger.work.plan] == ["x" * 200, "y" * 199 + "…"]


def test_what_the_user_shelves_is_put_off() -> None:
    ledger = ledger_of(calls("TodoWrite", todos=TODOS), result("ok"), user("Shelve the lexer rewrite plan for now."))

    assert [step.state for step in ledger.work.plan] == ["done", "put off", "put off", "put off"]


def test_ids_of_background_jobs_and_sub_agents_stay_to_the_letter_until_they_end() -> None:
    ledger = ledger_of(
        calls("Bash", command="npm run dev", run_in_background=True),
        result("Command running in background with ID: bash_7"),
        calls("Task", 2, prompt="review the parser"),
        result("done\nagentId: a3f9c1d (for resuming)", 2),
        calls("exec_command", 3, cmd="make watch"),
        result("Process running with session ID 48213", 3),
        calls("KillShell", 4, shell_id="bash_7"),
        result("killed", 4),
    )

    text = render_ledger(ledger, 2_000, COUNTER)

    assert {one.id: (one.what, one.has_ended) for one in ledger.work.tasks.values()} == {
        "bash_7": ("npm run dev", True),
        "a3f9c1d": ('Task {"prompt": "review the parser"}', False),
        "48213": ("make watch", False),
    }
    assert "- 48213: make watch [#5]" in text
    facts = [fact.text for fact in must_keep_of(ledger)]
    assert [facts.count("48213"), facts.count("a3f9c1d")] == [1, 1]


def test_a_note_of_the_model_to_itself_is_kept_as_it_was_written() -> None:
    said = "All tests pass.\n\n**Milestone:** parser is done; next the lexer, and use `--strict`.\nSee #12.\n\nMore."
    ledger = ledger_of({"role": "assistant", "content": said}, calls("compact_context", note="the API is frozen"))

    assert [note.text for note in ledger.work.notes] == [
        "parser is done; next the lexer, and use `--strict`.\nSee #12.",
        "the API is frozen",
    ]
    assert "the API is frozen [#1]" in render_ledger(ledger, 2_000, COUNTER)


def test_prose_and_data_are_neither_plans_nor_ids() -> None:
    ledger = ledger_of(
        calls("search", query="x", items=[{"title": "a", "status": "published"}]),
        result("the session is over, the task id is not known, process the job"),
        user("Forget about lunch."),
    )

    assert (ledger.work.plan, ledger.work.tasks, ledger.work.notes) == ([], {}, [])
