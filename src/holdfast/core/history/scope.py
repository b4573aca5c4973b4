"""Who sees what across delegations.

A main agent sees everything that happened. A delegate sees the conversation at the top, what happened
in its own scope and in the scopes it was delegated from, and nothing of any other delegation: two
agents that work side by side do not pollute each other.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from holdfast.core.conversation.messages import Message
from holdfast.core.history.events import MAIN

MainSees: TypeAlias = Literal["everything", "answers"]


@dataclass(slots=True)
class Scopes:
    """The delegations of a conversation, and the view each of them has."""

    parents: dict[str, str] = field(default_factory=dict[str, str])
    main_sees: MainSees = "everything"
    """`answers` limits the main agent to what its delegates said in the end."""

    def lineage(self, scope: str) -> frozenset[str]:
        """Return a scope with those it was delegated from, the main one included."""
        line = [scope]
        while line[-1] in self.parents and self.parents[line[-1]] not in line:
            line.append(self.parents[line[-1]])
        return frozenset({*line, MAIN})

    def sees_all_of(self, viewer: str, scope: str) -> bool:
        """Return whether an agent of one scope sees every message of another."""
        if viewer != MAIN:
            return scope in self.lineage(viewer)
        return scope == MAIN or self.main_sees == "everything"

    def sees(self, viewer: str, scope: str, message: Message) -> bool:
        """Return whether an agent of one scope sees a message of another."""
        return self.sees_all_of(viewer, scope) or (viewer == MAIN and not _is_work(message))


def _is_work(message: Message) -> bool:
    """Return whether a message is part of the doing rather than the answer."""
    return bool(message.outline.call_ids or message.outline.result_ids)


def tool_result_text(name: str, arguments: str, output: str) -> str:
    """Return a tool's use as text, for an agent that is told of it instead of seeing it."""
    return f"## Tool: {name}\n\n**Input:**\n{arguments}\n\n**Output:**\n{output}"
