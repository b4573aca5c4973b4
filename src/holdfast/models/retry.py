"""Repeats calls to a model that failed for a transient reason.

A call that failed because of its content or its credentials will fail again, so only transient failures are repeated,
a bounded number of times. The delays double; a provider may ask for a longer one, up to a limit. They have no jitter:
one process rarely writes two summaries at once, and fixed delays can be tested. A call that ignores cancellation is
abandoned when its time is up, and its late reply is dropped.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

from holdfast.core.history.events import Usage
from holdfast.core.schema import is_integer, is_number, short_repr
from holdfast.dataclass import dataclass
from holdfast.errors import HoldfastError, ModelBusyError, ModelRefusedError, ModelUnreachableError, SettingsError
from holdfast.models.base import ModelReply, Summarizer, SummaryPrompt
from holdfast.models.errors import as_model_error

Sleep: TypeAlias = Callable[[float], Awaitable[None]]
RetryListener: TypeAlias = Callable[[HoldfastError, float], None]
"""Called before each retry with the error and the delay in seconds."""

REPLY_TIMEOUT_SECONDS = 120.0
MAX_ATTEMPTS = 3
FIRST_WAIT_SECONDS = 1.0
MAX_WAIT_SECONDS = 60.0
CANCEL_ROUNDS = 20
"""Event-loop ticks granted to a cancelled call: enough to close a connection, and no noticeable time."""
_ABANDONED_CALLS: set[asyncio.Future[ModelReply]] = set()
"""Calls that ignored their cancellation; the event loop holds only weak references to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How long to wait for a summary, and how often to ask."""

    timeout_seconds: float = REPLY_TIMEOUT_SECONDS
    """For each call."""
    attempts: int = MAX_ATTEMPTS
    deadline_seconds: float = 300.0
    """For all calls together."""

    def __post_init__(self) -> None:
        for name in ("timeout_seconds", "deadline_seconds"):
            if not is_number(seconds := getattr(self, name)) or not seconds > 0:
                raise SettingsError(f"retry_limits.{name}", f"must be a number above 0, not {short_repr(seconds)}")
        if not is_integer(self.attempts) or self.attempts < 1:
            problem = f"must be a whole number from 1 on, not {short_repr(self.attempts)}"
            raise SettingsError("retry_limits.attempts", problem)


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
    """Return a reply after at most `attempts` calls of at most `timeout_seconds` each.

    Raises the last `ModelError`. If a provider asks for a longer delay than `max_wait_seconds`, there is no retry.
    Cancelling this cancels the call.
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
    """Return the delay before the next attempt, or None if there is no retry."""
    is_transient = isinstance(error, ModelRefusedError) and error.is_transient
    if not is_transient and not isinstance(error, ModelBusyError | ModelUnreachableError):
        return None
    requested = (error.retry_after or 0.0) if isinstance(error, ModelBusyError) else 0.0
    if requested > max_wait_seconds:
        return None
    return max(requested, min(FIRST_WAIT_SECONDS * 2 ** (attempt - 1), max_wait_seconds))


async def _call_with_timeout(seconds: float, summarizer: Summarizer, prompt: SummaryPrompt, sleep: Sleep) -> ModelReply:
    """Return the reply, or raise when the time is up; `sleep` is the caller's, so that tests need not wait."""
    call = asyncio.ensure_future(summarizer.write(prompt))
    timer = asyncio.ensure_future(sleep(seconds))
    try:
        await asyncio.wait({call, timer}, return_when=asyncio.FIRST_COMPLETED)
        # We have not cancelled it yet: some libraries cancel a call themselves when they lose the connection.
        is_cancelled_inside = call.cancelled()
        if call.done() and not is_cancelled_inside:
            return _checked_reply(summarizer.name, call.result())
    except HoldfastError:
        raise
    except Exception as error:
        raise as_model_error(summarizer.name, error) from error
    finally:
        timer.cancel()
        _abandon(call)  # before anything is awaited: a second cancellation would leave it running
        await asyncio.wait({timer})
        await _give_time_to_end(call)
    if is_cancelled_inside:
        raise ModelRefusedError(summarizer.name, "the model's library cancelled the call", remedy="ask again later")
    raise ModelUnreachableError(summarizer.name, f"no answer within {seconds:g} s", "ask again, or allow more time")


def _checked_reply(model: str, reply: object) -> ModelReply:
    """Return what a summarizer has returned; raises if it is not a reply, because callers write their own."""
    if not isinstance(reply, ModelReply):
        problem = f"its `write` must return a ModelReply, not {reply!r:.60}"
    elif not isinstance(text := cast("object", reply.text), str):
        problem = f"the text of its ModelReply must be a string, not {text!r:.60}"
    elif not isinstance(name := cast("object", reply.model), str):
        problem = f"the model of its ModelReply must be a string, not {name!r:.60}"
    elif not isinstance(usage := cast("object", reply.usage), Usage | None):
        problem = f"the usage of its ModelReply must be a Usage or None, not {usage!r:.60}"
    else:
        return reply
    raise ModelRefusedError(model, problem, remedy="correct the summarizer")


def _abandon(call: asyncio.Future[ModelReply]) -> None:
    """Cancel a call; the reply of one that continues is dropped."""
    call.cancel()
    _ABANDONED_CALLS.add(call)
    call.add_done_callback(_discard_call)


async def _give_time_to_end(call: asyncio.Future[ModelReply]) -> None:
    for _ in range(CANCEL_ROUNDS):
        if call.done():
            return
        await asyncio.sleep(0)


def _discard_call(call: asyncio.Future[ModelReply]) -> None:
    _ABANDONED_CALLS.discard(call)
    if not call.cancelled():
        # Retrieved, so that the event loop does not report it as unhandled.
        call.exception()
