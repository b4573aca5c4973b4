"""What a conversation leaves for the next when it ends with nobody there to be asked."""

import asyncio

from holdfast.chat.chat import Chat
from holdfast.chat.happenings import Notice
from holdfast.core.planning.consolidating import AGENT
from holdfast.errors import HoldfastError
from holdfast.plural import many

MIN_MESSAGES = 4
"""A shorter conversation leaves nothing."""
PARTING_SECONDS = 60
"""How long a program that ends takes for it."""


async def left_behind(chat: Chat) -> None:
    """Put what a conversation leaves on the board, where the settings allow that without anybody's word."""
    session = chat.session
    agent = chat.rem_agent() if chat.settings.consolidate and len(session) >= MIN_MESSAGES else None
    if agent is None:
        return
    try:
        async with asyncio.timeout(PARTING_SECONDS):
            done = await agent.run(only=session.id)
            await agent.apply(done)
    except (HoldfastError, TimeoutError) as error:
        chat.screen.show(Notice(f"board: {str(error) or 'there was no time left'}", "warning"))
        return
    finally:
        await agent.close()
    if done.proposals:
        changes = many(len(done.proposals), "change")
        chat.screen.show(Notice(f"{AGENT}: {changes} of the board; /board shows it"))
