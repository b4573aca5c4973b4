"""Whether a history is already as mending would leave it.

Nearly every history is, so this is asked for every view and answered in one pass over outlines.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from holdfast.core.conversation.batching import ONE_RESULT_PER_MESSAGE, Batching
from holdfast.core.conversation.view import Entry


def is_valid_history(entries: Sequence[Entry], batching: Batching = ONE_RESULT_PER_MESSAGE) -> bool:
    """Return whether nothing is empty and every call is answered, once, directly after its batch."""
    if batching.is_itemized:
        return _are_items_valid(entries, batching)
    if batching.calls_follow_user and any(is_split_turn(*pair) for pair in pairwise(entries)):
        return False
    return _are_messages_valid(entries, batching)


def is_split_turn(before: Entry, after: Entry) -> bool:
    """Return whether calls stand directly behind another message of the model's."""
    return bool(after.message.outline.call_ids) and before.message.role == after.message.role


def _are_messages_valid(entries: Sequence[Entry], batching: Batching) -> bool:
    """Return whether each message with calls is followed by its results, as the format carries them."""
    open_calls: dict[str, None] = {}
    seen: set[str] = set()
    for entry in entries:
        call_ids, result_ids, is_filled, has_results_first, _ = entry.message.outline
        if not is_filled:
            return False
        if result_ids:
            for call_id in result_ids:
                if call_id not in open_calls:
                    return False
                del open_calls[call_id]
            # A user message that carries results carries all of the batch, before anything else.
            if entry.message.role == "user" and (open_calls or not has_results_first):
                return False
        elif open_calls:
            return False
        if call_ids and not _register_calls(call_ids, open_calls, set() if batching.pairs_by_name else seen, batching):
            return False
    return not open_calls


def _are_items_valid(entries: Sequence[Entry], batching: Batching) -> bool:
    """Return whether each run of the model's items is followed by its results, and reasoning by an item."""
    open_calls: dict[str, None] = {}
    seen: set[str] = set()
    is_answering = is_leading = False
    for entry in entries:
        call_ids, result_ids, is_filled, _, is_reasoning = entry.message.outline
        is_models = entry.message.role == "assistant"
        if not (is_filled or is_reasoning) or (is_leading and not is_models):
            return False
        is_leading = is_reasoning
        if result_ids:
            if any(open_calls.pop(call_id, call_id) is not None for call_id in result_ids):
                return False
            is_answering = bool(open_calls)
        elif open_calls and (is_answering or not is_models):
            return False
        if call_ids and not _register_calls(call_ids, open_calls, seen, batching):
            return False
    return not open_calls and not is_leading


def _register_calls(call_ids: Iterable[str], open_calls: dict[str, None], seen: set[str], batching: Batching) -> bool:
    """Return whether calls have ids that can be sent and are new, and remember them."""
    takes_id = batching.accepts_id
    for call_id in call_ids:
        if not call_id or call_id in seen or (takes_id and not takes_id(call_id)):
            return False
        seen.add(call_id)
        open_calls[call_id] = None
    return True
