"""Plays a policy as a session would, without a session: its steps are carried out, its summaries say what is told.

One that is written in the background is there at the next request.

A history that remembers the events it was told.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.events import Summary
from holdfast.core.history.history import History
from holdfast.core.planning.changes import compaction_completed_event, compaction_started_event, step_event
from holdfast.core.planning.plan import Plan, plan_input_of, plan_rounds
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Budget, Situation
from holdfast.core.planning.steps import AwaitSummary, CompactSpan, Step
from holdfast.counters.vocabularies import counter_for
from holdfast.session.request import encode_entry, limit_cache_marks
from holdfast.wire.formats import MessageFormat, format_named, split_elements


@dataclass
class ToldHistory(History):
    """A history with its log beside it, as a session keeps it in a store."""

    events: list[log.Event] = field(default_factory=list[log.Event])

    def append(self, event: log.Event, message: Message | None = None) -> None:
        """Take in what happened next, and remember it."""
        super().append(event, message)
        self.events.append(event)


@dataclass(slots=True)
class Planned:
    """One policy on one growing conversation."""

    policy: Policy
    model: str = "gpt-5"
    format: str = "openai-chat"
    has_summarizer: bool = False
    """Whether summaries can be had; without, each policy does what it does then."""
    summary: str = "[Summary of the conversation so far.]"
    history: ToldHistory = field(default_factory=lambda: ToldHistory(format_named))
    reasons: list[str] = field(default_factory=list[str])
    _begun: CompactSpan | None = None

    @property
    def wire(self) -> MessageFormat:
        """How messages are written down."""
        return format_named(self.format)

    def prepare(self, messages: Sequence[Mapping[str, object]], budget: int) -> list[Mapping[str, object]]:
        """Return what would be sent of everything that was said so far."""
        elements, _ = split_elements(self.wire, list(messages))
        for native in cast("list[Mapping[str, object]]", elements)[len(self.history) :]:
            self.history.append(log.MessageAppended(format=self.wire.name, native=native))
        return limit_cache_marks(
            [encode_entry(entry, self.wire) for entry in self._settled(budget).view.entries], self.wire
        )

    def _situation(self, budget: int) -> Situation:
        return Situation(
            budget=Budget(budget),
            counter=counter_for(self.model),
            window=budget,
            has_summarizer=self.has_summarizer,
            has_ready_summary=self._begun is not None,
            is_interrupted=True,
            batching=self.wire.batching,
            max_text_chars=self.wire.max_text_chars,
            max_images=self.wire.max_images,
        )

    def _settled(self, budget: int) -> Plan:
        """Return the plan to send, after the steps of those before it were carried out."""
        last = list(self._rounds(budget))[-1]
        for step in last.later:
            if isinstance(step, CompactSpan) and self._begun is None:
                self.history.append(
                    compaction_started_event(step, plan_input_of(self.history, self.policy, self._situation(budget)))
                )
                self._begun = step
        return last

    def _rounds(self, budget: int) -> Iterator[Plan]:
        for plan in plan_rounds(self.history, self.policy, lambda: self._situation(budget)):
            self.reasons += plan.reasons
            for step in plan.now:
                self._carry_out(step, self._situation(budget))
            yield plan

    def _carry_out(self, step: Step, situation: Situation) -> None:
        if isinstance(step, AwaitSummary):
            step, self._begun = self._begun or step, None
        if isinstance(step, CompactSpan):
            self._fold(step, situation)
        elif not isinstance(step, AwaitSummary):
            self.history.append(step_event(step, plan_input_of(self.history, self.policy, situation)))

    def _fold(self, step: CompactSpan, situation: Situation) -> None:
        rule = self.policy.fold or self.policy.emergency
        if rule is None:
            return
        outlook = plan_input_of(self.history, self.policy, situation)
        summary = Summary(self.summary) if step.by == "summary" else None
        self.history.append(compaction_completed_event(step, rule, outlook, summary))
