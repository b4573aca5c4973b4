"""Events of a session as they happen: callbacks, and an async iterator, by the names under which the log stores them.

An event is delivered after it is durable and applied, whichever process has written it; events of other processes
arrive when this one reads the log, before its next request at the latest.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Self, TypeAlias, cast

from holdfast.core.history.codec import EVENT_TYPES
from holdfast.core.history.events import Event, UnknownEvent
from holdfast.errors import SettingsError

EventCallback: TypeAlias = Callable[[Event], None]
_LOGGER = logging.getLogger("holdfast")


def event_name(event: Event) -> str:
    """Return the name under which the log stores an event."""
    return event.kind if isinstance(event, UnknownEvent) else event.KIND


def check_event_names(names: Sequence[str]) -> frozenset[str]:
    """Check that all names are stored names of events."""
    for name in names:
        if not isinstance(cast("object", name), str) or name not in EVENT_TYPES:
            from difflib import get_close_matches  # noqa: PLC0415 - only for unknown names

            near = get_close_matches(str(name), EVENT_TYPES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(sorted(EVENT_TYPES))}"
            raise SettingsError("event", f"{name!r:.60} is not the name of an event; {hint}")
    return frozenset(names)


class EventPublisher:
    """Delivers the events of one session to its subscribers."""

    def __init__(self) -> None:
        self.callbacks: dict[object, tuple[EventCallback, frozenset[str]]] = {}
        self.subscriptions: set[EventSubscription] = set()

    def publish(self, events: Sequence[Event]) -> None:
        """Deliver events; an error of a callback goes to the log `holdfast`, and the session goes on."""
        for event in events:
            name = event_name(event)
            for callback, names in list(self.callbacks.values()):
                if not names or name in names:
                    try:
                        callback(event)
                    except Exception:
                        _LOGGER.exception("A callback for %s failed", name)
            for subscription in list(self.subscriptions):
                subscription.deliver(name, event)

    def add_callback(self, callback: EventCallback, names: frozenset[str]) -> Callable[[], None]:
        """Call a function with each event of some names, or with all; return a function that ends this."""
        key = object()
        self.callbacks[key] = callback, names
        return lambda: self.callbacks.pop(key, None) and None

    def subscribe(self, names: frozenset[str]) -> "EventSubscription":
        """Return an iterator over the events from now on."""
        subscription = EventSubscription(names, self.subscriptions.discard)
        self.subscriptions.add(subscription)
        return subscription

    def close(self) -> None:
        """End all iterators, after the events that they have not returned yet."""
        for subscription in list(self.subscriptions):
            subscription.close()


class EventSubscription(AsyncIterator[Event]):
    """Returns events in the order of the log; ends when the session is closed, or by `close`.

    Events that nobody has asked for yet are kept in memory. Use it with `with` to end it together with a loop.
    """

    def __init__(self, names: frozenset[str], on_close: Callable[["EventSubscription"], None]) -> None:
        self._names = names
        self._on_close = on_close
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._is_closed = False

    def deliver(self, name: str, event: Event) -> None:
        """Take an event over if it has one of the names."""
        if not self._names or name in self._names:
            self._events.append(event)
            self._changed.set()

    def close(self) -> None:
        """End the iterator after the events that it has not returned yet."""
        self._is_closed = True
        self._on_close(self)
        self._changed.set()

    async def __anext__(self) -> Event:
        while not self._events:
            if self._is_closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._events.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
