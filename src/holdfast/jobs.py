"""Background work on DBOS, for programs on several machines. It needs `holdfast[dbos]`."""

from holdfast.apps.jobs import BackgroundJobs, RateLimit

__all__ = ["BackgroundJobs", "RateLimit"]
