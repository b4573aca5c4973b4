"""Settings of the programs, where each value came from, and what is built from them."""
