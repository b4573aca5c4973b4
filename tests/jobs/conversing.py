"""A conversation that grows until a compaction of it is due."""

from holdfast import Session
from holdfast.core.history import events as log
from holdfast.testing.chat import assistant_message, user_message

SECRET = "marmalade"
WORDS = f"alpha beta gamma delta {SECRET} zeta eta theta iota kappa " * 30
BUDGET = 10_000


async def converse_until_started(session: Session) -> log.CompactionStarted:
    """Converse until a compaction has been started, and return its start."""
    while True:
        await session.record([user_message(f"message {len(session)}: {WORDS}")])
        await session.prepare(BUDGET)
        if run := session.history.session_state.running_compaction:
            return run
        await session.record([assistant_message(f"message {len(session)}: {WORDS}")])
