"""Sessions that other programs have left on this machine, read from their own logs and imported into a store."""
