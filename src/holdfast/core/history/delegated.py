"""What became of every delegation: who was asked what by whom, what that one saw, and how it ended."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from holdfast.core.history import events as log
from holdfast.core.history.delegations import Ending, Spans
from holdfast.core.history.findings import Finding, findings_of

State: TypeAlias = Ending | Literal["running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """One delegation, as the log has it."""

    scope: str
    agent: str
    parent: str
    task: str
    state: State = "running"
    sees: Mapping[str, object] = field(default_factory=dict[str, object])
    """What was chosen for it, by class; empty where nobody chose."""
    shown: Spans = ()
    """Which messages of the line above it was shown when it began."""
    briefing: str = ""
    """What it was told about the rest."""
    shown_tokens: int = 0
    main_sees: str = ""
    answer: str = ""
    sources: tuple[str, ...] = ()
    error: str = ""
    findings: tuple[Finding, ...] = ()
    """What it found, claim by claim, with the sources that were checked."""
    messages: int = 0
    """How much was said in it."""
    requests: int = 0
    """How many requests were made for it; the log has each as it went out."""
    began_ms: int = 0
    ended_ms: int | None = None

    @property
    def saw(self) -> str:
        """What it was shown, in words."""
        count = sum(stop - start for start, stop in self.shown)
        spans = ", ".join(f"#{start}" if stop == start + 1 else f"#{start}–#{stop - 1}" for start, stop in self.shown)
        many = "messages" if count > 1 else "message"
        told = ["what it was told of the rest"] if self.briefing else []
        return " and ".join([*([f"{count:,} {many} ({spans})"] if count else []), *told]) or "nothing"


def delegations_of(timed: Iterable[tuple[int, log.Event]]) -> list[Delegation]:
    """Return the delegations of a log, the oldest first; each event comes with its time."""
    found: dict[str, Delegation] = {}
    said, asked = Counter[str](), Counter[str]()
    for time_ms, event in timed:
        match event:
            case log.DelegationStarted():
                found[event.scope] = _begun(event, time_ms)
            case log.DelegationFinished() if event.scope in found:
                found[event.scope] = _ended(found[event.scope], event, time_ms)
            case log.MessageAppended():
                said[event.scope] += 1
            case log.RequestPrepared():
                asked[event.scope] += 1
            case _:
                pass
    return [replace(one, messages=said[scope], requests=asked[scope]) for scope, one in found.items()]


def _begun(event: log.DelegationStarted, time_ms: int) -> Delegation:
    return Delegation(
        scope=event.scope,
        agent=event.agent,
        parent=event.parent,
        task=event.task,
        sees=event.sees,
        shown=event.shown,
        briefing=event.briefing,
        shown_tokens=event.shown_tokens,
        main_sees=event.main_sees,
        began_ms=time_ms,
    )


def _ended(known: Delegation, event: log.DelegationFinished, time_ms: int) -> Delegation:
    return replace(
        known,
        state=event.state,
        answer=event.answer,
        sources=event.sources,
        error=event.error,
        findings=findings_of(event.findings),
        ended_ms=time_ms,
    )
