"""Which agent sees which messages, and how each delegation ended.

The main agent sees everything, unless its view of a delegation is limited to the answers or to nothing. A delegate
sees its own scope and its ancestors' scopes, limited to the selection made for it. It never sees more than its parent,
and nothing of other delegations.

A delegate returns its answer as text, as a list of findings, or as text that contains findings as JSON. The sources of
each claim are checked: a message must be visible to the delegate, and any other name must occur in messages that the
delegate received, in its tool calls or in their results. Other sources are unverified. A claim without a verified
source does not count as confirmed.
"""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal, TypeAlias, cast, get_args

from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.spans import PositionPairs
from holdfast.core.history import events as log
from holdfast.core.history.events import MAIN, DelegationOutcome
from holdfast.dataclass import dataclass
from holdfast.errors import MalformedInputError
from holdfast.text import lazy_pattern, pluralize

MainVisibility: TypeAlias = Literal["everything", "answers", "recall", "nothing"]
"""What the main agent sees of a delegate's messages: with "recall", those that it asks for, and none unasked."""
FUTURE_DELEGATE = ""
"""The scope of a delegate of the main agent that does not exist yet."""


@dataclass(slots=True)
class Scopes:
    """The delegations of a conversation, and what each of them may see."""

    parents: dict[str, str] = field(default_factory=dict[str, str])
    main_sees: MainVisibility = "everything"
    """What the main agent sees of scopes that are not in `main_limits`."""
    main_limits: dict[str, MainVisibility] = field(default_factory=dict[str, MainVisibility])
    """What the main agent sees of a scope."""
    visible_spans: dict[str, PositionPairs] = field(default_factory=dict[str, PositionPairs])
    """What a scope sees of its ancestors; a scope that is not listed sees everything of them."""
    attributed_scopes: set[str] = field(default_factory=set[str])
    """The scopes whose tasks name their addressee in other agents' views."""
    keys: dict[str, str] = field(default_factory=dict[str, str])
    """By key, the last scope of a delegate that can be resumed."""

    def check_delegation(self, event: log.DelegationStarted) -> None:
        """Raise MalformedInputError if a delegation is impossible."""
        if event.scope in {MAIN, FUTURE_DELEGATE} or event.scope in self.ancestors(event.parent):
            raise MalformedInputError(event.KIND, f"{event.parent!r} cannot delegate to {event.scope!r}")

    def add_delegation(self, event: log.DelegationStarted) -> None:
        """Add a delegation."""
        self.parents[event.scope] = event.parent
        if event.main_visibility in get_args(MainVisibility):
            self.main_limits[event.scope] = cast("MainVisibility", event.main_visibility)
        if event.is_limited:
            self.visible_spans[event.scope] = event.visible_spans
        if event.is_attributed:
            self.attributed_scopes.add(event.scope)
        if event.key:
            self.keys[event.key] = event.scope

    def ancestors(self, scope: str) -> list[str]:
        """Return a scope and its ancestors; the main scope is last."""
        chain = [scope]
        while chain[-1] in self.parents and self.parents[chain[-1]] not in chain:
            chain.append(self.parents[chain[-1]])
        return chain if chain[-1] == MAIN else [*chain, MAIN]

    def lineage(self, scope: str) -> frozenset[str]:
        """Return a scope and its ancestors as a set, including the main scope."""
        return frozenset(self.ancestors(scope))

    def main_view_of(self, scope: str) -> MainVisibility:
        """Return what the main agent sees of a scope, which is never more than it sees of the scope's parent.

        If it sees only the answers of an agent, it sees nothing of that agent's delegates.
        """
        if scope == MAIN:
            return "everything"
        above = {self.main_limits.get(one, self.main_sees) for one in self.ancestors(scope)[1:] if one != MAIN}
        own = self.main_limits.get(scope, self.main_sees)
        if above <= {"everything"}:
            return own
        return "recall" if above <= {"everything", "recall"} and own in {"everything", "recall"} else "nothing"

    def is_limited(self, scope: str) -> bool:
        """Return whether an agent sees only a selection of its ancestors' messages."""
        return any(one in self.visible_spans for one in self.ancestors(scope))

    @property
    def does_main_see_all(self) -> bool:
        """Whether the main agent sees everything that delegates do."""
        return self.main_sees == "everything" and all(limit == "everything" for limit in self.main_limits.values())

    def is_message_visible(self, viewer: str, scope: str, position: int) -> bool | None:
        """Return whether an agent of one scope sees a message of another; None if that depends on the message."""
        if viewer == scope:
            return True
        if viewer == MAIN:
            return {"everything": True, "answers": None}.get(self.main_view_of(scope), False)
        for one in self.ancestors(viewer):
            if one == scope:
                return True
            if one in self.visible_spans and not _is_within(self.visible_spans[one], position):
                return False
        return False


def is_answer_message(message: Message) -> bool:
    """Return whether a message is an answer: an assistant message without calls."""
    return message.role == "assistant" and not message.outline.call_ids


def _is_within(spans: PositionPairs, position: int) -> bool:
    number = bisect_right(spans, position, key=lambda span: span[0]) - 1
    return number >= 0 and position < spans[number][1]


def label_trust(message: Message, scope: object, trust: object) -> Message:
    """Return a message with its trust label; a user message in a delegate's scope comes from an agent."""
    if message.role == "user" and scope != MAIN and not message.is_report:
        return message.with_trust("agent")
    if trust == "attachment":
        return message.with_trust("attachment")
    return message.with_trust("memory") if trust == "memory" else message


