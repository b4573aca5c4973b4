"""The public names of storage: the stores of session logs, their events, and proof that a log holds what was sent.

`Session.open` takes a URL or a `Store`; sessions with the same URL share one store. To write another store, implement
`Store` and run the tests of `holdfast.testing.store_contract` against it.
"""

from holdfast.core.history.codec import to_record as event_record
from holdfast.core.history.events import Event
from holdfast.session.maintenance.verify import RebuiltRequest, rebuilt_requests
from holdfast.session.session import RemoteSession
from holdfast.session.subscription import EventSubscription, event_name
from holdfast.stores.base import SessionInfo, Store, StoredRecord
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

__all__ = [
    "Event",
    "EventSubscription",
    "MemoryStore",
    "RebuiltRequest",
    "RemoteSession",
    "SessionInfo",
    "Store",
    "StoredRecord",
    "event_name",
    "event_record",
    "open_store",
    "rebuilt_requests",
]
