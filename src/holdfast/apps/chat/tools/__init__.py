"""The tools that a model may use in the chat: read, edit and search files, run commands, keep a plan, read skills."""
