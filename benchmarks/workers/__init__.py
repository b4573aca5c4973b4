"""One script a peer, each run by the Python of its own virtual environment; they import nothing of ours."""
