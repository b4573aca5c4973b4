"""Measurements of Holdfast and its peers in one run, as ratios."""
