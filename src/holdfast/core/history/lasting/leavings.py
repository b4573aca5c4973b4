"""What leaves the view of a conversation, read off its log.

A fold, a trim, a clear and what is done after a provider's refusal take messages out of what the model sees. Each
message leaves once: what was told of before is not told again, whatever is folded over it later. A trim whose summary
is still to come is held back until that is there or came to nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast

from holdfast.core.history import events as log

Cause: TypeAlias = Literal["trimmed", "overflow", "cleared"]
CAUSES: tuple[Cause, ...] = ("trimmed", "overflow", "cleared")
RESCUED = "rescued"
"""In the situation of a request: that little of little was sent, because the provider had refused more."""
Spans: TypeAlias = tuple[range, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Messages that are not shown any more."""

    place: int
    """Of the event in the log: by that it is known again."""
    time_ms: int
    cause: Cause
    messages: Spans
    summary: str = ""
    """What a model wrote of them; empty where none did."""


@dataclass(slots=True)
class Leavings:
    """Takes in a log, one record at a time, and tells what has left."""

    place: int = 0
    """How many records were taken in."""
    said: int = 0
    """How many messages were among them."""
    told: Spans = ()
    """Messages that have left, in order."""
    awaited: list[Leaving] = field(default_factory=list[Leaving])
    """What has left and waits for its summary."""

    def take(self, event: log.Event, time_ms: int, *, may_wait: bool) -> list[Leaving]:
        """Take in the next event, and return what is known to have left by it.

        `may_wait` says that somebody is there who will write the summary of a trim.
        """
        place, self.place = self.place, self.place + 1
        match event:
            case log.MessageAppended():
                self.said += 1
            case log.CompactionCompleted(scope=log.MAIN):
                return self._ended(event, place, time_ms, may_wait=may_wait)
            case log.SummaryWritten(scope=log.MAIN):
                return self._settled(range(event.start, event.stop), event.text)
            case log.Forked():
                # What left before is the parent's to tell of.
                self.awaited = []
            case log.ContextCleared(scope=log.MAIN):
                return self._all(place, time_ms, "cleared")
            case log.RequestPrepared(scope=log.MAIN) if event.situation.get(RESCUED):
                return self._all(place, time_ms, "overflow")
            case _:
                pass
        return []

    def give_up(self) -> list[Leaving]:
        """Return what waits for a summary: there will be none."""
        given_up, self.awaited = self.awaited, []
        return given_up

    def _all(self, place: int, time_ms: int, cause: Cause) -> list[Leaving]:
        """Return that everything has left, with what still waited for its summary."""
        waiting = self.give_up()
        left = self._left(Leaving(place=place, time_ms=time_ms, cause=cause, messages=(range(self.said),)))
        return [
            replace(one, messages=_joined(one.messages, *(past.messages for past in waiting))) for one in left
        ] or waiting

    def _ended(self, event: log.CompactionCompleted, place: int, time_ms: int, *, may_wait: bool) -> list[Leaving]:
        span = range(event.start, event.stop)
        if not event.success:
            return self._settled(span, "") if event.ends_run else []
        is_emergency = event.trigger == "context_limit_retry" and not event.replacement
        cause: Cause = "overflow" if is_emergency else "trimmed"
        summary = event.summary_content if event.by_model else ""
        before = self._settled(span, summary) if summary else []
        whole = Leaving(place=place, time_ms=time_ms, cause=cause, messages=(span,), summary=summary)
        left = self._left(whole, event.kept)
        if before and left:
            # The summary speaks of both, and is told once.
            messages = _joined(*(one.messages for one in (*before, *left)))
            return [replace(left[0], messages=messages)]
        if left and may_wait and not event.replacement and not is_emergency:
            self.awaited += left
            return before
        return [*before, *left]

    def _settled(self, span: range, summary: str) -> list[Leaving]:
        """Return what waited for the summary of a span."""
        inside = [
            one for one in self.awaited if all(part.start in span and part.stop <= span.stop for part in one.messages)
        ]
        self.awaited = [one for one in self.awaited if one not in inside]
        if len(inside) > 1 and summary:
            inside = [replace(inside[-1], messages=_joined(*(one.messages for one in inside)))]
        return [replace(one, summary=summary) for one in inside]

    def _left(self, left: Leaving, kept: Iterable[int] = ()) -> list[Leaving]:
        """Return what of something that left was not told before."""
        new = _without(left.messages, (*self.told, *(range(at, at + 1) for at in kept)))
        self.told = _joined(self.told, new)
        return [replace(left, messages=new)] if new else []

    # How it is kept between two runs of a program.

    def record(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "place": self.place,
            "said": self.said,
            "told": _pairs(self.told),
            "awaited": [
                {"place": one.place, "timeMs": one.time_ms, "cause": one.cause, "messages": _pairs(one.messages)}
                for one in self.awaited
            ],
        }

    @classmethod
    def of(cls, record: Mapping[str, object] | None) -> "Leavings":
        """Return what was kept; one that begins anew where that cannot be read: notes know themselves again."""
        try:
            known = cast("Mapping[str, object]", record or {})
            waiting = cast("list[Mapping[str, object]]", known.get("awaited", []))
            return cls(
                _count(known.get("place", 0)),
                _count(known.get("said", 0)),
                _spans(known.get("told", [])),
                [
                    Leaving(
                        place=_count(one["place"]),
                        time_ms=_count(one["timeMs"]),
                        cause=CAUSES[CAUSES.index(cast("Cause", one["cause"]))],
                        messages=_spans(one["messages"]),
                    )
                    for one in waiting
                ],
            )
        except (TypeError, ValueError, KeyError, AttributeError):
            return cls()


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _pairs(spans: Spans) -> list[list[int]]:
    return [[span.start, span.stop] for span in spans]


def _spans(pairs: object) -> Spans:
    return tuple(range(_count(start), _count(stop)) for start, stop in cast("list[list[object]]", pairs))


def _without(spans: Iterable[range], others: Iterable[range]) -> Spans:
    """Return what of some spans lies in none of the others."""
    left = list(spans)
    for other in others:
        left = [
            part
            for span in left
            for part in (range(span.start, min(span.stop, other.start)), range(max(span.start, other.stop), span.stop))
            if part
        ]
    return tuple(left)


def _joined(*groups: Spans) -> Spans:
    """Return spans in order, those that touch as one."""
    joined: list[range] = []
    for span in sorted((span for group in groups for span in group if span), key=lambda span: span.start):
        if joined and span.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, span.stop))
        else:
            joined.append(span)
    return tuple(joined)
