"""How long the next request takes to prepare, beside the peers, and whether it could be sent.

    python -m benchmarks.prepare [--json FILE] [--sizes 200,1000,10000,100000] [--budgets 16000] [--no-peers]

Tool-heavy generated histories, newest prompt last and mid-loop (30 tool steps after the prompt). "History" is
the default policy on a log that is held in memory: one more message is appended, the next request planned
and written out. Times are the fastest of several runs, because whatever else the machine does only adds
to them; conversions between formats are outside the timer. "Valid" is by OpenAI's rules, "fits" by the
real tokenizer, "prompt" whether the newest prompt is still there.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers import PEERS, ask
from benchmarks.reporting import save
from holdfast import Request, counter_for, govern, validate
from holdfast.core.conversation.tokens import total_tokens
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.planning.presets import PRESETS
from holdfast.lab.baselines import Sizes
from holdfast.testing.chat import answered, said
from holdfast.testing.planned import Planned
from holdfast.testing.sessions import generated_session
from holdfast.wire.formats import format_named

MODEL = "gpt-5"
LOOP_STEPS = 30
BASELINE = "trim_messages"


def timed(action: Callable[[], Any], repeats: int, seconds: float) -> tuple[list[float], Any]:
    times: list[float] = []
    result = None
    while len(times) < repeats and sum(times) < seconds:
        started = time.perf_counter()
        result = action()
        times.append(time.perf_counter() - started)
    return times, result


def more(number: int) -> Any:
    return answered(f"Step {number} is done.") if number % 2 else said(f"Go on with {number}.")


def fresh(messages: list[Any], budget: int) -> Request:
    return govern(messages, budget=budget, model=MODEL)


def from_history(case: dict[str, Any], budget: int, repeats: int) -> dict[str, Any]:
    """Measure one more message through a history whose older part was folded and whose budget is half full."""
    messages, policy = list(case["messages"]), Planned(PRESETS["default"], model=MODEL)
    sizes = Sizes(Transcript(messages, format_named("openai-chat"), counter_for(MODEL)), 0)
    newest = sizes.start_within(len(messages), budget // 2)
    policy.prepare(messages[: max(2, newest)], budget)
    policy.prepare(messages, budget)
    times: list[float] = []
    sent: Any = []
    for number in range(repeats):
        messages.append(more(number))
        started = time.perf_counter()
        sent = policy.prepare(messages, budget)
        times.append(time.perf_counter() - started)
    return {"name": "holdfast, history", "case": case["name"], "seconds": times, "messages": sent, "prompt": None}


def ours(case: dict[str, Any], budget: int, repeats: int, seconds: float) -> list[dict[str, Any]]:
    """Measure a list never seen before, and the same list grown by one message."""
    messages = case["messages"]
    times, request = timed(lambda: fresh(messages, budget), repeats, seconds)
    grown_times: list[float] = []
    grown = request
    for number in range(repeats):
        messages = [*messages, more(number)]
        started = time.perf_counter()
        grown = govern(messages, budget=budget, model=MODEL, previous=grown)
        grown_times.append(time.perf_counter() - started)
    return [
        from_history(case, budget, repeats),
        {"name": "holdfast, never seen", "case": case["name"], "seconds": times, "messages": request.messages},
        {"name": "holdfast, grown by one", "case": case["name"], "seconds": grown_times, "messages": grown.messages,
         "prompt": None},
    ]  # fmt: skip


def judged(row: dict[str, Any], prompts: dict[str, str], budget: int) -> dict[str, Any]:
    messages = row["messages"]
    reader, counter = format_named("openai-chat"), counter_for(MODEL)
    tokens = total_tokens([reader.decode(native, index) for index, native in enumerate(messages)], counter)
    prompt = prompts[row["case"]] if "prompt" not in row else None
    return {
        "name": row["name"],
        "case": row["case"],
        "ms": min(row["seconds"]) * 1000,
        "median_ms": statistics.median(row["seconds"]) * 1000,
        "runs": len(row["seconds"]),
        "messages": len(messages),
        "tokens": tokens,
        "valid": not validate(messages, "openai-chat"),
        "budget": budget,
        "fits": tokens <= budget,
        "prompt": prompt is None or any(message.get("content") == prompt for message in messages),
    }


def table(rows: list[dict[str, Any]]) -> str:
    baselines = {row["case"]: row["ms"] for row in rows if row["name"] == BASELINE}
    lines = [f"{'case':>16}  {'who':30}{'ms':>10}{'× faster':>10}{'messages':>10}{'tokens':>9}  valid fits prompt"]
    for row in rows:
        baseline = baselines.get(row["case"])
        ratio = f"{baseline / row['ms']:.1f}" if baseline else "–"
        flags = "  ".join("yes" if row[key] else " NO" for key in ("valid", "fits", "prompt"))
        who = f"{row['case']:>16}  {row['name']:30}"
        lines.append(f"{who}{row['ms']:>10.3f}{ratio:>10}{row['messages']:>10,}{row['tokens']:>9,}  {flags}")
    return "\n".join(lines)


def measured(cases: list[dict[str, Any]], budget: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    def all_of_ours() -> list[dict[str, Any]]:
        return [row for case in cases for row in ours(case, budget, options.repeats, options.seconds)]

    rows = all_of_ours()
    if options.no_peers:
        return rows
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "task.json"
        limits = {"budget": budget, "repeats": options.repeats, "seconds": options.seconds}
        task.write_text(json.dumps({**limits, "cases": cases}))
        rows += [row for peer in PEERS for row in ask(peer, task)]
    # Once more, for a machine that is busier at one time than at another.
    for first, second in zip(rows, all_of_ours(), strict=False):
        first["seconds"] += second["seconds"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--sizes", default="200,1000,10000,100000", help="numbers of messages")
    parser.add_argument("--budgets", default="16000", help="largest inputs in tokens")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=6.0, help="the most to spend on one measurement")
    parser.add_argument("--no-peers", action="store_true", help="measure only holdfast")
    options = parser.parse_args()
    cases: list[dict[str, Any]] = [
        {"name": f"{size} {kind}", "messages": generated_session(size, loop_steps=steps)}
        for size in map(int, options.sizes.split(","))
        for kind, steps in (("prompt last", 0), ("mid-loop", LOOP_STEPS))
    ]
    prompts = {case["name"]: [m["content"] for m in case["messages"] if m["role"] == "user"][-1] for case in cases}
    fresh(cases[0]["messages"], 16_000)  # loads the vocabulary
    order = [case["name"] for case in cases]
    results: list[dict[str, Any]] = []
    for budget in map(int, options.budgets.split(",")):
        rows = measured(cases, budget, options)
        judgements = (judged(row, prompts, budget) for row in rows)
        results += sorted(judgements, key=lambda row: order.index(row["case"]))
        print(f"at {budget:,} tokens\n{table(results[-len(rows) :])}\n")
    save(results, options.json)


if __name__ == "__main__":
    main()
