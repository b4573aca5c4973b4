"""How each preset shortens a conversation, one file a preset."""
