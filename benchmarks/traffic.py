"""Record recorded requests of clients, and hold the sessions against what the files say.

    python -m benchmarks.traffic FILE.jsonl…

Each line of a file is a request: `client`, `method`, `path`, `headers`, `body`. The answer to a request is what a later
list of the same file has at its place, else one word. All files are sent through one recorder, first each by itself,
then interleaved at random. A session is right if the texts of each request that is not a side call are in one session
and in the order of the list, no session holds texts of two files' conversations, and nothing was rewound.
The last line is a JSON object with the figures of each file.
"""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.apps.gateway.recording.exchange import ClientRequest
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.core.history import events as log
from holdfast.session.session import Session
from holdfast.stores.base import iter_sessions
from holdfast.stores.memory import MemoryStore
from holdfast.wire.answers import Wire
from holdfast.wire.formats import canonical_message

LISTS: Mapping[Wire, str] = {
    "openai-chat": "messages",
    "openai-responses": "input",
    "anthropic": "messages",
    "gemini": "contents",
}
FORMATS: Mapping[Wire, str] = {
    "openai-chat": "openai-chat",
    "openai-responses": "openai-responses",
    "anthropic": "anthropic-messages",
    "gemini": "gemini",
}
REWOUND_EACH_TURN = {"aider"}
"""Clients that put new messages into the middle of their list."""


def wire_of(path: str) -> Wire:
    if "/messages" in path:
        return "anthropic"
    if "enerateContent" in path or "countTokens" in path:
        return "gemini"
    return "openai-responses" if "/responses" in path else "openai-chat"


def listed(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    body = row.get("body") or {}
    found = body.get(LISTS[wire_of(row["path"])])
    return found if isinstance(found, list) else []


def essential(wire: Wire, message: Mapping[str, Any]) -> str:
    return json.dumps(canonical_message(FORMATS[wire], message), sort_keys=True)


def is_answer(message: Mapping[str, Any]) -> bool:
    return message.get("role") in {"assistant", "model"} or message.get("type") in {"function_call", "reasoning"}


def answer_to(rows: Sequence[Mapping[str, Any]], index: int) -> list[dict[str, Any]]:
    """Return the answer to a request: what a later list has after the same messages, else one word."""
    wire, own = wire_of(rows[index]["path"]), listed(rows[index])
    before = [essential(wire, message) for message in own]
    for later in rows[index + 1 :]:
        other = listed(later) if wire_of(later["path"]) == wire else []
        if own and len(other) > len(own) and [essential(wire, message) for message in other[: len(own)]] == before:
            answer: list[dict[str, Any]] = []
            for message in other[len(own) :]:
                if not is_answer(message):
                    break
                answer.append(message)
            if answer:
                return answer
    match wire:
        case "gemini":
            return [{"role": "model", "parts": [{"text": "PONG"}]}]
        case "openai-responses":
            content = [{"type": "output_text", "text": "PONG", "annotations": []}]
            return [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}]
        case "anthropic":
            return [{"role": "assistant", "content": [{"type": "text", "text": "PONG"}]}]
        case "openai-chat":
            return [{"role": "assistant", "content": "PONG"}]


def response(wire: Wire, messages: list[dict[str, Any]]) -> bytes:
    """Return a whole response with an answer."""
    match wire:
        case "gemini":
            body: dict[str, Any] = {"candidates": [{"content": messages[0], "finishReason": "STOP", "index": 0}]}
        case "openai-responses":
            body = {"id": "r", "object": "response", "status": "completed", "output": messages}
        case "anthropic":
            body = {"id": "m", "type": "message", "role": "assistant", "content": messages[0]["content"]}
        case "openai-chat":
            body = {"id": "c", "choices": [{"index": 0, "message": messages[0], "finish_reason": "stop"}]}
    return json.dumps(body).encode()


async def send(recorder: Recorder, rows: Sequence[Mapping[str, Any]], index: int, namespace: str) -> str:
    """Send one request, and return its session."""
    row = rows[index]
    wire = wire_of(row["path"])
    headers = {name.lower(): value for name, value in row["headers"].items()}
    body = json.dumps(row["body"]).encode()
    exchange = await recorder.receive(ClientRequest(wire, row["path"], None, headers, body, namespace, "upstream"))
    if exchange.body != body:
        raise SystemExit("a body was changed")
    exchange.feed(response(wire, answer_to(rows, index)))
    await exchange.finish("complete", 200)
    return exchange.session_id


async def figures(files: Mapping[str, list[Mapping[str, Any]]], order: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Return what was recorded for each file when its requests are sent in an order."""
    store = MemoryStore()
    recorder = Recorder(store)
    owners: dict[str, set[str]] = {}
    for name, index in order:
        if session_id := await send(recorder, files[name], index, ""):
            owners.setdefault(session_id, set()).add(name)
    await recorder.close()
    counted = ("sessions", "wrong_sessions", "rewinds", "side_calls", "delegations", "forks", "client_compactions")
    found: dict[str, Any] = {name: {"requests": len(rows), **dict.fromkeys(counted, 0)} for name, rows in files.items()}
    async for info in iter_sessions(store):
        async with Session.open(info.id, store=store) as session:
            events = await session.events()
        for name in owners.get(info.id, ()):
            one = found[name]
            one["sessions"] += 1
            one["wrong_sessions"] += len(owners[info.id]) > 1
            one["rewinds"] += sum(isinstance(event, log.Rewound) for event in events)
            one["side_calls"] += sum(isinstance(event, log.SideCallRecorded) for event in events)
            one["delegations"] += sum(isinstance(event, log.DelegationStarted) for event in events)
            one["forks"] += sum(isinstance(event, log.Forked) for event in events)
            compactions = [event for event in events if isinstance(event, log.CompactionCompleted)]
            one["client_compactions"] += sum(event.trigger == "client" for event in compactions)
    return found


async def main(paths: Sequence[str], seed: int, rounds: int) -> int:
    files: dict[str, list[Mapping[str, Any]]] = {}
    for path in map(Path, paths):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        files[path.stem] = [row for row in rows if row["method"] == "POST"]
    order = [(name, index) for name, rows in files.items() for index in range(len(rows))]
    found = await figures(files, order)
    is_right = all(not one["wrong_sessions"] for one in found.values())
    is_right &= all(not one["rewinds"] for name, one in found.items() if name not in REWOUND_EACH_TURN)
    chance, differing = random.Random(seed), 0
    for _ in range(rounds):
        left = {name: list(range(len(rows))) for name, rows in files.items()}
        mixed = [(name, left[name].pop(0)) for name in chance.sample([name for name, _ in order], len(order))]
        differing += await figures(files, mixed) != found
    for name, one in found.items():
        print(f"{name:24} {one}")
    print(
        json.dumps({"files": found, "interleaved_rounds": rounds, "rounds_that_differ": differing, "right": is_right})
    )
    return 0 if is_right and not differing else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    sys.exit(asyncio.run(main(options.files, options.seed, options.rounds)))
