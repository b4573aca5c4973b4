"""Values and pure functions: no input or output, no clock, no randomness."""
