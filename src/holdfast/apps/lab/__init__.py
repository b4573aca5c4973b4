"""Replay of recorded sessions under any policy, without a model and without spending anything."""
