"""The public names of delegation: agents that work in the same session log, each in its own scope.

`Session.delegate` opens a `Delegate`, and `Visibility` limits the messages that it may see. A delegate ends with a
`DelegateAnswer`, which may hold findings. `Session.delegations` lists all delegations.
"""

from holdfast.core.history.scopes import (
    DelegateFinding,
    DelegationRecord,
    DelegationState,
    FindingStatus,
    MainVisibility,
)
from holdfast.core.history.visibility import SEES_EVERYTHING, SEES_NOTHING, Visibility
from holdfast.core.planning.summary.chunks import tool_use_as_text
from holdfast.session.delegation import Delegate, DelegateAnswer

__all__ = [
    "SEES_EVERYTHING",
    "SEES_NOTHING",
    "Delegate",
    "DelegateAnswer",
    "DelegateFinding",
    "DelegationRecord",
    "DelegationState",
    "FindingStatus",
    "MainVisibility",
    "Visibility",
    "tool_use_as_text",
]
