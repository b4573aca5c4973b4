"""What a conversation leaves for the next when it ends with nobody there to be asked."""

import asyncio

from holdfast.chat.chat import Chat
from holdfast.chat.happenings import ChatNotice
from holdfast.core.planning.consolidating import CONSOLIDATION_AGENT
from holdfast.errors import HoldfastError
from holdfast.plural import pluralize

MIN_CONSOLIDATED_MESSAGES = 4
"""A shorter conversation leaves nothing."""
EXIT_SECONDS = 60
"""How long a program that ends takes for it."""


async def consolidate_on_exit(chat: Chat) -> None:
    """Put what a conversation leaves on the board, where the settings allow that without anybody's word."""
    session = chat.session
    agent = chat.rem_agent() if chat.settings.consolidate and len(session) >= MIN_CONSOLIDATED_MESSAGES else None
    if agent is None:
        return
    try:
        async with asyncio.timeout(EXIT_SECONDS):
            done = await agent.run(only=session.id)
            await agent.apply(done)
    except (HoldfastError, TimeoutError) as error:
        chat.screen.show(ChatNotice(f"board: {str(error) or 'there was no time left'}", "warning"))
        return
    finally:
        await agent.close()
    if done.proposals:
        changes = pluralize(len(done.proposals), "change")
        chat.screen.show(ChatNotice(f"{CONSOLIDATION_AGENT}: {changes} of the board; /board shows it"))
