"""Proves that what was stored is what was sent: every request of a log is built again and held against its hash."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.session.request import rebuilt
from holdfast.wire.formats import format_named


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A request of the past, built again."""

    number: int
    """Which request of the session it is, counted from 0."""
    messages: list[Mapping[str, object]]
    is_same: bool
    """Whether it has the hash that was recorded when it was sent."""


def requests_of(events: list[log.Event]) -> Iterator[Rebuilt]:
    """Yield every request that a log tells of, built from what had happened up to then."""
    history, number = History(format_named), 0
    for event in events:
        if isinstance(event, log.RequestPrepared):
            wire = format_named(history.origins[-1].format)
            beside = history.facts.system or None, list(history.facts.tools) or None
            messages, found = rebuilt(event, history, wire, beside)
            yield Rebuilt(number, messages, found == event.payload_hash)
            number += 1
        history.append(event)
