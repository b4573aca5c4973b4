"""Delegation: agents that work in the same log, each with a scope of its own.

`Session.delegate` opens a `Delegate`; `Visibility` says what it may see; it ends with a `DelegateAnswer` that may hold
findings; `Session.delegations` lists all of them.
"""

from holdfast.core.history.scopes import (
    DelegateFinding,
    DelegationRecord,
    DelegationState,
    FindingStatus,
    MainVisibility,
    tool_use_as_text,
)
from holdfast.core.history.visibility import SEES_EVERYTHING, SEES_NOTHING, Visibility
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
