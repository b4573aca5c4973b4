"""How a session stands: everything that is to be the same, whoever looks at it, live, stored or replayed."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from holdfast import MalformedInputError, Session
from holdfast.core.history.history import History
from holdfast.errors import NotInMemoryError

T = TypeVar("T")


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
