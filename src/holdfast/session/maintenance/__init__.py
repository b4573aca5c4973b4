"""Whole logs: verification, export and import, and removal of leaked secrets."""
