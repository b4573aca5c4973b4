"""One question to the past of one session, answered for one agent: found, packed into its allowance, told.

Who asks, and which session is asked, is settled before; here it is only looked for and put together.

What changed between two readings of a file: they are looked for, read, and compared within an allowance.

Two references name both; one names the newer, and the reading before it is looked for; a path means its two newest
readings. A reading is what a tool gave back that was asked for a file and wrote nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from holdfast.core.conversation.messages import ToolCall, ToolResult
from holdfast.core.conversation.tokens import Counter
from holdfast.core.history.context import Context
from holdfast.core.ledger.actions import call_outcome
from holdfast.core.ledger.identifiers import argument_value
from holdfast.core.ledger.tool_calls import describe_call
from holdfast.core.recall.answer import RecallAnswer, group_by_day
from holdfast.core.recall.artifacts import is_artifact_of
from holdfast.core.recall.diff import (
    FileDiff,
    FileReading,
    diff_lines,
    is_too_long_to_diff,
    lines_within,
)
from holdfast.core.recall.packing import (
    ExcerptPacker,
    FoundMessage,
    answer_references,
    excerpt_at,
    pack_references,
    pack_search,
    past_end_note,
)
from holdfast.core.recall.passages import message_body
from holdfast.core.recall.query import RecallQuery
from holdfast.core.recall.ranking import MAX_RANKED, relevant_names
from holdfast.core.recall.references import MessageReference
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import MalformedInputError, NotInMemoryError, UnknownReferenceError
from holdfast.session.log.event_log import SessionLog
from holdfast.session.recall.reader import MessageReader
from holdfast.session.recall.search import (
    MAX_READ_MESSAGES,
    MIN_TOKENS_PER_MESSAGE,
    MessageFinder,
    MessageHits,
    is_tool_message,
)

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


NAMES_SHARE = 0.4
"""What names may take of an answer about work."""
MIN_TOOL_LOOKUPS = 24
"""Of at least how many messages that may be shown the tools are looked for."""
MAX_LISTED_NAMES, MAX_LISTED_NAME_CHARS = 3, 60
"""How much is told of what could not be had."""
REFERENCE_PAGE_MESSAGES = 32
"""How many messages of a long reference are read at a time."""


async def answer_recall(
    session_log: SessionLog,
    context: Context,
    query: RecallQuery,
    model: str | None,
    in_view: frozenset[int] = frozenset(),
) -> RecallAnswer:
    """Return the answer to a question, within its allowance; what stands in view anyway comes last."""
    counter, room = counter_for(model), query.max_tokens
    if query.diff:
        return await _RecallAnswerer(session_log, context, query, model, in_view, room=room).compare()
    while True:
        recollection = _RecallAnswerer(session_log, context, query, model, in_view, room=room)
        answer = await (recollection.answer_references() if query.refs else recollection.answer_search())
        over = counter.count(str(answer)) - query.max_tokens
        if over <= 0 or not answer.excerpts:
            return answer
        # What is told besides the excerpts took more than was set aside for it.
        room -= over + 1


class _RecallAnswerer:
    """One question, answered for one agent."""

    def __init__(
        self,
        session_log: SessionLog,
        context: Context,
        query: RecallQuery,
        model: str | None,
        in_view: frozenset[int],
        *,
        room: int,
    ) -> None:
        self._history = session_log.history
        self._context = context
        self._query = query
        self._reader = MessageReader(session_log, context)
        self._finder = MessageFinder(
            session_log.store, session_log.session, self._reader, session_log.history.recall_marks, in_view
        )
        self._packer = ExcerptPacker(counter_for(model), room)

    async def compare(self) -> RecallAnswer:
        """Return what changed between two readings."""
        return await compare_readings(self._reader, self._finder, self._query, self._packer.counter)

    # By reference.

    async def answer_references(self) -> RecallAnswer:
        """Return what references mean, in their order, as much as there is room for."""
        references, missing = self._query.references[self._query.skip :], list[str]()
        left, done = list[MessageReference](), 0
        for number, place in enumerate(references):
            rest, is_there = await self._take_reference(place)
            if not is_there:
                missing.append(str(place))
            if rest:
                left, done = [*rest, *references[number + 1 :]], number + 1
                break
        if missing and not self._packer.excerpts and not left and not self._reader.notes:
            raise UnknownReferenceError(missing[0][:MAX_LISTED_NAME_CHARS])
        notes = [
            *_first_notes(self._reader.notes),
            *([f"there is no message {_list_names(missing)} here"] if missing else []),
        ]
        more = len(left) - len(references) + done
        return answer_references(left, self._query, self._packer, notes, rest=left[:more], skip=done)

    async def _take_reference(self, reference: MessageReference) -> tuple[list[MessageReference], bool]:
        """Take what one reference means; returns what there is no room for, and whether anything is there."""
        if not reference.is_position:
            return await self._take_call(reference)
        is_there = False
        for run in self._visible_pages(reference):
            read = await self._reader.with_tool_names(await self._reader.read(run))
            found = [one for one in read if _has_part(one, reference)]
            is_there = is_there or bool(found)
            self._reader.notes += [note for one in found if (note := past_end_note(reference, one))]
            found = [one for one in found if not past_end_note(reference, one)]
            if left := pack_references([(reference, one) for one in found], self._packer):
                rest = MessageReference(run[-1] + 1, reference.last)
                return [*left, *([rest] if rest.first <= rest.last else [])], True
        return await self._take_call(reference) if reference.call_id and not is_there else ([], is_there)

    async def _take_call(self, reference: MessageReference) -> tuple[list[MessageReference], bool]:
        """Take what a call gave back, by its id or by the name of the artifact that this is."""
        one = await self._finder.find_call(reference.call_id)
        if one is None:
            return [], False
        meant = replace(_part_reference(one, reference.call_id), span=reference.span)
        named = await self._reader.with_tool_names([one])
        return pack_references([(meant, found) for found in named], self._packer), True

    def _visible_pages(self, reference: MessageReference) -> Iterator[list[int]]:
        """Yield the positions of a reference that this agent may see, some at a time."""
        run: list[int] = []
        for position in range(reference.first, min(reference.last + 1, self._context.length)):
            if self._context.is_recallable(position):
                run.append(position)
            if len(run) == REFERENCE_PAGE_MESSAGES:
                yield run
                run = []
        if run:
            yield run

    # By search.

    async def answer_search(self) -> RecallAnswer:
        """Return what was looked for, the best first, as much as there is room for."""
        asking, packer = self._query, self._packer
        findings = await self._finder.search(asking)
        later = asking.shortened()
        names_room = self._names_allowance(findings)
        packer.remaining_tokens -= names_room
        wanted = findings.messages[asking.skip :]
        first = await self._reader.with_tool_names(
            wanted[: max(MIN_TOOL_LOOKUPS, asking.max_tokens // MIN_TOKENS_PER_MESSAGE // 2)]
        )
        listed = await self._with_neighbors([*first, *wanted[len(first) :]])
        done = pack_search(listed, asking, packer)
        seen = sum(not one.is_neighbor for one in listed[:done])
        more = _next_query(findings, later, seen)
        more = more.with_doubled_budget() if more and not packer.excerpts else more
        shown = [excerpt for excerpt in packer.excerpts if not excerpt.is_neighbor]
        notes = list(self._reader.notes)
        if more and more.before == findings.stopped_at:
            notes.append(f"messages before #{findings.stopped_at} were not looked at yet")
        return RecallAnswer(
            excerpts=tuple(group_by_day(packer.excerpts)),
            found_count=max(findings.total, len(shown)),
            names=self._names(names_room + max(0, packer.remaining_tokens)) if names_room else "",
            notes=tuple(notes),
            next_query=more,
            query=asking,
        )

    def _names_allowance(self, findings: MessageHits) -> int:
        """Return what names may take: nothing in a talk, nor where somebody asks for more of the same."""
        first = findings.messages[:MAX_READ_MESSAGES]
        is_asked = bool(self._query.questions) and self._query.is_unseen_first and not self._query.skip
        if not is_asked or sum(map(is_tool_message, first)) * 2 < len(first):
            return 0
        return int(self._query.max_tokens * NAMES_SHARE)

    def _names(self, allowance: int) -> str:
        """Return the names that go with the question and are not in view, as far as a ledger of them is at hand."""
        context, history = self._context, self._history
        folds, offloaded = context.state.compactions, context.state.offloaded
        stop = max(folds[-1].span.stop if folds else 0, offloaded.line if offloaded else 0)
        if not stop:
            return ""
        try:
            context.entries.require(range(stop, context.length))
            items = history.ledger(context.scope, stop).ranked_identifiers(MAX_RANKED)
        except NotInMemoryError:
            return ""
        tail = (message_body(entry.message).text for entry in context.entries_between(stop, context.length))
        folded = (text for fold in folds for text in fold.replacement)
        beside = "\n".join([*tail, *folded, *self._packer.texts])
        return relevant_names(self._query.questions, items, allowance, self._packer.counter, exclude_text=beside)

    async def _with_neighbors(self, found: list[FoundMessage]) -> list[FoundMessage]:
        count = self._query.neighbours
        if not count:
            return found
        listed: list[FoundMessage] = []
        for one in found[: self._query.max_tokens // MIN_TOKENS_PER_MESSAGE]:
            near = [*range(one.position - count, one.position), *range(one.position + 1, one.position + count + 1)]
            listed.append(one)
            others = await self._reader.with_tool_names(await self._reader.read(near))
            listed += [replace(other, is_neighbor=True) for other in others]
        return listed


def _next_query(hits: MessageHits, query: RecallQuery, seen: int) -> RecallQuery | None:
    """Return what to ask for the rest, where there is any."""
    skip = query.skip + seen
    if skip < len(hits.messages):
        if hits.is_by_time and skip:
            left = max(0, query.last - skip)
            return replace(query, skip=0, before=hits.messages[skip - 1].position, last=left)
        return replace(query, skip=skip)
    return None if hits.stopped_at is None else replace(query, skip=0, before=hits.stopped_at)


def _list_names(names: Sequence[str]) -> str:
    """Return the first of some names, and how many there are besides."""
    first = " or ".join(name[:MAX_LISTED_NAME_CHARS] for name in names[:MAX_LISTED_NAMES])
    return first if len(names) <= MAX_LISTED_NAMES else f"{first}, nor {len(names) - MAX_LISTED_NAMES:,} others,"


def _first_notes(notes: Sequence[str]) -> list[str]:
    return [
        *notes[:MAX_LISTED_NAMES],
        *([f"and {len(notes) - MAX_LISTED_NAMES:,} more like this"] if len(notes) > MAX_LISTED_NAMES else []),
    ]


def _has_part(one: FoundMessage, reference: MessageReference) -> bool:
    return reference.part is None or one.body.part_range(reference.part) is not None


def _part_reference(one: FoundMessage, call_id: str) -> MessageReference:
    """Return the reference to the part of a message that answers a call, or makes it."""
    for number, part in enumerate(one.message.parts, 1):
        names = {getattr(part, "call_id", None), getattr(part, "id", None)}
        if call_id in names or (isinstance(part, ToolResult) and is_artifact_of(call_id, part)):
            return MessageReference(one.position, one.position, number if len(one.message.parts) > 1 else None)
    return MessageReference(one.position, one.position)
