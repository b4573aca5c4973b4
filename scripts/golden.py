"""Golden files: what the engine sends, stores, asks a summarizer and answers a model, as hashes.

A case plays one session under one preset with one budget. `tests/golden/requests.json` holds what must never change;
`tests/golden/receipts.json` holds the texts that people read, so that these can be reworded apart from the rest.

    python -m scripts.golden --write                                 write both files
    python -m scripts.golden --write-receipts                        write the texts for people only
    python -m scripts.golden --show loop-anthropic/default/2000      print one case in full, to compare two checkouts
    python -m scripts.golden --workloads PATH… --out FILE            the same for recorded sessions
    python -m scripts.golden --workloads PATH… --compare FILE        compare with what was written then
"""

import argparse
import asyncio
import hashlib
import json
import random
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import count, cycle
from pathlib import Path
from typing import TypeAlias, TypeVar
from unittest.mock import patch

from holdfast import HoldfastError, PendingToolCallsError, Receipt, Session, convert, govern
from holdfast.apps.lab.recordings import Recording
from holdfast.apps.lab.sources import load_recordings
from holdfast.core.history import events as log
from holdfast.core.history.scopes import DelegateFinding
from holdfast.core.planning.policy import PRESETS
from holdfast.delegation import SEES_NOTHING, Delegate, Visibility
from holdfast.errors import ModelRefusedError
from holdfast.models.base import ModelReply, SummaryPrompt
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.maintenance.transfer import import_session, records_from_file
from holdfast.stores.jsonl import load_file
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.gemini import function_call_part, function_response_part, model_turn, text_part, user_turn
from holdfast.testing.models import ScriptedModel, ScriptLine, scripted_reply
from holdfast.testing.pydantic_ai import (
    request_message,
    response_message,
    text_reply_part,
    tool_call_part,
    user_prompt_part,
)
from holdfast.testing.pydantic_ai import tool_return_part as tool_return
from holdfast.testing.responses import function_call_item, function_output_item, output_message_item, reasoning_item
from holdfast.testing.sessions import generate_session
from holdfast.wire.request import Request

T = TypeVar("T")
Hashes: TypeAlias = dict[str, list[str]]
Scenario: TypeAlias = Callable[["Player"], Awaitable[None]]

TESTS = Path(__file__).parent.parent / "tests"
REQUESTS, RECEIPTS = TESTS / "golden/requests.json", TESTS / "golden/receipts.json"
BROKEN = TESTS / "golden/broken_histories.json"
CORPUS = TESTS / "corpus"
BUDGETS = (500, 1_200, 2_500, 6_000, 60_000)
MODEL = "gpt-5"
START_MS = 1_700_000_000_000
SYSTEM = "You are a careful engineer. Always run the tests. Never push to main."
TOOLS: list[JsonMessage] = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
PICTURE = "iVBORw0KGgo="
REFUSED = "refused"
NOISE = frozenset({"engine", "owner", "durationMs", "chainHash"})
"""Stored fields that differ from run to run or from version to version, or that follow from others."""
FOR_PEOPLE = frozenset({"reason", "error"})
"""Stored fields whose texts receipts show."""
_SECONDS = re.compile(r"\d+\.\d s\b")
SHORT = 12


# What one case came to.


@dataclass(slots=True)
class Trace:
    """Everything that one case sent, stored, asked and answered, as texts."""

    requests: list[str] = field(default_factory=list[str])
    accounts: list[str] = field(default_factory=list[str])
    """What each receipt counts, without its words."""
    answers: list[str] = field(default_factory=list[str])
    """What tools answered a model."""
    prompts: list[str] = field(default_factory=list[str])
    """What reached the summarizer."""
    records: list[str] = field(default_factory=list[str])
    receipts: list[str] = field(default_factory=list[str])

    def sent(self, payload: Mapping[str, object], receipt: Receipt) -> None:
        """Note a request and its receipt."""
        self.requests.append(canonical(payload))
        self.accounts.append(canonical(account_of(receipt)))
        self.receipts.append(str(receipt))

    def refused(self, error: HoldfastError) -> None:
        """Note that there was no request."""
        self.requests.append(REFUSED)
        self.receipts.append(str(error))

    def texts(self) -> dict[str, list[str]]:
        """Return all of it by name, without real time."""
        return {**asdict(self), "receipts": [_SECONDS.sub("N s", text) for text in self.receipts]}

    def hashes(self) -> tuple[Hashes, Hashes]:
        """Return what must never change, and what people read."""
        texts = self.texts()
        fixed = {
            "requests": list(map(short, texts["requests"])),
            "answers": list(map(short, texts["answers"])),
            "prompts": list(map(short, texts["prompts"])),
            "accounts": [short("\n".join(texts["accounts"]))],
            "records": [short("\n".join(texts["records"]))],
        }
        return {key: value for key, value in fixed.items() if value}, {"receipts": list(map(short, texts["receipts"]))}


