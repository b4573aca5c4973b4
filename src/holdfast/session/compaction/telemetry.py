"""OpenTelemetry spans, events and metrics of compactions.

They carry numbers, names and ids, never text of a conversation. `opentelemetry-api` (the extra `otel`) takes longer to
load than a compaction takes. So it is loaded with a compaction, and only if there may be a provider: one that was
passed, one of the program, which has then loaded it already, or one that the environment names. Without it, nothing is
reported. Errors of a provider or an exporter are dropped.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from holdfast import __version__
from holdfast.core.history.events import CompactionCompleted, CompactionStarted, Usage
from holdfast.dataclass import dataclass
from holdfast.models.base import COMPACTION_INTERACTION
from holdfast.text import lazy_pattern

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider
    from opentelemetry.trace import Span, SpanKind, Status, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

INSTRUMENTATION_NAME = "holdfast"
COMPACTION_SPAN = "compact_messages"
STARTED_EVENT, COMPLETED_EVENT = "session_compaction_start", "session_compaction_complete"
"""The names of span events and counters; the name of a histogram adds the field that it measures."""
INTERACTION_TYPE = "holdfast.interaction_type"
"""The attribute that distinguishes a summarizer call from a user's turn."""
UNNAMED_ERROR = "_OTHER"
"""OpenTelemetry's name for an error of unknown kind."""
MAX_QUEUED_SPANS = 256
"""How many spans may wait for an exporter that hangs; later ones are dropped."""
PROVIDER_VARIABLES = ("OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER")
"""With these, OpenTelemetry finds a provider that the program has not set up."""
EXIT_FLUSH_SECONDS = 0.5
"""How long the process waits for queued spans at exit."""
DURATION_BUCKETS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
TOKEN_BUCKETS = tuple(4**power for power in range(3, 13))
MESSAGE_BUCKETS = tuple(2**power for power in range(15))
_WORD = lazy_pattern(r"[\w.]{1,80}")

Attributes: TypeAlias = "dict[str, AttributeValue]"


class Telemetry:
    """Reports compactions to OpenTelemetry: to its own providers, or else to those that the program has set up."""

    def __init__(
        self, *, tracer_provider: "TracerProvider | None" = None, meter_provider: "MeterProvider | None" = None
    ) -> None:
        self._providers = tracer_provider, meter_provider
        self._tracer: Tracer | None = None
        self._instruments: _Instruments | None = None
        self._is_loaded = False

    def compaction_started(self, session: str, event: CompactionStarted) -> "CompactionSpan":
        """Report that a compaction has started, and return its span.

        Inside a `with` block it is the current span. It ends with `compaction_completed`, or with the block unless
        `keep_open` was called.
        """
        self.load()
        breakdown = {
            "system": event.tokens.system_tokens,
            "conversation": event.tokens.conversation_tokens,
            "tool_definitions": event.tokens.tool_definitions_tokens,
        }
        started: Attributes = {"gen_ai.conversation.id": session, "compaction.trigger": event.trigger}
        span = CompactionSpan(self._span(COMPACTION_SPAN, {**started, "compaction.scope": event.scope}))
        span.add_event(
            STARTED_EVENT, {**started, **{f"compaction.{part}_tokens": count for part, count in breakdown.items()}}
        )
        if instruments := self._instruments:
            instruments.record_started(event.trigger, breakdown)
        return span

    def compaction_completed(
        self,
        session: str,
        event: CompactionCompleted,
        *,
        span: "CompactionSpan | None" = None,
        conversation_messages_before: int | None = None,
        conversation_messages_after: int | None = None,
        error_type: str | None = None,
    ) -> None:
        """Report the outcome of a compaction, and end its span, which is created here if there was no start.

        `error_type` is the kind of a failure as one word, such as the name of an exception; never its message.
        """
        self.load()
        shared: Attributes = {"gen_ai.conversation.id": session, "compaction.trigger": event.trigger}
        if span is None:
            span = CompactionSpan(
                self._span(
                    COMPACTION_SPAN, {**shared, "compaction.scope": event.scope}, ago_ms=event.summary.duration_ms or 0
                )
            )
        is_word = error_type is not None and _WORD.fullmatch(error_type)
        failure = None if event.success else error_type if is_word else UNNAMED_ERROR
        sizes: Attributes = _without_none(
            {
                "compaction.messages_before": conversation_messages_before,
                "compaction.messages_after": conversation_messages_after,
                "compaction.tokens_before": event.pre_compaction_tokens,
                "compaction.tokens_after": event.post_compaction_tokens,
            }
        )
        # The convention requires this attribute to be true or absent.
        compacted: Attributes = {"gen_ai.conversation.compacted": True} if event.success else {}
        outcome = _outcome_attributes(event, failure)
        span.set_attributes({**compacted, **sizes, **outcome})
        span.add_event(COMPLETED_EVENT, {**shared, **sizes, **outcome, **_usage_attributes(event.summary.usage)})
        span.end(failure)
        if instruments := self._instruments:
            instruments.record_completed(event, failure)

    @contextmanager
    def summary_call(self, session: str, model: str, *, provider: str | None = None) -> Generator["CompactionSpan"]:
        """Open a span for a summarizer call; `record_reply` adds its cost."""
        self.load()
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.conversation.id": session,
            "gen_ai.request.model": model,
            INTERACTION_TYPE: COMPACTION_INTERACTION,
        }
        if provider:
            attributes["gen_ai.provider.name"] = provider
        with CompactionSpan(self._span(f"chat {model}", attributes, is_call=True)) as call:
            yield call

    @property
    def must_load(self) -> bool:
        """Whether OpenTelemetry is to be loaded, because there may be a provider by now."""
        if self._is_loaded:
            return False
        is_known = self._providers != (None, None) or sys.modules.get("opentelemetry") is not None
        return is_known or any(name in os.environ for name in PROVIDER_VARIABLES)

    @property
    def has_tracer(self) -> bool:
        """Whether spans are reported."""
        return self._tracer is not None

    def load(self) -> None:
        """Load OpenTelemetry once, if there may be a provider; its proxies find one that is set up later."""
        if not self.must_load:
            return
        self._is_loaded = True
        with suppress(Exception):  # most often an ImportError
            from opentelemetry import metrics, trace  # noqa: PLC0415 - an extra, and slow to load

            traces, meters = self._providers
            with suppress(Exception):
                self._tracer = trace.get_tracer(INSTRUMENTATION_NAME, __version__, traces)
            with suppress(Exception):
                self._instruments = _Instruments.create(metrics.get_meter(INSTRUMENTATION_NAME, __version__, meters))

    def _span(self, name: str, attributes: Attributes, *, ago_ms: int = 0, is_call: bool = False) -> "Span | None":
        if self._tracer is None:
            return None
        with suppress(Exception):
            start = time.time_ns() - ago_ms * 1_000_000
            kind = _span_kind(is_call=is_call)
            span = self._tracer.start_span(name, kind=kind, attributes=attributes, start_time=start)
            # Without a provider the API returns an invalid span.
            return span if span.get_span_context().is_valid else None
        return None


