"""A history without what was said: all that is needed to go on from where another has stopped.

Small beside the log, whatever its length, and only a shortcut: reading the log from its beginning gives the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.core.history.answers import KeptAnswers
from holdfast.core.history.delegations import Spans
from holdfast.core.history.facts import Facts
from holdfast.core.history.ledger import Ledger
from holdfast.core.history.plain import as_json, from_json
from holdfast.core.history.scope import MainSees
from holdfast.core.history.standing import Version

REMEMBERED = 8
"""How many changes of context can be taken back without reading the log from its beginning."""


class Lineage(NamedTuple):
    """Which past a ledger is of."""

    hidden: tuple[range, ...]
    cleared_at: int


@dataclass(frozen=True, slots=True)
class KeptLedger:
    """A ledger as text, because most who go on will not ask for it soon."""

    lineage: Lineage
    stop: int
    text: str

    @classmethod
    def of(cls, lineage: Lineage, stop: int, ledger: Ledger) -> "KeptLedger":
        """Return a ledger as it is kept."""
        return cls(lineage, stop, as_json(ledger))

    def opened(self) -> Ledger:
        """Return the ledger."""
        return from_json(Ledger, self.text)


@dataclass(slots=True)
class AtHand:
    """A ledger that goes on: what it has taken in, and of which past."""

    lineage: Lineage
    stop: int
    ledger: Ledger | KeptLedger

    def opened(self) -> Ledger:
        """Return the ledger, to be read and gone on with."""
        if isinstance(self.ledger, KeptLedger):
            self.ledger = self.ledger.opened()
        return self.ledger

    def packed(self) -> KeptLedger:
        """Return the ledger as it is kept."""
        known = self.ledger
        return known if isinstance(known, KeptLedger) else KeptLedger.of(self.lineage, self.stop, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What `History.state` gives and `History.resumed` takes."""

    length: int
    format: str | None
    said_in: tuple[tuple[str, int], ...]
    """Scopes in the order of the messages, each with how many messages in a row are of it."""
    systems: tuple[int, ...]
    prompts: str
    """Positions, packed."""
    answers: KeptAnswers
    """What is recall's own."""
    versions: tuple[Version, ...]
    """The last few, with those that were taken back."""
    current: int
    """Which of them holds."""
    changes: int
    has_earlier: bool
    facts: Facts
    parents: Mapping[str, str]
    main_sees: MainSees
    limits: Mapping[str, MainSees]
    chosen: Mapping[str, Spans]
    attributed: tuple[str, ...]
    ledgers: Mapping[str, KeptLedger]
