"""The same session under two policies, turn by turn: what each would have sent, read from the cache, and cost.

The lab replays the recorded conversation; no model is called. A replay takes seconds, so it runs in a thread, and the
page tells how far it is.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.apps.lab.baselines import BASELINES
from holdfast.apps.lab.policies import SUMMARY_OPTION, find_policy
from holdfast.apps.lab.recordings import Recording
from holdfast.apps.lab.replay import DEFAULT_STATIC_TOKENS, Replayer, ReplayTurn
from holdfast.apps.lab.simulation import SimulatedSession
from holdfast.apps.lab.sources import load_recordings
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.situation import MILLION, PROVIDER_PRICES, Prices
from holdfast.counters.models import prices_of_model
from holdfast.errors import MalformedInputError
from holdfast.stores.base import Store

COMPARABLE_POLICIES = (*PRESETS, *(f"{name}+{SUMMARY_OPTION}" for name in PRESETS), *BASELINES)
"""Policies by name only: a file of this machine is not named by an address."""
DEFAULT_COMPARED = ("default", "threshold")
DEFAULT_REPLAY_BUDGET, MIN_REPLAY_BUDGET, MAX_REPLAY_BUDGET = 50_000, 2_000, 2_000_000
SUMMARY_SECONDS = 60.0
MAX_REPLAYS, WAIT_SECONDS = 8, 0.1


@dataclass(frozen=True, slots=True)
class PolicyTotals:
    """What a policy would have sent in all."""

    policy: str
    sent_tokens: int
    cached_share: float
    compactions: int
    largest_tokens: int
    dollars: float | None
    cost_tokens: int
    """The cost in plain input tokens, for models without a price."""


@dataclass(frozen=True, slots=True)
class ComparedTurn:
    """One answer: what each policy would have sent for it."""

    number: int
    """Counted from 1."""
    sent_tokens: tuple[int, ...]
    cached_tokens: tuple[int, ...]
    is_compacted: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """Two policies on one session."""

    budget: int
    prices: str
    totals: tuple[PolicyTotals, ...]
    turns: tuple[ComparedTurn, ...]


class PolicyReplays:
    """Replays sessions under policies, and keeps the last results."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks: OrderedDict[tuple[str, int, str, int], asyncio.Task[list[ReplayTurn]]] = OrderedDict()

    async def compare(
        self, session: str, names: Sequence[str], budget: int, model: str | None
    ) -> PolicyComparison | None:
        """Return the comparison, or None while a replay is still running."""
        for name in names:
            if name not in COMPARABLE_POLICIES:
                raise MalformedInputError("policy", f"{name!r:.60} is not known; choose one of the list")
        if not MIN_REPLAY_BUDGET <= budget <= MAX_REPLAY_BUDGET:
            problem = f"must be from {MIN_REPLAY_BUDGET:,} to {MAX_REPLAY_BUDGET:,} tokens, not {budget:,}"
            raise MalformedInputError("budget", problem)
        known = prices_of_model(model)
        prices = known or PROVIDER_PRICES["anthropic"]
        length = await self._store.length(session)
        recording: Recording | None = None
        tasks: list[asyncio.Task[list[ReplayTurn]]] = []
        for name in names:
            key = session, length, name, budget
            if key not in self._tasks:
                recording = recording or await self._recording(session)
                work = asyncio.to_thread(asyncio.run, _replay(recording, name, budget, prices))
                self._tasks[key] = asyncio.create_task(work)
            tasks.append(self._tasks[key])
        while len(self._tasks) > MAX_REPLAYS:
            self._tasks.popitem(last=False)[1].cancel()
        done, _ = await asyncio.wait(tasks, timeout=WAIT_SECONDS)
        if len(done) < len({*tasks}):
            return None
        played = [task.result() for task in tasks]
        return PolicyComparison(
            budget,
            prices.name,
            tuple(_totals(name, turns, prices) for name, turns in zip(names, played, strict=True)),
            tuple(
                ComparedTurn(
                    number,
                    tuple(turn.sent_tokens for turn in turns),
                    tuple(turn.cached_tokens(prices) for turn in turns),
                    tuple(turn.is_compacted for turn in turns),
                )
                for number, turns in enumerate(zip(*played, strict=True), start=1)
            ),
        )

    async def _recording(self, session: str) -> Recording:
        found, problems = await load_recordings([session], self._store)
        if not found:
            raise MalformedInputError("compare", "; ".join(problems) or "there is nothing to replay")
        return found[0]

    async def close(self) -> None:
        """Stop waiting for replays."""
        for task in self._tasks.values():
            task.cancel()


async def _replay(recording: Recording, name: str, budget: int, prices: Prices) -> list[ReplayTurn]:
    static = DEFAULT_STATIC_TOKENS if recording.static is None else recording.static
    static = min(static, budget // 4)
    if name in BASELINES:
        replayer = Replayer(recording, BASELINES[name](), budget, static)
        await replayer.play()
        return replayer.turns
    policy, has_summary = find_policy(name)
    seconds = SUMMARY_SECONDS if has_summary else None
    async with SimulatedSession(policy, prices=prices, summary_seconds=seconds) as simulated:
        replayer = Replayer(recording, simulated, budget, static)
        await replayer.play()
    return replayer.turns


def _totals(name: str, turns: Sequence[ReplayTurn], prices: Prices) -> PolicyTotals:
    sent, cost = sum(turn.sent_tokens for turn in turns), sum(turn.cost(prices) for turn in turns)
    return PolicyTotals(
        policy=name,
        sent_tokens=sent,
        cached_share=sum(turn.cached_tokens(prices) for turn in turns) / max(1, sent),
        compactions=sum(turn.is_compacted for turn in turns),
        largest_tokens=max((turn.sent_tokens for turn in turns), default=0),
        dollars=None if prices.dollars is None else cost * prices.dollars / MILLION,
        cost_tokens=round(cost),
    )
