"""Integrations with agent frameworks, one package each. Each needs its own extra."""
