"""Verifies that the log matches what was sent: rebuilds every recorded request and compares its hash."""

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
    """A recorded request, rebuilt from the log."""

    number: int
    """The number of the request in the session, from 0."""
    messages: list[Mapping[str, object]]
    system: object
    tools: object
    is_same: bool
    """Whether its hash equals the recorded one."""
    is_scrubbed: bool
    """Whether it differs because a secret has been scrubbed since."""


def rebuilt_requests(events: list[log.Event]) -> Iterator[RebuiltRequest]:
    """Yield every request of a log, rebuilt from the events before it."""
    history, number = History(format_named), 0
    has_scrubs = any(isinstance(event, log.SessionScrubbed) for event in events)
    for event in events:
        if isinstance(event, log.RequestPrepared):
            known = history.session_state.extras_for(event.scope)
            extras = known.system or None, list(known.tools) or None
            messages, digest = rebuild_request(event, history)
            is_same = digest == event.payload_hash
            is_scrubbed = has_scrubs and not is_same and TOMBSTONE in json.dumps([messages, *extras], default=str)
            yield RebuiltRequest(number, messages, *extras, is_same, is_scrubbed)
            number += 1
        with suppress(MalformedInputError):
            history.append(event)