def canonical(value: object) -> str:
    """Return a value as JSON that is the same wherever it is written."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=dict)


def short(text: str) -> str:
    """Return the beginning of a text's hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:SHORT]


def account_of(receipt: Receipt) -> list[object]:
    """Return the values of a receipt."""
    spans = [[(span.start, span.stop) for span in group] for group in (receipt.compacted, receipt.dropped)]
    counts = [receipt.tokens_before.total, receipt.tokens.total, receipt.messages_before, receipt.messages]
    repaired = [repair.position for repair in receipt.repairs]
    return [counts, receipt.kept, receipt.clipped, receipt.elided, spans, repaired, len(receipt.reasons)]


def stored(record: object, people: list[str]) -> object:
    """Return a stored record without noise; the texts that receipts show are added to `people` instead."""
    if isinstance(record, list):
        return [stored(item, people) for item in record]
    if not isinstance(record, Mapping):
        return record
    kept: dict[str, object] = {}
    for key, value in record.items():
        if key in FOR_PEOPLE and isinstance(value, str):
            people.append(f"{key}: {value}")
        elif key == "policy" and isinstance(value, str):
            kept[key] = value.partition(":")[0]
        elif key not in NOISE:
            kept[key] = value if key == "native" else stored(value, people)
    return kept


# Playing.


@dataclass(slots=True)
class Player:
    """Plays one case in a real session, on a simulated clock."""

    preset: str
    budget: int
    voice: "Voice"
    lines: Iterable[ScriptLine] | None = None
    """What the summarizer writes; None if there is no summarizer."""
    store: MemoryStore = field(default_factory=MemoryStore)
    clock: SimulatedClock = field(default_factory=lambda: SimulatedClock(START_MS))
    trace: Trace = field(default_factory=Trace)
    writer: ScriptedModel | None = None
    _waited_ms: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311 - reproducible, not secret

    async def open(self, name: str = "golden") -> Session:
        """Open the session."""
        if self.lines is not None and self.writer is None:
            self.writer = ScriptedModel(
                self.lines, name=MODEL, seconds=5.0, sleep=self.clock.sleep, prefix_formats=["openai-chat"]
            )
        return await Session.open(
            name,
            store=self.store,
            policy=self.preset,
            model=MODEL,
            compaction=CompactionOptions(automatic=self.writer),
            clock=lambda: self.clock.time_ms() + self._waited_ms,
        )

    async def say(
        self, session: Session | Delegate, *messages: JsonMessage, usage: Mapping[str, int] | None = None
    ) -> None:
        """Record messages, some seconds after the ones before."""
        await self.wait(20)
        with self._refusals():
            await session.record(list(messages), format=self.voice.format, usage=usage)

    async def prepare(self, session: Session | Delegate, *, budget: int | None = None) -> Request | None:
        """Prepare a request, and note it."""
        system = SYSTEM if isinstance(session, Session) else "You are a scout."

        def ask() -> Awaitable[Request]:
            return session.prepare(budget or self.budget, system=system, tools=TOOLS, has_recall=True)

        try:
            try:
                return self.sent(await self.run(ask()))
            except PendingToolCallsError as error:
                self.trace.refused(error)
                if isinstance(session, Session):
                    await session.interrupt()
                return self.sent(await self.run(ask()))
        except HoldfastError as error:
            self.trace.refused(error)
            return None

    async def retry(self, session: Session, error: object, status: int) -> None:
        """Prepare a smaller request after an overflow."""
        try:
            self.sent(await self.run(session.retry(error, status=status)))
        except HoldfastError as problem:
            self.trace.refused(problem)

    def sent(self, prepared: Request) -> Request:
        """Note a request."""
        payload = {"messages": prepared.messages, "system": prepared.system, "tools": prepared.tools}
        self.trace.sent(payload, prepared.receipt)
        return prepared

    async def change(self, work: Awaitable[object]) -> None:
        """Do something that the policy may refuse."""
        try:
            await self.run(work)
        except HoldfastError as error:
            self.trace.receipts.append(str(error))

    async def recall(self, session: Session | Delegate, *questions: Mapping[str, object]) -> None:
        """Ask the recall tool as a model does."""
        tool = session.recall_tool(max_tokens=300)
        self.trace.answers += [await self.run(tool.call(question)) for question in questions]

    async def run(self, work: Awaitable[T]) -> T:
        """Return the result of some work; only a summarizer sleeps on the simulated clock."""
        return await (self.clock.run(work) if self.writer else work)

    async def wait(self, seconds: int) -> None:
        """Let time pass."""
        if self.writer:
            await self.clock.advance(seconds)
        else:
            self._waited_ms += seconds * 1_000

    async def end(self, session: Session) -> None:
        """Note what is stored, what every change came to, and what the summarizer was asked; close the session."""
        await self.wait(60)
        with self._refusals():
            self.trace.receipts += list(map(str, await session.receipts()))
            for item in await self.store.read(session.id):
                record = stored(item.record, self.trace.receipts)
                self.trace.records.append(canonical([item.time_ms, record]))
        await self.run(session.close())
        if self.writer is not None:
            self.trace.prompts += [canonical(_asked(ask)) for ask in self.writer.prompts]

    def _refusals(self) -> "_Refusals":
        return _Refusals(self.trace)


