"""M8 validity, M9 budget, M14 determinism."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.apps.lab.mistral import RequestOracle
from holdfast.apps.lab.replay import ObservedRequest
from holdfast.apps.lab.simulation import SimulatedSession
from holdfast.errors import HoldfastError
from holdfast.wire.convert import convert
from holdfast.wire.validate.provider import validate

CONVERTED_PROVIDERS = ("anthropic-messages", "gemini", "mistral", "bedrock")
SAMPLE_EVERY = 10
"""One request in this many is converted for the other providers and checked."""
FORK_COUNT = 4
"""How often a copy of the session is opened from its log."""
PLACEHOLDER_TOOLS = [{"type": "function", "function": {"name": "tool"}}]


@dataclass(slots=True)
class RequestValidity:
    """M8: how many requests break a rule of their provider.

    `invalid` counts those that OpenAI's Chat Completions would reject. Every tenth request is converted for four other
    providers: `elsewhere` counts those that break a rule of these, and `mistral` those that mistral-common rejects, if
    it is installed.
    """

    invalid: int = 0
    elsewhere: int = 0
    refused: int = 0
    sampled: int = 0
    oracle: RequestOracle | None = None
    requests: int = 0

    async def observe(self, observed: ObservedRequest) -> None:
        self.invalid += bool(validate(observed.messages, "openai-chat"))
        if self.requests % SAMPLE_EVERY == 0:
            self.sampled += 1
            self._check_elsewhere(observed.messages)
        self.requests += 1

    def _check_elsewhere(self, messages: Sequence[Mapping[str, object]]) -> None:
        for provider in CONVERTED_PROVIDERS:
            try:
                sent = convert(messages, source="openai-chat", target=provider)
            except HoldfastError:
                self.elsewhere += 1
                continue
            self.elsewhere += bool(validate(sent.messages, provider, system=sent.system, tools=PLACEHOLDER_TOOLS))
            if provider == "mistral" and self.oracle is not None:
                self.refused += not self.oracle(sent.messages)

    async def figures(self) -> Mapping[str, float]:
        figures = {"M8.invalid": self.invalid, "M8.elsewhere": self.elsewhere, "M8.sampled": self.sampled}
        return figures if self.oracle is None else {**figures, "M8.mistral": self.refused}


@dataclass(slots=True)
class BudgetAdherence:
    """M9: how many requests exceed the budget, how full they are at most and on average, for one way to count tokens.

    `over` counts as the engine does, with o200k; `over_most` and `over_mean` are shares of the budget. In a replay for
    a Claude model, `over_claude` counts a fifth more for each message. In a replay for an unknown model, `over_tekken`
    counts with Mistral's vocabulary.
    """

    name: str = "over"
    factor: float = 1.0
    static: int = 0
    """Tokens that the factor does not apply to."""
    over: int = 0
    max_ratio: float = 0.0
    sent: float = 0.0
    allowed: int = 0

    async def observe(self, observed: ObservedRequest) -> None:
        sent = self.static + (observed.turn.sent_tokens - self.static) * self.factor
        self.over += sent > observed.request.budget
        self.max_ratio = max(self.max_ratio, sent / observed.request.budget)
        self.sent += sent
        self.allowed += observed.request.budget

    async def figures(self) -> Mapping[str, float]:
        mean = self.sent / max(1, self.allowed)
        return {f"M9.{self.name}": self.over, f"M9.{self.name}_most": self.max_ratio, f"M9.{self.name}_mean": mean}


@dataclass(slots=True)
class Determinism:
    """M14: how many requests differ when they are prepared again.

    All requests are rebuilt from the log. Four times, a copy of the session is opened from its store and prepares the
    request again.
    """

    simulated: SimulatedSession
    differences: int = 0

    async def observe(self, observed: ObservedRequest) -> None:
        points = observed.recording.turns
        if observed.index in points[:: max(1, len(points) // FORK_COUNT)][1 : FORK_COUNT + 1]:
            self.differences += not await self.simulated.is_reproducible(observed.request)

    async def figures(self) -> Mapping[str, float]:
        return {"M14.differences": self.differences + await self.simulated.count_differing_requests()}
