"""Compares with peers how long the next request takes to prepare, and checks whether it could be sent.

    python -m benchmarks.prepare [--json FILE] [--sizes 200,1000] [--budgets 16000] [--peers langchain,harness]

Tool-heavy generated histories, newest prompt last and mid-loop (30 tool steps after the prompt). "First" is a list
never seen before, "next" the request after one message more, with whatever state a library carries. "History" is the
default policy on a log in memory; "Holdfast" alone is a whole session, which records what it prepares.
Times are the fastest of several runs, because other load only adds to them; conversions between formats are not
timed. "Valid" is by OpenAI's rules, "fits" by the real tokenizer, "prompt" whether the newest
prompt is still there: all three of the first request.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers import choose_peers, run_task
from benchmarks.reporting import print_progress, save_figures
from benchmarks.tables import failed_cells, markdown_table, render_claim, render_milliseconds, render_ratio
from holdfast import Request, counter_for, govern, validate
from holdfast.apps.lab.baselines import MessageSizes
from holdfast.core.conversation.tokens import request_tokens
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.planning.changes import compaction_completed_event, step_event
from holdfast.core.planning.plan import MAX_PLAN_ROUNDS, make_plan, plan_input_of, view_of
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.situation import Budget, Situation
from holdfast.core.planning.steps import CompactSpan, OffloadOutputs
from holdfast.session.request import as_accepted, encode_entry
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.sessions import generate_session
from holdfast.wire.formats import format_named

MODEL = "gpt-5"
SHAPES = {"prompt last": 0, "mid-loop": 30}
"""How a history ends, and how many tool steps come after its newest prompt."""
BASELINE = "trim_messages"
LIST_NAME, HISTORY_NAME = "Holdfast, a list", "Holdfast, a history in memory"
EXPLANATION = (
    "A generated, tool-heavy conversation at 16,000 tokens: medians with the newest prompt last, in brackets "
    'relative to Holdfast with the same list. "First" is a list never seen before, "next" a message later, with the '
    "state that a library carries. The claims are about all sizes, by OpenAI's rules and the real tokenizer: once "
    'with the newest prompt last, once with 30 tool steps after it. "Holdfast" alone is a whole session, which '
    "records each request too. Libraries that summarize do so at 75 % and keep 25 %, windows slide from 75 % to 50 %, "
    "deepagents configures itself (85 % and 10 %), and the others receive the budget. Summarizers answer at once."
)


def time_action(action: Callable[[], Any], repeats: int, seconds: float) -> tuple[list[float], Any]:
    times: list[float] = []
    result = None
    while len(times) < repeats and sum(times) < seconds:
        started = time.perf_counter()
        result = action()
        times.append(time.perf_counter() - started)
    return times, result


def next_message(number: int) -> Any:
    return assistant_message(f"Step {number} is done.") if number % 2 else user_message(f"Go on with {number}.")


def govern_fresh(messages: list[Any], budget: int) -> Request:
    return govern(messages, budget=budget, model=MODEL)


def plan_request(history: History, messages: list[Any], budget: int) -> list[Any]:
    """Append new messages to a history, apply the default policy, and return the view that would be sent."""
    policy, message_format = PRESETS["default"], format_named("openai-chat")
    for native in messages[len(history) :]:
        history.append(log.MessageAppended(format=message_format.name, native=native))
    situation = Situation(budget=Budget(budget), counter=counter_for(MODEL), window=budget, is_interrupted=True)
    rounds = 0
    while True:
        plan_input = plan_input_of(history, policy, situation)
        plan, view = make_plan(plan_input, policy), view_of(plan_input, policy)
        rounds += 1
        if not plan.now or rounds == MAX_PLAN_ROUNDS:
            break
        for step in plan.now:
            plan_input = plan_input_of(history, policy, situation)
            if isinstance(step, CompactSpan) and policy.compaction:
                history.append(compaction_completed_event(step, policy.compaction, plan_input))
            elif isinstance(step, OffloadOutputs):
                history.append(step_event(step, plan_input))
    return as_accepted([encode_entry(entry, message_format) for entry in view.entries], message_format)


def measure_history(case: dict[str, Any], budget: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Measure a new history, and one more message in a history that was compacted long ago."""
    messages = list(case["messages"])
    first, sent = time_action(lambda: plan_request(History(format_named), messages, budget), repeats, seconds)
    history = History(format_named)
    sizes = MessageSizes(Transcript(messages, format_named("openai-chat"), counter_for(MODEL)), 0)
    newest = sizes.start_within(len(messages), budget // 2)
    plan_request(history, messages[: max(2, newest)], budget)
    plan_request(history, messages, budget)
    following: list[float] = []
    for number in range(repeats):
        messages.append(next_message(number))
        started = time.perf_counter()
        plan_request(history, messages, budget)
        following.append(time.perf_counter() - started)
    return {"name": HISTORY_NAME, "case": case["name"], "seconds": first, "following": following, "messages": sent}


def measure_list(case: dict[str, Any], budget: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Measure a list never seen before, and the same list grown by one message."""
    messages = case["messages"]
    first, request = time_action(lambda: govern_fresh(messages, budget), repeats, seconds)
    following: list[float] = []
    grown = request
    for number in range(repeats):
        messages = [*messages, next_message(number)]
        started = time.perf_counter()
        grown = govern(messages, budget=budget, model=MODEL, previous=grown)
        following.append(time.perf_counter() - started)
    sent = request.messages
    return {"name": LIST_NAME, "case": case["name"], "seconds": first, "following": following, "messages": sent}


def row_figures(row: dict[str, Any], prompts: dict[str, str], budget: int) -> dict[str, Any]:
    """Return a row's times, and whether its request could be sent."""
    messages = row["messages"]
    reader, counter = format_named("openai-chat"), counter_for(MODEL)
    tokens = request_tokens([reader.decode(native, index) for index, native in enumerate(messages)], counter)
    return {
        "name": row["name"],
        "case": row["case"],
        "first": min(row["seconds"]),
        "next": min(row["following"]),
        "median_first": statistics.median(row["seconds"]),
        "median_next": statistics.median(row["following"]),
        "runs": len(row["seconds"]),
        "messages": len(messages),
        "tokens": tokens,
        "valid": not validate(messages, "openai-chat"),
        "budget": budget,
        "fits": tokens <= budget,
        "prompt": any(prompts[row["case"]] in str(message.get("content")) for message in messages),
    }


def render_table(rows: list[dict[str, Any]]) -> str:
    """Return a line for each row, compared with the baseline of its case."""
    baselines = {row["case"]: row for row in rows if row["name"] == BASELINE and "failed" not in row}
    head = f"{'case':>16}  {'who':40}{'first ms':>10}{'× faster':>10}{'next ms':>10}{'× faster':>10}"
    lines = [f"{head}{'messages':>10}{'tokens':>9}  valid fits prompt"]
    for row in rows:
        who = f"{row.get('case', ''):>16}  {row['name']:40}"
        if "failed" in row:
            lines.append(f"{who}  FAILED: {row['failed']}")
            continue
        base = baselines.get(row["case"])
        for key in ("first", "next"):
            who += f"{row[key] * 1000:>10.3f}{f'{base[key] / row[key]:.1f}' if base else '–':>10}"
        flags = "  ".join("yes" if row[key] else " NO" for key in ("valid", "fits", "prompt"))
        lines.append(f"{who}{row['messages']:>10,}{row['tokens']:>9,}  {flags}")
    return "\n".join(lines)


def render_markdown(rows: list[dict[str, Any]], sizes: list[int]) -> str:
    """Return medians for each size with the newest prompt last, and whether requests of both shapes could be sent."""
    head = ["", *(f"{size:,}: {which}" for size in sizes for which in ("first", "next"))]
    head += [f"{shape}: {claim}" for shape in SHAPES for claim in ("valid", "fits", "prompt kept")]
    lines: list[list[str]] = []
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        lines.append(
            failed_cells(own[0], len(head)) if "case" not in own[0] else [name, *_size_cells(own, rows, sizes)]
        )
    return markdown_table(head, lines)


def _size_cells(own: list[dict[str, Any]], rows: list[dict[str, Any]], sizes: list[int]) -> list[str]:
    first_shape = next(iter(SHAPES))
    cells: list[str] = []
    for size in sizes:
        case = f"{size} {first_shape}"
        row = next(row for row in own if row["case"] == case)
        if "failed" in row:
            cells += [str(row["failed"]), ""]
            continue
        ours = next((row for row in rows if row["name"] == LIST_NAME and row["case"] == case), None)
        for key in ("median_first", "median_next"):
            cells.append(f"{render_milliseconds(row[key])} ms ({render_ratio(row[key], ours[key] if ours else None)})")
    for shape in SHAPES:
        done = [row for row in own if row["case"].endswith(shape) and "failed" not in row]
        cells += [
            render_claim(all(row[claim] for row in done)) if done else "–" for claim in ("valid", "fits", "prompt")
        ]
    return cells


async def measure(
    cases: list[dict[str, Any]], budget: int, names: list[str], *, repeats: int, seconds: float
) -> list[dict[str, Any]]:
    """Return a row for each method and case; Holdfast is measured before the peers and again after them."""

    def all_of_ours() -> list[dict[str, Any]]:
        return [how(case, budget, repeats, seconds) for how in (measure_list, measure_history) for case in cases]

    rows = all_of_ours()
    task = {
        "do": "prepare",
        "budget": budget,
        "repeats": repeats,
        "seconds": seconds,
        "cases": cases,
        "more": next_message(0),
    }
    for peer in choose_peers(names) if names else []:
        print_progress(f"prepare: {peer.name} …")
        rows += await run_task(peer, task)
    # Once more, for a machine that is busier at one time than at another.
    for first, second in zip(rows, all_of_ours(), strict=False):
        for key in ("seconds", "following"):
            first[key] += second[key]
    prompts = {case["name"]: [m["content"] for m in case["messages"] if m["role"] == "user"][-1] for case in cases}
    return [row if "failed" in row else row_figures(row, prompts, budget) for row in rows]


def make_cases(sizes: list[int]) -> list[dict[str, Any]]:
    """Return the histories, each in both shapes."""
    return [
        {"name": f"{size} {shape}", "messages": generate_session(size, loop_steps=steps)}
        for size in sizes
        for shape, steps in SHAPES.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--sizes", default="200,1000,10000", help="numbers of messages (100000 takes many minutes)")
    parser.add_argument("--budgets", default="16000", help="largest inputs in tokens")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=6.0, help="the most seconds for one measurement")
    parser.add_argument("--peers", default="langchain,harness", help="the peers to compare with; none if empty")
    options = parser.parse_args()
    cases = make_cases([int(size) for size in options.sizes.split(",")])
    names = [name for name in options.peers.split(",") if name]
    govern_fresh(cases[0]["messages"], 16_000)  # loads the vocabulary
    order = [case["name"] for case in cases]
    results: list[dict[str, Any]] = []
    for budget in map(int, options.budgets.split(",")):
        rows = asyncio.run(measure(cases, budget, names, repeats=options.repeats, seconds=options.seconds))
        results += sorted(rows, key=lambda row: order.index(row.get("case", order[0])))
        print(f"at {budget:,} tokens\n{render_table(results[-len(rows) :])}\n")
    save_figures(results, options.json)


if __name__ == "__main__":
    main()
