"""Memory that outlasts a conversation: what leaves the view, notes of it by day, a board, and finding words in them."""