class CompactionSpan:
    """A running span, or a stub that does nothing."""

    def __init__(self, span: "Span | None") -> None:
        self._span = span
        self._detach: Callable[[], None] | None = None
        self._stays_open = False
        self._failure: str | None = None
        self._end_ns: int | None = None

    def keep_open(self) -> Self:
        """Let whoever reports the outcome end the span; its time still ends with the block."""
        self._stays_open = True
        return self

    def __enter__(self) -> Self:
        if self._span is not None:
            with suppress(Exception):
                self._detach = _make_current(self._span)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._detach is not None:
            with suppress(Exception):
                self._detach()
            self._detach = None
        if kind is not None and not issubclass(kind, Exception):
            self.set_attributes({"holdfast.cancelled": True})
            kind = None
        self._failure, self._end_ns = kind.__name__ if kind is not None else None, time.time_ns()
        if not self._stays_open:
            self.end()

    def record_reply(
        self, usage: Usage | None = None, *, model: str | None = None, response_id: str | None = None
    ) -> None:
        """Add the cost of a model's reply, and the model that wrote it."""
        named = _without_none({"gen_ai.response.model": model, "gen_ai.response.id": response_id})
        self.set_attributes({**named, **_usage_attributes(usage)})

    def set_attributes(self, attributes: Attributes) -> None:
        """Add attributes to the span."""
        if self._span is not None:
            with suppress(Exception):
                self._span.set_attributes(attributes)

    def add_event(self, name: str, attributes: Attributes) -> None:
        """Add an event to the span."""
        # Span events will become log records; the API for those is not public in Python yet.
        if self._span is not None:
            with suppress(Exception):
                self._span.add_event(name, attributes, self._end_ns)

    def end(self, failure: str | None = None) -> None:
        """End the span, as failed if its block or the caller has a failure; only the first call has an effect."""
        if self._span is None:
            return
        span, self._span, failure = self._span, None, self._failure or failure
        if failure is not None:
            with suppress(Exception):
                span.set_attribute("error.type", failure)
                span.set_status(_error_status())
        end_span_later(span, self._end_ns)


