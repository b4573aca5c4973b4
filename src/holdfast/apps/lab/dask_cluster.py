"""Replays on a Dask cluster that is there anyway: its workers need Holdfast alone. Needs `holdfast[dask]`."""

from collections.abc import Generator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Protocol, cast
from urllib.parse import urlsplit

from holdfast.errors import SettingsError, imports_of_extra

with imports_of_extra("dask", "a Dask cluster"):
    from distributed import Client

DASK_PORT = 8786
"""Where schedulers listen if nobody says otherwise."""
DASK_CONNECT_SECONDS = 10


class _Client(Protocol):
    """The methods of Dask's client that are used here; its own are not typed."""

    def wait_for_workers(self, n_workers: int, timeout: float) -> object: ...

    def get_executor(self, *, retries: int, pure: bool) -> Executor: ...

    def close(self) -> object: ...


@contextmanager
def dask_executor(url: str) -> Generator[Executor]:
    """Connect to the scheduler of a cluster, named `dask://HOST` or `dask://HOST:PORT`, and yield its executor."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname if parts.scheme == "dask" else None, parts.port or DASK_PORT
    except ValueError:
        host, port = None, 0
    if not host:
        raise SettingsError("--executor", f"{url!r:.60} does not name a cluster; write dask://HOST or dask://HOST:PORT")
    try:
        client = cast("_Client", Client(f"tcp://{host}:{port}", timeout=DASK_CONNECT_SECONDS))
    except OSError as error:
        problem = (
            f"no scheduler answers at {host}:{port}; start one with `dask scheduler`, and workers with `dask worker`"
        )
        raise SettingsError("--executor", problem) from error
    try:
        try:
            client.wait_for_workers(1, timeout=DASK_CONNECT_SECONDS)
        except TimeoutError as error:
            problem = f"the scheduler at {host}:{port} has no workers; start some: dask worker tcp://{host}:{port}"
            raise SettingsError("--executor", problem) from error
        # A replay that fails returns its error, so a task that is lost is worth another try.
        yield client.get_executor(retries=2, pure=False)
    finally:
        client.close()
