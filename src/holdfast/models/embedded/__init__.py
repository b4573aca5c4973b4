"""A model without a network or a key: small weights that are fetched once, and a server of our own on loopback."""
