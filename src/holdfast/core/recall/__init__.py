"""Asking for the past: queries, references, ranking, and answers in the exact words."""
