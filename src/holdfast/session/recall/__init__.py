"""Recall at run time: search the store, read messages, and answer a query."""
