"""Thinking after changed prefixes: a model that binds its thinking accepts every request.

A session talks to a model that remembers for each thinking block in which request it said it. Between the turns the
conversation is compacted, undone, rewound, given another system text or tools, pinned, or opened again. Each request is
checked: thinking stands only after what it followed, none is left out without need, and everything else stays.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count, repeat
from typing import Any

from hypothesis import strategies as st

from holdfast import Request, Session, validate
from holdfast.core.planning.policy import PRESETS
from holdfast.errors import CannotFitError, CompactionError, ModelError
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import JsonMessage
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.models import ScriptedModel
from holdfast.wire.thinking import extend_prefix, prefix_hash, prefix_message_hash, prefix_of_extras

FORMAT, MODEL = "anthropic-messages", "claude-opus-5-5"
BUDGETS = [400, 900, 2_500, 8_000, 100_000]
SUMMARY = "[Summary of the conversation so far.]"
THINKING_KINDS = {"thinking": "signature", "redacted_thinking": "data"}
CHANGES = ["none", "none", "compact", "undo", "redo", "rewind", "system", "tools", "pin", "reopen", "refused"]
OVERFLOW = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 900 tokens"}}

STEPS = st.fixed_dictionaries(
    {
        "thinking": st.lists(st.sampled_from([*THINKING_KINDS]), max_size=2),
        "says": st.booleans(),
        "calls": st.integers(0, 2),
        "words": st.sampled_from([1, 40, 400]),
    }
)
TURNS = st.fixed_dictionaries(
    {
        "steps": st.lists(STEPS, min_size=1, max_size=4),
        "words": st.sampled_from([1, 60]),
        "then": st.sampled_from(CHANGES),
    }
)


def make_cases(preset: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for conversations under one preset."""
    return st.fixed_dictionaries(
        {
            "preset": st.just(preset),
            "budget": st.sampled_from(BUDGETS),
            "has_summarizer": st.booleans(),
            "turns": st.lists(TURNS, min_size=1, max_size=8),
        }
    )


STRATEGIES = tuple(make_cases(preset) for preset in PRESETS)


def check(case: dict[str, Any]) -> None:
    """Play a case, and check each of its requests."""
    asyncio.run(_Conversation(case).play())


class _Conversation:
    """A session with a model that binds its thinking."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self._case = case
        self._store = MemoryStore()
        self._extras: dict[str, Any] = {"system": "Be brief.", "tools": [{"name": "run", "input_schema": {}}]}
        self._said_in: dict[str, set[str]] = {}
        """By signature, the requests in which the model said a block."""
        self._numbers = count()

    async def play(self) -> None:
        """Play all turns; a conversation that cannot fit ends early."""
        session = await self._open()
        with suppress(CannotFitError):
            for turn in self._case["turns"]:
                await session.record([_user(f"prompt {next(self._numbers)} " + "word " * turn["words"])], format=FORMAT)
                await self._answer(session, turn["steps"])
                session = await self._change(session, turn["then"])
        rebuilt = list(rebuilt_requests(await session.events()))
        assert [one.number for one in rebuilt if not one.is_same] == [], "a request cannot be rebuilt"
        await session.close()

    async def _open(self) -> Session:
        summarizer = ScriptedModel(repeat(SUMMARY)) if self._case["has_summarizer"] else None
        preset = self._case["preset"]
        return await Session.open("s", store=self._store, policy=preset, model=MODEL, summarizer=summarizer)

    async def _answer(self, session: Session, steps: Sequence[Mapping[str, Any]]) -> None:
        """Record the model's answers and the results of its calls; the last answer has no call."""
        for step in [*steps, {**steps[-1], "calls": 0, "says": True}]:
            request = await session.prepare(self._case["budget"], **self._extras)
            await self._check(session, request)
            answer = self._say(step, prefix_hash(request.messages, **self._extras))
            calls = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
            results = [
                {"type": "tool_result", "tool_use_id": call, "content": "out " * step["words"]} for call in calls
            ]
            await session.record([answer, *([{"role": "user", "content": results}] if calls else [])], format=FORMAT)
            await SimulatedClock().advance(0)
            if not calls:
                return

    def _say(self, step: Mapping[str, Any], request_hash: str) -> dict[str, Any]:
        """Return an answer, and remember in which request its thinking was said."""
        content: list[JsonMessage] = []
        for kind in step["thinking"]:
            name = f"sig{next(self._numbers)}"
            self._said_in[name] = {request_hash}
            words = {"thinking": "hm " * 30} if kind == "thinking" else {}
            content.append({"type": kind, **words, THINKING_KINDS[kind]: name})
        if step["says"] or not step["calls"]:
            content.append({"type": "text", "text": f"answer {next(self._numbers)}"})
        calls = [f"toolu_{next(self._numbers)}" for _ in range(step["calls"])]
        content.extend({"type": "tool_use", "id": call, "name": "run", "input": {}} for call in calls)
        return {"role": "assistant", "content": content}

    async def _change(self, session: Session, change: str) -> Session:
        """Change the context between two turns."""
        with suppress(CompactionError, ModelError):
            if change == "compact":
                await session.compact(budget=self._case["budget"])
            elif change in {"undo", "redo"}:
                await (session.undo() if change == "undo" else session.redo())
            elif change == "rewind":
                await session.rewind(to=max(session.history.prompt_positions[-1], 1))
                await session.record([_user("instead")], format=FORMAT)
                await self._answer(session, [{"thinking": ["thinking"], "says": True, "calls": 1, "words": 5}])
            elif change == "system":
                self._extras["system"] = f"Be brief. {next(self._numbers)}"
            elif change == "tools":
                self._extras["tools"] = [{"name": f"run{next(self._numbers)}", "input_schema": {}}]
            elif change == "pin":
                await session.pin(len(session) // 2)
            elif change == "refused":
                await session.record([_user("and")], format=FORMAT)
                await session.prepare(self._case["budget"], **self._extras)
                await self._check(session, await session.retry(OVERFLOW, status=400))
                await self._answer(session, [{"thinking": ["thinking"], "says": True, "calls": 0, "words": 5}])
            elif change == "reopen":
                await session.close()
                return await self._open()
        return session

    async def _check(self, session: Session, request: Request) -> None:
        problems = validate(request.messages, FORMAT, **self._extras, thinking_prefixes=self._said_in)
        assert [str(problem) for problem in problems] == [], "not valid"
        removed = frozenset(request.receipt.without_thinking)
        prefix = prefix_of_extras(**self._extras)
        for message, position in zip(request.messages, request.positions, strict=True):
            if position in removed:
                (said,) = await session.messages_at(position)
                _check_removal(message, said, self._said_in, prefix)
            prefix = extend_prefix(prefix, [prefix_message_hash(message)])


def _check_removal(
    sent: Mapping[str, Any], said: Mapping[str, Any], said_in: Mapping[str, set[str]], prefix: str
) -> None:
    """Check that a message lost its thinking only, and that it had to."""
    signatures = [str(block[key]) for block in said["content"] if (key := THINKING_KINDS.get(block["type"]))]
    rest = [block for block in said["content"] if block["type"] not in THINKING_KINDS]
    assert sent["content"] == rest, "more than thinking was removed"
    assert all(prefix not in said_in[signature] for signature in signatures), "thinking was removed without need"


def _user(text: str) -> JsonMessage:
    return {"role": "user", "content": text}
