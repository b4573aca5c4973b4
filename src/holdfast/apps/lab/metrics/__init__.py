"""The figures of a replay, M1 to M14, each defined once, beside its words."""
