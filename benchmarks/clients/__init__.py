"""Real coding agents through the gateway, to an upstream double."""
