"""The servers of the tests of stores, for the tests of jobs."""

from tests.stores.conftest import new_database, postgres_server

__all__ = ["new_database", "postgres_server"]
