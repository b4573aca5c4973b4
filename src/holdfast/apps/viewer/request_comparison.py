"""One request against the one before: which byte broke the provider's cache, what that cost, and what is new.

Bytes are counted in our canonical encoding: system text, tools, then the messages, as compact JSON. A client may encode
the same request with other spaces, but the first difference is in the same place.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from holdfast.apps.viewer.message_values import MAX_PART_CHARS, MessageValue, message_value
from holdfast.apps.viewer.session_index import IndexedRequest
from holdfast.core.conversation.json_values import dump_json
from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.spans import format_positions, position_ranges, ranges_without
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.history.session_state import RequestExtras
from holdfast.counters.models import prices_of_model
from holdfast.stores.base import JsonRecord
from holdfast.text import pluralize

SentMessages: TypeAlias = Sequence[tuple[int | None, JsonRecord]]
"""The messages of a request, each with its position; None for one made for this request."""
BREAK_CONTEXT_CHARS = 80
"""How much of a request is shown before and after the byte that broke the cache."""
MAX_DIFF_MESSAGES = 60


@dataclass(frozen=True, slots=True)
class CacheBreak:
    """Where a request departs from the one before, and what that costs."""

    previous: int
    is_prefix: bool
    """Whether the whole request before is the beginning of this one."""
    same_messages: int
    byte: int
    """How many bytes both have in common, with system text and tools first, in our canonical encoding."""
    place: str
    """Which message, the system text or the tools."""
    before: str
    """The text just before that byte, which both have."""
    was: str
    now: str
    reused_tokens: int
    lost_tokens: int
    """Tokens of the request before that cannot be read from the cache any more."""
    rewritten_tokens: int
    """Tokens after that byte that are not new, and are sent uncached for that reason."""
    dollars: float | None
    """The price of those tokens."""
    reason: str
    """Why, as it was recorded: clauses with semicolons between them; empty if nobody knew."""


@dataclass(frozen=True, slots=True)
class DiffRow:
    """A run of messages that two requests have in common, or that one of them has."""

    kind: Literal["same", "removed", "added"]
    count: int = 0
    messages: tuple[MessageValue, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestSide:
    """A request to compare."""

    request: IndexedRequest
    extras: RequestExtras
    messages: SentMessages
    hashes: Sequence[str]
    sizes: Sequence[int]
    """The bytes of each message."""

    @property
    def head(self) -> str:
        """What comes before the messages."""
        return dump_json([self.extras.system, list(map(dict, self.extras.tools))])


def cache_break(before: RequestSide, now: RequestSide, model: str | None) -> CacheBreak:
    """Return the first byte in which a request differs from the one before, and what it cost."""
    same = _common(before.hashes, now.hashes) if before.head == now.head else 0
    is_prefix = before.head == now.head and same == len(before.messages)
    kept = shared = _byte_count(now.head) + sum(now.sizes[:same]) + same
    place, was, now_text = f"message {same + 1} of the request", "", ""
    if before.head != now.head:
        is_system = before.extras.system != now.extras.system
        place, was, now_text, kept = "the system text" if is_system else "the tools", before.head, now.head, 0
    elif not is_prefix:
        was, now_text = _text_at(before.messages, same), _text_at(now.messages, same)
    at = _common(was, now_text)
    byte = kept + _byte_count(now_text[:at])
    tokens, whole = before.request.parts.total, shared + sum(before.sizes[same:])
    reused = tokens if is_prefix else tokens * min(byte, whole) // max(1, whole)
    rewritten = 0 if is_prefix else _rewritten_tokens(before, now, same)
    known = prices_of_model(model)
    return CacheBreak(
        previous=before.request.number,
        is_prefix=is_prefix,
        same_messages=same,
        byte=byte,
        place=place,
        before=now_text[max(0, at - BREAK_CONTEXT_CHARS) : at],
        was=was[at : at + BREAK_CONTEXT_CHARS],
        now=now_text[at : at + BREAK_CONTEXT_CHARS],
        reused_tokens=reused,
        lost_tokens=tokens - reused,
        rewritten_tokens=rewritten,
        dollars=known.dollars_to_write(rewritten) if known else None,
        reason=now.request.break_reason,
    )


def _rewritten_tokens(before: RequestSide, now: RequestSide, same: int) -> int:
    """Return how much of a request is sent uncached although it is not new, by its share of the bytes."""
    length = before.request.length
    old = (
        size
        for size, (position, _) in zip(now.sizes[same:], now.messages[same:], strict=True)
        if position is None or position < length
    )
    head = _byte_count(now.head)
    changed = sum(old) + (head if before.head != now.head else 0)
    return now.request.parts.total * changed // max(1, head + sum(now.sizes))


def _text_at(messages: SentMessages, number: int) -> str:
    return dump_json(dict(messages[number][1])) if number < len(messages) else ""


def _byte_count(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many elements two sequences have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low


def diff_rows(
    before: RequestSide, now: RequestSide, decode: Callable[[JsonRecord, int], Message]
) -> tuple[DiffRow, ...]:
    """Return how the messages of two requests differ, between a common beginning and a common end."""
    same = _common(before.hashes, now.hashes)
    tail = _common(before.hashes[same:][::-1], now.hashes[same:][::-1])
    rows = [DiffRow("same", same)] if same else []
    sides: tuple[tuple[Literal["removed", "added"], RequestSide], ...] = (("removed", before), ("added", now))
    for kind, side in sides:
        if found := side.messages[same : len(side.messages) - tail]:
            values = (
                message_value(decode(message, number), position, MAX_PART_CHARS // 4)
                for number, (position, message) in enumerate(found[:MAX_DIFF_MESSAGES])
            )
            rows.append(DiffRow(kind, len(found), tuple(values)))
    return (*rows, DiffRow("same", tail)) if tail else tuple(rows)


def receipt_lines(event: log.RequestPrepared, past: History, messages: SentMessages) -> Iterator[tuple[str, str]]:
    """Yield what was done for a request: name and text of each line."""
    sent = {position for position, _ in messages if position is not None}
    natives = {at: past.entries.get(at) for at in sent}
    changed = sorted(
        position
        for position, message in messages
        if position is not None and (entry := natives[position]) is not None and entry.message.native != message
    )
    made = sum(position is None for position, _ in messages)
    state = past.version.state_of(event.scope)
    compacted = [
        one for compaction in state.compactions
        for one in ranges_without(compaction.span.stop, sorted(sent), start=compaction.span.start)
    ]  # fmt: skip
    context = past.context(event.scope)
    dropped = [at for at in context.needed_positions() if at not in sent and context.is_in_view(at)]
    situation = event.situation
    yield "messages", pluralize(len(messages), "message") + (f", {made} of them written for it" if made else "")
    yield "budget", f"{situation.get('budget', 0):,} tokens ({situation.get('source', 'unknown')})"
    yield "counted by", f"{situation.get('counter', 'unknown')} × {situation.get('factor', 1):.2f}"
    unchanged = sorted(sent - set(changed))
    for name, positions in (("unchanged", unchanged), ("shortened", changed), ("dropped", dropped)):
        if positions:
            yield name, f"{len(positions):,}: {format_positions(position_ranges(positions))}"
    if compacted:
        yield "compacted", f"{sum(map(len, compacted)):,}: {format_positions(tuple(compacted))}"
    yield "policy", event.policy
    yield "engine", event.engine
    if event.prefix_break:
        yield "cache", event.prefix_break.reason
