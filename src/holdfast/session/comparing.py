"""What changed between two readings of a file: they are looked for, read, and compared within an allowance.

Two references name both; one names the newer, and the reading before it is looked for; a path means its two newest
readings. A reading is what a tool gave back that was asked for a file and wrote nothing.
"""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.conversation.messages import ToolCall, ToolResult
from holdfast.core.conversation.tokens import Counter
from holdfast.core.history.identifiers import argument_value
from holdfast.core.history.ledger.calls import read_call
from holdfast.core.history.ledger.work import outcome_of
from holdfast.core.history.recall.answer import Recalled
from holdfast.core.history.recall.asking import Recall
from holdfast.core.history.recall.differences import Difference, Reading, changed_lines, is_too_long, within
from holdfast.core.history.recall.packing import Found, excerpt_at
from holdfast.core.history.recall.references import Reference
from holdfast.errors import MalformedInputError, UnknownReferenceError
from holdfast.session.finding import Finder
from holdfast.session.rereading import Rereader

PAIR = 2
SEARCH_TOKENS = 10_000
"""How far a search for readings looks: it gives none of them out."""
OTHER_LINES = "the two readings are of different lines of the file"


async def compared(reader: Rereader, finder: Finder, asking: Recall, counter: Counter) -> Recalled:
    """Return what changed between the two readings that a question means."""
    before, after = await _Readings(reader, finder).of(asking)
    for reading in (before, after):
        if is_too_long(reading):
            raise MalformedInputError(
                "recall.diff", f"{reading.ref} is too long to compare; name lines, as #12:L1-L900"
            )
    lines = changed_lines(before, after)
    notes = [*reader.notes, *([OTHER_LINES] if before.path == after.path and before.lines != after.lines else [])]
    rest, room = lines[asking.skip :], asking.max_tokens
    while True:
        shown = within(rest, counter, room)
        told = Difference(before, after, "\n".join(shown), len(shown), len(lines))
        more = replace(asking, skip=asking.skip + len(shown)) if len(shown) < len(rest) else None
        more = more.roomier() if more and not shown else more
        answer = Recalled(found=PAIR, difference=told, notes=tuple(notes), more=more, asked=asking)
        over = counter.count(str(answer)) - asking.max_tokens
        if over <= 0 or not shown:
            return answer
        room -= over


class _Readings:
    """Looks for readings on behalf of one agent."""

    def __init__(self, reader: Rereader, finder: Finder) -> None:
        self._reader = reader
        self._finder = finder

    async def of(self, asking: Recall) -> tuple[Reading, Reading]:
        """Return the two readings that are meant, the older first; or in the order in which they are named."""
        places = asking.references if asking.refs else []
        if len(places) == PAIR:
            return await self._at(places[0]), await self._at(places[1])
        if places:
            newer = await self._at(places[0])
            if not newer.path:
                raise MalformedInputError("recall.diff", f"{newer.ref} is no reading of a file; give two refs")
            older = await self._before(newer.path, newer.position, newer.lines)
            if not older:
                raise MalformedInputError("recall.diff", f"{newer.path} was not read before {newer.ref}")
            return older[0], newer
        found = await self._before(asking.file, asking.before or None)
        if len(found) < PAIR:
            raise MalformedInputError("recall.diff", f"{asking.file} was not read twice here")
        return await self._pair(found)

    async def _pair(self, found: Sequence[Reading]) -> tuple[Reading, Reading]:
        newer, *others = found
        older = await self._before(newer.path, newer.position, newer.lines)
        return (older or others)[0], newer

    async def _at(self, place: Reference) -> Reading:
        """Return what a reference means as a reading."""
        if place.is_position:
            read = await self._reader.read([place.first])
            one = read[0] if read else None
        else:
            one = await self._finder.call(place.call_id)
        if one is None:
            raise UnknownReferenceError(str(place)[:60])
        (one,) = await self._reader.named([one])
        whole = [reading for reading in self._in(one) if place.part is None or reading.ref.endswith(f".{place.part}")]
        if len(whole) == 1 and place.span is None:
            return whole[0]
        excerpt = excerpt_at(replace(place, first=one.position, last=one.position), one)
        path, lines = (whole[0].path, whole[0].lines) if len(whole) == 1 else ("", None)
        return Reading(str(replace(place, call_id="")), one.position, excerpt.text, one.time, path, lines)

    async def _before(self, file: str, stop: int | None, lines: tuple[int, int] | None = None) -> list[Reading]:
        """Return the readings of a file before a position, the newest first; those of the same lines first of all."""
        asked = Recall(file=file, before=stop or 0, max_tokens=SEARCH_TOKENS)
        found = (await self._finder.search(asked)).found
        readings = [reading for one in await self._reader.named(found) for reading in self._in(one)]
        readings = [one for one in readings if one.path == file or one.path.endswith(f"/{file}")]
        newest = sorted(readings, key=lambda one: -one.position)
        return sorted(newest, key=lambda one: one.lines != lines) if stop is not None else newest

    def _in(self, one: Found) -> list[Reading]:
        """Return the readings that a message holds."""
        calls = {call.id: call for call in self._reader.calls_of(one)}
        parts = list(enumerate(one.message.parts, 1))
        return [
            reading
            for number, part in parts
            if isinstance(part, ToolResult) and part.call_id in calls
            for reading in _reading(one, part, calls[part.call_id], number if len(parts) > 1 else None)
        ]


def _reading(one: Found, result: ToolResult, call: ToolCall, part: int | None) -> list[Reading]:
    about = read_call(call, argument_value(call.arguments), one.position)
    if about.kind != "file" or about.is_write or not outcome_of(about, result).is_ok:
        return []
    ref = f"#{one.position}" if part is None else f"#{one.position}.{part}"
    return [Reading(ref, one.position, result.text, one.time, about.subject, about.lines)]
