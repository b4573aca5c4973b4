"""Counts the tokens of messages before a request needs them, without blocking the event loop.

The tokenizer takes two microseconds a token. It releases the interpreter's lock, so long texts are counted in a thread
while the loop goes on. There is one such thread: two tokenizers at once are slower than one after the other.
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.tokens import Counter, message_bytes, message_tokens

MAX_INLINE_BYTES = 4_000
"""Messages of up to this size together are counted at once, in about two milliseconds."""


async def count_messages(messages: Sequence[Message], counter: Counter) -> None:
    """Count messages; each keeps its count, so later calls of `message_tokens` return at once."""
    if sum(map(message_bytes, messages)) <= MAX_INLINE_BYTES:
        _count(messages, counter)
    else:
        await asyncio.get_running_loop().run_in_executor(_counting_thread(), _count, messages, counter)


def _count(messages: Sequence[Message], counter: Counter) -> None:
    for message in messages:
        message_tokens(message, counter)


@cache
def _counting_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "holdfast-counting")


os.register_at_fork(after_in_child=_counting_thread.cache_clear)
