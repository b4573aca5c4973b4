"""Measures what a model can still reach of a long conversation, on conversations for tuning and others for judging."""
