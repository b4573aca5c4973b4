"""Recall at run time: searching the store, reading messages, and answering a query."""
