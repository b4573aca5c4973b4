"""The session log: events in memory and in the store, snapshots, leases, and the search index."""
