"""The programs: the command line, the chat and the lab."""
