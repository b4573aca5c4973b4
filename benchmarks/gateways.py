"""Recorded coding sessions through gateways: what each sends on, and what that costs.

    python -m benchmarks.gateways FILE.jsonl … [--sample N] [--turns N] [--budget TOKENS] [--only holdfast litellm]

A client sends each turn of a recorded session with its whole list, as coding agents do, and the upstream answers with
the message that was recorded. What arrives there is compared with what was sent: bytes, messages, the part of the
request before that is still its beginning, and the provider's rules. The cost is that of the input under the price list
of gpt-5, with the unchanged beginning of a request as a cache read; a token is four bytes here, for everybody alike.
Peers are installed under `.peers`, with their default settings. With all candidates the table in RESULTS.md is renewed.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from benchmarks.beside import GATEWAYS_HEADING, RESULTS, describe_machine, gateways_section
from benchmarks.clients.__main__ import serve_app
from benchmarks.gateway import CANDIDATES, Candidate, free_port, running
from benchmarks.peers import PeerError, install
from benchmarks.reporting import print_progress
from benchmarks.tables import markdown_table, render_share
from benchmarks.validity import read_sessions
from holdfast import validate
from holdfast.core.history.events import Usage
from holdfast.counters.models import dollars_of

MODEL, BYTES_PER_TOKEN = "gpt-5", 4
ANSWER_SECONDS = 120


class RecordedUpstream:
    """Answers with what was recorded, and keeps what arrives."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.answer: dict[str, Any] = {}

    def app(self) -> web.Application:
        """Return the server."""
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{path:.*}", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        choice = {"index": 0, "message": self.answer, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(self.bodies[-1]) // BYTES_PER_TOKEN, "completion_tokens": 1, "total_tokens": 1}
        named = {"id": "c", "object": "chat.completion", "created": 1, "model": MODEL}
        return web.json_response({**named, "choices": [choice], "usage": usage})


