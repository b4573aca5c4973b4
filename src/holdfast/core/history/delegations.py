"""The events of a delegation: begun, with what the delegate was shown, and ended, however it did."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from holdfast.core.history.compactions import MAIN

DelegationOutcome: TypeAlias = Literal["answered", "silent", "failed", "cancelled", "timed_out", "abandoned"]
"""How a delegation ended: with an answer, without one, by an error, stopped, out of time, or with its process."""
PositionSpans: TypeAlias = tuple[tuple[int, int], ...]
"""Positions, as pairs of the first and the one behind the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationStarted:
    """An agent gave another one a task; what that one does has a scope of its own."""

    KIND: ClassVar[str] = "delegation.started"

    scope: str
    agent: str
    parent: str = MAIN
    task: str = ""
    sees: Mapping[str, object] = field(default_factory=dict[str, object])
    """What was chosen for it, by class; empty where it sees all of the line it was delegated from."""
    shown: PositionSpans = ()
    """Which messages of that line it was shown when it began."""
    briefing: str = ""
    """What it was told about the rest."""
    shown_tokens: int = 0
    """What both cost."""
    main_sees: str = ""
    """What the main agent sees of it; empty where nobody said."""
    owner: str = ""
    """Who runs it: a host, a process and a number."""
    is_attributed: bool = False
    """Whether those who see what it is told see to whom that was said; older logs do not know of it."""

    @property
    def is_limited(self) -> bool:
        """Whether it sees what was chosen for it and no more."""
        return self.sees.get("everything") is False


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationFinished:
    """The delegate has answered, or will not."""

    KIND: ClassVar[str] = "delegation.finished"

    scope: str
    answer: str = ""
    sources: tuple[str, ...] = ()
    """What the answer rests on: `#12` for a message, a path, an address."""
    state: DelegationOutcome = "answered"
    error: str = ""
    """Why there is no answer."""
    findings: tuple[Mapping[str, object], ...] = ()
    """What it found, claim by claim, where it said so: claim, status, sources, and sources that it cannot have had."""
