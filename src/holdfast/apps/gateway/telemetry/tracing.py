"""OpenTelemetry spans of exchanges, by the conventions for HTTP servers and for generative AI.

They carry names, numbers and ids, never text of a conversation. A trace that the client has begun is continued. Without
`opentelemetry-api` (the extra `otel`), or without a provider, nothing is reported.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast import __version__
from holdfast.apps.gateway.provider_apis import FIRST_SERVER_ERROR, Destination
from holdfast.session.compaction.telemetry import INSTRUMENTATION_NAME, end_span_later

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

PROVIDER_NAMES = {"openai": "openai", "anthropic": "anthropic", "gemini": "gcp.gemini"}


class ExchangeTracer:
    """Begins and ends the span of each exchange."""

    def __init__(self, tracer_provider: "TracerProvider | None" = None) -> None:
        self._tracer: Tracer | None = None
        self._has_provider: Callable[[], bool] = lambda: False
        with suppress(ImportError):
            from opentelemetry import trace  # noqa: PLC0415 - an extra

            self._tracer = trace.get_tracer(INSTRUMENTATION_NAME, __version__, tracer_provider)
            self._has_provider = lambda: (
                tracer_provider is not None or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
            )

    def start(self, method: str, headers: Mapping[str, str], destination: Destination) -> "Span | None":
        """Begin a span; None if nobody would see it."""
        if self._tracer is None or not self._has_provider():
            return None
        from opentelemetry.propagate import extract  # noqa: PLC0415 - as above
        from opentelemetry.trace import SpanKind  # noqa: PLC0415 - as above

        with suppress(Exception):  # of an exporter or a provider
            span = self._tracer.start_span(
                f"{method} {destination.wire or destination.provider}",
                context=extract(headers) if "traceparent" in headers else None,
                kind=SpanKind.SERVER,
                attributes={
                    "http.request.method": method,
                    "url.path": destination.path,
                    "gen_ai.provider.name": PROVIDER_NAMES[destination.provider],
                    "holdfast.upstream": destination.upstream,
                },
            )
            return span if span.is_recording() else None
        return None

    def end(self, span: "Span | None", *, status: int, session: str = "", ended: str = "") -> None:
        """End a span with the status that the client got."""
        if span is None:
            return
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - as above

        with suppress(Exception):
            span.set_attribute("http.response.status_code", status)
            for name, value in (("gen_ai.conversation.id", session), ("holdfast.answer", ended)):
                if value:
                    span.set_attribute(name, value)
            if status >= FIRST_SERVER_ERROR:
                span.set_attribute("error.type", str(status))
                span.set_status(Status(StatusCode.ERROR))
            end_span_later(span)
