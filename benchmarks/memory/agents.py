"""What an agent can still reach: identifiers that it needs again, the user's words, and the cost of keeping them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.memory.bm25 import GrowingBm25
from benchmarks.memory.chats import idle_summarizer
from benchmarks.memory.figures import Figures, Pair
from benchmarks.recall import fitting_positions
from holdfast import PendingToolCallsError, Session
from holdfast.apps.lab.baselines import FullHistory, ReplayPolicy, ReplayRequest, ReplayResult, ThresholdCompaction
from holdfast.apps.lab.identifiers import extract_identifiers
from holdfast.apps.lab.metrics.cost import cost_growth
from holdfast.apps.lab.metrics.retention import (
    DemandRetention,
    InstructionRetention,
    OwnCompactions,
    ShareTally,
)
from holdfast.apps.lab.metrics.validity import BudgetAdherence, RequestValidity
from holdfast.apps.lab.mistral import tekken_counter
from holdfast.apps.lab.recordings import Recording, read_recording
from holdfast.apps.lab.replay import Metric, Replayer, ReplayTurn
from holdfast.apps.lab.runner import UNLISTED_MODEL
from holdfast.apps.lab.simulation import (
    CLOCK_START_MS,
    DEFAULT_TURN_SECONDS,
    LAB_MODEL,
    SimulatedSession,
    full_message_text,
)
from holdfast.compaction import CompactionOptions
from holdfast.core.history.events import CompactionCompleted
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.situation import PROVIDER_PRICES, Prices, request_cost
from holdfast.errors import CannotFitError
from holdfast.testing.chat import JsonMessage
from holdfast.testing.clock import SimulatedClock

AGENT_BUDGET, COST_BUDGET = 50_000, 100_000
HIT_AIM = 0.98
COMPACTION_BUDGETS = (8_000, 16_000, 32_000)
"""Besides `AGENT_BUDGET`: our view at the place of an agent's own compaction."""
ANSWER_TOKENS = 1_000
PINNED_SHARE = 0.5
MAX_GAP_MESSAGES = 8
"""An agent's compaction is followed by a request after at most so many messages."""
DEMANDS = ("far", "far_recall", "far_asked", "first", "first_recall", "used", "written")
INSTRUCTIONS = ("users", "short", "rules", "orders")


@dataclass(slots=True)
class PinnedPrompts:
    """A baseline: the user's messages, the newest first, in half of the room, and the newest other messages."""

    index: GrowingBm25 = field(default_factory=GrowingBm25)
    messages: list[JsonMessage] = field(default_factory=list[JsonMessage])
    sent: set[int] = field(default_factory=set[int])

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        """Return the request for the conversation so far."""
        messages, sizes, head = replay_request.messages, replay_request.sizes, replay_request.system_count
        left = replay_request.available_tokens
        pinned_room, kept = int(left * PINNED_SHARE), set(range(head))
        for index in range(len(messages) - 1, head - 1, -1):
            cost = sizes.tokens_between(index, index + 1)
            if messages[index]["role"] == "user" and cost <= pinned_room:
                pinned_room, left = pinned_room - cost, left - cost
                kept.add(index)
        for index in range(len(messages) - 1, head - 1, -1):
            cost = 0 if index in kept else sizes.tokens_between(index, index + 1)
            if (left := left - cost) < 0:
                break
            kept.add(index)
        self.messages, self.sent = messages, kept
        return ReplayResult([messages[index] for index in sorted(kept)])

    async def recall(self, query: str) -> str:
        """Return the best messages by BM25 that were not sent, in 1,000 tokens."""
        for native in self.messages[len(self.index.texts) :]:
            self.index.add(full_message_text(native))
        chosen = fitting_positions(self.index.ranked(query), self.messages, self.sent, ANSWER_TOKENS)
        return "\n".join(self.index.texts[index] for index in sorted(chosen))


@dataclass(slots=True)
class UntilLastCompaction:
    """Prepares requests up to the agent's last own compaction; after it, only records the messages for recall."""

    ours: SimulatedSession
    stop: int
    last: ReplayResult | None = None

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        """Return the request for the conversation so far, or the last one."""
        try:
            if self.last is None or len(replay_request.messages) <= self.stop + MAX_GAP_MESSAGES:
                self.last = await self.ours.prepare(replay_request)
                return self.last
        except CannotFitError:
            # A prompt of a recorded session may be larger than a small budget.
            return self.last or ReplayResult([])
        await self.ours.session.record(replay_request.messages[len(self.ours.session) :])
        return self.last


