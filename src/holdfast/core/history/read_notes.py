"""Notes on repeated file reads after a compaction.

After a compaction an agent no longer sees which files it has read, and might read them again and again. When it
rereads a file that has not changed, a note on the result names the message with the earlier read. The result itself
stays complete.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from holdfast.core.conversation.messages import Content, Message, Part, Text, ToolCall, ToolResult
from holdfast.core.ledger.actions import call_outcome
from holdfast.core.ledger.files import FileRecord, FileRecords
from holdfast.core.ledger.identifiers import argument_value
from holdfast.core.ledger.tool_calls import describe_call
from holdfast.dataclass import dataclass

NOTE_START, NOTE_END = "[Unchanged", ": what you found there still holds, and it need not be read again.]"
ReadNotes = tuple[tuple[str, str], ...]
"""Pairs of call id and the note added to the result of that call."""


@dataclass(frozen=True, slots=True)
class CompactedReads:
    """File reads and contradicting constraints from the messages before a position."""

    stop: int = 0
    reads: Mapping[str, FileRecord] = field(default_factory=dict[str, FileRecord])
    conflicts: tuple[str, ...] = ()

    def notes_for(self, messages: Sequence[Message], earlier: Iterable[ToolCall]) -> list[ReadNotes]:
        """Return the notes on the results of each new message; `earlier` holds the calls before these messages."""
        calls = {call.id: call for call in earlier}
        notes: list[ReadNotes] = []
        for message in messages:
            calls.update({call.id: call for call in message.calls})
            found = [(result.call_id, self._note_for(calls.get(result.call_id), result)) for result in message.results]
            notes.append(tuple((call_id, note) for call_id, note in found if note))
        return notes

    def _note_for(self, call: ToolCall | None, result: ToolResult) -> str:
        """Return the note on the result of a successful read; empty for any other call."""
        made = describe_call(call, argument_value(call.arguments), 0) if call else None
        if made is None or made.kind != "file" or made.is_write or not call_outcome(made, result).is_ok:
            return ""
        files = FileRecords()
        files.observe_result(made, result.text, 0)
        now, known = next(iter(files)).last_read, self.reads.get(made.subject)
        before = known.last_read if known else None
        if now is None or before is None or (before.content_hash, before.lines) != (now.content_hash, now.lines):
            return ""
        span = f", lines {before.lines[0]}-{before.lines[1]}" if before.lines else ""
        return f"{NOTE_START}{span} since you read it at #{before.position}{NOTE_END}"


NO_READS = CompactedReads()


def add_read_notes(message: Message, notes: ReadNotes) -> Message:
    """Return a message with notes appended to its results."""
    if not notes:
        return message
    by_call = dict(notes)
    return message.with_parts(tuple(_part_with_note(part, by_call) for part in message.parts))


def without_read_note(text: str) -> str:
    """Return the text of a result without the note that was appended to it."""
    return text.rpartition(f"\n{NOTE_START}")[0] if text.endswith(NOTE_END) else text


def _part_with_note(part: Part, notes: Mapping[str, str]) -> Part:
    if not isinstance(part, ToolResult) or part.call_id not in notes:
        return part
    content: list[Content] = list(part.content)
    for number, text in reversed([*enumerate(content)]):
        if isinstance(text, Text):
            content[number] = text.with_text(f"{text.text}\n{notes[part.call_id]}")
            return part.with_content(tuple(content))
    return part
