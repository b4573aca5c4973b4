"""Recall: queries, references, ranking, and answers that quote earlier messages exactly."""