FindingStatus: TypeAlias = Literal["confirmed", "uncertain", "open"]
"""Whether a claim is supported by a source, is a guess, or is an open question."""
MAX_FINDINGS, MAX_CLAIM_CHARS, MAX_FINDING_SOURCES = 100, 2_000, 50
_OPENING, _CLOSING = lazy_pattern(r"```(?:json)?[ \t]*\n"), lazy_pattern(r"\n[ \t]*```")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegateFinding:
    """One claim, with its sources."""

    claim: str
    sources: tuple[str, ...] = ()
    """`#12` for a message, a path, a URL."""
    status: FindingStatus = "uncertain"
    unverified: tuple[str, ...] = ()
    """Sources that the delegate cannot have seen."""

    def check_sources(self, seen_sources: Iterable[str]) -> "DelegateFinding":
        """Return the finding with sources outside `seen_sources` marked as unverified."""
        known = frozenset(seen_sources)
        sources = tuple(source for source in self.sources if source in known)
        unverified = tuple(source for source in self.sources if source not in known)
        status = "uncertain" if self.status == "confirmed" and not sources else self.status
        return replace(self, sources=sources, unverified=unverified, status=status)

    def to_json(self) -> dict[str, object]:
        """Return the finding as the JSON object that the log stores."""
        lists = {"sources": list(self.sources), "unverified": list(self.unverified)}
        return {"claim": self.claim, "status": self.status, **{name: value for name, value in lists.items() if value}}

    def __str__(self) -> str:
        of = f" [{', '.join(self.sources)}]" if self.sources else ""
        not_seen = f"; not seen by it: {', '.join(self.unverified)}" if self.unverified else ""
        return f"{self.claim}{of} ({self.status}{not_seen})"


def parse_findings(text: str) -> tuple[DelegateFinding, ...]:
    """Return the findings in a JSON text, or in the last fenced block that contains findings as JSON."""
    for candidate in (text, *reversed([*_fenced_blocks(text)])):
        try:
            value: object = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        listed = cast("Mapping[str, object]", value).get("findings") if isinstance(value, Mapping) else value
        if found := findings_from_json(listed):
            return found
    return ()


def _fenced_blocks(text: str) -> Iterator[str]:
    opening = _OPENING.search(text)
    while opening and (closing := _CLOSING.search(text, opening.end())):
        yield text[opening.end() : closing.start()]
        opening = _OPENING.search(text, closing.end())


def findings_from_json(values: object) -> tuple[DelegateFinding, ...]:
    """Return the findings in a list of JSON objects; ignore other items."""
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
        status=cast("FindingStatus", status) if status in get_args(FindingStatus) else "uncertain",
        unverified=_finding_texts(fields.get("unverified")),
    )


def _finding_texts(value: object) -> tuple[str, ...]:
    """Return the distinct, non-empty texts of a list or of a single text."""
    items = cast("Sequence[object]", value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    texts = [one.strip() for one in items if isinstance(one, str) and one.strip()]
    return tuple(dict.fromkeys(texts))[:MAX_FINDING_SOURCES]


DelegationState: TypeAlias = DelegationOutcome | Literal["running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationRecord:
    """One delegation, with the events that started and finished it."""

    started: log.DelegationStarted
    finished: log.DelegationFinished | None = None
    """None while the delegation runs."""
    message_count: int = 0
    """The number of messages in its scope."""
    request_count: int = 0
    """The number of requests in its scope; the log records each of them."""
    started_ms: int = 0
    ended_ms: int | None = None

    @property
    def state(self) -> DelegationState:
        """How the delegation ended, or `running`."""
        return self.finished.state if self.finished else "running"

    @property
    def answer(self) -> str:
        """The answer; empty if there is none."""
        return self.finished.answer if self.finished else ""

    @property
    def error(self) -> str:
        """Why there is no answer."""
        return self.finished.error if self.finished else ""

    @property
    def findings(self) -> tuple[DelegateFinding, ...]:
        """The findings, with checked sources."""
        return findings_from_json(self.finished.findings) if self.finished else ()

    @property
    def description(self) -> str:
        """A text that says what the delegate saw of its parent's conversation."""
        spans = self.started.visible_spans
        count = sum(stop - start for start, stop in spans)
        positions = ", ".join(f"#{start}" if stop == start + 1 else f"#{start}–#{stop - 1}" for start, stop in spans)
        parts = [f"{pluralize(count, 'message')} ({positions})"] if count else []
        parts += ["a briefing about the rest"] if self.started.briefing else []
        return " and ".join(parts) or "nothing"


def abandoned_delegation_events(scopes: Iterable[str], why: str) -> list[log.Event]:
    """Return the events for delegates of which no answer will come."""
    names = list(scopes)
    return [
        *(log.TurnInterrupted(scope=scope) for scope in names),
        *(log.DelegationFinished(scope=scope, state="abandoned", error=why) for scope in names),
    ]


def delegation_records(timed: Iterable[tuple[int, log.Event]]) -> list[DelegationRecord]:
    """Return the delegations of a log, oldest first; `timed` pairs each event with its time."""
    found: dict[str, DelegationRecord] = {}
    messages, requests = Counter[str](), Counter[str]()
    for time_ms, event in timed:
        match event:
            case log.DelegationStarted():
                found[event.scope] = DelegationRecord(started=event, started_ms=time_ms)
            case log.DelegationResumed() if event.scope in found:
                found[event.scope] = replace(found[event.scope], finished=None, ended_ms=None)
            case log.DelegationFinished() if event.scope in found:
                found[event.scope] = replace(found[event.scope], finished=event, ended_ms=time_ms)
            case log.MessageAppended():
                messages[event.scope] += 1
            case log.RequestPrepared():
                requests[event.scope] += 1
            case _:
                pass
    return [replace(one, message_count=messages[scope], request_count=requests[scope]) for scope, one in found.items()]
