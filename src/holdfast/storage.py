"""The public names of storage: the stores of session logs, their events, and proof that a log holds what was sent.

`Session.open` takes a URL or a `Store`; sessions with the same URL share one store. To write another store, implement
`Store` and run the tests of `holdfast.testing.store_contract` against it. An `Event` is one of the classes below, or
`CompactionStarted` or `CompactionCompleted` of `holdfast.compaction`.
"""

from holdfast.core.history.codec import to_record as event_record
from holdfast.core.history.events import (
    AgentChanged,
    ChangeRedone,
    ChangeUndone,
    ContextCleared,
    DelegationFinished,
    DelegationResumed,
    DelegationStarted,
    Event,
    Forked,
    MessageAppended,
    ModelSwitched,
    OutputsOffloaded,
    Pinned,
    PlanChanged,
    ProviderSignalled,
    RecallOffered,
    RequestPrepared,
    RequestTruncated,
    Rewound,
    SessionScrubbed,
    SideCallRecorded,
    SkillInvoked,
    SummaryWritten,
    SystemChanged,
    TodosChanged,
    ToolsChanged,
    TurnInterrupted,
    TurnsReducedToText,
    UnknownEvent,
    Unpinned,
    UsageMeasured,
)
from holdfast.session.maintenance.verify import RebuiltRequest, rebuilt_requests
from holdfast.session.session import RemoteSession
from holdfast.session.subscription import EventSubscription, event_name
from holdfast.stores.base import IndexEntry, SearchHit, SessionInfo, Snapshot, Store, StoredRecord
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

__all__ = [
    "AgentChanged",
    "ChangeRedone",
    "ChangeUndone",
    "ContextCleared",
    "DelegationFinished",
    "DelegationResumed",
    "DelegationStarted",
    "Event",
    "EventSubscription",
    "Forked",
    "IndexEntry",
    "MemoryStore",
    "MessageAppended",
    "ModelSwitched",
    "OutputsOffloaded",
    "Pinned",
    "PlanChanged",
    "ProviderSignalled",
    "RebuiltRequest",
    "RecallOffered",
    "RemoteSession",
    "RequestPrepared",
    "RequestTruncated",
    "Rewound",
    "SearchHit",
    "SessionInfo",
    "SessionScrubbed",
    "SideCallRecorded",
    "SkillInvoked",
    "Snapshot",
    "Store",
    "StoredRecord",
    "SummaryWritten",
    "SystemChanged",
    "TodosChanged",
    "ToolsChanged",
    "TurnInterrupted",
    "TurnsReducedToText",
    "UnknownEvent",
    "Unpinned",
    "UsageMeasured",
    "event_name",
    "event_record",
    "open_store",
    "rebuilt_requests",
]
