"""The plan and the view of one moment, as a session makes them for a request."""

from typing import NamedTuple

from holdfast.core.history.history import History
from holdfast.core.planning.fit.receipt import View
from holdfast.core.planning.plan import make_plan, plan_input_of, view_of
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import Step


class Decision(NamedTuple):
    now: tuple[Step, ...]
    later: tuple[Step, ...]
    reasons: tuple[str, ...]
    view: View


def decide(history: History, policy: Policy, situation: Situation) -> Decision:
    """Return what a session would do next and what it would send, with the reasons for both."""
    plan_input = plan_input_of(history, policy, situation)
    plan, view = make_plan(plan_input, policy), view_of(plan_input, policy)
    return Decision(plan.now, plan.later, (*plan.reasons, *view.reasons), view)
