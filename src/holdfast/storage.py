"""The public names of storage: the stores of session logs, and proof that a log holds the requests that were sent.

`Session.open` takes a URL or a `Store`; sessions with the same URL share one store. To write another store, implement
`Store` and run the tests of `holdfast.testing.store_contract` against it.
"""

from holdfast.session.maintenance.verify import RebuiltRequest, rebuilt_requests
from holdfast.session.session import RemoteSession
from holdfast.stores.base import SessionInfo, Store, StoredRecord
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

__all__ = [
    "MemoryStore",
    "RebuiltRequest",
    "RemoteSession",
    "SessionInfo",
    "Store",
    "StoredRecord",
    "open_store",
    "rebuilt_requests",
]
