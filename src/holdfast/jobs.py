"""Background work on DBOS, for programs on several machines. It needs the extra `dbos`."""

from holdfast.apps.jobs import BackgroundJobs, RateLimit

__all__ = ["BackgroundJobs", "RateLimit"]
