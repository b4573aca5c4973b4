"""The event log of a session, and the state and context replayed from it."""
