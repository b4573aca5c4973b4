"""Replays of recorded sessions under any policy, without a model and at no cost."""
