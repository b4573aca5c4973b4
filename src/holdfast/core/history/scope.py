"""Who sees what across delegations.

A main agent sees everything that happened, unless it was said that of a delegation only the answers count, or
nothing. A delegate sees the conversation at the top, what happened in its own scope and in the scopes it was
delegated from, and of these only what was chosen for it where somebody chose; never more than the one who sent
it, and nothing of any other delegation: two agents that work side by side do not pollute each other.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast, get_args

from holdfast.core.conversation.messages import Message
from holdfast.core.history.delegations import DelegationStarted, PositionSpans
from holdfast.core.history.events import MAIN
from holdfast.errors import MalformedInputError

MainVisibility: TypeAlias = Literal["everything", "answers", "nothing"]
FUTURE_DELEGATE = ""
"""No agent's scope: it stands for a delegate of the main agent that does not exist yet."""


@dataclass(slots=True)
class Scopes:
    """The delegations of a conversation, and the view each of them has."""

    parents: dict[str, str] = field(default_factory=dict[str, str])
    main_sees: MainVisibility = "everything"
    """What the main agent sees of scopes about which nobody said anything."""
    main_limits: dict[str, MainVisibility] = field(default_factory=dict[str, MainVisibility])
    """By scope, what the main agent sees of it."""
    visible_spans: dict[str, PositionSpans] = field(default_factory=dict[str, PositionSpans])
    """By scope, what it was shown of those above it; one that is not here sees all of that."""
    attributed_scopes: set[str] = field(default_factory=set[str])
    """The scopes of which others see to whom something was said."""

    def check_delegation(self, event: DelegationStarted) -> None:
        """Refuse a delegation that cannot be."""
        if event.scope in {MAIN, FUTURE_DELEGATE} or event.scope in self.ancestors(event.parent):
            raise MalformedInputError(event.KIND, f"{event.scope!r} cannot be delegated to by {event.parent!r}")

    def add_delegation(self, event: DelegationStarted) -> None:
        """Take in a delegation."""
        self.parents[event.scope] = event.parent
        if event.main_sees in get_args(MainVisibility):
            self.main_limits[event.scope] = cast("MainVisibility", event.main_sees)
        if event.is_limited:
            self.visible_spans[event.scope] = event.shown
        if event.is_attributed:
            self.attributed_scopes.add(event.scope)

    def ancestors(self, scope: str) -> list[str]:
        """Return a scope and those it was delegated from, the main one last."""
        line = [scope]
        while line[-1] in self.parents and self.parents[line[-1]] not in line:
            line.append(self.parents[line[-1]])
        return line if line[-1] == MAIN else [*line, MAIN]

    def lineage(self, scope: str) -> frozenset[str]:
        """Return a scope with those it was delegated from, the main one included."""
        return frozenset(self.ancestors(scope))

    def main_view_of(self, scope: str) -> MainVisibility:
        """Return what the main agent sees of a scope: of those that another one sent out no more than of that one.

        Where only the answers of an agent count, what was answered to it is not among them.
        """
        line = [one for one in self.ancestors(scope) if one != MAIN]
        if any(self.main_limits.get(one, self.main_sees) != "everything" for one in line[1:]):
            return "nothing"
        return self.main_limits.get(line[0], self.main_sees) if line else "everything"

    def is_limited(self, scope: str) -> bool:
        """Return whether somebody chose what an agent is shown of those above it."""
        return any(one in self.visible_spans for one in self.ancestors(scope))

    @property
    def does_main_see_all(self) -> bool:
        """Whether the main agent sees everything that anybody does."""
        return self.main_sees == "everything" and all(limit == "everything" for limit in self.main_limits.values())

    def is_message_visible(self, viewer: str, scope: str, position: int) -> bool | None:
        """Return whether an agent of one scope sees a message of another; None where that depends on the message."""
        if viewer == scope:
            return True
        if viewer == MAIN:
            return {"everything": True, "answers": None, "nothing": False}[self.main_view_of(scope)]
        for one in self.ancestors(viewer):
            if one == scope:
                return True
            if one in self.visible_spans and not _is_within(self.visible_spans[one], position):
                return False
        return False


def is_answer_message(message: Message) -> bool:
    """Return whether a message is what an agent said rather than what it did or was told."""
    return message.role == "assistant" and not message.outline.call_ids


def _is_within(spans: PositionSpans, position: int) -> bool:
    number = bisect_right(spans, position, key=_first) - 1
    return number >= 0 and position < spans[number][1]


def _first(span: tuple[int, int]) -> int:
    return span[0]


def tool_use_as_text(name: str, arguments: str, output: str) -> str:
    """Return a tool's use as text, for an agent that is told of it instead of seeing it."""
    return f"## Tool: {name}\n\n**Input:**\n{arguments}\n\n**Output:**\n{output}"


def label_trust(message: Message, scope: object, trust: object) -> Message:
    """Return a message with whose word it is: who speaks to a delegate is an agent, and no word of that the user's."""
    if message.role == "user" and scope != MAIN:
        return message.with_trust("agent")
    return message.with_trust("memory") if trust == "memory" else message
