"""One script for each peer, run by the Python of its own virtual environment; `serving` has what they share."""
