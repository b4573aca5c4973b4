"""A store that can only be read, whatever the store behind it allows."""

from typing import NoReturn

from holdfast.errors import StoreUnavailableError
from holdfast.stores.base import Store


class ReadOnlyStore:
    """Reads from another store; every method that writes raises `StoreUnavailableError`."""

    def __init__(self, store: Store) -> None:
        self.read, self.read_at, self.length = store.read, store.read_at, store.length
        self.get_blob, self.get_snapshot, self.get_value = store.get_blob, store.get_snapshot, store.get_value
        self.read_from_snapshot = store.read_from_snapshot
        self.search, self.sessions, self.values = store.search, store.sessions, store.values
        self.close = store.close

    async def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise StoreUnavailableError("the store", "it was opened to be read only")

    append = rewrite = purge = put_blob = rename = delete = put_snapshot = put_value = delete_value = _refuse
