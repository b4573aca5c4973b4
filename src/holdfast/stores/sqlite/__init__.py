"""The SQLite store: one file, one thread, full-text search, and recovery of damaged files."""
