"""Vocabularies and the table of models: what the core needs to know and cannot compute."""
