"""Stores: where session logs, blobs, snapshots and the search index are kept."""
