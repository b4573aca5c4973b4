"""One script a peer, each run by the Python of its own virtual environment; what they share is in `serving`."""
