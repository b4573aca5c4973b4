"""Proves that what was stored is what was sent: every request of a log is built again and held against its hash."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.errors import MalformedInputError
from holdfast.session.maintenance.scrub import TOMBSTONE
from holdfast.session.request import rebuild_request
from holdfast.wire.formats import format_named


@dataclass(frozen=True, slots=True)
class RebuiltRequest:
    """A request of the past, built again."""

    number: int
    """Which request of the session it is, counted from 0."""
    messages: list[Mapping[str, object]]
    system: object
    tools: object
    is_same: bool
    """Whether it has the hash that was recorded when it was sent."""
    is_scrubbed: bool
    """Whether it differs because a secret was taken out of the log since."""


def rebuilt_requests(events: list[log.Event]) -> Iterator[RebuiltRequest]:
    """Yield every request that a log tells of, built from what had happened up to then."""
    history, number = History(format_named), 0
    has_scrubs = any(isinstance(event, log.SessionScrubbed) for event in events)
    for event in events:
        if isinstance(event, log.RequestPrepared):
            wire = format_named(history.message_format)
            known = history.session_state.extras_for(event.scope)
            beside = known.system or None, list(known.tools) or None
            messages, found = rebuild_request(event, history, wire)
            is_same = found == event.payload_hash
            is_scrubbed = has_scrubs and not is_same and TOMBSTONE in json.dumps([messages, *beside], default=str)
            yield RebuiltRequest(number, messages, *beside, is_same, is_scrubbed)
            number += 1
        with suppress(MalformedInputError):
            history.append(event)
