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
from dataclasses import dataclass, field

from holdfast.core.conversation.messages import Message, Text, Thinking, ToolCall, ToolResult, user
from holdfast.core.conversation.pairing import Pairing, Repair
from holdfast.core.conversation.view import Entry

OPENING = "[The conversation before this point is not available.]"
NO_NEW_MESSAGE = "[No new message from the user.]"


@dataclass(frozen=True, slots=True)
class Mended:
    """A valid view, and what it took."""

    entries: list[Entry]
    repairs: list[Repair] = field(default_factory=list[Repair])
    pending: tuple[str, ...] = ()
    """Calls at the very end that may still be running."""


def mend(entries: Sequence[Entry], *, is_interrupted: bool = False, groups_results: bool = False) -> Mended:
    """Return the entries in a form that every provider accepts.

    `groups_results` tells how the format carries results: one user message for a batch (Anthropic),
    or a message each (OpenAI).
    """
    if is_sound(entries):
        return Mended(list(entries))
    repairs: list[Repair] = []
    filled = list(_without_blanks(entries, repairs))
    pairing = Pairing(filled, is_interrupted=is_interrupted, groups_results=groups_results)
    paired = pairing.run()
    repairs += pairing.repairs
    return Mended(_with_edges(paired, repairs, pairing.pending), repairs, tuple(pairing.pending))


def is_sound(entries: Sequence[Entry]) -> bool:
    """Return whether nothing needs mending."""
    open_calls: list[str] = []
    seen: set[str] = set()
    previous = None
    for entry in entries:
        message = entry.message
        if not _is_filled(message) or not _answers(message, open_calls) or not _calls(message, open_calls, seen):
            return False
        if message.role != "system":
            if previous is None and message.role != "user":
                return False
            previous = message.role
    return not open_calls and previous in {"user", "tool"}


def _calls(message: Message, open_calls: list[str], seen: set[str]) -> bool:
    """Add a message's calls to `open_calls`; return whether their ids are new."""
    for part in message.parts:
        if isinstance(part, ToolCall):
            if not part.id or part.id in seen:
                return False
            seen.add(part.id)
            open_calls.append(part.id)
    return True


def _answers(message: Message, open_calls: list[str]) -> bool:
    """Strike a message's results from `open_calls`; return whether it is what must come next."""
    answered = 0
    for part in message.parts:
        if isinstance(part, ToolResult):
            if part.call_id not in open_calls:
                return False
            open_calls.remove(part.call_id)
            answered += 1
    if not answered:
        return not open_calls
    if message.role == "tool":
        return True
    # A user message that carries results carries all of the batch, before anything else.
    return not open_calls and all(isinstance(part, ToolResult) for part in message.parts[:answered])


def _is_filled(message: Message) -> bool:
    """Return whether a message says something and holds no empty text block."""
    says_something = False
    for part in message.parts:
        if isinstance(part, Text):
            if part.is_blank:
                return False
            says_something = True
        elif isinstance(part, ToolResult):
            if _has_blank_block(part):
                return False
            says_something = True
        elif not isinstance(part, Thinking):
            says_something = True
    return says_something


def _has_blank_block(result: ToolResult) -> bool:
    # A bare empty string is a legal result; an empty text block is not.
    return any(isinstance(part, Text) and part.native is not None and part.is_blank for part in result.content)


def _without_blanks(entries: Iterable[Entry], repairs: list[Repair]) -> Iterator[Entry]:
    for entry in entries:
        message = entry.message
        if _is_filled(message):
            yield entry
            continue
        slimmer = message.with_parts(
            tuple(
                _without_blank_blocks(part) if isinstance(part, ToolResult) else part
                for part in message.parts
                if not (isinstance(part, Text) and part.is_blank)
            )
        )
        if _is_filled(slimmer):
            repairs.append(Repair(entry.position, "removed an empty text"))
            yield entry.saying(slimmer)
        elif slimmer.parts:
            repairs.append(Repair(entry.position, "removed a turn of reasoning that led to nothing"))
        else:
            repairs.append(Repair(entry.position, f"removed an empty {message.role} turn"))


def _without_blank_blocks(result: ToolResult) -> ToolResult:
    if not _has_blank_block(result):
        return result
    return result.with_content(tuple(part for part in result.content if not (isinstance(part, Text) and part.is_blank)))


def _with_edges(entries: list[Entry], repairs: list[Repair], pending: Sequence[str]) -> list[Entry]:
    """Let the conversation begin and end with somebody the model can answer."""
    spoken = [index for index, entry in enumerate(entries) if entry.message.role != "system"]
    if not spoken:
        return entries
    first, last = spoken[0], spoken[-1]
    if not pending and entries[last].message.role == "assistant":
        repairs.append(Repair(None, "put a user message after the last assistant turn"))
        entries = [*entries, Entry(user(NO_NEW_MESSAGE, trust="system"))]
    if entries[first].message.role != "user":
        repairs.append(Repair(None, "put a user message before the first assistant turn"))
        entries = [*entries[:first], Entry(user(OPENING, trust="system")), *entries[first:]]
    return entries
