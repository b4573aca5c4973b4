"""Those who watch see numbers, names and ids of every compaction, and cannot hurt one by watching."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast.core.conversation.spans import Span
from holdfast.core.history.events import CompactionCompleted, CompactionStarted, Summary, TokenBreakdown, Usage
from holdfast.session.compaction.telemetry import Telemetry, flush_spans

SECRET = "the words of a person"
BEGUN = CompactionStarted(
    trigger="manual",
    span=Span(stop=40),
    tokens=TokenBreakdown(system_tokens=10, conversation_tokens=900, tool_definitions_tokens=90),
    custom_instructions=SECRET,
)
DONE = CompactionCompleted(
    success=True,
    trigger="manual",
    span=Span(stop=40),
    replacement=(SECRET,),
    summary=Summary(
        SECRET,
        by_model="gpt-5-mini",
        request_id="req_1",
        usage=Usage(input_tokens=100, output_tokens=50, cache_read_tokens=800, cache_write_tokens=7),
        duration_ms=2_500,
    ),
    pre_compaction_tokens=1_000,
    post_compaction_tokens=300,
    tokens_removed=700,
    messages_removed=39,
    checkpoint_number=3,
    checkpoint_path=f"/work/checkpoints/003-{SECRET}.md",
)
FAILED = CompactionCompleted(success=False, trigger="threshold", error=SECRET, summary=Summary("", duration_ms=20))
SHARED = {"gen_ai.conversation.id": "c1", "compaction.trigger": "manual"}
SIZES = {
    "compaction.messages_before": 60,
    "compaction.messages_after": 22,
    "compaction.tokens_before": 1_000,
    "compaction.tokens_after": 300,
}
OUTCOME = {
    "compaction.success": True,
    "compaction.tokens_removed": 700,
    "compaction.messages_removed": 39,
    "compaction.checkpoint_number": 3,
    "compaction.duration_ms": 2_500,
    "compaction.request_id": "req_1",
    "gen_ai.request.model": "gpt-5-mini",
}
USAGE = {
    "gen_ai.usage.input_tokens": 907,
    "gen_ai.usage.output_tokens": 50,
    "gen_ai.usage.cache_read.input_tokens": 800,
    "gen_ai.usage.cache_write.input_tokens": 7,
}


class Watch:
    """Somebody who watches with the real SDK."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(exporter or self.exporter))
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(tracer_provider=tracers, meter_provider=self.meters)

    def spans(self) -> list[ReadableSpan]:
        assert flush_spans(30)
        return list(self.exporter.get_finished_spans())

    def metrics(self) -> dict[str, list[tuple[Mapping[str, Any], float]]]:
        """Return each metric's attributes with what was counted or summed up."""
        found = self.reader.get_metrics_data()
        assert found is not None
        return {
            metric.name: [(dict(point.attributes or {}), _value(point)) for point in metric.data.data_points]
            for resource in found.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def _value(point: Any) -> float:
    return point.sum if hasattr(point, "sum") else point.value


def whole(watch: Watch) -> None:
    with watch.telemetry.compaction_started("c1", BEGUN) as span:
        watch.telemetry.compaction_completed(
            "c1", DONE, span=span, conversation_messages_before=60, conversation_messages_after=22
        )


@pytest.mark.seed("C-46", "C-47", "C-49")
def test_a_compaction_is_a_span_with_two_events() -> None:
    watch = Watch()

    whole(watch)

    [span] = watch.spans()
    assert (span.name, span.status.is_ok, span.instrumentation_scope and span.instrumentation_scope.name) == (
        "compact_messages",
        True,
        "holdfast",
    )
    assert span.attributes == {
        **SHARED,
        "compaction.scope": "main",
        "gen_ai.conversation.compacted": True,
        **SIZES,
        **OUTCOME,
    }
    assert [(event.name, event.attributes) for event in span.events] == [
        (
            "session_compaction_start",
            {
                **SHARED,
                "compaction.system_tokens": 10,
                "compaction.conversation_tokens": 900,
                "compaction.tool_definitions_tokens": 90,
            },
        ),
        ("session_compaction_complete", {**SHARED, **SIZES, **OUTCOME, **USAGE}),
    ]


@pytest.mark.seed("C-49")
def test_compactions_are_counted_and_measured() -> None:
    watch = Watch()

    whole(watch)
    watch.telemetry.compaction_completed("c1", FAILED, error_type="ModelBusyError")

    begun, done = {"compaction.trigger": "manual"}, {"compaction.trigger": "manual", "compaction.success": True}
    done["gen_ai.request.model"] = "gpt-5-mini"
    failed = {"compaction.trigger": "threshold", "compaction.success": False, "error.type": "ModelBusyError"}
    assert watch.metrics() == {
        "session_compaction_start": [(begun, 1)],
        "session_compaction_start.tokens": [
            ({**begun, "compaction.part": "system"}, 10),
            ({**begun, "compaction.part": "conversation"}, 900),
            ({**begun, "compaction.part": "tool_definitions"}, 90),
        ],
        "session_compaction_complete": [(done, 1), (failed, 1)],
        "session_compaction_complete.duration": [(done, 2.5), (failed, 0.02)],
        "session_compaction_complete.tokens_removed": [(done, 700)],
        "session_compaction_complete.messages_removed": [(done, 39)],
    }


@pytest.mark.seed("C-12", "C-49")
def test_a_call_for_a_summary_is_told_from_a_persons_turn_and_belongs_to_its_compaction() -> None:
    watch = Watch()

    with watch.telemetry.compaction_started("c1", BEGUN) as span:
        with watch.telemetry.summary_call("c1", "gpt-5-mini", provider="openai") as call:
            call.record_reply(DONE.summary.usage, model="gpt-5-mini-2025", response_id="resp_1")
        watch.telemetry.compaction_completed("c1", DONE, span=span)

    inner, outer = watch.spans()
    assert (inner.name, inner.kind.name) == ("chat gpt-5-mini", "CLIENT")
    assert (inner.parent and inner.parent.span_id) == outer.get_span_context().span_id  # type: ignore[union-attr]
    assert inner.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": "c1",
        "gen_ai.request.model": "gpt-5-mini",
        "gen_ai.provider.name": "openai",
        "holdfast.interaction_type": "conversation-compaction",
        "gen_ai.response.model": "gpt-5-mini-2025",
        "gen_ai.response.id": "resp_1",
        **USAGE,
    }


