"""What tests of several folders share: how to build a conversation, and how to open one."""

from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.planning.fit.receipt import View
from holdfast.core.planning.plan import make_plan, plan_input_of, view_of
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import Step


@dataclass
class RecordedHistory(History):
    """A history that keeps its events too, as a session keeps them in a store."""

    events: list[log.Event] = field(default_factory=list[log.Event])

    def append(self, event: log.Event, message: Message | None = None) -> None:
        """Replay one more event, and keep it."""
        super().append(event, message)
        self.events.append(event)


class Decision(NamedTuple):
    """The plan and the view of one moment."""

    now: tuple[Step, ...]
    later: tuple[Step, ...]
    reasons: tuple[str, ...]
    view: View


def decide(history: History, policy: Policy, situation: Situation) -> Decision:
    """Return what a session would do next and what it would send, with the reasons for both."""
    plan_input = plan_input_of(history, policy, situation)
    plan, view = make_plan(plan_input, policy), view_of(plan_input, policy)
    return Decision(plan.now, plan.later, (*plan.reasons, *view.reasons), view)
