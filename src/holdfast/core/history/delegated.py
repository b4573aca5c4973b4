"""What became of every delegation: who was asked what by whom, what that one saw, and how it ended."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from holdfast.core.history import events as log
from holdfast.core.history.delegations import DelegationOutcome, PositionSpans
from holdfast.core.history.findings import DelegateFinding, findings_from_json

DelegationState: TypeAlias = DelegationOutcome | Literal["running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationRecord:
    """One delegation, as the log has it."""

    scope: str
    agent: str
    parent: str
    task: str
    state: DelegationState = "running"
    visibility: Mapping[str, object] = field(default_factory=dict[str, object])
    """What was chosen for it, by class; empty where nobody chose."""
    visible_spans: PositionSpans = ()
    """Which messages of the line above it was shown when it began."""
    briefing: str = ""
    """What it was told about the rest."""
    visible_tokens: int = 0
    main_visibility: str = ""
    answer: str = ""
    sources: tuple[str, ...] = ()
    error: str = ""
    findings: tuple[DelegateFinding, ...] = ()
    """What it found, claim by claim, with the sources that were checked."""
    message_count: int = 0
    """How much was said in it."""
    request_count: int = 0
    """How many requests were made for it; the log has each as it went out."""
    started_ms: int = 0
    ended_ms: int | None = None

    @property
    def description(self) -> str:
        """What it was shown, in words."""
        count = sum(stop - start for start, stop in self.visible_spans)
        spans = ", ".join(
            f"#{start}" if stop == start + 1 else f"#{start}–#{stop - 1}" for start, stop in self.visible_spans
        )
        many = "messages" if count > 1 else "message"
        told = ["what it was told of the rest"] if self.briefing else []
        return " and ".join([*([f"{count:,} {many} ({spans})"] if count else []), *told]) or "nothing"


def delegation_records(timed: Iterable[tuple[int, log.Event]]) -> list[DelegationRecord]:
    """Return the delegations of a log, the oldest first; each event comes with its time."""
    found: dict[str, DelegationRecord] = {}
    said, asked = Counter[str](), Counter[str]()
    for time_ms, event in timed:
        match event:
            case log.DelegationStarted():
                found[event.scope] = _started_record(event, time_ms)
            case log.DelegationFinished() if event.scope in found:
                found[event.scope] = _finished_record(found[event.scope], event, time_ms)
            case log.MessageAppended():
                said[event.scope] += 1
            case log.RequestPrepared():
                asked[event.scope] += 1
            case _:
                pass
    return [replace(one, message_count=said[scope], request_count=asked[scope]) for scope, one in found.items()]


def _started_record(event: log.DelegationStarted, time_ms: int) -> DelegationRecord:
    return DelegationRecord(
        scope=event.scope,
        agent=event.agent,
        parent=event.parent,
        task=event.task,
        visibility=event.sees,
        visible_spans=event.shown,
        briefing=event.briefing,
        visible_tokens=event.shown_tokens,
        main_visibility=event.main_sees,
        started_ms=time_ms,
    )


def _finished_record(known: DelegationRecord, event: log.DelegationFinished, time_ms: int) -> DelegationRecord:
    return replace(
        known,
        state=event.state,
        answer=event.answer,
        sources=event.sources,
        error=event.error,
        findings=findings_from_json(event.findings),
        ended_ms=time_ms,
    )
