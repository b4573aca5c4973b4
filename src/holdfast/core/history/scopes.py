"""Who sees what across delegations.

A main agent sees everything that happened, unless it was said that of a delegation only the answers count, or
nothing. A delegate sees the conversation at the top, what happened in its own scope and in the scopes it was
delegated from, and of these only what was chosen for it where somebody chose; never more than the one who sent
it, and nothing of any other delegation: two agents that work side by side do not pollute each other.

What became of every delegation: who was asked what by whom, what that one saw, and how it ended.

What a delegate found, claim by claim: a small schema, read patiently and checked by rule.

A delegate may give its answer as findings, or write them into its text as JSON; a text alone is an answer too. What a
claim names as its source is looked up: a message has to be one that the delegate sees, and any other name has to stand
in what it was told, asked for or given back. What does not is kept apart, and the claim is not called confirmed then.
"""

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast, get_args

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.compaction_events import DelegationOutcome, DelegationStarted, PositionSpans
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


FindingStatus: TypeAlias = Literal["confirmed", "uncertain", "open"]
"""Whether a claim rests on what was seen, is a guess, or is a question that is left."""
MAX_FINDINGS, MAX_CLAIM_CHARS, MAX_FINDING_SOURCES = 100, 2_000, 50
_STATUSES: Mapping[str, FindingStatus] = {"confirmed": "confirmed", "uncertain": "uncertain", "open": "open"}
_OPENING, _CLOSING = re.compile(r"```(?:json)?[ \t]*\n"), re.compile(r"\n[ \t]*```")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegateFinding:
    """One claim, with what it rests on."""

    claim: str
    sources: tuple[str, ...] = ()
    """`#12` for a message, a path, an address."""
    status: FindingStatus = "uncertain"
    unverified: tuple[str, ...] = ()
    """Sources that it named and cannot have had."""

    @property
    def is_verified(self) -> bool:
        """Whether it names sources, and has seen all of them."""
        return bool(self.sources) and not self.unverified

    def check_sources(self, seen_sources: Iterable[str]) -> "DelegateFinding":
        """Return the finding with those of its sources kept apart that are not among what was seen."""
        known = frozenset(seen_sources)
        sources = tuple(source for source in self.sources if source in known)
        unverified = tuple(source for source in self.sources if source not in known)
        status = "uncertain" if self.status == "confirmed" and not sources else self.status
        return replace(self, sources=sources, unverified=unverified, status=status)

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object: how a log has it."""
        lists = {"sources": list(self.sources), "unverified": list(self.unverified)}
        return {"claim": self.claim, "status": self.status, **{name: value for name, value in lists.items() if value}}

    def __str__(self) -> str:
        of = f" [{', '.join(self.sources)}]" if self.sources else ""
        not_seen = f"; not seen by it: {', '.join(self.unverified)}" if self.unverified else ""
        return f"{self.claim}{of} ({self.status}{not_seen})"


def parse_findings(text: str) -> tuple[DelegateFinding, ...]:
    """Return the findings that a text is, or holds in its last fence of JSON; none where it holds none."""
    for written in (text, *reversed([*_fenced(text)])):
        try:
            value: object = json.loads(written)
        except (ValueError, RecursionError):
            continue
        listed = cast("Mapping[str, object]", value).get("findings") if isinstance(value, Mapping) else value
        if found := findings_from_json(listed):
            return found
    return ()


def _fenced(text: str) -> Iterator[str]:
    """Yield what stands in the fences of a text."""
    opening = _OPENING.search(text)
    while opening and (closing := _CLOSING.search(text, opening.end())):
        yield text[opening.end() : closing.start()]
        opening = _OPENING.search(text, closing.end())


def findings_from_json(values: object) -> tuple[DelegateFinding, ...]:
    """Return the findings of a list of JSON objects; what is none of them is left out."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return ()
    read = map(_finding_from_json, cast("Sequence[object]", values)[:MAX_FINDINGS])
    return tuple(finding for finding in read if finding is not None)


def _finding_from_json(value: object) -> DelegateFinding | None:
    if not isinstance(value, Mapping):
        return None
    fields = cast("Mapping[str, object]", value)
    claim, status = fields.get("claim"), fields.get("status")
    if not isinstance(claim, str) or not claim.strip():
        return None
    return DelegateFinding(
        claim=claim.strip()[:MAX_CLAIM_CHARS],
        sources=_finding_texts(fields.get("sources")),
        status=_STATUSES.get(status, "uncertain") if isinstance(status, str) else "uncertain",
        unverified=_finding_texts(fields.get("unverified")),
    )


def _finding_texts(value: object) -> tuple[str, ...]:
    """Return the texts of a list, or the one that stands in its place."""
    given = cast("Sequence[object]", value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    texts = [one.strip() for one in given if isinstance(one, str) and one.strip()]
    return tuple(dict.fromkeys(texts))[:MAX_FINDING_SOURCES]


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
