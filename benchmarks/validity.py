"""Checks whether every request of recorded sessions would be valid and fit, at five budgets.

    python -m benchmarks.validity FILE.jsonl … [--budgets 4000,8000] [--json FILE] [--sample N]

For each assistant turn of a recording, the request is prepared from all messages before it. It is checked
against Holdfast's rules for five providers (after encoding), against the validator of mistral-common (version 11
of its protocol, serving mode, after encoding for Mistral), and against its budget. The recordings are not
repaired first; keys that begin with `x_` are annotations and are removed.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from mistral_common.exceptions import MistralCommonException
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode, get_validator
from mistral_common.tokens.tokenizers.base import TokenizerVersion

from benchmarks.reporting import save_figures
from holdfast import HoldfastError, Request, convert, counter_for, govern, validate
from holdfast.core.conversation.tokens import request_tokens
from holdfast.wire.formats import format_named

BUDGETS = "4000,8000,16000,32000,100000"
MODEL = "gpt-5"
PROVIDERS = ("openai-chat", "anthropic-messages", "gemini", "mistral", "bedrock")
ORACLE = get_validator(TokenizerVersion.v11, ValidationMode.serving)
TOOLS = [{"type": "function", "function": {"name": "tool"}}]


@dataclass(slots=True)
class Tally:
    """The findings of one session at one budget."""

    session: str
    budget: int
    requests: int = 0
    violations: Counter[str] = field(default_factory=Counter[str])
    rejections: Counter[str] = field(default_factory=Counter[str])
    over_budget: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])


def read_sessions(paths: list[Path]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for path in paths:
        for line in path.read_text().splitlines():
            record = json.loads(line)
            messages = [
                {key: value for key, value in message.items() if not key.startswith("x_")}
                for message in record["messages"]
            ]
            yield record["id"], messages


def check_request(request: Request, tally: Tally) -> None:
    for provider in PROVIDERS:
        sent = convert(request.messages, source="openai-chat", target=provider)
        for violation in validate(sent.messages, provider, system=sent.system, tools=TOOLS):
            tally.violations[f"{provider}: {violation.rule}"] += 1
        if provider == "mistral":
            check_with_oracle(sent.messages, tally)
    for violation in validate(request.messages, "openai-chat"):
        tally.violations[f"as sent: {violation.rule}"] += 1
    reader = format_named("openai-chat")
    decoded = [reader.decode(native, index) for index, native in enumerate(request.messages)]
    tally.over_budget += request_tokens(decoded, counter_for(MODEL)) > tally.budget


def check_with_oracle(messages: list[Any], tally: Tally) -> None:
    try:
        ORACLE.validate_request(ChatCompletionRequest.from_openai(messages, model="mistral"))
    except MistralCommonException as error:
        tally.rejections[str(error)[:80]] += 1


def check_session(job: tuple[str, list[dict[str, Any]], int, int]) -> Tally:
    session, messages, budget, sample = job
    tally = Tally(session, budget)
    previous = None
    points = [index for index, message in enumerate(messages) if message["role"] == "assistant" and index]
    for number, point in enumerate(points):
        tally.requests += 1
        try:
            previous = govern(messages[:point], budget=budget, model=MODEL, previous=previous)
        except HoldfastError as error:
            tally.errors[f"{type(error).__name__}: {str(error)[:60]}"] += 1
            continue
        if number % sample == 0:
            check_request(previous, tally)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="sessions in OpenAI chat format, one per line")
    parser.add_argument("--budgets", default=BUDGETS)
    parser.add_argument("--sample", type=int, default=1, help="check only every Nth request")
    parser.add_argument("--json", type=Path, help="write a JSON object for each session and budget to this file")
    options = parser.parse_args()
    budgets = [int(budget) for budget in options.budgets.split(",")]
    jobs = [
        (name, messages, budget, options.sample)
        for name, messages in read_sessions(options.files)
        for budget in budgets
    ]
    jobs.sort(key=lambda job: len(job[1]), reverse=True)
    tallies: list[Tally] = []
    with Pool() as pool:
        for done, tally in enumerate(pool.imap_unordered(check_session, jobs), start=1):
            tallies.append(tally)
            if sys.stderr.isatty():
                print(f"\r{done}/{len(jobs)} sessions × budgets", end="", file=sys.stderr, flush=True)
    print_report(tallies, budgets)
    save_figures([{name: getattr(tally, name) for name in Tally.__slots__} for tally in tallies], options.json)
    sys.exit(any(tally.violations or tally.rejections or tally.over_budget for tally in tallies))


def print_report(tallies: list[Tally], budgets: list[int]) -> None:
    print(f"mistral-common {version('mistral-common')}, protocol v11, serving mode")
    print(f"{'budget':>8}{'requests':>10}{'violations':>12}{'rejections':>12}{'over budget':>13}{'typed errors':>14}")
    for budget in budgets:
        rows = [tally for tally in tallies if tally.budget == budget]
        sums = [sum(getattr(row, name).total() for row in rows) for name in ("violations", "rejections", "errors")]
        requests, over = sum(row.requests for row in rows), sum(row.over_budget for row in rows)
        print(f"{budget:>8,}{requests:>10,}{sums[0]:>12,}{sums[1]:>12,}{over:>13,}{sums[2]:>14,}")
    for name in ("violations", "rejections", "errors"):
        found: Counter[str] = sum((getattr(tally, name) for tally in tallies), Counter())
        for what, count in found.most_common(12):
            print(f"{name}: {count:,} × {what}")


if __name__ == "__main__":
    main()
