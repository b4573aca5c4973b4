"""Keeps a model's thinking only where it stands after exactly what it followed when it was said.

Newer Claude models reject a thinking block if the system text, the tools or any message before it has changed. Each
request to such a model records the hash of everything it sends, and each answer with thinking records the hash of the
request that it answers. A later request keeps the thinking if what it sends before it has the same hash; otherwise the
whole block goes. Thinking that was recorded before any request counts as said after the recorded messages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.tokens import message_tokens
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.planning.receipt import View
from holdfast.core.planning.steps import PlanInput
from holdfast.errors import NotInMemoryError
from holdfast.session.request import encode_entry
from holdfast.wire.thinking import extend_prefix, prefix_message_hash, prefix_of_extras


class BoundView(NamedTuple):
    """A view in which all thinking stands after what it followed, and the hash of the request that sends it."""

    view: View
    prefix_hash: str
    extras_hash: str
    """The hash of the system text and the tools."""


def bind_thinking(
    view: View,
    plan_input: PlanInput,
    hashes: dict[tuple[int, bool], str],
    *,
    system: object = None,
    tools: object = None,
) -> BoundView:
    """Return a view without the thinking that its model would reject.

    `hashes` caches the hashes of recorded messages by position, with and without their thinking.
    """
    history, scope = plan_input.history, plan_input.situation.scope
    extras = prefix_of_extras(system, tools)
    sent = history.session_state.sent_prefixes.get(scope)
    expected = _own_positions(history, scope)
    is_as_recorded = sent is None or sent.first_extras == extras
    prefix, unbound = extras, list[int]()
    for index, (message, position) in enumerate(view.entries):
        is_whole = position is not None and (message.is_unedited or message is history.entries[position].message)
        is_as_recorded = is_as_recorded and is_whole and position == next(expected, None)
        is_bound = True
        if message.has_thinking:
            said_in = None if position is None else history.entries.event(position).prefix_hash
            is_bound = is_whole and (is_as_recorded if said_in is None else said_in == prefix)
        if not is_bound:
            unbound.append(index)
            is_as_recorded = False
        digest = hashes.get((position, is_bound)) if is_whole and position is not None else None
        if digest is None:
            entry = Entry(message if is_bound else message.without_thinking(), position)
            digest = prefix_message_hash(encode_entry(entry, history.message_format))
            if is_whole and position is not None:
                hashes[position, is_bound] = digest
        prefix = extend_prefix(prefix, [digest])
    counter = plan_input.situation.counter
    return BoundView(view.drop_thinking(unbound, lambda message: message_tokens(message, counter)), prefix, extras)


def _own_positions(history: History, scope: str) -> Iterator[int]:
    """Yield the positions of an agent's messages that no rewind and no clear has hidden."""
    version = history.version
    return (
        position
        for position in range(version.state_of(scope).cleared_at, len(history))
        if history.message_scopes[position] == scope and not version.is_hidden(position)
    )


def with_prefix_hashes(
    history: History, events: Sequence[log.MessageAppended], messages: Sequence[Message]
) -> list[log.MessageAppended]:
    """Return new messages of one scope; those with thinking know the hash of the request that they answer."""
    sent = history.session_state.sent_prefixes.get(events[0].scope) if events else None
    if sent is None or not any(message.has_thinking for message in messages):
        return list(events)
    message_format = history.message_format
    since = range(sent.length, len(history))
    try:
        recorded = [
            history.entries[position]
            for position in since
            if history.message_scopes[position] == events[0].scope and not history.version.is_hidden(position)
        ]
    except NotInMemoryError:
        return list(events)
    prefix = extend_prefix(sent.hash, (prefix_message_hash(encode_entry(one, message_format)) for one in recorded))
    known: list[log.MessageAppended] = []
    for event, message in zip(events, messages, strict=True):
        known.append(replace(event, prefix_hash=prefix) if message.has_thinking else event)
        prefix = extend_prefix(prefix, [prefix_message_hash(encode_entry(Entry(message), message_format))])
    return known
