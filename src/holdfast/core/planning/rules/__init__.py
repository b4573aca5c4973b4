"""One way to shorten a conversation each."""
