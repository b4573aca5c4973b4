"""The last resort for one request: remove messages until it fits, as Copilot CLI's BasicTruncator does.

The truncator first removes older assistant messages with their tool results, then older prompts too. It never removes
system messages or the newest prompt. It shortens only the request: the session log records the truncation, and the
stored messages do not change.
"""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import ClassVar

from holdfast.core.conversation.cuts import pinned_exchanges
from holdfast.core.conversation.messages import Entry, Message, ToolResult
from holdfast.core.history.events import RequestTruncated
from holdfast.core.schema import check_fields, number_bounds
from holdfast.dataclass import dataclass

PERFORMED_BY = "BasicTruncator"
ORPHANS_REASON = "tool results without their call were left out"


@dataclass(frozen=True, slots=True)
class TruncatedRequest:
    """What is left of a request, and the event that records it.

    There is no event if the request fits: at most, results without their call were removed then.
    """

    entries: list[Entry]
    event: RequestTruncated | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicTruncator:
    """Prunes one request to a target below the limit."""

    target_share: float = field(default=0.95, metadata=number_bounds(0.01, 1))
    """The target as a share of the limit, which leaves some headroom."""
    retry_buffer: float = field(default=0.0, metadata=number_bounds(0, 0.5))
    """The share subtracted from the target after a provider's refusal."""

    MAX_RETRY_BUFFER: ClassVar[float] = 0.5
    MAX_RETRIES: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_fields(self, "policy.truncator")

    def after_refusals(self, refusals: int) -> "BasicTruncator":
        """Return the truncator for a retry if the provider named no limit."""
        step = self.MAX_RETRY_BUFFER / self.MAX_RETRIES
        return replace(self, retry_buffer=min(self.MAX_RETRY_BUFFER, self.retry_buffer + refusals * step))

    def truncate(
        self,
        entries: Sequence[Entry],
        *,
        limit: int,
        tools_tokens: int,
        tokens_of: Callable[[Message], int],
        pins: frozenset[int] = frozenset(),
    ) -> TruncatedRequest:
        """Return a request that fits the target, as far as removing messages can achieve that; pinned messages stay."""
        sizes = [tokens_of(entry.message) for entry in entries]
        total = sum(sizes) + tools_tokens
        target = int(limit * self.target_share * (1 - self.retry_buffer))
        kept, is_too_long = list(range(len(entries))), total > limit * (1 - self.retry_buffer)
        if is_too_long:
            kept = self._kept_indices(entries, sizes, target - tools_tokens, pinned_exchanges(entries, pins))
        left = _without_orphans([entries[index] for index in kept])
        if len(left) == len(entries):
            return TruncatedRequest(list(entries), None)
        if not is_too_long:
            return TruncatedRequest(left, None)
        after = sum(tokens_of(entry.message) for entry in left) + tools_tokens
        return TruncatedRequest(
            left,
            RequestTruncated(
                performed_by=PERFORMED_BY,
                token_limit=limit,
                pre_truncation_tokens=total,
                pre_truncation_messages=len(entries),
                post_truncation_tokens=after,
                post_truncation_messages=len(left),
                tokens_removed=total - after,
                messages_removed=len(entries) - len(left),
            ),
        )

    def _kept_indices(
        self, entries: Sequence[Entry], tokens: Sequence[int], target: int, pinned: frozenset[int]
    ) -> list[int]:
        """Return the indices that stay after two passes over everything before the newest prompt, oldest first."""
        prompt = max((index for index, entry in enumerate(entries) if entry.message.is_prompt), default=0)
        # The newest prompt may answer calls. All results of these calls stay, also those in messages before it.
        ids = set(entries[prompt].message.outline.result_ids) if entries else set[str]()
        answered = [
            index
            for index in range(prompt)
            if ids.intersection(entries[index].message.outline.call_ids) and prompt in _result_messages(entries, index)
        ]
        staying = pinned.union(answered, *(_result_messages(entries, index) for index in answered))
        gone: set[int] = set()
        size = sum(tokens)
        for is_second in (False, True):
            for index in range(prompt):
                message = entries[index].message
                is_removable = message.role == "assistant" or (is_second and message.role == "user")
                if size <= target:
                    break
                if index in gone or index in staying or not is_removable:
                    continue
                results = _result_messages(entries, index)
                # A prompt that also holds results stays without them.
                pair = {index, *(one for one in results if not entries[one].message.is_prompt)} - gone
                gone |= pair
                size -= sum(tokens[one] for one in pair)
        return [index for index in range(len(entries)) if index not in gone]


def _result_messages(entries: Sequence[Entry], index: int) -> set[int]:
    """Return the messages after a call that hold its results."""
    open_calls = set(entries[index].message.outline.call_ids)
    found: set[int] = set()
    for later in range(index + 1, len(entries)):
        if not open_calls:
            break
        outline = entries[later].message.outline
        if open_calls.intersection(outline.result_ids):
            found.add(later)
            open_calls -= set(outline.result_ids)
    return found


def _without_orphans(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries without tool results whose call is not among them."""
    called: set[str] = set()
    left: list[Entry] = []
    for entry in entries:
        message = entry.message
        called.update(message.outline.call_ids)
        if all(call_id in called for call_id in message.outline.result_ids):
            left.append(entry)
            continue
        parts = tuple(part for part in message.parts if not isinstance(part, ToolResult) or part.call_id in called)
        if parts:
            left.append(entry.with_message(message.with_parts(parts)))
    return left
