"""Memory that persists across conversations: evictions, daily notes, and the board."""