@dataclass(slots=True)
class Passed:
    """What one gateway made of all requests."""

    name: str
    requests: int = 0
    refused: int = 0
    """Requests that did not arrive once, with an answer."""
    bytes_changed: int = 0
    """Requests with other bytes but the same messages."""
    messages_changed: int = 0
    invalid: int = 0
    invalid_as_sent: int = 0
    """Of those, requests that the client had sent as invalid."""
    kept_bytes: int = 0
    earlier_bytes: int = 0
    cost: float = 0.0

    def add(self, sent: bytes, arrived: bytes, before: list[bytes]) -> list[bytes]:
        """Compare a request with what arrived, and return its messages."""
        given, messages = json.loads(sent)["messages"], json.loads(arrived)["messages"]
        self.messages_changed += given != messages
        self.bytes_changed += given == messages and sent != arrived
        is_invalid = bool(validate(messages, "openai-chat"))
        self.invalid += is_invalid
        self.invalid_as_sent += is_invalid and bool(validate(given, "openai-chat"))
        encoded = [json.dumps(one, sort_keys=True).encode() for one in messages]
        same = next((at for at, pair in enumerate(zip(before, encoded, strict=False)) if pair[0] != pair[1]), None)
        shared = min(len(before), len(encoded)) if same is None else same
        kept, whole = sum(map(len, encoded[:shared])), sum(map(len, encoded))
        self.kept_bytes += kept
        self.earlier_bytes += sum(map(len, before))
        read = kept // BYTES_PER_TOKEN
        usage = Usage(input_tokens=whole // BYTES_PER_TOKEN - read, cache_read_tokens=read)
        self.cost += dollars_of(usage, MODEL) or 0.0
        return encoded


async def pass_sessions(
    candidate: Candidate, sessions: Sequence[tuple[str, list[dict[str, Any]]]], turns: int
) -> Passed:
    """Send every turn of the sessions through a gateway."""
    passed = Passed(candidate.name)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-gateways-")))
        upstream, port = RecordedUpstream(), free_port()
        address = await serve_app(stack, upstream.app())
        if candidate.peer is not None:
            await install(candidate.peer)
        environ = {**os.environ, "OPENAI_API_KEY": "x", **candidate.environ(address)}
        await stack.enter_async_context(running(candidate.command(address, port, folder), port, environ))
        client = await stack.enter_async_context(ClientSession(timeout=ClientTimeout(total=ANSWER_SECONDS)))
        for name, messages in sessions:
            before: list[bytes] = []
            places = [place for place, one in enumerate(messages) if one.get("role") == "assistant" and place]
            for place in places[:turns]:
                upstream.answer = messages[place]
                sent = json.dumps({"model": MODEL, "messages": messages[:place]}).encode()
                arrived = len(upstream.bodies)
                headers = {"content-type": "application/json", "authorization": "Bearer x", "x-session-id": name}
                url = f"http://127.0.0.1:{port}/v1/chat/completions"
                try:
                    async with client.post(url, data=sent, headers=headers) as answer:
                        is_answered = answer.status == web.HTTPOk.status_code and bool(await answer.read())
                except (ClientError, TimeoutError):
                    is_answered = False
                passed.requests += 1
                if not is_answered or len(upstream.bodies) != arrived + 1:
                    passed.refused += 1
                if len(upstream.bodies) > arrived:
                    before = passed.add(sent, upstream.bodies[-1], before)
            print_progress(f"{candidate.name}: {name}")
    return passed


def table(rows: Sequence[Passed]) -> str:
    """Return what was found as a table."""
    head = ["gateway", "requests", "refused", "prefix kept", "other bytes, same messages", "messages changed"]
    head += ["invalid (as the client sent it)", "input cost"]
    return markdown_table(
        head,
        [
            [
                one.name,
                f"{one.requests:,}",
                f"{one.refused:,}",
                render_share(one.kept_bytes, one.earlier_bytes),
                f"{one.bytes_changed:,}",
                f"{one.messages_changed:,}",
                f"{one.invalid:,} ({one.invalid_as_sent:,})",
                f"${one.cost:.2f}",
            ]
            for one in rows
        ],
    )


async def main(options: argparse.Namespace) -> int:
    """Run the candidates, print the table, and renew it in RESULTS.md if all took part."""
    sessions = list(read_sessions(options.files))[: options.sample]
    own = CANDIDATES["holdfast"]

    def with_budget(upstream: str, port: int, folder: Path) -> list[str]:
        return [*own.command(upstream, port, folder), "--budget", str(options.budget)]

    candidates = {
        "bare": replace(CANDIDATES["bare"], name="none (bare pass-through)"),
        "holdfast": replace(own, name="holdfast, the model's window"),
        "budget": replace(own, name=f"holdfast, --budget {options.budget}", command=with_budget),
        "litellm": CANDIDATES["litellm"],
        "headroom": CANDIDATES["headroom"],
    }
    rows: list[Passed] = []
    failures: list[str] = []
    for name, candidate in candidates.items():
        if name not in (options.only or candidates):
            continue
        try:
            rows.append(await pass_sessions(candidate, sessions, options.turns))
        except PeerError as error:
            failures.append(f"{candidate.name} did not run: {error}")
    files = ", ".join(path.name for path in options.files)
    about = (
        f"`make bench-gateways WORKLOADS=…` ({files}: {len(sessions)} sessions, at most {options.turns} turns each; "
        f"{describe_machine()}): each turn is sent with its whole list. Prefix kept: the share of a request that the "
        "next one begins with. Input cost: gpt-5's prices, the kept prefix as a cache read, four bytes a token."
    )
    section = "\n\n".join([GATEWAYS_HEADING, about, table(rows), *failures]) + "\n"
    print(section)
    if not options.only:
        text = RESULTS.read_text()
        RESULTS.write_text(text.replace(gateways_section(text), "").rstrip() + f"\n\n{section}")
        print_progress(f"written to {RESULTS}")
    return int(bool(failures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="recorded sessions in chat format, one a line")
    parser.add_argument("--sample", type=int, default=8, help="how many sessions")
    parser.add_argument("--turns", type=int, default=60, help="how many turns of each")
    parser.add_argument("--budget", type=int, default=16_000, help="the small budget of the second row of ours")
    parser.add_argument("--only", nargs="*", help="run these candidates, and write nothing")
    sys.exit(asyncio.run(main(parser.parse_args())))
