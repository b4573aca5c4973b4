"""Programs: the command line, the chat and the laboratory."""
