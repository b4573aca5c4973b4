"""Verifies that the log matches what was sent: rebuilds every recorded request and compares its hash.

The hash of a request covers its messages, its system text and its tools. The hashes form a chain: each request records
the hash of its own hash and of the chain before it. So a message that was changed together with the hash of its request
is noticed at the next request. Two things remain unnoticed: a change of a message that no request held, and the work of
somebody who may write to the store and computes every later hash again. The head of the chain, kept elsewhere, shows
the latter.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.errors import MalformedInputError
from holdfast.session.log.sent_body import TOMBSTONE
from holdfast.session.request import chain_hash, rebuild_messages, rebuild_request
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
    is_chained: bool
    """Whether it continues the chain of the requests before it; True for a request of a version without chains."""
    chain_hash: str | None
    """The head of the chain after this request."""


def rebuilt_requests(events: list[log.Event]) -> Iterator[RebuiltRequest]:
    """Yield every request of a log, rebuilt from the events before it."""
    history, number, chain = History(format_named), 0, ""
    has_scrubs = any(isinstance(event, log.SessionScrubbed) for event in events)
    for event in events:
        if isinstance(event, log.RequestPrepared):
            known = history.session_state.extras_for(event.scope)
            extras = known.system or None, list(known.tools) or None
            messages, digest = rebuild_request(event, history)
            is_same = digest == event.payload_hash
            is_scrubbed = has_scrubs and not is_same and TOMBSTONE in json.dumps([messages, *extras], default=str)
            is_chained = event.chain_hash in {None, chain_hash(chain, event.payload_hash)}
            yield RebuiltRequest(number, messages, *extras, is_same, is_scrubbed, is_chained, event.chain_hash)
            number, chain = number + 1, event.chain_hash or chain
        with suppress(MalformedInputError):
            history.append(event)


def rebuilt_messages(events: list[log.Event], number: int) -> list[Mapping[str, object]] | None:
    """Return the messages of one request, counted from 0, without rebuilding those before it; None if there is none."""
    history = History(format_named)
    for event in events:
        if isinstance(event, log.RequestPrepared):
            if number == 0:
                return [message for _, message in rebuild_messages(event, history)]
            number -= 1
        with suppress(MalformedInputError):
            history.append(event)
    return None
