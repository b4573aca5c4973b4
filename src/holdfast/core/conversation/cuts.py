"""Where a conversation may be cut, and how its exchanges and turns are counted.

Providers reject a tool result without its call, a partly answered batch of parallel calls, reasoning without
its call, the late result of a provider's own tool without its use, and a call of a program without the program.
Each of these is a rule that says which neighbors belong together. A cut is legal if no rule forbids it. All code
that shortens a history asks this module first.

An exchange is a request or a response: all messages between two answers of the model are one request, and
each answer is one response. A turn reaches from one prompt of the user to before the next.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from holdfast.core.conversation.messages import Entry, EntryMessages, Message, Thinking

MAX_TAG_CHARS = 100
MAX_WHOLE_PROMPT_SHARE = 0.75
"""If the messages of a prompt take more of the room than this, only the last of them is kept as the prompt."""
_TAG = re.compile(r"\s{0,20}<([A-Za-z][\w-]{0,63})>")


class MessageSequence(Protocol):
    """Messages by index: a list, or a transcript that decodes on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Message: ...


# Each rule returns whether the second of two neighbors requires the first directly before it.


def _is_call_and_result(before: Message, after: Message) -> bool:
    # In itemized formats the model may send text between a call and its result.
    if after.outline.result_ids:
        return before.role == "assistant"
    return bool(before.outline.call_ids) and after.role == "assistant"


def _is_one_batch(before: Message, after: Message) -> bool:
    # Consecutive items of the model form one batch if another call follows.
    if after.outline.call_ids and before.role == "assistant":
        return True
    return bool(before.outline.result_ids and after.outline.result_ids)


def _is_reasoning_before(before: Message, _after: Message) -> bool:
    return before.outline.is_reasoning_only


def _is_late_server_result(_before: Message, after: Message) -> bool:
    return bool(after.outline.server_results)


def _is_call_of_program(_before: Message, after: Message) -> bool:
    return after.outline.has_earlier_caller


PROVIDER_RULES = _is_call_and_result, _is_one_batch, _is_reasoning_before, _is_late_server_result, _is_call_of_program
"""The rules that providers enforce."""


def can_cut(before: Message, after: Message) -> bool:
    """Return whether a history may be cut between two neighbors."""
    return not any(joins(before, after) for joins in PROVIDER_RULES)


def next_cut(messages: MessageSequence, index: int, known: range = range(0)) -> int:
    """Return the first legal cut at or after `index`; the end counts as one.

    All indices in `known` have the last of them as their first legal cut.
    """
    while 0 < index < len(messages) and index not in known and not can_cut(messages[index - 1], messages[index]):
        index += 1
    return known[-1] if index in known else index


def uncuttable_span(messages: MessageSequence, index: int) -> tuple[int, int]:
    """Return the bounds of the smallest uncuttable span that holds `index`."""
    start, stop = index, index + 1
    while start > 0 and not can_cut(messages[start - 1], messages[start]):
        start -= 1
    while stop < len(messages) and not can_cut(messages[stop - 1], messages[stop]):
        stop += 1
    return start, stop


def pinned_exchanges(entries: Sequence[Entry], pins: frozenset[int]) -> frozenset[int]:
    """Return the indices that pins keep: each pinned exchange whole, because a call needs its result.

    A message that replaces everything before it is kept like a pinned one.
    """
    found = [at for at, entry in enumerate(entries) if entry.position in pins or entry.message.outline.is_fixed]
    return frozenset(at for index in found for at in range(*uncuttable_span(EntryMessages(entries), index)))


def first_read(entries: Sequence[Entry]) -> int:
    """Return where the provider begins to read: at the last message that it reads in place of all before it.

    It ignores what comes before, and does not count it.
    """
    for index in range(len(entries) - 1, 0, -1):
        if entries[index].message.outline.is_fixed:
            return index
    return 0


def reasoning_exchange(messages: MessageSequence, prompt: int, cut: int) -> range:
    """Return the exchange that holds the open turn's reasoning, if the messages after the cut have none.

    With thinking switched on, Anthropic requires the running turn to begin with a reasoning block. Models that do not
    think between tool calls have only one, at the start of the turn. It stays, and the steps after it are compacted.
    """
    if not prompt + 1 < cut < len(messages):
        return range(0)
    if not _has_reasoning(messages[prompt + 1]) or _has_reasoning(messages[cut]):
        return range(0)
    nearest = next(index for index in range(cut - 1, prompt, -1) if _has_reasoning(messages[index]))
    return range(*uncuttable_span(messages, nearest))


def _has_reasoning(message: Message) -> bool:
    return any(isinstance(part, Thinking) and part.native is not None for part in message.parts)


def exchange_ranges(entries: Sequence[Entry], *, is_itemized: bool = False) -> list[range]:
    """Return the requests and responses of a conversation, as ranges of its entries.

    A response is one message; if the format is itemized, it is a run of the model's items.
    """
    groups: list[range] = []
    for index, entry in enumerate(entries):
        is_response = entry.message.role == "assistant"
        was_response = bool(groups) and entries[groups[-1].start].message.role == "assistant"
        if groups and is_response == was_response and (is_itemized or not is_response):
            groups[-1] = range(groups[-1].start, index + 1)
        else:
            groups.append(range(index, index + 1))
    return groups


def prompt_start(messages: MessageSequence, newest: int) -> int:
    """Return where the prompt begins whose last message is `newest`.

    Clients send reminders as messages of their own after what the user has typed: Kimi Code in every turn. They are
    wrapped in a tag, and belong to the message before them.
    """
    start = newest
    while start > 0 and messages[start - 1].is_prompt and _is_tagged(messages[start]):
        start -= 1
    return start


def _is_tagged(message: Message) -> bool:
    """Return whether the texts of a message are one element, such as <system-reminder>."""
    text = message.text
    tag = _TAG.match(text)
    return tag is not None and text[-MAX_TAG_CHARS:].rstrip().endswith(f"</{tag[1]}>")


def turn_ranges(entries: Sequence[Entry]) -> list[range]:
    """Return the turns of a conversation; messages before the first turn belong to none.

    A turn begins with a prompt that answers no call. What is written beside a tool result belongs to the running turn:
    a turn that began there would leave its call to the turn before.
    """
    starts = [
        index for index, entry in enumerate(entries) if entry.message.is_prompt and not entry.message.outline.result_ids
    ]
    return [range(start, stop) for start, stop in pairwise([*starts, len(entries)])]


def prompt_ranges(entries: Sequence[Entry]) -> list[range]:
    """Return each prompt with what follows it, up to the next; messages before the first prompt are left out."""
    starts = [index for index, entry in enumerate(entries) if entry.message.is_prompt]
    return [range(start, stop) for start, stop in pairwise([*starts, len(entries)])]
