"""Opens a store by its URL, and shares one store among all sessions of the process that name the same URL."""

import os
import threading
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from holdfast.errors import SettingsError
from holdfast.redaction import redact_url
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.stores.sqlite.store import SqliteStore


def open_store(url: str | Store) -> Store:
    """Return the store that a URL names: `memory://`, `sqlite:///file`, `sqlite:////absolute`, `postgresql://…`.

    It is a store of the caller's own, who closes it.
    """
    if not isinstance(url, str):
        methods = [name for name in vars(Store) if not name.startswith("_")]
        missing = [name for name in methods if not callable(getattr(url, name, None))]
        if isinstance(url, type) or {"append", "read"}.intersection(missing):
            raise SettingsError("store", f"must be the URL of a store, or a store, not {url!r:.60}")
        if missing:
            lacks = f"{type(url).__name__} lacks {', '.join(missing)}"
            raise SettingsError("store", f"{lacks}; holdfast.storage.Store says what a store does")
        return url
    scheme = url.partition("://")[0]
    if scheme == "memory":
        return MemoryStore()
    if scheme == "sqlite":
        from holdfast.stores.sqlite.store import SqliteStore  # noqa: PLC0415 - not for a session in memory

        return SqliteStore(_sqlite_path(url))
    if scheme in {"postgresql", "postgres"}:
        from holdfast.stores.postgres import PostgresStore  # noqa: PLC0415 - an optional extra

        return PostgresStore(url)
    known = "memory://, sqlite:///file, postgresql://…"
    raise SettingsError("store", f"{redact_url(url)!r:.200} is not the URL of a store; choose one of: {known}")


def _sqlite_path(url: str) -> "Path":
    """Return the file of a SQLite URL; it has neither a query nor a fragment, so `?` and `#` belong to its name.

    What looks like a query of SQLite would make a file that nobody meant.
    """
    from pathlib import Path  # noqa: PLC0415 - as above
    from urllib.parse import unquote  # noqa: PLC0415 - as above

    path = unquote(url.partition("://")[2].removeprefix("/"))
    if not path or "\0" in path:
        raise SettingsError("store", "sqlite:/// needs the path of a file, such as sqlite:///chats.db")
    query = url.partition("?")[2]
    if query.partition("=")[0].isidentifier() and "=" in query and not os.path.lexists(os.path.expanduser(path)):  # noqa: PTH111
        problem = f"?{query:.80} would be a part of the file's name; leave it out, or write %3F for the question mark"
        raise SettingsError("store", problem)
    if path == ":memory:":
        raise SettingsError("store", "sqlite:///:memory: would be a file; memory:// keeps everything in memory")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # a container may run as a user who has no home folder
        raise SettingsError(
            "store", f"{path!r:.200} names an unknown home folder; set HOME, or write the whole path"
        ) from error


class SharedStores:
    """The stores of this process that sessions share, by URL.

    Whoever shares a store uses it until it releases it or is garbage. The last release closes the store.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start without any store, as a forked process must: threads and connections stay with its parent."""
        self._lock = threading.Lock()
        self._stores: WeakValueDictionary[str, Store] = WeakValueDictionary()
        self._users: WeakKeyDictionary[Store, WeakSet[object]] = WeakKeyDictionary()

    def share(self, url: str, user: object) -> Store:
        """Return the store of a URL, opened if there is none; `memory://` names a new store each time."""
        scheme = url.partition("://")[0]
        key = str(_sqlite_path(url).absolute()) if scheme == "sqlite" else url
        with self._lock:
            store = self._stores.get(key)
            if store is None or (scheme == "sqlite" and cast("SqliteStore", store).is_file_replaced):
                store = open_store(url)
                if scheme != "memory":
                    self._stores[key] = store
            self._users.setdefault(store, WeakSet()).add(user)
        return store

    async def release(self, store: Store, user: object) -> None:
        """Close a store unless somebody else uses it."""
        with self._lock:
            users = self._users.get(store, WeakSet[object]())
            users.discard(user)
            if is_last := not users:
                # Whoever opens the URL from now on opens another store.
                for key in [key for key, other in self._stores.items() if other is store]:
                    del self._stores[key]
        if is_last:
            await store.close()


SHARED_STORES = SharedStores()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SHARED_STORES.forget)
