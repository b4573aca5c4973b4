"""Many sessions on one PostgreSQL: what it carries (`benchmarks.scale`), and what outages do (`make scale`)."""
