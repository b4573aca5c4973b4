"""What operators see of a running gateway: counters for Prometheus, and spans of OpenTelemetry."""
