"""One prompt, many tool calls, a small window: checks that the run ends and that the task stays in view.

    python -m benchmarks.loop [PEER …]

Each peer runs its own agent against an endpoint on this machine that follows a script: one tool call after the other,
then the answer. The endpoint rejects a request that is larger than the window, counted with the model's own vocabulary,
and a request that OpenAI would reject: a call without its result, or a result without its call. It reports the usage
of each answer. The tool returns log lines, which have more tokens than an estimate of four characters each.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers import Peer, measure_from_command_line, run_task
from benchmarks.reporting import print_progress
from benchmarks.tables import DASH, render_claim, render_ratio, render_share, table_with_failures
from holdfast import counter_for
from holdfast.testing.endpoint import ReceivedRequest, ResponsePiece, ScriptedEndpoint, http_response

WINDOW, STEPS, PART_TOKENS = 16_000, 60, 2_000
MODEL, SUMMARIZER_MODEL = "gpt-5", "gpt-5-mini"
PROMPT = "Read all parts of the audit log, and tell me which worker failed first. Ticket HX-7731; do not guess."
ANSWER = "Worker 7 failed first."
SUMMARY = (
    "The audit log is read with read_part for ticket HX-7731; no worker failed so far. Next: read the following part."
)
MAX_REQUESTS_PER_STEP = 4
"""How many requests for each step are answered before the script ends the run."""
EXPLANATION = (
    f"Each library's own agent in a window of {WINDOW:,} tokens: {STEPS} tool calls with results of "
    f"{PART_TOKENS:,} tokens of log lines, against an endpoint on this machine that rejects what is too long and "
    'what has broken pairs; it counts with the vocabulary of gpt-5, which Holdfast does too. "Task in" is the share '
    "of requests that contain the prompt verbatim. Tokens are those of all requests and summaries, relative to "
    "Holdfast's if the run was finished. Libraries compact at 75 % of the window and keep 25 %, sliding ones 50 %; "
    "deepagents configures itself; Holdfast receives the window."
)


@dataclass(slots=True)
class Tally:
    """The requests of one run, counted."""

    requests: int = 0
    answered: int = 0
    over: int = 0
    invalid: int = 0
    tokens: int = 0
    with_task: int = 0
    has_task: bool = False
    """In the newest request."""
    summaries: int = 0
    summary_tokens: int = 0
    refused_summaries: int = 0


@dataclass(slots=True)
class Script:
    """Answers every run, identified by its path, and counts its requests."""

    window: int = WINDOW
    steps: int = STEPS
    tallies: dict[str, Tally] = field(default_factory=dict[str, Tally])

    def reply(self, received: ReceivedRequest) -> list[ResponsePiece]:
        """Return the answer to a request, or an error."""
        path, body = received.line.split("/")[2], received.body
        tally = self.tallies.setdefault(path, Tally())
        messages: Any = body["messages"]
        tokens = request_tokens(messages, body.get("tools"))
        if body["model"] == SUMMARIZER_MODEL:
            return self._summary(tally, tokens)
        tally.requests += 1
        tally.tokens += tokens
        tally.has_task = any(PROMPT in message_text(message) for message in messages)
        tally.with_task += tally.has_task
        if broken := count_orphans(messages):
            tally.invalid += 1
            return refusal_reply(f"{broken} tool calls or results have no counterpart", "invalid_value")
        if tokens > self.window:
            tally.over += 1
            return overflow_reply(self.window, tokens)
        tally.answered += 1
        is_last = tally.answered > self.steps or tally.requests > MAX_REQUESTS_PER_STEP * self.steps
        return completion_reply(ANSWER if is_last else None, tally.answered, tokens)

    def _summary(self, tally: Tally, tokens: int) -> list[ResponsePiece]:
        tally.summaries += 1
        tally.summary_tokens += tokens
        if tokens > self.window:
            tally.refused_summaries += 1
            return overflow_reply(self.window, tokens)
        return completion_reply(SUMMARY, 0, tokens)


def message_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message."""
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def count_orphans(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return how many calls have no result right after them, and how many results have no call right before them."""
    broken, waiting = 0, set[str]()
    for message in messages:
        if message["role"] == "tool":
            broken += message["tool_call_id"] not in waiting
            waiting.discard(message["tool_call_id"])
            continue
        broken += len(waiting)
        waiting = {call["id"] for call in message.get("tool_calls") or ()}
    return broken + len(waiting)


def request_tokens(messages: Sequence[Mapping[str, Any]], tools: Any) -> int:
    """Return the tokens of a request: its texts, its calls, four tokens for each message, and the tools as JSON."""
    count = counter_for(MODEL).count
    total = count(json.dumps(tools)) if tools else 0
    for message in messages:
        total += 4 + count(message_text(message))
        total += sum(8 + count(call["function"]["arguments"]) for call in message.get("tool_calls") or ())
    return total


def refusal_reply(message: str, code: str) -> list[ResponsePiece]:
    """Return an error in OpenAI's format."""
    return http_response(
        400, {"error": {"message": message, "type": "invalid_request_error", "param": "messages", "code": code}}
    )


def overflow_reply(window: int, tokens: int) -> list[ResponsePiece]:
    """Return the error for a request that does not fit."""
    text = (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens."
    )
    return refusal_reply(text, "context_length_exceeded")


def completion_reply(text: str | None, number: int, tokens: int) -> list[ResponsePiece]:
    """Return an answer with its usage; without a text, the next tool call."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if text is None:
        function = {"name": "read_part", "arguments": json.dumps({"number": number})}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    reason = "stop" if text else "tool_calls"
    usage = {"prompt_tokens": tokens, "completion_tokens": 20, "total_tokens": tokens + 20}
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 1_700_000_000, "model": MODEL}
    return http_response(200, {**head, "choices": [choice], "usage": usage})


def log_parts(number: int = STEPS, tokens: int = PART_TOKENS, seed: int = 3) -> list[str]:
    """Return log lines of about a number of tokens."""
    chance, count = random.Random(seed), counter_for(MODEL).count
    parts: list[str] = []
    for _ in range(number):
        lines: list[str] = []
        size = 0
        while size < tokens:
            lines.append(_log_line(chance))
            size += count(lines[-1]) + 1
        parts.append("\n".join(lines))
    return parts


def _log_line(chance: random.Random) -> str:
    hour, minute, second = chance.randint(0, 23), chance.randint(0, 59), chance.randint(0, 59)
    at = f"2026-03-{chance.randint(1, 28):02}T{hour:02}:{minute:02}:{second:02}Z"
    place = f"/api/v2/{chance.choice(('items', 'orders', 'carts'))}/{chance.getrandbits(64):016x}"
    return (
        f"{at} worker-{chance.randint(1, 40)} GET {place} {chance.choice((200, 204, 404))} {chance.randint(1, 900)}ms"
    )


def run_figures(row: dict[str, Any], tally: Tally) -> dict[str, Any]:
    """Return the result of a run as a row."""
    figures = {name: getattr(tally, name) for name in Tally.__slots__}
    reason = row.get("failed") or (None if row["answer"] == ANSWER else f"the answer {row['answer']!r:.80}")
    return {**figures, "name": row["name"], "is_finished": reason is None, "reason": reason}


def render_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of this part; tokens are relative to those that Holdfast sent."""
    head = [
        "",
        "finished",
        "steps",
        "refused: too long",
        "refused: broken pairs",
        "task in the last request",
        "task in",
    ]
    head += ["prompt tokens", "summaries (refused)", "their tokens", "all tokens"]
    ours = next((_all_tokens(row) for row in rows if row["name"] == "Holdfast" and "tokens" in row), None)

    def cells(row: Mapping[str, Any]) -> list[str]:
        done = max(0, row["answered"] - row["is_finished"])
        wrote = f"{row['summaries']} ({row['refused_summaries']})" if row["summaries"] else "0"
        return [
            row["name"], render_claim(row["is_finished"]), str(done), str(row["over"]), str(row["invalid"]),
            render_claim(row["has_task"]), render_share(row["with_task"], row["requests"]), f"{row['tokens']:,}",
            wrote, f"{row['summary_tokens']:,}" if row["summaries"] else DASH,
            render_ratio(_all_tokens(row), ours if row["is_finished"] else None),
        ]  # fmt: skip

    reasons = [f"- {row['name']} ended with: {row['reason']}" for row in rows if "tokens" in row and row["reason"]]
    return "\n".join([table_with_failures(head, rows, cells), "", *reasons]).rstrip()


def _all_tokens(row: Mapping[str, Any]) -> int:
    return row["tokens"] + row["summary_tokens"]


async def measure(peers: Sequence[Peer]) -> list[dict[str, Any]]:
    """Return a row for each way of each peer."""
    rows: list[dict[str, Any]] = []
    for peer in peers:
        print_progress(f"loop: {peer.name} …")
        script = Script()
        async with ScriptedEndpoint(script.reply) as endpoint:
            task = {"do": "loop", "url": endpoint.url, "window": WINDOW, "prompt": PROMPT, "parts": log_parts()}
            found = await run_task(peer, task)
        rows += [run_figures(row, script.tallies.get(row["path"], Tally())) if "path" in row else row for row in found]
    return rows


if __name__ == "__main__":
    measure_from_command_line(__doc__, measure, render_table)
