"""The two ways in which people count a conversation.

By exchanges: whatever is said to the model between two of its answers is one request, each answer is one
response. By turns: everything from one prompt of the user up to the next.
"""

from collections.abc import Sequence
from itertools import pairwise

from holdfast.core.conversation.view import Entry


def exchange_ranges(entries: Sequence[Entry]) -> list[range]:
    """Return the requests and responses of a conversation, as ranges of its entries."""
    groups: list[range] = []
    for index, entry in enumerate(entries):
        is_response = entry.message.role == "assistant"
        if groups and not is_response and entries[groups[-1].start].message.role != "assistant":
            groups[-1] = range(groups[-1].start, index + 1)
        else:
            groups.append(range(index, index + 1))
    return groups


def turn_ranges(entries: Sequence[Entry]) -> list[range]:
    """Return the turns of a conversation; what stands before the first prompt belongs to none."""
    starts = [index for index, entry in enumerate(entries) if entry.message.is_prompt]
    return [range(start, stop) for start, stop in pairwise([*starts, len(entries)])]
