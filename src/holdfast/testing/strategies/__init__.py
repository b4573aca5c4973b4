"""Hypothesis strategies for histories in every format; needs hypothesis."""
