"""Compaction at run time: summarizers, background runs, and the observers of both."""
