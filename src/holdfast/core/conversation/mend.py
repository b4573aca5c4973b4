"""Makes a broken history valid for every provider.

Recorded histories hold unanswered calls, orphaned, late and duplicate results, repeated call ids,
empty turns, and begin or end with the wrong role. Each costs a refused request. Mending gives the
strictest common form, touches nothing that was fine, is idempotent, and derives what it makes up
from positions alone, so that the same history is always mended the same way and a cached prefix
stays valid.

A call without a result is left alone while it may still be running: only a later message that is no
result, or the caller's word that the turn was interrupted, proves that no result will come.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from holdfast.core.conversation.messages import Text, ToolResult, user
from holdfast.core.conversation.pairing import Pairing, Repair, is_plain_id
from holdfast.core.conversation.view import Entry

OPENING = "[The conversation before this point is not available.]"
NO_NEW_MESSAGE = "[No new message from the user.]"


class Mended(NamedTuple):
    """A valid view, and what it took."""

    entries: list[Entry]
    repairs: list[Repair]
    pending: tuple[str, ...] = ()
    """Calls at the very end that may still be running."""


def mend(entries: Sequence[Entry], *, is_interrupted: bool = False, groups_results: bool = False) -> Mended:
    """Return the entries in a form that every provider accepts.

    `groups_results` tells how the format carries results: one user message for a batch (Anthropic),
    or a message each (OpenAI).
    """
    repairs: list[Repair] = []
    pending: list[str] = []
    mended = list(entries)
    if not is_sound(entries, groups_results=groups_results):
        mended = list(_without_blanks(entries, repairs))
        pairing = Pairing(mended, is_interrupted=is_interrupted, groups_results=groups_results)
        mended = pairing.run()
        repairs += pairing.repairs
        pending = pairing.pending
    return Mended(_with_edges(mended, repairs, pending), repairs, tuple(pending))


def is_sound(entries: Sequence[Entry], *, groups_results: bool = False) -> bool:
    """Return whether nothing is empty and every call is answered, once, directly after it."""
    open_calls: dict[str, None] = {}
    seen: set[str] = set()
    for entry in entries:
        call_ids, result_ids, is_filled, has_results_first = entry.message.outline
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
        for call_id in call_ids:
            if not call_id or call_id in seen or (groups_results and not is_plain_id(call_id)):
                return False
            seen.add(call_id)
            open_calls[call_id] = None
    return not open_calls


def _without_blanks(entries: Iterable[Entry], repairs: list[Repair]) -> Iterator[Entry]:
    for entry in entries:
        message = entry.message
        if message.outline.is_filled:
            yield entry
            continue
        slimmer = message.with_parts(
            tuple(
                _without_blank_blocks(part) if isinstance(part, ToolResult) else part
                for part in message.parts
                if not (isinstance(part, Text) and part.is_blank)
            )
        )
        if slimmer.outline.is_filled:
            repairs.append(Repair(entry.position, "removed an empty text"))
            yield entry.saying(slimmer)
        elif slimmer.parts:
            repairs.append(Repair(entry.position, "removed a turn of reasoning that led to nothing"))
        else:
            repairs.append(Repair(entry.position, f"removed an empty {message.role} turn"))


def _without_blank_blocks(result: ToolResult) -> ToolResult:
    content = tuple(
        part for part in result.content if not (isinstance(part, Text) and part.native is not None and part.is_blank)
    )
    return result if len(content) == len(result.content) else result.with_content(content)


def _with_edges(entries: list[Entry], repairs: list[Repair], pending: Sequence[str]) -> list[Entry]:
    """Let the conversation begin and end with somebody the model can answer."""
    first = next((index for index, entry in enumerate(entries) if entry.message.role != "system"), None)
    if first is None:
        return entries
    last = next(entry.message.role for entry in reversed(entries) if entry.message.role != "system")
    if not pending and last == "assistant":
        repairs.append(Repair(None, "put a user message after the last assistant turn"))
        entries = [*entries, Entry(user(NO_NEW_MESSAGE, trust="system"))]
    if entries[first].message.role != "user":
        repairs.append(Repair(None, "put a user message before the first assistant turn"))
        entries = [*entries[:first], Entry(user(OPENING, trust="system")), *entries[first:]]
    return entries