async def measure_agent(record: Mapping[str, Any]) -> Figures:
    """Return the figures of one recorded session at 50,000 tokens, and at its own compactions also at fewer."""
    recording, figures = read_recording(record), Figures()
    anthropic = PROVIDER_PRICES["anthropic"]
    async with SimulatedSession(PRESETS["default"], prices=anthropic) as ours:
        demand, instruction, own = DemandRetention(ours.recall), InstructionRetention(), OwnCompactions(ours.recall)
        adherence = BudgetAdherence()
        player = await _play(recording, ours, AGENT_BUDGET, [demand, instruction, own, adherence])
        _add(figures, "", demand.shares, DEMANDS)
        _add(figures, "", instruction.shares, INSTRUCTIONS)
        _add_own(figures, AGENT_BUDGET, own.shares)
        figures["fill"] = adherence.sent, adherence.allowed
        figures["over"] = adherence.over, len(player.turns)
        figures["hits"] = _hits(player)
        figures["own cost"] = _cost(player, anthropic), 1.0
    if recording.compactions:
        for budget in COMPACTION_BUDGETS:
            async with SimulatedSession(PRESETS["default"], prices=anthropic) as ours:
                own = OwnCompactions(ours.recall)
                policy = UntilLastCompaction(ours, recording.compactions[-1].index)
                await _play(recording, policy, budget - ANSWER_TOKENS, [own], static=0)
                _add_own(figures, budget, own.shares)
    return figures


class SummarizedSession:
    """The default policy with a model that writes its summaries; each request waits for the summary before it."""

    def __init__(self, session: Session, clock: SimulatedClock) -> None:
        self._session, self._clock = session, clock
        self._no_summary_runs = idle_summarizer(session)

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        """Return the request for the conversation so far."""
        await self._session.record(replay_request.messages[len(self._session) :])
        await self._clock.advance(replay_request.idle_seconds or DEFAULT_TURN_SECONDS)
        budget = replay_request.budget - replay_request.sizes.static
        try:
            request = await self._session.prepare(budget, has_recall=True)
        except PendingToolCallsError:
            await self._session.interrupt()
            request = await self._session.prepare(budget, has_recall=True)
        await self._no_summary_runs.wait()
        return ReplayResult(request.messages)

    async def recall(self, query: str) -> str:
        """Return the answer of one recall."""
        return await self._session.recall_tool(max_tokens=ANSWER_TOKENS).call({"query": query})


async def measure_summarized(record: Mapping[str, Any], summarizer: str) -> Figures:
    """Return what stays in view of one recorded session at 50,000 tokens if a model writes the summaries."""
    recording, figures, clock = read_recording(record), Figures(), SimulatedClock(CLOCK_START_MS)
    options = CompactionOptions(automatic=summarizer, prices=PROVIDER_PRICES["anthropic"])
    async with Session.open("lab", model=LAB_MODEL, compaction=options, clock=clock.time_ms) as session:
        ours = SummarizedSession(session, clock)
        demand, instruction, adherence = DemandRetention(ours.recall), InstructionRetention(), BudgetAdherence()
        player = await _play(recording, ours, AGENT_BUDGET, [demand, instruction, adherence])
        changes = [event for event in await session.events() if isinstance(event, CompactionCompleted)]
    _add(figures, "", demand.shares, DEMANDS)
    _add(figures, "", instruction.shares, INSTRUCTIONS)
    figures["over"] = adherence.over, len(player.turns)
    figures["own cost"] = _cost(player, PROVIDER_PRICES["anthropic"]), 1.0
    written = [change.summary for change in changes if change.success and change.summary.by_model]
    said = "\n".join(map(full_message_text, recording.messages))
    names = [name for summary in written for name in extract_identifiers(summary.text)]
    figures["rejected"] = sum(not change.success for change in changes), len(changes)
    figures["by model"] = len(written), sum(change.success for change in changes)
    figures["invented"] = sum(name not in said for name in names), len(names)
    figures["put back"] = sum(len(summary.put_back) for summary in written), max(1, len(written))
    return figures


