"""Memory that outlasts a conversation: a file for each day, and a board for each repository and branch."""
