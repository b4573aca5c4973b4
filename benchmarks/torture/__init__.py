"""Thousands of generated cases, each checked against properties that must always hold."""
