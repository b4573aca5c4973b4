"""What a new conversation finds in its inbox: the context board of the repository and branch it is held in."""

from holdfast.app.build import board_from
from holdfast.app.settings import Settings
from holdfast.chat.happenings import ChatNotice, Screen
from holdfast.core.planning.situation import Budget
from holdfast.errors import HoldfastError
from holdfast.session.memory.board import MAX_OFFERED_TOKENS, board_key
from holdfast.session.moments import local_day
from holdfast.session.session import Session

CHAT_SESSION_FORMAT = "pydantic-ai"
BOARD_SHARE = 1 / 16
"""The most of the budget that a board takes."""


async def offer_board(session: Session, settings: Settings, screen: Screen, budget: Budget) -> None:
    """Put the board into the inbox of a session, and remember where it is held; what is wrong with it is shown."""
    board = board_from(settings)
    if board is None:
        return
    try:
        await session.store.put_value(board_key(session.id), {"board": board.repository.key})
        tokens = min(MAX_OFFERED_TOKENS, int(budget.tokens * BOARD_SHARE))
        if note := await board.offer(day=local_day(session.clock()), tokens=tokens):
            await session.add_memory_note(note, format=CHAT_SESSION_FORMAT)
    except HoldfastError as error:
        screen.show(ChatNotice(f"board: {error}", "warning"))
