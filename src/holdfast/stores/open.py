"""Opens a store by its URL."""

from pathlib import Path
from urllib.parse import unquote

from holdfast.errors import SettingsError
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore


def open_store(url: str | Store) -> Store:
    """Return the store that a URL names: `memory://`, `sqlite:///file`, `sqlite:////absolute`, `postgresql://…`."""
    if not isinstance(url, str):
        if not all(callable(getattr(url, name, None)) for name in ("append", "read", "length")):
            raise SettingsError("store", f"must be the URL of a store, or a store, not {url!r:.60}")
        return url
    scheme, _, rest = url.partition("://")
    if scheme == "memory":
        return MemoryStore()
    if scheme == "sqlite":
        # A path has neither a query nor a fragment: `?` and `#` are characters of a file name.
        path = unquote(rest.removeprefix("/"))
        if not path or "\0" in path:
            raise SettingsError("store", "sqlite:/// needs the path of a file, such as sqlite:///chats.db")
        return SqliteStore(Path(path).expanduser())
    if scheme in {"postgresql", "postgres"}:
        from holdfast.stores.postgres import PostgresStore  # noqa: PLC0415 - an optional extra

        return PostgresStore(url)
    known = "memory://, sqlite:///file, postgresql://…"
    raise SettingsError("store", f"{url.partition('@')[2] or url!r} is not the URL of a store; choose one of: {known}")
