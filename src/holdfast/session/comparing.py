"""What changed between two readings of a file: they are looked for, read, and compared within an allowance.

Two references name both; one names the newer, and the reading before it is looked for; a path means its two newest
readings. A reading is what a tool gave back that was asked for a file and wrote nothing.
"""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.conversation.messages import ToolCall, ToolResult
from holdfast.core.conversation.tokens import Counter
from holdfast.core.history.identifiers import argument_value
from holdfast.core.history.ledger.calls import describe_call
from holdfast.core.history.ledger.work import call_outcome
from holdfast.core.history.recall.answer import RecallAnswer
from holdfast.core.history.recall.asking import RecallQuery
from holdfast.core.history.recall.differences import (
    FileDiff,
    FileReading,
    diff_lines,
    is_too_long_to_diff,
    lines_within,
)
from holdfast.core.history.recall.packing import FoundMessage, excerpt_at
from holdfast.core.history.recall.references import MessageReference
from holdfast.errors import MalformedInputError, UnknownReferenceError
from holdfast.session.finding import MessageFinder
from holdfast.session.rereading import MessageReader

COMPARED_READINGS = 2
READING_SEARCH_TOKENS = 10_000
"""How far a search for readings looks: it gives none of them out."""
DIFFERENT_LINES_NOTE = "the two readings are of different lines of the file"


async def compare_readings(
    reader: MessageReader, finder: MessageFinder, query: RecallQuery, counter: Counter
) -> RecallAnswer:
    """Return what changed between the two readings that a question means."""
    before, after = await _ReadingFinder(reader, finder).find_pair(query)
    for reading in (before, after):
        if is_too_long_to_diff(reading):
            raise MalformedInputError(
                "recall.diff", f"{reading.ref} is too long to compare; name lines, as #12:L1-L900"
            )
    lines = diff_lines(before, after)
    notes = [
        *reader.notes,
        *([DIFFERENT_LINES_NOTE] if before.path == after.path and before.lines != after.lines else []),
    ]
    rest, room = lines[query.skip :], query.max_tokens
    while True:
        shown = lines_within(rest, counter, room)
        told = FileDiff(before, after, "\n".join(shown), len(shown), len(lines))
        more = replace(query, skip=query.skip + len(shown)) if len(shown) < len(rest) else None
        more = more.with_doubled_budget() if more and not shown else more
        answer = RecallAnswer(
            found_count=COMPARED_READINGS, diff=told, notes=tuple(notes), next_query=more, query=query
        )
        over = counter.count(str(answer)) - query.max_tokens
        if over <= 0 or not shown:
            return answer
        room -= over


class _ReadingFinder:
    """Looks for readings on behalf of one agent."""

    def __init__(self, reader: MessageReader, finder: MessageFinder) -> None:
        self._reader = reader
        self._finder = finder

    async def find_pair(self, query: RecallQuery) -> tuple[FileReading, FileReading]:
        """Return the two readings that are meant, the older first; or in the order in which they are named."""
        places = query.references if query.refs else []
        if len(places) == COMPARED_READINGS:
            return await self._reading_at(places[0]), await self._reading_at(places[1])
        if places:
            newer = await self._reading_at(places[0])
            if not newer.path:
                raise MalformedInputError("recall.diff", f"{newer.ref} is no reading of a file; give two refs")
            older = await self._readings_before(newer.path, newer.position, newer.lines)
            if not older:
                raise MalformedInputError("recall.diff", f"{newer.path} was not read before {newer.ref}")
            return older[0], newer
        found = await self._readings_before(query.file, query.before or None)
        if len(found) < COMPARED_READINGS:
            raise MalformedInputError("recall.diff", f"{query.file} was not read twice here")
        return await self._with_previous(found)

    async def _with_previous(self, found: Sequence[FileReading]) -> tuple[FileReading, FileReading]:
        newer, *others = found
        older = await self._readings_before(newer.path, newer.position, newer.lines)
        return (older or others)[0], newer

    async def _reading_at(self, place: MessageReference) -> FileReading:
        """Return what a reference means as a reading."""
        if place.is_position:
            read = await self._reader.read([place.first])
            one = read[0] if read else None
        else:
            one = await self._finder.find_call(place.call_id)
        if one is None:
            raise UnknownReferenceError(str(place)[:60])
        (one,) = await self._reader.with_tool_names([one])
        whole = [
            reading
            for reading in self._readings_in(one)
            if place.part is None or reading.ref.endswith(f".{place.part}")
        ]
        if len(whole) == 1 and place.span is None:
            return whole[0]
        excerpt = excerpt_at(replace(place, first=one.position, last=one.position), one)
        path, lines = (whole[0].path, whole[0].lines) if len(whole) == 1 else ("", None)
        return FileReading(str(replace(place, call_id="")), one.position, excerpt.text, one.time, path, lines)

    async def _readings_before(
        self, file: str, stop: int | None, lines: tuple[int, int] | None = None
    ) -> list[FileReading]:
        """Return the readings of a file before a position, the newest first; those of the same lines first of all."""
        asked = RecallQuery(file=file, before=stop or 0, max_tokens=READING_SEARCH_TOKENS)
        found = (await self._finder.search(asked)).messages
        readings = [reading for one in await self._reader.with_tool_names(found) for reading in self._readings_in(one)]
        readings = [one for one in readings if one.path == file or one.path.endswith(f"/{file}")]
        newest = sorted(readings, key=lambda one: -one.position)
        return sorted(newest, key=lambda one: one.lines != lines) if stop is not None else newest

    def _readings_in(self, one: FoundMessage) -> list[FileReading]:
        """Return the readings that a message holds."""
        calls = {call.id: call for call in self._reader.answered_calls(one)}
        parts = list(enumerate(one.message.parts, 1))
        return [
            reading
            for number, part in parts
            if isinstance(part, ToolResult) and part.call_id in calls
            for reading in _file_reading(one, part, calls[part.call_id], number if len(parts) > 1 else None)
        ]


def _file_reading(one: FoundMessage, result: ToolResult, call: ToolCall, part: int | None) -> list[FileReading]:
    about = describe_call(call, argument_value(call.arguments), one.position)
    if about.kind != "file" or about.is_write or not call_outcome(about, result).is_ok:
        return []
    ref = f"#{one.position}" if part is None else f"#{one.position}.{part}"
    return [FileReading(ref, one.position, result.text, one.time, about.subject, about.lines)]
