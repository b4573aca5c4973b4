"""The gateway: an HTTP server that records the conversations of any client, and passes on their bytes."""
