"""Where what was said is kept."""