@dataclass(slots=True)
class _Refusals:
    """Stores an error of Holdfast and continues."""

    trace: Trace

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        if not isinstance(error, HoldfastError):
            return False
        self.trace.refused(error)
        return True


def _asked(ask: SummaryPrompt) -> list[object]:
    prefix = ask.prefix and [ask.prefix.messages, ask.prefix.system, ask.prefix.tools]
    return [ask.system, ask.text, ask.max_output_tokens, prefix]


# A summarizer that always writes the same of the same.


def summary(ask: SummaryPrompt) -> str:
    """Return a short summary with some names of what was asked."""
    read = ask.text + (canonical(ask.prefix.messages) if ask.prefix else "")
    names = sorted(set(re.findall(r"src/\w+/\w+\.py|#\d+", read)))[:12]
    return (
        "<analysis>Read all of it.</analysis>\n<summary>\n## Goal\nFix the totals.\n## Constraints\nNever push "
        f"to main. Always run the tests.\n## Files\n{', '.join(names)}\n## Next\nGo on.\n</summary>"
    )


def scripted() -> Iterator[ScriptLine]:
    """Return an endless script of sound summaries."""
    return cycle([summary])


def failing() -> Iterator[ScriptLine]:
    """Return an endless script in which every way to fail has its turn."""
    return cycle(["", summary, ModelRefusedError(MODEL, "I cannot help with that"), _cut_off(), _inflated, summary])


def _cut_off() -> ModelReply:
    ask = SummaryPrompt(system="", text="", max_output_tokens=0)
    whole = scripted_reply(ask, "The totals were wrong and", MODEL)
    return ModelReply(text=whole.text, model=MODEL, usage=whole.usage, is_cut_off=True)


def _inflated(ask: SummaryPrompt) -> str:
    return f"{summary(ask)}\n{ask.text}\n" * 3


# How each format says the same.


@dataclass(frozen=True, slots=True)
class Voice:
    """Says things in one format."""

    format: str
    asks: Callable[[str], JsonMessage]
    shows: Callable[[str], JsonMessage]
    """A prompt with a picture."""
    answers: Callable[[str], JsonMessage]
    calls: Callable[[Sequence[str], str], list[JsonMessage]]
    """An assistant turn that thinks and then calls a tool, once for each id, on a path."""
    returns: Callable[[Mapping[str, str]], list[JsonMessage]]
    """The outputs of calls."""


