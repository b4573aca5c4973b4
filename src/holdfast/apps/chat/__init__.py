"""The chat program: a conversation with a model in a terminal or through pipes."""