async def measure_baselines(record: Mapping[str, Any]) -> Figures:
    """Return the figures of simple policies on one recorded session at 50,000 tokens."""
    recording, figures = read_recording(record), Figures()
    demand = DemandRetention()
    player = await _play(recording, ThresholdCompaction(), AGENT_BUDGET, [demand])
    figures["threshold cost"] = _cost(player, PROVIDER_PRICES["anthropic"]), 1.0
    _add(figures, "threshold ", demand.shares, ("far", "first"))
    pinned = PinnedPrompts()
    demand = DemandRetention(pinned.recall)
    await _play(recording, pinned, AGENT_BUDGET, [demand])
    _add(figures, "pinned ", demand.shares, ("far", "far_recall", "first", "first_recall"))
    return figures


async def measure_cost(record: Mapping[str, Any]) -> Figures:
    """Return the cost at 100,000 tokens under each price list, and the requests over budget by another tokenizer."""
    recording, figures = read_recording(record), Figures()
    whole = (await _play(recording, FullHistory(), COST_BUDGET, [])).turns
    fullest = sum(min(turn.sent_tokens, COST_BUDGET) for turn in whole)
    new = whole[-1].sent_tokens
    figures["most hits"], figures["new per request"] = (fullest - new, fullest), (new, len(whole))
    for prices in PROVIDER_PRICES.values():
        async with SimulatedSession(PRESETS["default"], prices=prices) as ours:
            validity = RequestValidity()
            player = await _play(recording, ours, COST_BUDGET, [validity])
        base = await _play(recording, ThresholdCompaction(), COST_BUDGET, [])
        figures[f"cost {prices.name}"] = _cost(player, prices), _cost(base, prices)
        figures[f"least {prices.name}"] = least_cost(whole, prices, HIT_AIM), _cost(base, prices)
        if prices.name == "anthropic":
            shared, sent = figures["hits"] = _hits(player)
            figures["threshold hits"], figures["request tokens"] = _hits(base), (sent, len(player.turns))
            changed = [turn for turn in player.turns if not turn.is_extension]
            rewritten = sum(turn.sent_tokens - turn.shared_tokens for turn in changed)
            figures["rewritten"], figures["new"] = (rewritten, sent), (sent - shared - rewritten, sent)
            figures["growth"] = cost_growth(player.turns, prices), 1.0
            figures["invalid"] = validity.invalid + validity.elsewhere, len(player.turns)
    counter = tekken_counter()
    for budget in (AGENT_BUDGET, COST_BUDGET) if counter else ():
        async with SimulatedSession(PRESETS["default"], model=UNLISTED_MODEL) as ours:
            adherence = BudgetAdherence()
            player = (
                Replayer(recording, ours, budget, counter=counter) if counter else Replayer(recording, ours, budget)
            )
            await player.play([adherence])
            figures[f"over by tekken, {budget:,}"] = adherence.over, len(player.turns)
    return figures


def least_cost(whole: Sequence[ReplayTurn], prices: Prices, hit_share: float) -> float:
    """Return what the requests of a policy with this hit share cost at least; `whole` are those of the full history.

    Every policy sends each message as new once. If these are the only tokens that the cache does not hold, the hit
    share says how many tokens it has to hold. That no prefix changes and no cache expires is more than any policy can
    do, so real costs are higher.
    """
    new = whole[-1].sent_tokens
    output = sum(turn.output_tokens for turn in whole)
    return request_cost(prices, cached=round(new * hit_share / (1 - hit_share)), fresh=new, output=output)


def _cost(player: Replayer, prices: Prices) -> float:
    return sum(turn.cost(prices) for turn in player.turns)


def _hits(player: Replayer) -> Pair:
    return sum(turn.shared_tokens for turn in player.turns), sum(turn.sent_tokens for turn in player.turns)


async def _play(
    recording: Recording, policy: ReplayPolicy, budget: int, metrics: Sequence[Metric], static: int = 3_000
) -> Replayer:
    player = Replayer(recording, policy, budget, static)
    await player.play(metrics)
    return player


def _add(figures: Figures, prefix: str, shares: ShareTally, names: Sequence[str]) -> None:
    for name in names:
        if name in shares.counts:
            found, total = shares.counts[name]
            figures[f"{prefix}{name}"] = float(found), float(total)


def _add_own(figures: Figures, budget: int, shares: ShareTally) -> None:
    for name in shares.counts:
        found, total = shares.counts[name]
        figures[f"own {budget:,} {name}"] = float(found), float(total)
