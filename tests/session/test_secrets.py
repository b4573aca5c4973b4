"""No key stands where nobody asked for it: not in telemetry, receipts, exports, or errors.

One key goes out in a header and comes back in a refusal; another stands in what a tool returned and is repeated by who
writes the summary; a third is the password in a store's address.
"""

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import HoldfastError, Session
from holdfast.core.history import events as log
from holdfast.errors import ModelAccessError
from holdfast.models.openai_compatible import ChatSummarizer
from holdfast.models.retry import RetryLimits
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.compaction.telemetry import Telemetry, flush_spans
from holdfast.session.maintenance.transfer import export_records
from holdfast.stores.jsonl import export_lines
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.endpoint import ScriptedEndpoint, http_response, text_stream

HEADER_KEY = "a-header-value-of-no-known-shape-7Q2x"
TOOL_KEY = "ghp_T00lTextKey4b6N1cc9LmQ"
PASSWORD = "correct-horse-7Q2x"
REFUSAL = {"error": {"message": f"Incorrect API key provided: {HEADER_KEY}", "code": "invalid_api_key"}}
SUMMARY = f"The user counts tides [#0]. Done: the notes were read, their token is {TOOL_KEY} [#2]. Next: go on."
TALK = [
    user_message("Read the notes and mend src/tides.py."),
    tool_call_message("c1"),
    tool_result_message("c1", f"token: {TOOL_KEY}"),
    assistant_message("I have read them. " + "The flood comes behind the ebb. " * 60),
    user_message("And then? " + "word " * 80),
    assistant_message("Then the ebb. " + "word " * 80),
    user_message("Go on."),
]


class Watched:
    """A conversation whose summaries come over a real connection, with somebody who watches."""

    def __init__(self) -> None:
        self.spans, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(tracer_provider=tracers, meter_provider=meters)
        self.store = MemoryStore()
        self.told: list[str] = []
        """Everything that was raised, shown or told."""

    async def converse(self) -> list[log.Event]:
        """Have one compaction refused and one made, make a request, and return what happened."""
        async with ScriptedEndpoint([http_response(401, REFUSAL), text_stream(SUMMARY)]) as endpoint:
            writer = ChatSummarizer(endpoint.url, "gpt-5", api_key=HEADER_KEY)
            how = CompactionOptions(automatic=writer, telemetry=self.telemetry, retry_limits=RetryLimits(attempts=1))
            async with Session.open("c", store=self.store, model="gpt-5", compaction=how) as session:
                await session.record(TALK)
                with pytest.raises(ModelAccessError) as refusal:
                    await session.compact(budget=16_000)
                done = await session.compact(budget=16_000)
                request = await session.prepare(16_000)
                events = await session.events()
        self.told += ["".join(traceback.format_exception(refusal.value)), repr(refusal.value), repr(writer)]
        self.told += [str(request.receipt), repr(request.receipt), str(done.effect), "\n".join(done.replacement)]
        return events

    def seen(self) -> str:
        """Return all that telemetry was told, as text."""
        assert flush_spans(30)
        spans = [span.to_json() for span in self.spans.get_finished_spans()]
        metrics = self.reader.get_metrics_data()
        assert len(spans) > 1
        assert metrics is not None
        return "\n".join([*spans, metrics.to_json()])


def found(text: str) -> list[str]:
    return [key for key in (HEADER_KEY, TOOL_KEY) if key in text]


async def test_no_key_is_in_telemetry_receipts_errors_or_what_a_summary_says() -> None:
    watched = Watched()

    await watched.converse()

    assert found(watched.seen()) == []
    assert found("\n".join(watched.told)) == []


async def test_an_export_holds_what_was_said_and_no_key_that_was_not() -> None:
    watched = Watched()
    events = await watched.converse()

    records = [stored async for stored in export_records(watched.store, "c")]
    lines = list(export_lines("c", "", records))

    assert [line for line in lines if HEADER_KEY in line] == []
    # What a tool returned was said; whoever wants it out of the log has `holdfast scrub`.
    assert len([line for line in lines if TOOL_KEY in line]) == 1
    assert len(lines) == len(events) + 1


def opened(address: str) -> Callable[[], Any]:
    async def attempt() -> None:
        store = open_store(address)
        try:
            await store.length("c")
        finally:
            await store.close()

    return lambda: asyncio.run(attempt())


@pytest.mark.parametrize(
    "attempt",
    [
        opened(f"postgresql://me:{PASSWORD}@127.0.0.1:1/db"),
        opened(f"mystery://me:{PASSWORD}@host/db"),
        lambda: ChatSummarizer(f"ftp://me:{PASSWORD}@host/v1", "m"),
    ],
    ids=["unreachable", "unknown", "no endpoint"],
)
def test_no_password_of_an_address_is_in_an_error(attempt: Callable[[], Any]) -> None:
    with pytest.raises(HoldfastError) as refusal:
        attempt()

    assert PASSWORD not in str(refusal.value)
    assert PASSWORD not in repr(refusal.value)
    assert PASSWORD not in str(vars(refusal.value))
