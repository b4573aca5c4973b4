"""Long work away from the event loop: counting tokens, planning a request from a long history, recording long input.

The tokenizer takes up to two microseconds a token, depending on its vocabulary, and releases the interpreter's lock.
Planning does not release it, but a thread hands it over every few milliseconds, so the loop goes on either way. There
is one thread for each of the three: several tokenizers, or several plans, would take longer at once than one after the
other, and a message that is recorded must not wait for the plans of other sessions.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from typing import ParamSpec, TypeVar, cast

from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.tokens import Counter, message_bytes, message_tokens, request_tokens

P = ParamSpec("P")
T = TypeVar("T")
MAX_INLINE_BYTES = 8_000
"""Messages of up to this size together are counted at once, in a few milliseconds."""
COLD_BYTES = 4_000
"""The first texts of this size are counted in a thread: a tokenizer builds its tables with them, in 0.2 s."""
MAX_INLINE_CHARS = 64_000
"""Texts of this length are searched for words at once, in a few milliseconds."""
MAX_INLINE_MESSAGES = 200
"""As many messages are decoded, or put into a view, at once."""
MAX_INLINE_VALUES = 1_000
"""JSON of as many values is decoded, hashed or copied at once, in a few milliseconds."""
MAX_INLINE_TOKENS = 16_000
"""A request from a history of this size is planned at once, in a few milliseconds."""
MAX_JOB_BYTES = 64_000
"""Messages of about this size are counted as one job, so that other sessions can count theirs in between."""

_counted_bytes: dict[str, int] = {}
"""How much each counter has counted, by its name, until it is warm."""
_running: set[asyncio.Future[object]] = set()
"""What the threads work on."""


def are_long(values: Sequence[object]) -> bool:
    """Return whether JSON values, such as messages, are so many or so long that a thread should read them."""
    if len(values) > MAX_INLINE_MESSAGES:
        return True
    chars = 0
    pending: list[object] = [*values]
    for value in pending:
        if type(value) is str:
            chars += len(value)
        elif type(value) is dict:
            pending += value.values()
        elif type(value) is list:
            pending += value
        if chars > MAX_INLINE_CHARS or len(pending) > MAX_INLINE_VALUES:
            return True
    return False


async def count_messages(messages: Sequence[Message], counter: Counter, *, is_long: bool = False) -> None:
    """Count messages; each keeps its count, so later calls of `message_tokens` return at once.

    With `is_long`, a thread measures them too.
    """
    is_long = is_long or len(messages) > MAX_INLINE_MESSAGES
    sizes = await _run_in("counting", partial(_sizes_of, messages)) if is_long else _sizes_of(messages)
    total, counted = sum(sizes), _counted_bytes.get(counter.name, 0)
    if total > MAX_INLINE_BYTES:
        await _count_in_jobs(messages, sizes, counter)
    elif counted < COLD_BYTES:
        await _run_in("counting", partial(request_tokens, messages, counter))
    else:
        for message in messages:
            message_tokens(message, counter)
    if counted < COLD_BYTES:
        _counted_bytes[counter.name] = counted + total


def _sizes_of(messages: Sequence[Message]) -> list[int]:
    return [*map(message_bytes, messages)]


async def _count_in_jobs(messages: Sequence[Message], sizes: Sequence[int], counter: Counter) -> None:
    job: list[Message] = []
    job_bytes = 0
    for message, size in zip(messages, sizes, strict=True):
        job.append(message)
        job_bytes += size
        if job_bytes >= MAX_JOB_BYTES or message is messages[-1]:
            await _run_in("counting", lambda job=job: [message_tokens(one, counter) for one in job])
            job, job_bytes = [], 0


async def count_in_thread(action: Callable[[], T]) -> T:
    """Return the result of an action that tokenizes a long text."""
    return await _run_in("counting", action)


async def plan_in_thread(action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of an action on a history whose lock the caller holds."""
    return await _run_in("planning", partial(action, *args, **kwargs))


async def record_in_thread(action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of an action that is part of recording, which waits for no plan of another session."""
    return await _run_in("recording", partial(action, *args, **kwargs))


def release(*lists: list[T]) -> None:
    """Empty long lists in parts; freed at once, their values would hold the interpreter's lock, and so the event loop.

    Call it in a thread, which hands over the lock between two parts.
    """
    for values in lists:
        while values:
            del values[-MAX_INLINE_MESSAGES:]


async def _run_in(thread: str, action: Callable[[], T]) -> T:
    """Return the result of an action in a thread.

    If the caller is cancelled, the action ends first: no lock may be released while it works on a history.
    """
    done = asyncio.get_running_loop().run_in_executor(_thread(thread), action)
    _running.add(cast("asyncio.Future[object]", done))
    done.add_done_callback(_running.discard)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        while not done.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([done])
        if not done.cancelled():
            done.exception()  # otherwise the event loop reports an error that nobody waits for any more
        raise


async def wait_for_threads() -> bool:
    """Wait until no thread works for this event loop, and return whether one did; for clocks that are simulated."""
    loop = asyncio.get_running_loop()
    ours = [future for future in tuple(_running) if future.get_loop() is loop]
    if ours:
        await asyncio.wait(ours)
    return bool(ours)


@cache
def _thread(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, f"holdfast-{name}")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_thread.cache_clear)
