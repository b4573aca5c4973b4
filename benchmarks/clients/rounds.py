"""Two harder rounds for real clients: a budget that their conversations outgrow, and a gateway that is killed."""

import asyncio
import json
import os
import random
import shlex
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, get_args

from aiohttp import ClientSession

from benchmarks.clients.programs import Program
from benchmarks.clients.upstream import USE_A_TOOL, Received, wire_of
from benchmarks.reporting import print_progress
from holdfast import validate
from holdfast.apps.gateway.recording.client_body import read_body
from holdfast.apps.gateway.recording.identity import essential_fingerprint
from holdfast.core.history import events as log
from holdfast.session.session import Session
from holdfast.stores.base import iter_sessions
from holdfast.stores.open import open_store
from holdfast.wire.answers import Wire
from holdfast.wire.formats import format_named

TOKEN = "clients"  # noqa: S105 - of a gateway that lives as long as this run
BUDGET_TURNS, MAX_TURNS, PROMPT_WORDS, ROOM_TOKENS = 12, 24, 120, 5_000
KILL_TURNS, LONGEST_WAIT_SECONDS = 8, 2.5
START_SECONDS = 30
Say = Callable[[str], Awaitable[int | None]]
"""Sends a prompt with the client, and returns its exit code."""


class GatewayProcess:
    """A gateway at a fixed address, which can be killed and started again."""

    def __init__(self, command: str, store: str, upstream: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        options = ["--port", str(self.port), "--store", store, "--upstream", f"openai={upstream}/v1"]
        options += ["--upstream", f"anthropic={upstream}", "--upstream", f"gemini={upstream}"]
        self._command = [*shlex.split(command), *options]
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[bytes] | None = None

    async def start(self) -> None:
        """Start it, and return once it takes requests."""
        environment = {**os.environ, "HOLDFAST_CONTROL_TOKEN": TOKEN}
        process = await asyncio.create_subprocess_exec(*self._command, stderr=asyncio.subprocess.PIPE, env=environment)
        self._process = process
        if process.stderr is None:
            raise RuntimeError("the gateway has no standard error")
        async with asyncio.timeout(START_SECONDS):
            while line := (await process.stderr.readline()).decode():
                if "listening on " in line:
                    self._reading = asyncio.create_task(process.stderr.read())
                    return
                print_progress(line.rstrip())
        raise RuntimeError("the gateway ended before it listened")

    async def end(self, number: int = signal.SIGTERM) -> None:
        """End it with a signal."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(number)
            await process.wait()
        if self._reading is not None:
            await self._reading


class Control:
    """The control API of a gateway."""

    def __init__(self, client: ClientSession, url: str) -> None:
        self._client, self._base = client, f"{url}/holdfast/v1/sessions"

    async def read(self, path: str = "") -> bytes:
        """Return the answer to a GET request."""
        async with self._client.get(f"{self._base}{path}", headers={"authorization": f"Bearer {TOKEN}"}) as answer:
            return await answer.read()

    async def ask(self, path: str, value: Mapping[str, object] | None = None) -> Any:
        """Return the answer to a POST request."""
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        async with self._client.post(f"{self._base}{path}", headers=headers, json=value or {}) as answer:
            return json.loads(await answer.read())

    async def events(self, session: str) -> list[dict[str, Any]]:
        """Return the records of a session's log."""
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            page = json.loads(await self.read(f"/{session}/events?limit=1000&after={page['next']}"))
            found += [one["record"] for one in page["events"]]
        return found

    async def has_compacted(self, session: str) -> bool:
        """Return whether the context of a session was ever compacted."""
        return json.loads(await self.read(f"/{session}"))["compactions"] > 0

    async def largest_session(self) -> str:
        """Return the session with the most messages: that of the conversation."""
        listed = json.loads(await self.read("?limit=50"))["sessions"]
        return max(listed, key=lambda one: one["messages"])["id"]


@dataclass(slots=True)
class BudgetFigures:
    """What was found for one client whose conversation outgrew its budget."""

    requests: int = 0
    compactions: int = 0
    compactions_of_client: int = 0
    summaries_by_upstream: int = 0
    invalid: int = 0
    """Requests that the gateway wrote, and that their provider would refuse."""
    invalid_as_sent: int = 0
    """Requests that arrived as the client sent them, and that their provider would refuse."""
    over_budget: int = 0
    newest_prompt_changed: int = 0
    not_governed: list[str] = field(default_factory=list[str])
    """What the gateway said that it could not do, in a header of an answer."""
    prefix_breaks_without_compaction: int = 0
    prefix_breaks_of_client: int = 0
    """Requests before which the client itself changed the beginning of its list."""
    bytes_not_proved: int = 0
    prompts_not_recalled: int = 0
    undo_is_whole: bool = False
    failed_runs: list[str] = field(default_factory=list[str])

    @property
    def is_clean(self) -> bool:
        """Whether the client was served as promised; a client that was never compacted proves nothing."""
        wrong = (
            self.invalid,
            self.not_governed,
            self.over_budget,
            self.newest_prompt_changed,
            self.prefix_breaks_without_compaction,
            self.bytes_not_proved,
            self.prompts_not_recalled,
        )
        return not any(wrong) and self.compactions > 0 and self.undo_is_whole


FORMATS: Mapping[Wire, str] = {
    "openai-chat": "openai-chat",
    "openai-responses": "openai-responses-stateless",
    "anthropic": "anthropic-messages",
    "gemini": "gemini-2",
}


WIRES: Sequence[Wire] = get_args(Wire)


async def budget_round(
    program: Program,
    say: Say,
    control: Control,
    *,
    received: Sequence[Received],
    sent: Sequence[bytes],
    errors: Sequence[str],
) -> BudgetFigures:
    """Let a conversation outgrow a small budget, and check each request and what can be done about it."""
    figures = BudgetFigures()
    await _say(say, figures.failed_runs, f"{program.name}-budget-0 please")
    session = await control.largest_session()
    first = json.loads(await control.read(f"/{session}/requests"))["requests"]
    # The upstream bills by bytes; where that is more than was counted, the gateway counts so from then on.
    billed = json.loads(await control.read(f"/{session}"))["tokens"]
    budget = max(billed, *(one["tokens"] for one in first)) + ROOM_TOKENS
    await control.ask(f"/{session}/settings", {"budget": budget})
    prompts = [f"{program.name}-budget-{number}" for number in range(1, BUDGET_TURNS)]
    for number, prompt in enumerate(prompts):
        words = " ".join(f"word{number}x{index}" for index in range(PROMPT_WORDS))
        await _say(
            say, figures.failed_runs, f"{prompt} {words} {USE_A_TOOL if number == 1 and program.has_tools else ''}"
        )
    session = await control.largest_session()
    while len(prompts) < MAX_TURNS and not await control.has_compacted(session):
        prompts.append(f"{program.name}-budget-{len(prompts) + 1}")
        await _say(
            say, figures.failed_runs, f"{prompts[-1]} " + " ".join(f"more{index}" for index in range(PROMPT_WORDS))
        )
    listed = json.loads(await control.read(f"/{session}/requests"))["requests"]
    bodies = [await control.read(f"/{session}/requests/{one['number']}") for one in listed if one["scope"] == log.MAIN]
    arrived: dict[bytes, Wire] = {one.body: wire_of(one.path) for one in received}
    figures.requests = len(bodies)
    figures.not_governed = list(errors)
    figures.bytes_not_proved = sum(body not in arrived for body in bodies)
    figures.over_budget = sum(one["tokens"] > budget for one in listed[len(first) :])
    records = await control.events(session)
    done = [one["data"] for one in records if one["type"] == log.CompactionCompleted.KIND]
    figures.compactions = sum(one["success"] and one["trigger"] != "client" for one in done)
    figures.compactions_of_client = sum(one["trigger"] == "client" for one in done)
    figures.summaries_by_upstream = sum(one.headers.get("x-interaction-type") == INTERACTION for one in received)
    changes = _context_changes(records)
    _check_bodies(
        figures,
        [
            (body, arrived[body], is_changed)
            for body, is_changed in zip(bodies, changes, strict=True)
            if body in arrived
        ],
        sent,
    )
    for prompt in prompts:
        answer = await control.ask(f"/{session}/recall", {"query": prompt})
        figures.prompts_not_recalled += prompt not in str(answer.get("text"))
    while (await control.ask(f"/{session}/undo")).get("undone"):
        pass
    await control.ask(f"/{session}/settings", {"compaction": "off"})
    before = len(received)
    await _say(say, figures.failed_runs, f"{program.name}-budget-{MAX_TURNS + 1} please")
    # A client that shortens its own list does not have every prompt any more.
    held = [prompt.encode() for prompt in prompts if any(prompt.encode() in body for body in sent[-3:])]
    figures.undo_is_whole = any(
        _is_list_of_client(one, sent) and all(prompt in one.body for prompt in held) for one in received[before:]
    )
    return figures


INTERACTION = "conversation-compaction"


async def _say(say: Say, failed: list[str], prompt: str) -> None:
    code = await say(prompt)
    failed += [f"{prompt[:40]}: {code}"] if code else []


CONTEXT_CHANGES = {
    kind.KIND for kind in (log.CompactionCompleted, log.OutputsOffloaded, log.TurnsReducedToText, log.RequestTruncated)
}
"""Events after which the next request may begin differently."""


def _context_changes(records: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return for each request of the main agent whether its context was changed since the one before."""
    found: list[bool] = []
    is_changed = False
    for record in records:
        is_changed |= record["type"] in CONTEXT_CHANGES
        if record["type"] == log.RequestPrepared.KIND and record["data"].get("scope", log.MAIN) == log.MAIN:
            found.append(is_changed)
            is_changed = False
    return found


def _check_bodies(figures: BudgetFigures, bodies: Sequence[tuple[bytes, Wire, bool]], sent: Sequence[bytes]) -> None:
    """Hold what was sent against what came: each is valid, ends as it came, and begins as the one before.

    A request may begin differently after a compaction, and where the client's own list does.
    """
    before: list[bytes | None] = []
    client_before: list[bytes | None] = []
    place = 0
    for body, wire, is_changed in bodies:
        found = read_body(wire, body)
        if validate([*found.leading_messages(), *found.messages()], FORMATS[wire]):
            figures.invalid += body not in sent
            figures.invalid_as_sent += body in sent
        newest = bytes(found.slices[-1])
        came = next((at for at in range(place, len(sent)) if _newest(sent[at], wire) == newest), None)
        figures.newest_prompt_changed += came is None
        now = [essential_fingerprint(wire, native) for native in found.messages()]
        client_now = client_before
        if came is not None:
            place = came
            client_now = [essential_fingerprint(wire, native) for native in read_body(wire, sent[came]).messages()]
        is_client_changed = client_now[: len(client_before)] != client_before
        figures.prefix_breaks_of_client += is_client_changed
        is_broken = now[: len(before)] != before
        figures.prefix_breaks_without_compaction += is_broken and not is_changed and not is_client_changed
        before, client_before = now, client_now


def _is_list_of_client(received: Received, sent: Sequence[bytes]) -> bool:
    """Return whether the messages of a request are those that the client sent, byte for byte.

    The member `thinking` may differ: from the first compaction on it says what to do about a changed prefix.
    """
    wire = wire_of(received.path)
    if received.body in sent:
        return True
    slices = [bytes(one) for one in read_body(wire, received.body).slices]
    alike = (body for body in sent if slices and _newest(body, wire) == slices[-1])
    return any([bytes(one) for one in read_body(wire, body).slices] == slices for body in alike)


def _newest(body: bytes, wire: Wire) -> bytes | None:
    """Return the last message of a body; None if it is no request of that wire."""
    try:
        slices = read_body(wire, body).slices
    except ValueError:
        return None
    return bytes(slices[-1]) if slices else None


@dataclass(slots=True)
class KillFigures:
    """What was found for one client whose gateway was killed again and again."""

    kills: int = 0
    answered: int = 0
    lost: int = 0
    doubled: int = 0
    sessions: int = 0
    is_same_state: bool = False
    failed_runs: list[str] = field(default_factory=list[str])

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost or doubled, and the conversation went on."""
        return not (self.lost or self.doubled) and self.is_same_state and self.kills > 0


async def kill_round(
    program: Program, say: Say, gateway: GatewayProcess, sent: list[bytes], store_url: str
) -> KillFigures:
    """Kill the gateway at random moments of a conversation, and compare its record with the client's own list."""
    figures, chance = KillFigures(), random.Random(program.name)
    answered: list[str] = []
    for number in range(KILL_TURNS):
        prompt = f"{program.name}-kill-{number}"
        running = asyncio.ensure_future(say(f"{prompt} {USE_A_TOOL if program.has_tools and number % 2 else 'please'}"))
        is_last = number == KILL_TURNS - 1
        while not is_last and not running.done():
            await asyncio.wait({running}, timeout=chance.uniform(0.05, LONGEST_WAIT_SECONDS))
            if running.done() or figures.kills >= 2 * (number + 1):
                break
            await gateway.end(signal.SIGKILL)
            figures.kills += 1
            await gateway.start()
        code = await running
        answered += [prompt] if code == 0 else []
        figures.failed_runs += [f"{prompt}: {code}"] if code else []
    figures.answered = len(answered)
    await gateway.end()
    store = open_store(store_url)
    infos = [info async for info in iter_sessions(store)]
    for info in infos:
        async with Session.open(info.id, store=store) as session:
            natives, name = await session.messages(), session.history.format or "openai-chat"
            texts = [format_named(name).decode(native, 0).text for native in natives]
            joined = "\n".join(texts)
            if f"{program.name}-kill-" not in joined:
                continue
            figures.sessions += 1
            counts = [sum(f"{prompt} " in text for text in texts) for prompt in answered]
            figures.lost += counts.count(0)
            figures.doubled += sum(count > 1 for count in counts)
            with suppress(StopIteration):
                last = next(body for body in reversed(sent) if f"{program.name}-kill-{KILL_TURNS - 1}".encode() in body)
                figures.is_same_state = _is_continued(last, natives, name)
    await store.close()
    return figures


def _is_continued(last: bytes, natives: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Return whether a record is the client's last list, and the answer to it."""
    wire: Wire = next(wire for wire in WIRES if name.startswith(wire))
    body = read_body(wire, last)
    own = [essential_fingerprint(wire, one) for one in [*body.leading_messages(), *body.messages()]]
    recorded = [essential_fingerprint(wire, dict(one)) for one in natives]
    own, recorded = [one for one in own if one], [one for one in recorded if one]
    return recorded[: len(own)] == own or recorded[-len(own) - 1 : -1] == own
