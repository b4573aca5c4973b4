"""Rehearse a conversation in memory before the gateway serves, so that its first clients wait no longer than others.

Patterns are compiled, and tables filled, when they are first used. With the first request, and the first compaction, of
a process that takes 50 ms in which all of its streams wait.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from holdfast.core.planning.policy import Policy
from holdfast.errors import HoldfastError
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.compaction.telemetry import Telemetry
from holdfast.session.session import Session
from holdfast.stores.memory import MemoryStore

REHEARSED_TURNS, REHEARSED_BUDGET = 5, 800
"""So many turns within so many tokens are compacted twice."""
REHEARSED_MODEL = "gpt-5"
"""The model, if nobody knows a better one."""
_PROMPT = (
    "Please read src/app/settings.toml and https://example.org/docs?page=2 once more. Version 1.4.2 fails at line 120 "
    "with ValueError in `load_settings`, since 2026-01-05. Zoë decided to keep the old name, “Café”, and port 8080 🙂. "
)
_OUTPUT = '{"file": "src/app/settings.toml", "error": null, "sizes": [12, 48]}\n' * 12


class _NoTelemetry(Telemetry):
    """Reports nothing: no conversation has been compacted."""

    @property
    def must_load(self) -> bool:
        return False


def _turn(number: int) -> list[Mapping[str, object]]:
    """Return what a model says, and what its tool returns, between two prompts."""
    call = {"name": "read_file", "arguments": '{"path": "src/app/settings.toml"}'}
    return [
        {
            "role": "assistant",
            "content": f"{number}: I will look at it.",
            "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": f"call_{number}", "content": _OUTPUT},
        {"role": "assistant", "content": f"The file is in order. {_PROMPT}"},
    ]


async def rehearse(policy: Policy, model: str | None) -> None:
    """Hold a short conversation with a policy, of which nothing is kept."""
    options = CompactionOptions(telemetry=_NoTelemetry())
    open_session = partial(Session.open, "rehearsal", store=MemoryStore(), policy=policy, compaction=options)
    with suppress(HoldfastError):  # a policy may be one with which this conversation cannot be held
        async with open_session(model=model or REHEARSED_MODEL, endpoint="http://127.0.0.1/v1") as session:
            for number in range(REHEARSED_TURNS):
                await session.record([{"role": "user", "content": f"{number}: {_PROMPT * 2}"}])
                await session.prepare(REHEARSED_BUDGET)
                await session.record(_turn(number))
