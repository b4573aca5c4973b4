"""Which messages are evicted from the view of a conversation, derived from its session log.

A compaction, a trim, a clear and an overflow retry evict messages from the view. Each message is reported once: later
compactions that cover it do not report it again. A trim whose summary is pending is reported when the summary is
written or has failed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Literal, TypeAlias, cast

from holdfast.core.conversation.spans import PositionRanges, merge_ranges, subtract_ranges
from holdfast.core.history import events as log
from holdfast.core.schema import is_integer
from holdfast.dataclass import dataclass

EvictionCause: TypeAlias = Literal["trimmed", "overflow", "cleared"]
EVICTION_CAUSES: tuple[EvictionCause, ...] = ("trimmed", "overflow", "cleared")
EMERGENCY_VIEW_KEY = "rescued"
"""The key in a request's situation that marks a minimal view, sent because the provider rejected a larger one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Messages that are no longer in the view."""

    log_index: int
    """The index of the event in the log, which identifies the eviction."""
    time_ms: int
    cause: EvictionCause
    ranges: PositionRanges
    summary: str = ""
    """The model's summary of them; empty if there is none."""


@dataclass(slots=True)
class Evictions:
    """Reads a session log event by event and reports evictions."""

    log_index: int = 0
    """How many events have been read."""
    message_count: int = 0
    """How many of them are messages."""
    reported: PositionRanges = ()
    """The evicted messages so far, in order."""
    awaiting_summary: list[Eviction] = field(default_factory=list[Eviction])
    """Evictions that wait for their summary."""

    def observe(self, event: log.Event, time_ms: int, *, may_await_summary: bool) -> list[Eviction]:
        """Read the next event and return the evictions that it completes.

        `may_await_summary` says whether a summarizer is available to write the summary of a trim.
        """
        index, self.log_index = self.log_index, self.log_index + 1
        match event:
            case log.MessageAppended():
                self.message_count += 1
            case log.CompactionCompleted(scope=log.MAIN):
                return self._on_compaction(event, index, time_ms, may_wait=may_await_summary)
            case log.SummaryWritten(scope=log.MAIN):
                return self._take_awaiting(range(event.start, event.stop), event.summary.text)
            case log.Forked():
                # The parent session reports the evictions before the fork.
                self.awaiting_summary = []
            case log.ContextCleared(scope=log.MAIN):
                return self._evict_all(index, time_ms, "cleared")
            case log.RequestPrepared(scope=log.MAIN) if event.situation.get(EMERGENCY_VIEW_KEY):
                return self._evict_all(index, time_ms, "overflow")
            case _:
                pass
        return []

    def release_awaiting(self) -> list[Eviction]:
        """Return the evictions that wait for a summary, when none will follow, and stop waiting."""
        waiting, self.awaiting_summary = self.awaiting_summary, []
        return waiting

    def _evict_all(self, index: int, time_ms: int, cause: EvictionCause) -> list[Eviction]:
        """Return the eviction of all messages, including those that still wait for a summary."""
        waiting, every = self.release_awaiting(), (range(self.message_count),)
        left = self._new_part(Eviction(log_index=index, time_ms=time_ms, cause=cause, ranges=every))
        return [_joined(left[0], *left, *waiting)] if left else waiting

    def _on_compaction(
        self, event: log.CompactionCompleted, index: int, time_ms: int, *, may_wait: bool
    ) -> list[Eviction]:
        span = event.span.positions
        if not event.success:
            return self._take_awaiting(span, "") if event.ends_run else []
        if event.trigger == "context_limit_retry" and not event.replacement:
            return self._evict_all(index, time_ms, "overflow")
        summary = event.summary.text if event.summary.by_model else ""
        before = self._take_awaiting(span, summary) if summary else []
        whole = Eviction(log_index=index, time_ms=time_ms, cause="trimmed", ranges=(span,), summary=summary)
        left = self._new_part(whole, event.span.kept)
        if before and left:
            # The summary covers both, so report it once.
            return [_joined(left[0], *before, *left)]
        if left and may_wait and not event.replacement and event.trigger != "client":
            self.awaiting_summary += left
            return before
        return [*before, *left]

    def _take_awaiting(self, span: range, summary: str) -> list[Eviction]:
        """Return the evictions within a span that waited for its summary, and stop waiting for them."""
        inside = [
            one
            for one in self.awaiting_summary
            if all(part.start in span and part.stop <= span.stop for part in one.ranges)
        ]
        self.awaiting_summary = [one for one in self.awaiting_summary if one not in inside]
        if len(inside) > 1 and summary:
            inside = [_joined(inside[-1], *inside)]
        return [replace(one, summary=summary) for one in inside]

    def _new_part(self, left: Eviction, kept: Iterable[int] = ()) -> list[Eviction]:
        """Return the part of an eviction that was not reported before."""
        new = subtract_ranges(left.ranges, (*self.reported, *(range(at, at + 1) for at in kept)))
        self.reported = merge_ranges(self.reported, new)
        return [replace(left, ranges=new)] if new else []

    def to_json(self) -> dict[str, object]:
        """Return the state as JSON, for storage between two runs of a program."""
        return {
            "place": self.log_index,
            "said": self.message_count,
            "told": _to_pairs(self.reported),
            "awaited": [
                {"place": one.log_index, "timeMs": one.time_ms, "cause": one.cause, "messages": _to_pairs(one.ranges)}
                for one in self.awaiting_summary
            ],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, object] | None) -> "Evictions":
        """Return the stored state, or an empty one if it is invalid.

        An empty state rereads the whole log, which is safe because no note is written twice.
        """
        try:
            known = record or {}
            waiting = cast("list[Mapping[str, object]]", known.get("awaited", []))
            return cls(
                _count_from_json(known.get("place", 0)),
                _count_from_json(known.get("said", 0)),
                _from_pairs(known.get("told", [])),
                [
                    Eviction(
                        log_index=_count_from_json(one["place"]),
                        time_ms=_count_from_json(one["timeMs"]),
                        cause=EVICTION_CAUSES[EVICTION_CAUSES.index(cast("EvictionCause", one["cause"]))],
                        ranges=_from_pairs(one["messages"]),
                    )
                    for one in waiting
                ],
            )
        except (TypeError, ValueError, KeyError, AttributeError):
            return cls()


def _joined(one: Eviction, *parts: Eviction) -> Eviction:
    return replace(one, ranges=merge_ranges(*(part.ranges for part in parts)))


def _count_from_json(value: object) -> int:
    if not is_integer(value) or value < 0:
        raise ValueError(value)
    return value


def _to_pairs(spans: PositionRanges) -> list[list[int]]:
    return [[span.start, span.stop] for span in spans]


def _from_pairs(pairs: object) -> PositionRanges:
    return tuple(
        range(_count_from_json(start), _count_from_json(stop)) for start, stop in cast("list[list[object]]", pairs)
    )