def _chat_image(text: str) -> JsonMessage:
    url = {"url": f"data:image/png;base64,{PICTURE}"}
    return {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image_url", "image_url": url}]}


def _chat_calls(ids: Sequence[str], path: str) -> list[JsonMessage]:
    return [{**tool_call_message(*ids, arguments={"path": path}), "reasoning_content": f"Read {path} first."}]


def _anthropic_image(text: str) -> JsonMessage:
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    return {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image", "source": source}]}


def _anthropic_calls(ids: Sequence[str], path: str) -> list[JsonMessage]:
    thinking: JsonMessage = {"type": "thinking", "thinking": f"Read {path} first.", "signature": "c2lnbmVk"}
    uses = [{"type": "tool_use", "id": name, "name": "read_file", "input": {"path": path}} for name in ids]
    return [{"role": "assistant", "content": [thinking, *uses]}]


def _anthropic_results(outputs: Mapping[str, str]) -> list[JsonMessage]:
    blocks = [{"type": "tool_result", "tool_use_id": name, "content": text} for name, text in outputs.items()]
    return [{"role": "user", "content": blocks}]


def _responses_image(text: str) -> JsonMessage:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"}
    return {"role": "user", "content": [{"type": "input_text", "text": text}, image]}


def _responses_calls(ids: Sequence[str], path: str) -> list[JsonMessage]:
    calls = [function_call_item(name, arguments={"path": path}) for name in ids]
    return [reasoning_item(f"rs_{ids[0]}", summary=f"Read {path} first."), *calls]


def _gemini_image(text: str) -> JsonMessage:
    return user_turn(text_part(text), {"inlineData": {"mimeType": "image/png", "data": PICTURE}})


def _gemini_calls(ids: Sequence[str], path: str) -> list[JsonMessage]:
    thought: JsonMessage = {"text": f"Read {path} first.", "thought": True}
    parts = [function_call_part("read_file", name) for name in ids]
    for part in parts:
        function = part["functionCall"]
        part["functionCall"] = {**function, "args": {"path": path}} if isinstance(function, dict) else function
    return [model_turn(thought, *parts)]


def _gemini_results(outputs: Mapping[str, str]) -> list[JsonMessage]:
    return [user_turn(*(function_response_part("read_file", name, text) for name, text in outputs.items()))]


def _agent_image(text: str) -> JsonMessage:
    return request_message(user_prompt_part([text, {"data": PICTURE, "media_type": "image/png", "kind": "binary"}]))


def _agent_calls(ids: Sequence[str], path: str) -> list[JsonMessage]:
    thinking: JsonMessage = {"content": f"Read {path} first.", "signature": "c2ln", "part_kind": "thinking"}
    return [response_message(thinking, *(tool_call_part(name, "read_file", {"path": path}) for name in ids))]


def _agent_results(outputs: Mapping[str, str]) -> list[JsonMessage]:
    return [request_message(*(tool_return(name, text, "read_file") for name, text in outputs.items()))]


VOICES: Mapping[str, Voice] = {
    "chat": Voice(
        "openai-chat",
        user_message,
        _chat_image,
        assistant_message,
        _chat_calls,
        lambda outputs: [tool_result_message(*one) for one in outputs.items()],
    ),
    "anthropic": Voice(
        "anthropic-messages", user_message, _anthropic_image, assistant_message, _anthropic_calls, _anthropic_results
    ),
    "responses": Voice(
        "openai-responses",
        user_message,
        _responses_image,
        output_message_item,
        _responses_calls,
        lambda outputs: [function_output_item(*one) for one in outputs.items()],
    ),
    "gemini": Voice(
        "gemini",
        lambda text: user_turn(text_part(text)),
        _gemini_image,
        lambda text: model_turn(text_part(text)),
        _gemini_calls,
        _gemini_results,
    ),
    "pydantic-ai": Voice(
        "pydantic-ai",
        lambda text: request_message(user_prompt_part(text)),
        _agent_image,
        lambda text: response_message(text_reply_part(text)),
        _agent_calls,
        _agent_results,
    ),
}

PATHS = ("src/billing/totals.py", "src/auth/views.py", "src/search/index.py", "src/billing/tasks.py")
PROSE = (
    "the total of an invoice is rounded before tax so the sum differs by one cent and the nightly job rewrites the "
    "index while the worker waits for a lock that nobody gives back until the session token expires"
)
ORDERS = (
    "Always answer in French.", "Never touch src/auth/views.py.", "We decided to use Decimal for money.",
    "The deadline is 2024-05-17.", "The key is sk-golden-0123456789abcdef0123.", "Call it invoice_total, not sum.",
)  # fmt: skip
QUESTIONS: tuple[Mapping[str, object], ...] = (
    {"query": "how is the invoice total rounded"},
    {"query": ["deadline", "session token"], "neighbours": 1},
    {"refs": "#1-#3"},
    {"refs": "#2:0-120, c1_0"},
    {"file": "src/billing/totals.py"},
    {"tool": "read_file", "last": 8},
    {"last": 4},
    {"text": "Decimal", "role": "user"},
    {"refs": "#99999"},
    {"queri": 1},
)


def prose(chance: random.Random, size: int) -> str:
    """Return so many words, in lines."""
    picked = chance.choices(PROSE.split(), k=size)
    return "\n".join(" ".join(picked[start : start + 14]) for start in range(0, size, 14))


def output(chance: random.Random, path: str) -> str:
    """Return what a tool gives back: a file, an error, or a test run."""
    kind = chance.random()
    if kind < 0.15:  # noqa: PLR2004 - some of them fail
        return f"Error: {path} line {chance.randint(1, 300)}: unexpected token"
    if kind < 0.3:  # noqa: PLR2004 - some are runs
        return f"$ pytest {path}\n{prose(chance, 30)}\n2 failed, 14 passed in 3.1s"
    return f"# {path}\n{prose(chance, chance.choice((20, 60, 150, 400)))}"


def steps(voice: Voice, chance: random.Random, turn: int) -> Iterator[list[JsonMessage]]:
    """Yield the steps of one turn: calls, their outputs, an answer."""
    for step in range(chance.randint(1, 3)):
        path = chance.choice(PATHS)
        ids = [
            f"c{turn}_{step}{'ab'[number]}" if number else f"c{turn}_{step}" for number in range(chance.randint(1, 2))
        ]
        yield voice.calls(ids, path)
        yield voice.returns({name: output(chance, path) for name in ids})
    yield [voice.answers(f"Turn {turn} is done. {prose(chance, 20)}")]


# The sessions.


async def loop(player: Player) -> None:
    """Play tool loops with parallel calls and large outputs, then a long talk of short turns."""
    session, voice, chance = await player.open(), player.voice, player.chance
    for turn in range(4):
        asks = voice.shows if turn == 1 else voice.asks
        await player.say(session, asks(f"Fix {chance.choice(PATHS)}. {ORDERS[turn % len(ORDERS)]} {prose(chance, 15)}"))
        await player.prepare(session)
        calls, outputs, *others = steps(voice, chance, turn)
        await player.say(session, *calls, *outputs)
        await player.prepare(session)
        await player.say(session, *(message for messages in others for message in messages))
    for turn in range(0, 18, 6):
        for case in range(turn, turn + 6):
            question = voice.asks(f"And what of case {case}? {prose(chance, 8)}")
            await player.say(session, question, voice.answers(f"Case {case} is sound. {prose(chance, 12)}"))
        await player.say(session, voice.asks(f"Are all of {turn} done?"))
        await player.prepare(session)
        await player.say(session, voice.answers("Yes."))
    await player.wait(4_000)
    await player.say(session, voice.asks("Go on."))
    await player.prepare(session)
    await player.recall(session, *QUESTIONS)
    await player.end(session)


async def broken(player: Player) -> None:
    """Play calls without results, results without calls, the same id twice, pictures and empty words."""
    session, voice, chance = await player.open(), player.voice, player.chance
    await player.say(session, voice.answers("Hello."), voice.asks(ORDERS[0]))
    await player.prepare(session)
    await player.say(session, *voice.calls(["a", "b"], PATHS[0]), *voice.returns({"a": output(chance, PATHS[0])}))
    await player.prepare(session)
    await player.say(
        session, voice.asks("Never mind."), *voice.returns({"b": "late"}), *voice.returns({"zz": "whose?"})
    )
    await player.prepare(session)
    await player.say(session, *voice.calls(["a"], PATHS[1]), *voice.returns({"a": prose(chance, 500)}))
    await player.say(session, voice.answers(""), voice.asks(" "))
    await player.prepare(session)
    await player.say(session, *(voice.shows(f"Picture {number}: {prose(chance, 30)}") for number in range(6)))
    await player.prepare(session)
    await player.say(session, *voice.calls(["d"], PATHS[2]))
    await session.interrupt()
    await player.prepare(session)
    await player.say(session, voice.asks(prose(chance, 900)))
    await player.prepare(session)
    await player.recall(session, {"query": "picture"}, {"refs": "zz"}, {"last": 3})
    await player.end(session)


async def travel(player: Player) -> None:
    """Pin, compact, undo, redo, rewind, fork and clear, with a request after each."""
    session, voice, chance = await player.open(), player.voice, player.chance
    tools = session.recall_tool(), session.compact_tool()
    player.trace.answers += [canonical([tool.name, tool.description, tool.parameters]) for tool in tools]
    for turn in range(4):
        await player.say(session, voice.asks(f"{ORDERS[turn]} {prose(chance, 25)}"))
        await player.say(session, *(message for messages in steps(voice, chance, turn) for message in messages))
    await player.say(session, voice.asks("And now?"))
    await session.pin(2)
    await player.prepare(session)
    await player.change(session.preview())
    await player.change(session.compact(focus="Keep the paths."))
    await player.prepare(session)
    await player.change(session.recompact(focus="Keep the deadline."))
    await player.change(session.restore_messages([0, 1]))
    await player.prepare(session)
    for step in (session.undo, session.undo, session.redo):
        await player.run(step())
        await player.prepare(session)
    await session.unpin(2)
    player.trace.answers.append(await player.run(session.compact_tool().call({"focus": "totals"})))
    await player.prepare(session)
    await player.change(session.switch_model("gpt-4o", budget=player.budget))
    await player.prepare(session)
    await player.change(session.rewind(to=len(session) // 2))
    await player.say(session, voice.asks("Try it in another way."))
    await player.prepare(session)
    other = await player.run(session.fork("golden-fork"))
    await player.prepare(other)
    await player.run(other.close())
    await session.clear()
    await player.say(session, voice.asks(f"Something else. {prose(chance, 40)}"))
    await player.prepare(session)
    await player.recall(session, {"query": "deadline"}, {"refs": "#1"})
    await player.run(session.undo())
    await player.prepare(session)
    await player.recall(session, *QUESTIONS[:4])
    await player.end(session)
    again = await player.open()
    await player.prepare(again)
    await player.end(again)


async def overflow(player: Player) -> None:
    """Let the provider bill more than was counted, and refuse what is too long."""
    session, voice, chance = await player.open(), player.voice, player.chance
    for turn in range(4):
        await player.say(session, voice.asks(f"{ORDERS[turn]} {prose(chance, 25)}"))
        prepared = await player.prepare(session)
        counted = prepared.tokens.counted if prepared else 100
        *work, last = steps(voice, chance, turn)
        await player.say(session, *(message for messages in work for message in messages))
        usage = {"input_tokens": counted * (12 + turn) // 10, "output_tokens": 80, "cache_read_tokens": 20}
        await player.say(session, *last, usage=usage)
    await player.say(session, voice.asks(f"Once more. {prose(chance, 60)}"))
    await player.prepare(session)
    limit = max(400, player.budget // 2)
    body = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {limit * 2} tokens."
    )
    await player.retry(session, {"error": {"message": body, "code": "context_length_exceeded"}}, 400)
    for _ in range(3):
        await player.retry(session, {"error": {"message": "prompt is too long"}}, 400)
    await player.retry(session, {"error": {"message": "slow down"}}, 429)
    await player.say(session, voice.answers("It fits now."), voice.asks("Good."))
    await player.prepare(session)
    await player.end(session)


async def delegation(player: Player) -> None:
    """Send out agents that see all, some or nothing, and hand the conversation over."""
    session, voice, chance = await player.open(), player.voice, player.chance
    for turn in range(3):
        await player.say(session, voice.asks(f"{ORDERS[turn]} {prose(chance, 25)}"))
        await player.say(session, *(message for messages in steps(voice, chance, turn) for message in messages))
    await session.record_state(log.PlanChanged(text="1. read 2. repair"))
    await session.record_state(log.TodosChanged(text="[ ] tests"))
    await session.record_state(log.SkillInvoked(name="review", instructions="Read twice."))
    await player.say(session, voice.asks("Let others look."))
    await player.prepare(session)
    for sees in (
        Visibility(everything=True),
        SEES_NOTHING,
        Visibility(pins=True, ledger=True, files=True, turns=1, max_tokens=600),
    ):
        async with session.delegate("scout", task=f"Find the tests of {PATHS[0]}.", sees=sees) as child:
            player.trace.answers.append(child.opening_prompt)
            await player.prepare(child)
            await player.say(child, *voice.calls(["s1"], PATHS[0]), *voice.returns({"s1": output(chance, PATHS[0])}))
            await player.prepare(child)
            await player.recall(child, {"query": "invoice total"}, {"last": 2})
            finding = DelegateFinding(
                claim="They are there.", sources=(PATHS[0], "src/never/seen.py"), status="confirmed"
            )
            player.trace.answers.append(str(await player.run(child.answer("Found them.", findings=[finding]))))
        await player.prepare(session)
    with suppress(ValueError):
        async with session.delegate("critic", task="Fail.", main_sees="answers") as child:
            await player.prepare(child)
            raise ValueError("out of ideas")
    await session.transfer("reviewer", message="The totals are right now.")
    await session.add_memory_note("The user prefers short answers.", format=voice.format)
    await player.say(session, voice.asks("Go on, then."))
    await player.prepare(session)
    await player.end(session)


async def grown(messages: Sequence[JsonMessage], player: Player) -> None:
    """Play a broken list as it grows, in four steps."""
    session = await player.open()
    for start in range(0, len(messages), size := max(1, -(-len(messages) // 4))):
        await player.say(session, *messages[start : start + size])
        await player.prepare(session)
    await player.recall(session, {"query": "lorem line words error"}, {"last": 3})
    await player.end(session)


async def imported(file: Path, player: Player) -> None:
    """Bring in a stored file, and go on with each session in it."""
    for number, conversation in enumerate(load_file(file).conversations):
        name = f"{file.stem}-{number}"
        arrived = await import_session(player.store, name, records_from_file(conversation, START_MS))
        player.trace.receipts += [f"{place}: {why}" for place, why in arrived.refused]
        session = await player.open(name)
        player.trace.receipts += session.damage
        await player.prepare(session)
        await player.run(session.undo())
        await player.prepare(session)
        await player.change(session.compact())
        await player.prepare(session)
        await player.recall(session, {"last": 5}, {"query": "why does it fail"}, {"refs": "#0-#2"})
        await player.end(session)


async def recorded(recording: Recording, player: Player) -> None:
    """Play the beginning of a recorded session."""
    session = await player.open()
    turns = [turn for turn in recording.turns if turn <= MOST_RECORDED]
    wanted = set(turns[:: max(1, len(turns) // RECORDED_REQUESTS)])
    start = 0
    for turn in turns:
        if turn in wanted:
            await player.say(session, *recording.messages[start:turn])
            await player.prepare(session)
            start = turn
    questions = [{"query": probe.question} for probe in recording.probes[:3]]
    await player.recall(session, *questions, {"query": "error in the file"}, {"last": 3})
    await player.end(session)


# The cases.


@dataclass(frozen=True, slots=True)
class Played:
    """One session, to be played under every preset with several budgets."""

    scenario: Scenario
    format: str
    script: Callable[[], Iterator[ScriptLine]] | None = None
    is_full: bool = False
    """Whether every preset is played with every budget; else only the default one is, the others with two each."""

    def budgets(self, preset: str) -> Sequence[int]:
        """Return the budgets that are played under a preset."""
        if self.is_full or preset == "default":
            return BUDGETS
        row = [*PRESETS].index(preset)
        return sorted({BUDGETS[row % len(BUDGETS)], BUDGETS[(row + 2) % len(BUDGETS)]})

    async def trace(self, preset: str, budget: int) -> Trace:
        """Return what one case came to."""
        voice = next(voice for voice in VOICES.values() if self.format.startswith(voice.format))
        player = Player(preset, budget, voice if voice.format == self.format else _named(voice, self.format))
        player.lines = self.script() if self.script else None
        numbers = count()

        def token_hex(size: int) -> str:
            return f"{next(numbers):0{2 * size}x}"

        # The random name of a delegation is part of what is sent, so it has to be the same each time.
        with patch("secrets.token_hex", token_hex):
            await self.scenario(player)
        return player.trace


def _named(voice: Voice, name: str) -> Voice:
    return Voice(name, voice.asks, voice.shows, voice.answers, voice.calls, voice.returns)


@cache
def broken_histories() -> dict[str, tuple[str, list[JsonMessage]]]:
    """Return the histories with every defect: drawn once from `holdfast.testing.strategies.every_format`, and kept."""
    kept = json.loads(BROKEN.read_text(encoding="utf-8"))
    found = {name: (str(case["format"]), list(case["messages"])) for name, case in kept.items()}
    for file in sorted((CORPUS / "found").glob("*.json")):
        case = json.loads(file.read_text(encoding="utf-8"))["case"]
        if "format" in case:
            messages = case.get("messages") or [message for part in case["grows"] for message in part]
            found[f"found-{file.stem}"] = str(case["format"]), list(messages)
    return found


@cache
def sessions() -> dict[str, Played]:
    """Return the sessions by name."""
    found: dict[str, Played] = {}
    scenarios = {"loop": loop, "broken": broken, "travel": travel, "overflow": overflow, "delegation": delegation}
    for row, (kind, scenario) in enumerate(scenarios.items()):
        for column, (name, voice) in enumerate(VOICES.items()):
            script = (scripted, None, failing)[(row + column) % 3]
            found[f"{kind}-{name}"] = Played(
                scenario, voice.format, script, is_full=name == "chat" and scenario in {loop, travel, overflow}
            )
    for number, (name, (wire, messages)) in enumerate(broken_histories().items()):
        found[name] = Played(partial(grown, messages), wire, scripted if number % 2 else None)
    for file in sorted([*CORPUS.glob("*.json*"), *CORPUS.glob("schema-*/*.jsonl")]):
        found[f"{file.parent.name}-{file.stem}"] = Played(
            partial(imported, file), "openai-chat", None if file.parent == CORPUS else scripted
        )
    return found


def governed(name: str) -> dict[int, Trace]:
    """Return what `govern` makes of one history, by budget: as it is, with pins, and grown from an earlier call."""
    chat = generate_session(40, loop_steps=3, seed=3)
    broken = broken_histories()
    if name in broken:
        wire, messages = broken[name]
    else:
        wire = VOICES[name].format
        messages = list(convert(chat, source="openai-chat", target=wire).messages)
    found: dict[int, Trace] = {}
    for budget in BUDGETS:
        trace = found[budget] = Trace()
        options = {"budget": budget, "format": wire, "model": MODEL, "tools": TOOLS, "interrupted": True}
        earlier = _governed(trace, messages[: len(messages) // 2], **options)
        _governed(trace, messages, **options, previous=earlier)
        _governed(trace, messages, **options, pins=[1, -1])
        _governed(trace, messages, **options, policy="cowagent", system=SYSTEM)
    return found


def _governed(trace: Trace, messages: Sequence[Mapping[str, object]], **settings: object) -> object:
    try:
        sent = govern(messages, **settings)  # pyright: ignore[reportArgumentType]
    except HoldfastError as error:
        trace.refused(error)
        return None
    trace.sent({"messages": sent.messages, "system": sent.system, "tools": sent.tools}, sent.receipt)
    return sent


def governed_names() -> list[str]:
    """Return the histories that `govern` is given."""
    return [*VOICES, *broken_histories()]


GOVERN = "govern"


def groups() -> list[tuple[str, str]]:
    """Return the groups that run together: a session and a preset, or a history and `govern`."""
    return [(name, preset) for name in sessions() for preset in PRESETS] + [(name, GOVERN) for name in governed_names()]


def traces(name: str, preset: str) -> dict[str, Trace]:
    """Return what the cases of one group came to, by `session/preset/budget`."""
    if preset == GOVERN:
        found = governed(name)
    else:
        played = sessions()[name]
        found = {budget: asyncio.run(played.trace(preset, budget)) for budget in played.budgets(preset)}
    return {f"{name}/{preset}/{budget}": trace for budget, trace in found.items()}


# Comparing.


def differences(kept: Mapping[str, Hashes], found: Mapping[str, Hashes]) -> list[str]:
    """Return where cases differ from what was kept: the first place in each list of each case."""
    told: list[str] = []
    for case in sorted({*kept, *found}):
        before, after = kept.get(case), found.get(case)
        if before is None or after is None:
            told.append(f"{case}: {'is new' if before is None else 'is gone'}")
            continue
        for kind in sorted({*before, *after}, key=lambda kind: (kind != "requests", kind)):
            place = first_difference(before.get(kind, []), after.get(kind, []))
            if place is not None:
                told.append(f"{_titled(case)}: {kind} number {place} differs; see --show {case}")
    return told


def first_difference(before: Sequence[str], after: Sequence[str]) -> int | None:
    """Return the number, from 1, of the first place where two lists differ."""
    if before == after:
        return None
    pairs = zip(before, after, strict=False)
    return next(
        (place for place, (one, other) in enumerate(pairs, 1) if one != other), min(len(before), len(after)) + 1
    )


def _titled(case: str) -> str:
    session, preset, budget = case.rsplit("/", 2)
    return f"session {session}, preset {preset}, budget {budget}"


def kept(file: Path) -> dict[str, Hashes]:
    """Return a golden file."""
    return json.loads(file.read_text(encoding="utf-8"))


def write(file: Path, cases: Mapping[str, Hashes]) -> None:
    """Write a golden file, one case a line."""
    lines = [f"{json.dumps(case)}:{json.dumps(cases[case], separators=(',', ':'))}" for case in sorted(cases)]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


# Recorded sessions.

MOST_RECORDED, RECORDED_REQUESTS = 160, 8
"""How many messages of a recording are played, and about how many requests are made."""
RECORDINGS_PER_FILE = 4
RECORDED_BUDGETS = (4_000, 16_000, 64_000)


async def workloads(paths: Sequence[str]) -> dict[str, Hashes]:
    """Return the hashes of recorded sessions: some of each file, under every preset, with every third budget."""
    found: dict[str, Hashes] = {}
    for path in paths:
        recordings, problems = await load_recordings([path], MemoryStore())
        for problem in problems:
            print(problem, file=sys.stderr)
        sample = recordings[:: max(1, len(recordings) // RECORDINGS_PER_FILE)][:RECORDINGS_PER_FILE]
        for number, recording in enumerate(sample):
            for column, preset in enumerate(PRESETS):
                script = None if (number + column) % 3 == 0 else scripted
                budget = RECORDED_BUDGETS[(number + column) % len(RECORDED_BUDGETS)]
                played = Played(partial(recorded, recording), "openai-chat", script)
                fixed, people = (await played.trace(preset, budget)).hashes()
                found[f"{Path(path).stem}:{recording.name}/{preset}/{budget}"] = {**fixed, **people}
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Write, show or compare."""
    parser = argparse.ArgumentParser(prog="python -m scripts.golden", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="write requests.json and receipts.json")
    parser.add_argument("--write-receipts", action="store_true", help="write receipts.json only")
    parser.add_argument("--show", metavar="CASE", help="print one case in full")
    parser.add_argument("--workloads", nargs="+", metavar="PATH", help="recorded sessions, to write or to compare")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the hashes of recorded sessions")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare the hashes of recorded sessions")
    given = parser.parse_args(argv)
    if given.show:
        name, preset, _ = given.show.rsplit("/", 2)
        print(json.dumps(traces(name, preset)[given.show].texts(), indent=1))
        return 0
    if given.workloads and (given.out or given.compare):
        found = asyncio.run(workloads(given.workloads))
        if given.out:
            write(given.out, found)
        told = differences(kept(given.compare), found) if given.compare else []
        print("\n".join(told) or f"{len(found)} cases")
        return 1 if told else 0
    if not (given.write or given.write_receipts):
        parser.error("use --write, --write-receipts, --show CASE, or --workloads PATH… with --out or --compare")
    hashed = {case: trace.hashes() for group in groups() for case, trace in traces(*group).items()}
    if given.write:
        write(REQUESTS, {case: fixed for case, (fixed, _) in hashed.items()})
    write(RECEIPTS, {case: people for case, (_, people) in hashed.items()})
    print(f"{len(hashed)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
