"""What becomes of a request: its conversation, the session that records it, and the body that goes on."""
