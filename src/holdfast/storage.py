"""Storage: where logs are kept, and proof that what was stored is what was sent.

`Session.open` takes a URL or a `Store`. A store of your own implements `Store`; `holdfast.testing.store_contract`
has the tests that it must pass.
"""

from holdfast.session.maintenance.verify import RebuiltRequest, rebuilt_requests
from holdfast.stores.base import SessionInfo, Store, StoredRecord
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

__all__ = ["MemoryStore", "RebuiltRequest", "SessionInfo", "Store", "StoredRecord", "open_store", "rebuilt_requests"]
