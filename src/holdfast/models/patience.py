"""Asking again, within reason.

A call that failed because of the moment may succeed in the next one; a call that failed because of what
was asked, or by whom, never will. So only the first kind is repeated, a bounded number of times, after waits
that double and that a provider's own word can lengthen up to a bound. The waits have no chance in them:
one process rarely has two summaries under way, and what is certain can be tested. A writer that does not let itself
be stopped is left behind when its time is up: nobody waits for it, and what it says later nobody hears.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from holdfast.errors import (
    HoldfastError,
    ModelBusyError,
    ModelRefusedError,
    ModelUnreachableError,
    SettingsError,
)
from holdfast.models.base import Answer, Ask, Writer
from holdfast.models.refusals import translated

Sleep: TypeAlias = Callable[[float], Awaitable[None]]
Noticed: TypeAlias = Callable[[HoldfastError, float], None]
"""Hears of each failure that is tried again, and of the seconds until then."""

TIMEOUT_SECONDS = 120.0
ATTEMPTS = 3
FIRST_WAIT_SECONDS = 1.0
MAX_WAIT_SECONDS = 60.0
PARTING_ROUNDS = 20
"""How often the loop goes round for a call that was told to stop: enough to close a connection, no time at all."""
_LEFT_BEHIND: set[asyncio.Future[Answer]] = set()
"""Calls that went on all the same; held, or the loop would forget them in the middle of what they do."""


async def patiently(
    writer: Writer,
    ask: Ask,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    attempts: int = ATTEMPTS,
    max_wait_seconds: float = MAX_WAIT_SECONDS,
    sleep: Sleep = asyncio.sleep,
    noticed: Noticed | None = None,
) -> Answer:
    """Return a writer's answer, asking at most `attempts` times and waiting `timeout_seconds` for each.

    Raises the last `ModelError`. A provider that wants more patience than `max_wait_seconds` is not waited
    for. Cancelling this cancels the call.
    """
    if attempts < 1:
        raise SettingsError("attempts", f"must be at least 1, not {attempts}")
    if timeout_seconds <= 0:
        raise SettingsError("timeout_seconds", f"must be more than 0, not {timeout_seconds:g}")
    attempt = 0
    while True:
        attempt += 1
        try:
            return await _within(timeout_seconds, writer, ask, sleep)
        except HoldfastError as error:
            wait = wait_after(error, attempt, max_wait_seconds)
            if wait is None or attempt == attempts:
                raise
            if noticed:
                noticed(error, wait)
        await sleep(wait)


def wait_after(error: HoldfastError, attempt: int, max_wait_seconds: float = MAX_WAIT_SECONDS) -> float | None:
    """Return how long to wait before the next attempt, or None where there is to be none."""
    if isinstance(error, ModelRefusedError) and not error.is_passing:
        return None
    if not isinstance(error, ModelBusyError | ModelUnreachableError | ModelRefusedError):
        return None
    asked = (error.retry_after or 0.0) if isinstance(error, ModelBusyError) else 0.0
    if asked > max_wait_seconds:
        return None
    return max(asked, min(FIRST_WAIT_SECONDS * 2 ** (attempt - 1), max_wait_seconds))


async def _within(seconds: float, writer: Writer, ask: Ask, sleep: Sleep) -> Answer:
    """Return the answer, or raise when the time is up; the clock is the caller's, so no test waits for it."""
    call = asyncio.ensure_future(writer.write(ask))
    timer = asyncio.ensure_future(sleep(seconds))
    try:
        await asyncio.wait({call, timer}, return_when=asyncio.FIRST_COMPLETED)
        # Nobody here has stopped it then: what it is made of has, as some libraries do with a lost connection.
        is_given_up = call.cancelled()
        if call.done() and not is_given_up:
            return call.result()
    except HoldfastError:
        raise
    except Exception as error:
        raise translated(writer.name, error) from error
    finally:
        timer.cancel()
        await asyncio.wait({timer})
        await _part_from(call)
    if is_given_up:
        raise ModelRefusedError(writer.name, "the call was given up from within", remedy="ask again later")
    raise ModelUnreachableError(writer.name, f"no answer within {seconds:g} s", "ask again, or allow it more time")


async def _part_from(call: asyncio.Future[Answer]) -> None:
    """Tell a call to stop and see it off; one that goes on is not waited for, and its late answer is dropped."""
    call.cancel()
    _LEFT_BEHIND.add(call)
    call.add_done_callback(_forget)
    for _ in range(PARTING_ROUNDS):
        if call.done():
            return
        await asyncio.sleep(0)


def _forget(call: asyncio.Future[Answer]) -> None:
    _LEFT_BEHIND.discard(call)
    if not call.cancelled():
        # Looked at, so that the loop does not report an error that nobody is there for.
        call.exception()
