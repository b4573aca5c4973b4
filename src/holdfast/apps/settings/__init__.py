"""The settings of the programs, the source of each value, and the objects that are built from them."""
