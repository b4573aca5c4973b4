"""What every compaction rule answers about itself.

A rule decides when to compact, which span, and what replaces it. The rest of the package asks the rule and never which
rule it is. Answers that most rules share are the defaults here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from holdfast.core.history.context import Context
from holdfast.core.history.events import Event, Summary
from holdfast.core.planning.steps import (
    MAX_SUMMARY_TOKENS,
    CompactSpan,
    Plan,
    PlanInput,
    compact_all_step,
    without_open_exchange,
)
from holdfast.core.recall.artifacts import DEFAULT_ARTIFACT_TOKENS


@dataclass(frozen=True, slots=True)
class PolicyThreshold:
    """What a rule does at which size."""

    what: str
    at: int
    unit: str = "tokens"


class CompactionRule:
    """Decides when and what to compact, and what replaces it."""

    __slots__ = ()

    RULE: ClassVar[str]
    """The rule's name in a policy file."""
    offers_recall: ClassVar[bool] = False
    """Whether the replacement ends with a line on how to look the messages up, for an agent that can."""
    detects_loops: ClassVar[bool] = False
    """Whether it does not compact again if nothing was done since the last time."""
    checks_summary: ClassVar[bool] = False
    """Whether a summary is checked against the facts that must be kept."""
    is_summary_prompt: ClassVar[bool] = True
    """Whether an agent framework gets a summary as a user's prompt."""
    counts_requests_as_turns: ClassVar[bool] = False
    """Whether a request that carries only tool results counts as a turn of the user."""
    weighs_prices: ClassVar[bool] = False
    """Whether the prices of tokens change what it does."""
    artifact_tokens: int = DEFAULT_ARTIFACT_TOKENS
    """The size above which a tool result is an artifact."""

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return what to do now and later, and why."""
        raise NotImplementedError

    def thresholds(self, window: int, usable: int) -> Iterator[PolicyThreshold]:
        """Yield where it acts, earliest first, if nothing but messages is sent; `usable` is the window less margin."""
        raise NotImplementedError

    def manual_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return what to compact when the user asks for it; None if there is nothing."""
        return compact_all_step(plan_input)

    def agent_requested_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return what to compact when a working agent asks: its prompt and the call by which it asks stay."""
        step = self.manual_step(plan_input) or compact_all_step(plan_input)
        return without_open_exchange(step, plan_input) if step else None

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the texts that replace a span, the user's first; `summary` is None if there is none."""
        del plan_input, step, summary
        return ()

    def max_summary_tokens(self, plan_input: PlanInput, step: CompactSpan) -> int:
        """Return the most that a summary of a span may take."""
        del plan_input, step
        return MAX_SUMMARY_TOKENS

    def texts_beside_summary(self, plan_input: PlanInput, step: CompactSpan) -> list[str]:
        """Return the texts next to a summary, in which the check looks for facts too."""
        del plan_input, step
        return []

    def restore_events(self, context: Context) -> list[Event]:
        """Return what happens to the context when a session is opened again with `restore = "recent_text"`."""
        del context
        return []

    def tuned_settings(self, *, has_summarizer: bool) -> tuple[str, ...]:
        """Return the settings worth varying first; empty if none is better than the others."""
        del has_summarizer
        return ()
