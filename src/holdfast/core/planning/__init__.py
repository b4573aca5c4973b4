"""Decides what to compact, when, and what each request sends. Nothing here calls a model."""
