"""What a new conversation finds in its inbox: the context board of the repository and branch it is held in."""

from holdfast.app.build import board_from
from holdfast.app.settings import Settings
from holdfast.chat.happenings import Notice, Screen
from holdfast.core.planning.situation import Budget
from holdfast.errors import HoldfastError
from holdfast.session.memory.board import OFFERED_TOKENS, held_at
from holdfast.session.moments import day_of
from holdfast.session.session import Session

FORMAT = "pydantic-ai"
BOARD_SHARE = 1 / 16
"""The most of the budget that a board takes."""


async def welcomed(session: Session, settings: Settings, screen: Screen, budget: Budget) -> None:
    """Put the board into the inbox of a session, and remember where it is held; what is wrong with it is shown."""
    board = board_from(settings)
    if board is None:
        return
    try:
        await session.store.put_fact(held_at(session.id), {"board": board.repository.key})
        tokens = min(OFFERED_TOKENS, int(budget.tokens * BOARD_SHARE))
        if note := await board.offer(day=day_of(session.clock()), tokens=tokens):
            await session.deliver(note, format=FORMAT)
    except HoldfastError as error:
        screen.show(Notice(f"board: {error}", "warning"))