def test_a_compaction_that_nobody_saw_begin_has_a_span_of_its_length() -> None:
    watch = Watch()

    watch.telemetry.compaction_completed("c1", DONE)

    [span] = watch.spans()
    assert [event.name for event in span.events] == ["session_compaction_complete"]
    assert span.start_time is not None
    assert span.end_time is not None
    assert 2.5 <= (span.end_time - span.start_time) / 1e9 < 60


@pytest.mark.parametrize(
    ("given", "told"),
    [("ModelBusyError", "ModelBusyError"), (None, "_OTHER"), (f"bad: {SECRET}", "_OTHER"), ("x" * 100, "_OTHER")],
)
def test_of_a_failure_only_the_kind_is_told(given: str | None, told: str) -> None:
    watch = Watch()

    watch.telemetry.compaction_completed("c1", FAILED, error_type=given)

    [span] = watch.spans()
    assert span.attributes is not None
    assert (span.attributes["error.type"], span.status.status_code.name, span.status.description) == (
        told,
        "ERROR",
        None,
    )
    assert "gen_ai.conversation.compacted" not in span.attributes


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (ValueError(SECRET), "ERROR", {"error.type": "ValueError"}),
        (asyncio.CancelledError(SECRET), "UNSET", {"holdfast.cancelled": True}),
    ],
    ids=["failed", "cancelled"],
)
def test_a_span_ends_with_what_it_watches(error: BaseException, status: str, told: dict[str, object]) -> None:
    watch = Watch()

    started = watch.telemetry.compaction_started("c1", BEGUN)
    with pytest.raises(type(error)), started, watch.telemetry.summary_call("c1", "m"):
        raise error

    spans = watch.spans()
    assert [(span.name, span.status.status_code.name) for span in spans] == [
        ("chat m", status),
        ("compact_messages", status),
    ]
    for span in spans:
        assert span.attributes is not None
        assert told.items() <= dict(span.attributes).items()


def test_not_a_word_of_what_was_said_is_told() -> None:
    watch = Watch()

    whole(watch)
    watch.telemetry.compaction_completed("c1", FAILED, error_type=SECRET)

    told = " ".join(span.to_json() for span in watch.spans()) + str(watch.metrics())
    assert "gpt-5-mini" in told
    assert SECRET not in told


class Broken:
    """Raises whatever is asked of it, or hands out something that does."""

    def __init__(self, *sound: str) -> None:
        self._sound = sound

    def __getattr__(self, name: str) -> Any:
        if name not in self._sound:
            raise RuntimeError(name)
        return lambda *_, **__: self  # pyright: ignore[reportUnknownLambdaType]

    is_valid = True


class BrokenExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise RuntimeError(str(spans))


@pytest.mark.parametrize(
    "sound",
    [
        (),
        ("get_tracer", "get_meter"),
        ("get_tracer", "start_span", "get_meter", "create_counter", "create_histogram"),
        ("get_tracer", "start_span", "get_span_context", "get_meter", "create_counter", "create_histogram"),
        ("get_tracer", "start_span", "get_span_context", "get_meter", "create_counter", "create_histogram", "add"),
    ],
)
def test_a_broken_provider_hurts_nobody(sound: tuple[str, ...]) -> None:
    broken: Any = Broken(*sound)
    telemetry = Telemetry(tracer_provider=broken, meter_provider=broken)

    with telemetry.compaction_started("c1", BEGUN) as span, telemetry.summary_call("c1", "m") as call:
        call.record_reply(DONE.summary.usage)
        telemetry.compaction_completed("c1", DONE, span=span)
    assert flush_spans(30)


def test_where_spans_are_broken_metrics_are_not() -> None:
    watch = Watch()
    broken: Any = Broken()
    telemetry = Telemetry(tracer_provider=broken, meter_provider=watch.meters)

    telemetry.compaction_started("c1", BEGUN)

    assert watch.metrics()["session_compaction_start"] == [({"compaction.trigger": "manual"}, 1)]


def test_a_broken_exporter_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(BrokenExporter())

    whole(watch)

    assert flush_spans(30)
    assert "Exception while exporting Span" in caplog.text


def test_an_exporter_that_hangs_keeps_nobody_waiting() -> None:
    release, exported = threading.Event(), list[str]()

    class HangingExporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            assert release.wait(60)
            exported.extend(span.name for span in spans)
            return SpanExportResult.SUCCESS

    watch = Watch(HangingExporter())

    for _ in range(1_000):
        whole(watch)
    is_through = flush_spans(0.05)
    release.set()

    assert not is_through
    assert flush_spans(30)
    assert 200 < len(exported) < 300


def test_without_opentelemetry_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    telemetry = Telemetry()

    with telemetry.compaction_started("c1", BEGUN) as span, telemetry.summary_call("c1", "m") as call:
        call.record_reply(DONE.summary.usage)
        telemetry.compaction_completed("c1", DONE, span=span)


LOADING = (
    "import sys, threading; from holdfast.session.compaction.telemetry import Telemetry; "
    "from holdfast.core.history import events; "
    "begun = events.CompactionStarted(span=events.Span(stop=1)); "
    "telemetry = Telemetry(); before = 'opentelemetry' in sys.modules; "
    "telemetry.compaction_started('c1', begun).end(); "
    "print(before, 'opentelemetry' in sys.modules, 'opentelemetry.sdk' in sys.modules, threading.active_count())\n"
)


def answer_of(script: str, **environment: str) -> tuple[str, str]:
    """Return what a new program prints, and its errors."""
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return answer.stdout, answer.stderr


def test_it_is_not_loaded_where_nobody_watches() -> None:
    assert answer_of(LOADING) == ("False False False 1\n", "")


def test_it_is_loaded_when_a_compaction_begins_if_the_environment_names_a_provider() -> None:
    assert answer_of(LOADING, OTEL_PYTHON_TRACER_PROVIDER="sdk_tracer_provider") == ("False True True 2\n", "")


def test_a_provider_that_is_set_up_after_a_compaction_is_told_of_the_next_one() -> None:
    later = (
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import SimpleSpanProcessor\n"
        "from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter\n"
        "from holdfast.session.compaction.telemetry import flush_spans\n"
        "provider, exporter = TracerProvider(), InMemorySpanExporter()\n"
        "provider.add_span_processor(SimpleSpanProcessor(exporter))\n"
        "trace.set_tracer_provider(provider)\n"
        "telemetry.compaction_started('c2', begun).end()\n"
        "print(flush_spans(30), [span.attributes['gen_ai.conversation.id'] for span in exporter.get_finished_spans()])"
    )

    assert answer_of(LOADING + later) == ("False False False 1\nTrue ['c2']\n", "")


def test_what_ends_just_before_the_program_does_is_told() -> None:
    script = (
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter\n"
        "from holdfast.session.compaction.telemetry import Telemetry\n"
        "from holdfast.core.history.events import CompactionCompleted\n"
        "provider = TracerProvider()\n"
        "provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))\n"
        "Telemetry(tracer_provider=provider).compaction_completed('c1', CompactionCompleted(success=True))\n"
    )

    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert '"name": "compact_messages"' in answer.stdout