class _SpanEnder:
    """Ends spans one after the other in a daemon thread.

    `Span.end` runs the processors of the user's provider, and a `SimpleSpanProcessor` exports synchronously: with an
    exporter that takes 200 ms, `end` took 200.2 ms (0.02 ms with a `BatchSpanProcessor`). An event loop must not wait
    that long. An executor would be joined at exit, however long the exporter hangs.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def end_later(self, end: Callable[[], object]) -> None:
        """Queue the end of a span; drop it if the queue is full."""
        if self._waiting.qsize() < MAX_QUEUED_SPANS:
            self._enqueue(end)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for the spans that were queued before, and return whether all have ended."""
        done = threading.Event()
        self._enqueue(done.set)
        return done.wait(timeout_seconds)

    def _enqueue(self, work: Callable[[], object]) -> None:
        self._waiting.put(work)
        if self._thread is None:
            atexit.register(flush_spans, EXIT_FLUSH_SECONDS)
        # A forked process does not inherit the thread.
        if self._thread is None or not self._thread.is_alive():
            with suppress(RuntimeError):
                self._thread = threading.Thread(target=self._work, name="holdfast telemetry", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            work = self._waiting.get()
            with suppress(Exception):
                work()


_SPAN_ENDER = _SpanEnder()


def end_span_later(span: "Span", time_ns: int | None = None) -> None:
    """End a span with a time, or that of this call, without waiting for its exporter."""
    ended = time_ns or time.time_ns()
    _SPAN_ENDER.end_later(lambda: span.end(ended))


def flush_spans(timeout_seconds: float = 1.0) -> bool:
    """Wait until every span has ended, and return whether all have; blocks, so do not call it in an event loop."""
    return _SPAN_ENDER.wait(timeout_seconds)


@dataclass(frozen=True, slots=True)
class _Instruments:
    """The metrics."""

    starts: "Counter"
    start_tokens: "Histogram"
    completions: "Counter"
    seconds: "Histogram"
    tokens_removed: "Histogram"
    messages_removed: "Histogram"

    @classmethod
    def create(cls, meter: "Meter") -> "_Instruments":
        def histogram(name: str, unit: str, description: str, bounds: Sequence[float]) -> "Histogram":
            return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=bounds)

        return cls(
            starts=meter.create_counter(STARTED_EVENT, "{compaction}", "Compactions that were started."),
            start_tokens=histogram(
                f"{STARTED_EVENT}.tokens", "{token}", "Tokens of the context, by part.", TOKEN_BUCKETS
            ),
            completions=meter.create_counter(COMPLETED_EVENT, "{compaction}", "Compactions that have ended."),
            seconds=histogram(f"{COMPLETED_EVENT}.duration", "s", "How long a compaction took.", DURATION_BUCKETS),
            tokens_removed=histogram(
                f"{COMPLETED_EVENT}.tokens_removed", "{token}", "Tokens that it removed.", TOKEN_BUCKETS
            ),
            messages_removed=histogram(
                f"{COMPLETED_EVENT}.messages_removed", "{message}", "Messages that it replaced.", MESSAGE_BUCKETS
            ),
        )

    def record_started(self, trigger: str, tokens: Mapping[str, int]) -> None:
        with suppress(Exception):
            self.starts.add(1, {"compaction.trigger": trigger})
            for part, count in tokens.items():
                self.start_tokens.record(count, {"compaction.trigger": trigger, "compaction.part": part})

    def record_completed(self, event: CompactionCompleted, failure: str | None) -> None:
        kind: Attributes = {"compaction.trigger": event.trigger, "compaction.success": event.success}
        kind |= _without_none({"gen_ai.request.model": event.summary.by_model, "error.type": failure})
        with suppress(Exception):
            self.completions.add(1, kind)
            if event.summary.duration_ms is not None:
                self.seconds.record(event.summary.duration_ms / 1_000, kind)
            if event.success:
                self.tokens_removed.record(max(0, event.tokens_removed), kind)
                self.messages_removed.record(max(0, event.messages_removed), kind)


def _outcome_attributes(event: CompactionCompleted, failure: str | None) -> Attributes:
    """Return the outcome of a compaction; of a checkpoint only its number, because its path contains a title."""
    return _without_none(
        {
            "compaction.success": event.success,
            "compaction.tokens_removed": event.tokens_removed,
            "compaction.messages_removed": event.messages_removed,
            "compaction.checkpoint_number": event.checkpoint_number,
            "compaction.duration_ms": event.summary.duration_ms,
            "compaction.request_id": event.summary.request_id,
            "gen_ai.request.model": event.summary.by_model,
            "error.type": failure,
        }
    )


def _usage_attributes(usage: Usage | None) -> Attributes:
    """Return the cost of a call under the names of the convention, whose input includes cached tokens."""
    if usage is None:
        return {}
    return {
        "gen_ai.usage.input_tokens": usage.all_input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_write.input_tokens": usage.cache_write_tokens,
    }


def _without_none(attributes: "Mapping[str, AttributeValue | None]") -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


# Called only if there is a span, so OpenTelemetry is installed.


def _span_kind(*, is_call: bool) -> "SpanKind":
    from opentelemetry.trace import SpanKind  # noqa: PLC0415

    return SpanKind.CLIENT if is_call else SpanKind.INTERNAL


def _error_status() -> "Status":
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

    return Status(StatusCode.ERROR)


def _make_current(span: "Span") -> Callable[[], None]:
    from opentelemetry import context, trace  # noqa: PLC0415

    return partial(context.detach, context.attach(trace.set_span_in_context(span)))
