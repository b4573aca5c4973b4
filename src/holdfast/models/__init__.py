"""Summarizers: the interface to a model that writes summaries, its implementations, retries and errors."""
