"""Asking again, within reason.

A call that failed because of the moment may succeed in the next one; a call that failed because of what
was asked, or by whom, never will. So only the first kind is repeated, a bounded number of times, after waits
that double and that a provider's own word can lengthen up to a bound. The waits have no chance in them:
one process rarely has two summaries under way, and what is certain can be tested. A writer that does not let itself
be stopped is left behind when its time is up: nobody waits for it, and what it says later nobody hears.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.errors import (
    HoldfastError,
    ModelBusyError,
    ModelRefusedError,
    ModelUnreachableError,
    SettingsError,
)
from holdfast.models.base import ModelReply, Summarizer, SummaryPrompt
from holdfast.models.errors import as_model_error

Sleep: TypeAlias = Callable[[float], Awaitable[None]]
RetryListener: TypeAlias = Callable[[HoldfastError, float], None]
"""Hears of each failure that is tried again, and of the seconds until then."""

REPLY_TIMEOUT_SECONDS = 120.0
MAX_ATTEMPTS = 3
FIRST_WAIT_SECONDS = 1.0
MAX_WAIT_SECONDS = 60.0
CANCEL_ROUNDS = 20
"""How often the loop goes round for a call that was told to stop: enough to close a connection, no time at all."""
_ABANDONED_CALLS: set[asyncio.Future[ModelReply]] = set()
"""Calls that went on all the same; held, or the loop would forget them in the middle of what they do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How long to wait for a summary, and how often to ask."""

    timeout_seconds: float = REPLY_TIMEOUT_SECONDS
    """For each call."""
    attempts: int = MAX_ATTEMPTS
    deadline_seconds: float = 300.0
    """For all calls together."""


async def with_retries(
    summarizer: Summarizer,
    prompt: SummaryPrompt,
    *,
    timeout_seconds: float = REPLY_TIMEOUT_SECONDS,
    attempts: int = MAX_ATTEMPTS,
    max_wait_seconds: float = MAX_WAIT_SECONDS,
    sleep: Sleep = asyncio.sleep,
    on_retry: RetryListener | None = None,
) -> ModelReply:
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
            return await _call_with_timeout(timeout_seconds, summarizer, prompt, sleep)
        except HoldfastError as error:
            wait = retry_delay(error, attempt, max_wait_seconds)
            if wait is None or attempt == attempts:
                raise
            if on_retry:
                on_retry(error, wait)
        await sleep(wait)


def retry_delay(error: HoldfastError, attempt: int, max_wait_seconds: float = MAX_WAIT_SECONDS) -> float | None:
    """Return how long to wait before the next attempt, or None where there is to be none."""
    if isinstance(error, ModelRefusedError) and not error.is_transient:
        return None
    if not isinstance(error, ModelBusyError | ModelUnreachableError | ModelRefusedError):
        return None
    asked = (error.retry_after or 0.0) if isinstance(error, ModelBusyError) else 0.0
    if asked > max_wait_seconds:
        return None
    return max(asked, min(FIRST_WAIT_SECONDS * 2 ** (attempt - 1), max_wait_seconds))


async def _call_with_timeout(seconds: float, summarizer: Summarizer, prompt: SummaryPrompt, sleep: Sleep) -> ModelReply:
    """Return the answer, or raise when the time is up; the clock is the caller's, so no test waits for it."""
    call = asyncio.ensure_future(summarizer.write(prompt))
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
        raise as_model_error(summarizer.name, error) from error
    finally:
        timer.cancel()
        await asyncio.wait({timer})
        await _cancel_call(call)
    if is_given_up:
        raise ModelRefusedError(summarizer.name, "the call was given up from within", remedy="ask again later")
    raise ModelUnreachableError(summarizer.name, f"no answer within {seconds:g} s", "ask again, or allow it more time")


async def _cancel_call(call: asyncio.Future[ModelReply]) -> None:
    """Tell a call to stop and see it off; one that goes on is not waited for, and its late answer is dropped."""
    call.cancel()
    _ABANDONED_CALLS.add(call)
    call.add_done_callback(_discard_call)
    for _ in range(CANCEL_ROUNDS):
        if call.done():
            return
        await asyncio.sleep(0)


def _discard_call(call: asyncio.Future[ModelReply]) -> None:
    _ABANDONED_CALLS.discard(call)
    if not call.cancelled():
        # Looked at, so that the loop does not report an error that nobody is there for.
        call.exception()
