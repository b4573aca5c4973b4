"""The rules by which each preset shortens a conversation, one file per preset."""
