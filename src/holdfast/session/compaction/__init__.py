"""Compaction at run time: summarizers, background runs, and everything that observes them."""
