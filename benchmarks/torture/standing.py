"""How a session stands: everything that is to be the same, whoever looks at it, live, stored or replayed."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from holdfast import MalformedInputError, Session
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.errors import NotInMemoryError
from holdfast.session.owners import LIVE
from holdfast.session.verify import requests_of

T = TypeVar("T")
STUCK_SECONDS = 30.0
A_MOMENT = 0.001


async def recalled(session: Session) -> tuple[int, list[Mapping[str, object]]]:
    """Return everything that can be recalled, and from where on."""
    start = 0
    try:
        await session.recall(0, len(session))
    except MalformedInputError as error:
        start = int(re.findall(r"there are messages (\d+) to", str(error))[0])
    return start, await session.recall(start, len(session)) if start < len(session) else []


async def asked(session: Session, question: Callable[[History], T]) -> T:
    """Return what a history says; a session that took a shortcut reads what it misses."""
    while True:
        try:
            return question(session.history)
        except NotInMemoryError as missing:
            await session.fetch(missing.positions)


async def standing(session: Session) -> dict[str, Any]:
    """Return all that is to be the same."""
    await session.catch_up()
    shown = await asked(session, lambda history: history.context().shown())
    history = session.history
    return {
        "messages": len(session),
        "shown": [(entry.position, entry.message, entry.message.native, entry.message.notes) for entry in shown],
        "recalled": await recalled(session) if len(session) else (0, []),
        "facts": history.facts,
        "changes": (history.can_undo, history.can_redo),
        "damage": session.damage,
    }


async def settled(session: Session) -> None:
    """Return when nobody is writing a summary of a session any more."""
    async with asyncio.timeout(STUCK_SECONDS):
        while (run := session.history.facts.running) and session.history.facts.written is None and run.owner in LIVE:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(A_MOMENT)


def messages_of(events: Sequence[log.Event]) -> list[Mapping[str, object]]:
    """Return what was said, by the log."""
    return [event.native for event in events if isinstance(event, log.MessageAppended)]


def unproved(events: list[log.Event]) -> list[int]:
    """Return the requests that do not come out of the log as they were sent."""
    return [request.number for request in requests_of(events) if not request.is_same]
