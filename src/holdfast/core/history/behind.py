"""What is known of what a fold stands for: which files were read there, and which wishes contradict each other.

Whoever reads a file again that has not changed since is told so, with the place where it was read first: an agent
that lost sight of its own work would otherwise do it again and again. Nothing is kept back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.core.conversation.messages import Content, Message, Part, Text, ToolCall, ToolResult
from holdfast.core.history.identifiers import argument_value
from holdfast.core.history.ledger.calls import read_call
from holdfast.core.history.ledger.files import File, Files, Touch
from holdfast.core.history.ledger.ledger import Ledger
from holdfast.core.history.ledger.wishes import conflicts
from holdfast.core.history.ledger.work import outcome_of

Notes = tuple[tuple[str, str], ...]
"""By the ids of calls, what is said beside their results."""


@dataclass(frozen=True, slots=True)
class Behind:
    """What the ledger says of the messages before a position."""

    stop: int = 0
    reads: Mapping[str, File] = field(default_factory=dict[str, File])
    conflicts: tuple[str, ...] = ()

    @classmethod
    def of(cls, ledger: Ledger, stop: int) -> "Behind":
        """Return what a ledger of everything before a position knows."""
        reads = {file.path: file for file in ledger.files if file.read is not None and file.read.content_hash}
        return cls(stop, reads, tuple(conflicts(ledger.wishes)))

    def notes(self, messages: Sequence[Message], earlier: Iterable[ToolCall]) -> list[Notes]:
        """Return for each new message what is to be said beside its results; `earlier` are the calls before them."""
        calls = {call.id: call for call in earlier}
        told: list[Notes] = []
        for message in messages:
            calls.update({call.id: call for call in message.calls})
            found = [(result.call_id, self._note(calls.get(result.call_id), result)) for result in message.results]
            told.append(tuple((call_id, note) for call_id, note in found if note))
        return told

    def _note(self, call: ToolCall | None, result: ToolResult) -> str:
        touch = _reading(call, result) if call else None
        if call is None or touch is None:
            return ""
        known = self.reads.get(_path(call))
        before = known.read if known else None
        if before is None or (before.content_hash, before.lines) != (touch.content_hash, touch.lines):
            return ""
        span = f", lines {before.lines[0]}-{before.lines[1]}" if before.lines else ""
        return (
            f"[Unchanged{span} since you read it at #{before.position}: what you found there still holds, and it need"
            " not be read again.]"
        )


def with_notes(message: Message, notes: Notes) -> Message:
    """Return a message with words beside its results."""
    if not notes:
        return message
    told = dict(notes)
    return message.with_parts(tuple(_noted(part, told) for part in message.parts))


def _noted(part: Part, notes: Mapping[str, str]) -> Part:
    if not isinstance(part, ToolResult) or part.call_id not in notes:
        return part
    content: list[Content] = list(part.content)
    for number, text in reversed([*enumerate(content)]):
        if isinstance(text, Text):
            content[number] = text.rewritten(f"{text.text}\n{notes[part.call_id]}")
            return part.with_content(tuple(content))
    return part


def _reading(call: ToolCall, result: ToolResult) -> Touch | None:
    """Return what a result read of a file; None where it is no reading that went well."""
    made = read_call(call, argument_value(call.arguments), 0)
    if made.kind != "file" or made.is_write or not outcome_of(made, result).is_ok:
        return None
    files = Files()
    files.settle(made, result.text, 0)
    return next(iter(files)).read


def _path(call: ToolCall) -> str:
    return read_call(call, argument_value(call.arguments), 0).subject
