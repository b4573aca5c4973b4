"""Memory that outlasts a conversation: evictions, notes by day, and the board."""
