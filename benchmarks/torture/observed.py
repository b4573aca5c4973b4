"""The observable state of a session, which must be the same live, stored and replayed."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from holdfast import MalformedInputError, Session
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.errors import NotInMemoryError
from holdfast.session.log.leases import HELD_HERE
from holdfast.session.maintenance.verify import rebuilt_requests

T = TypeVar("T")
STUCK_SECONDS = 30.0
POLL_SECONDS = 0.001


async def recall_all(session: Session) -> tuple[int, list[Mapping[str, object]]]:
    """Return everything that can be recalled, and its first position."""
    start = 0
    try:
        await session.messages_at(0, len(session))
    except MalformedInputError as error:
        start = int(re.findall(r"there are messages (\d+) to", str(error))[0])
    return start, await session.messages_at(start, len(session)) if start < len(session) else []


async def query_history(session: Session, question: Callable[[History], T]) -> T:
    """Return the content of a history; a session that was opened from a snapshot loads the rest."""
    while True:
        try:
            return question(session.history)
        except NotInMemoryError as missing:
            await session._log.load_messages(missing.positions)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


async def observed_state(session: Session) -> dict[str, Any]:
    """Return the state that must be the same."""
    await session.refresh()
    shown = await query_history(session, lambda history: history.context().visible_entries())
    history = session.history
    return {
        "messages": len(session),
        "shown": [(entry.position, entry.message, entry.message.native, entry.message.repair_notes) for entry in shown],
        "recalled": await recall_all(session) if len(session) else (0, []),
        "facts": history.session_state,
        "changes": (history.can_undo, history.can_redo),
        "damage": session.damage,
    }


async def wait_for_summaries(session: Session) -> None:
    """Wait until no summary of a session is being written."""
    async with asyncio.timeout(STUCK_SECONDS):
        while (  # noqa: ASYNC110 - there is no event to wait for
            (run := session.history.session_state.running_compaction)
            and session.history.session_state.ready_summary is None
            and run.owner in HELD_HERE
        ):
            await asyncio.sleep(POLL_SECONDS)


def messages_of(events: Sequence[log.Event]) -> list[Mapping[str, object]]:
    """Return the messages of the log."""
    return [event.native for event in events if isinstance(event, log.MessageAppended)]


def differing_requests(events: list[log.Event]) -> list[int]:
    """Return the requests that differ when they are rebuilt from the log."""
    return [request.number for request in rebuilt_requests(events) if not request.is_same]
