"""The interface of a compaction rule, of ours and of users.

A rule decides when to compact, which span, and what replaces it. The rest of the package uses this interface and never
checks which rule it has. A rule of your own is a frozen dataclass with a name, `RULE`, and two methods: `propose` and
`replacement_texts`. The defaults here suit most rules. Rules are pure: the same input gives the same result.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.shorten import DEFAULT_ARTIFACT_TOKENS
from holdfast.core.history.events import Event, Summary
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import (
    MAX_SUMMARY_TOKENS,
    NO_STEPS,
    CompactionForecast,
    CompactSpan,
    Plan,
    PlanInput,
    Threshold,
    compact_all_step,
    without_open_exchange,
)
from holdfast.dataclass import dataclass

if TYPE_CHECKING:
    from holdfast.core.history.context import Context


@dataclass(frozen=True, slots=True)
class PolicyThreshold:
    """A size at which a rule acts, and what it does there."""

    what: str
    at: int
    unit: str = "tokens"


@dataclass(frozen=True, slots=True)
class TrimmedList:
    """What a rule leaves of a list of messages, and why."""

    entries: list[Entry]
    reason: str = ""


class CompactionRule:
    """Decides when and what to compact, and what replaces it."""

    __slots__ = ()

    RULE: ClassVar[str]
    """The rule's name in a policy file."""
    offers_recall: ClassVar[bool] = False
    """Whether the replacement ends with a line on how to recall the messages, for an agent with the recall tool."""
    allows_recall_tool: ClassVar[bool] = True
    """Whether an application may offer the recall tool; a preset may consist of exactly its own steps."""
    checks_summary: ClassVar[bool] = False
    """Whether a summary is checked against the facts that must be kept."""
    asks_title: ClassVar[bool] = False
    """Whether a summary is asked to name itself, for the file of its checkpoint."""
    is_summary_prompt: ClassVar[bool] = True
    """Whether an agent framework receives a summary as a user's prompt."""
    counts_requests_as_turns: ClassVar[bool] = False
    """Whether a request that carries only tool results counts as a turn of the user."""
    shows_tool_use: ClassVar[bool] = False
    """Whether a summarizer reads each tool result together with its input, instead of two separate texts."""
    keeps_most_by_rule: ClassVar[bool] = False
    """Whether its digest keeps as much as a model's summary, so that programs ask a model only if one is named."""
    weighs_prices: ClassVar[bool] = False
    """Whether token prices influence the rule."""
    has_ledger: ClassVar[bool] = False
    """Whether its replacement holds the ledger of the messages."""
    waits_for_round: ClassVar[bool] = False
    """Whether it waits for the end of a tool round whose thinking would be lost; systems with thresholds do not."""
    compacts_ahead: ClassVar[bool] = False
    """Whether a digest may be made when a turn is over, for a next prompt that would not fit; presets do not."""
    artifact_tokens: int = DEFAULT_ARTIFACT_TOKENS
    """The size above which a tool result is an artifact."""

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return the steps for now and for later, and why."""
        raise NotImplementedError

    def is_due(self, plan_input: PlanInput) -> bool:
        """Return whether a compaction is due; if it failed, a policy's fixed limits apply as long as it is."""
        return self.propose(plan_input) is not NO_STEPS

    def request_limit(self, window: int) -> int | None:
        """Return the largest request of the original system for a window; None if only the model limits it."""
        del window
        return None

    def thresholds(self, situation: Situation, window: int) -> Iterator[PolicyThreshold]:
        """Return where the rule acts, earliest first; tokens are those of the whole request, as our counter counts."""
        del situation, window
        return iter(())

    def threshold(self, plan_input: PlanInput) -> Threshold | None:
        """Return how close the next compaction is; None if the rule cannot say."""
        del plan_input

    def forecast(self, plan_input: PlanInput, tokens: int) -> CompactionForecast | None:
        """Return the expected size after a compaction of so many tokens; None if the rule cannot say."""
        del plan_input, tokens

    def trim(self, entries: Sequence[Entry], situation: Situation) -> TrimmedList:
        """Return what the rule leaves of a list of messages if there is neither a session nor a summarizer."""
        del situation
        return TrimmedList(list(entries))

    def manual_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return what to compact when the user asks for it; None if there is nothing."""
        return compact_all_step(plan_input)

    def may_grow(self, step: CompactSpan) -> bool:
        """Return whether a replacement may be larger than what it replaces: the user asked for it, and gets it."""
        return step.trigger == "manual"

    def agent_requested_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return what to compact when a working agent asks: its prompt and the call that asks stay."""
        step = self.manual_step(plan_input) or compact_all_step(plan_input)
        return without_open_exchange(step, plan_input) if step else None

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the texts that replace a span, the user's first; `summary` is None if there is none."""
        del plan_input, step, summary
        return ()

    def max_summary_tokens(self, plan_input: PlanInput, step: CompactSpan) -> int:
        """Return the largest size of a summary of a span."""
        del plan_input, step
        return MAX_SUMMARY_TOKENS

    def texts_beside_summary(self, plan_input: PlanInput, step: CompactSpan) -> list[str]:
        """Return the texts next to a summary; the summary check looks for facts in them too."""
        del plan_input, step
        return []

    def loop_reason(self, plan_input: PlanInput) -> str:
        """Return why another compaction would only repeat a loop of the agent; empty if it would not."""
        del plan_input
        return ""

    def progress_marks(self, plan_input: PlanInput) -> tuple[str, ...]:
        """Return marks of the agent's progress, which a compaction stores so that a loop can be detected later."""
        del plan_input
        return ()

    def restore_events(self, context: "Context") -> list[Event]:
        """Return the events that change the context when a session is reopened with `restore = "recent_text"`."""
        del context
        return []

    def tuned_settings(self, *, has_summarizer: bool) -> tuple[str, ...]:
        """Return the settings that tuning should vary first; empty if none stands out."""
        del has_summarizer
        return ()
