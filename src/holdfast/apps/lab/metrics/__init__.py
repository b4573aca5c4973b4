"""The figures of a replay, M1 to M14; each is defined and explained in one place."""
