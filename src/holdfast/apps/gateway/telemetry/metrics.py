"""Metrics of the gateway, in the text format of Prometheus. They carry no text and no id of a conversation."""

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
METRICS_TYPE = CONTENT_TYPE_LATEST


class GatewayMetrics:
    """The counters of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        self.requests = Counter(
            "holdfast_gateway_requests",
            "Answered requests, by the API that they speak and the status that the client got.",
            ("wire", "status"),
            registry=self._registry,
        )
        self.endings = Counter(
            "holdfast_gateway_answers",
            "Answers on record, by how they ended: complete, cut, refused, client_left.",
            ("ended",),
            registry=self._registry,
        )
        self.recording_failures = Counter(
            "holdfast_gateway_recording_failures",
            "Exchanges that could not be recorded: the request, or the answer.",
            ("stage",),
            registry=self._registry,
        )
        self.upstream_failures = Counter(
            "holdfast_gateway_upstream_failures",
            "Calls without an answer of the provider: unreachable, timeout, closed, invalid.",
            ("failure",),
            registry=self._registry,
        )
        self.overflow_retries = Counter(
            "holdfast_gateway_overflow_retries",
            "Requests that were changed and sent again because the provider refused them, most often as too long.",
            registry=self._registry,
        )
        self.denied = Counter(
            "holdfast_gateway_denied", "Requests that may not be served.", ("status",), registry=self._registry
        )
        self.pings = Counter("holdfast_gateway_pings", "Pings made up in silence.", registry=self._registry)
        self.open_exchanges = 0
        Gauge(
            "holdfast_gateway_open_exchanges", "Requests that are being answered.", registry=self._registry
        ).set_function(lambda: self.open_exchanges)
        self.first_byte_seconds = Histogram(
            "holdfast_gateway_first_byte_seconds",
            "From the request to the headers of the answer.",
            buckets=SECONDS_BUCKETS,
            registry=self._registry,
        )
        self.recording_seconds = Histogram(
            "holdfast_gateway_recording_seconds",
            "How long the client's new messages took to be stored.",
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
            registry=self._registry,
        )

        self.requests_with, self.endings_with = cache(self.requests.labels), cache(self.endings.labels)
        """The counters for given labels, which every request needs."""

    def render(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)
