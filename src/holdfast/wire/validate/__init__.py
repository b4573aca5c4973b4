"""Checks whether a provider would accept a list of messages, rule by rule."""
