"""Asking a model to write: what a call is, who carries it out, and what can go wrong with it."""
