"""A history without what was said: all that is needed to go on from where another has stopped.

Small beside the log, whatever its length, and only a shortcut: reading the log from its beginning gives the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.core.history.answers import RecallMarksSnapshot
from holdfast.core.history.delegations import PositionSpans
from holdfast.core.history.facts import SessionState
from holdfast.core.history.ledger.ledger import Ledger
from holdfast.core.history.plain import from_snapshot_json, to_snapshot_json
from holdfast.core.history.scope import MainVisibility
from holdfast.core.history.standing import ContextVersion

KEPT_VERSIONS = 8
"""How many changes of context can be taken back without reading the log from its beginning."""


class LedgerLineage(NamedTuple):
    """Which past a ledger is of."""

    hidden: tuple[range, ...]
    cleared_at: int


@dataclass(frozen=True, slots=True)
class PackedLedger:
    """A ledger as text, because most who go on will not ask for it soon."""

    lineage: LedgerLineage
    stop: int
    text: str

    @classmethod
    def pack(cls, lineage: LedgerLineage, stop: int, ledger: Ledger) -> "PackedLedger":
        """Return a ledger as it is kept."""
        return cls(lineage, stop, to_snapshot_json(ledger))

    def unpack(self) -> Ledger:
        """Return the ledger."""
        return from_snapshot_json(Ledger, self.text)


@dataclass(slots=True)
class OpenLedger:
    """A ledger that goes on: what it has taken in, and of which past."""

    lineage: LedgerLineage
    stop: int
    ledger: Ledger | PackedLedger

    def unpacked(self) -> Ledger:
        """Return the ledger, to be read and gone on with."""
        if isinstance(self.ledger, PackedLedger):
            self.ledger = self.ledger.unpack()
        return self.ledger

    def pack(self) -> PackedLedger:
        """Return the ledger as it is kept."""
        known = self.ledger
        return known if isinstance(known, PackedLedger) else PackedLedger.pack(self.lineage, self.stop, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySnapshot:
    """What `History.snapshot` gives and `History.from_snapshot` takes."""

    length: int
    format: str | None
    scope_runs: tuple[tuple[str, int], ...]
    """Scopes in the order of the messages, each with how many messages in a row are of it."""
    system_positions: tuple[int, ...]
    packed_prompts: str
    """Positions, packed."""
    recall_marks: RecallMarksSnapshot
    """What is recall's own."""
    versions: tuple[ContextVersion, ...]
    """The last few, with those that were taken back."""
    current: int
    """Which of them holds."""
    change_count: int
    has_forgotten_versions: bool
    session_state: SessionState
    parents: Mapping[str, str]
    main_sees: MainVisibility
    main_limits: Mapping[str, MainVisibility]
    visible_spans: Mapping[str, PositionSpans]
    attributed_scopes: tuple[str, ...]
    ledgers: Mapping[str, PackedLedger]
