"""The chat program."""
