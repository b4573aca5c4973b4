"""A model without a network or a key: small weights that are downloaded once, and a server on loopback."""
