"""Answers one recall query for one agent of one session, within a token budget.

A query names references, searches, or compares two readings of a file. A reading is the result of a tool call that read
a file and wrote nothing. Two references name both readings. One reference names the newer, and the older is searched
for. A path means the two newest readings of that file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile

from holdfast.core.conversation.messages import ToolResult
from holdfast.core.conversation.tokens import Counter
from holdfast.core.history.context import Context
from holdfast.core.ledger.actions import call_outcome
from holdfast.core.ledger.identifiers import argument_value
from holdfast.core.ledger.ledger import Ledger
from holdfast.core.ledger.names import RankedName
from holdfast.core.ledger.tool_calls import describe_call
from holdfast.core.recall.answer import (
    ExcerptPacker,
    RecallAnswer,
    answer_references,
    excerpt_at,
    pack_references,
    pack_search,
    past_end_note,
)
from holdfast.core.recall.artifacts import is_artifact_of
from holdfast.core.recall.diff import MAX_DIFF_LINES, FileDiff, FileReading, diff_lines, lines_within
from holdfast.core.recall.passages import FoundMessage, message_body
from holdfast.core.recall.query import RecallQuery
from holdfast.core.recall.ranking import MAX_RANKED, relevant_names
from holdfast.core.recall.references import MessageReference, line_count
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import MalformedInputError, NotInMemoryError, UnknownReferenceError
from holdfast.session.heavy_work import plan_in_thread
from holdfast.session.log.event_log import SessionLog
from holdfast.session.recall.search import (
    MAX_READ_MESSAGES,
    MIN_TOKENS_PER_MESSAGE,
    MessageFinder,
    MessageHits,
    MessageReader,
    is_tool_message,
)

NAMES_SHARE = 0.4
"""The share of an answer about tool calls that names may fill."""
MIN_TOOL_LOOKUPS = 24
"""For at least this many hits, the tool names are looked up."""
MAX_LISTED_NAMES, MAX_LISTED_NAME_CHARS = 3, 60
"""How many missing references a note lists, and how many characters of each."""
REFERENCE_PAGE_MESSAGES = 32
"""How many messages of a long range are read at a time."""
COMPARED_READINGS = 2
READING_SEARCH_TOKENS = 10_000
"""The token budget of the search for readings, which is not part of the answer."""
DIFFERENT_LINES_NOTE = "the two readings are of different lines of the file"


async def answer_recall(
    session_log: SessionLog,
    context: Context,
    query: RecallQuery,
    model: str | None,
    in_view: frozenset[int] = frozenset(),
) -> RecallAnswer:
    """Return the answer to a query within its token budget; after the best messages, those in view come last."""
    counter, allowance = counter_for(model), query.max_tokens
    # A plan in a thread may extend the ledger while this answer is written, so only the lock's holder reads it.
    async with session_log.lock:

        def read_ledger() -> tuple[Mapping[str, float], Sequence[RankedName]]:
            ledger = _compacted_ledger(session_log, context)
            if ledger is None:
                return {}, []
            return ledger.role_factors(), ledger.names.ranked(MAX_RANKED) if query.questions else []

        role_factors, names = await plan_in_thread(read_ledger)
    while True:
        reader = MessageReader(session_log, context)
        finder = MessageFinder(reader, in_view, role_factors)
        if query.diff:
            return await _ReadingComparer(reader, finder).compare(query, counter)
        answerer = _RecallAnswerer(reader, finder, query, ExcerptPacker(counter, allowance), names)
        answer = await (answerer.answer_references() if query.refs else answerer.answer_search())
        excess = counter.count(str(answer)) - query.max_tokens
        if excess <= 0 or not answer.excerpts:
            return answer
        # The text around the excerpts needs more tokens than were reserved for it.
        allowance -= excess + 1


def _compacted_before(context: Context) -> int:
    """Return the position before which messages were compacted or shortened; 0 if none were."""
    compactions, offloaded = context.state.compactions, context.state.offloaded
    return max(compactions[-1].span.stop if compactions else 0, offloaded.line if offloaded else 0)


def _compacted_ledger(session_log: SessionLog, context: Context) -> Ledger | None:
    """Return a ledger with the messages that are not in view any more; None if there are none, or not in memory."""
    stop = _compacted_before(context)
    if not stop:
        return None
    try:
        context.entries.require(range(stop, context.length))
        return session_log.history.ledger_covering(context.scope, stop)
    except NotInMemoryError:
        return None


class _RecallAnswerer:
    """Answers one query for one agent by references or by a search."""

    def __init__(
        self,
        reader: MessageReader,
        finder: MessageFinder,
        query: RecallQuery,
        packer: ExcerptPacker,
        compacted_names: Sequence[RankedName],
    ) -> None:
        self._reader, self._finder = reader, finder
        self._context = reader.context
        self._query, self._packer = query, packer
        self._compacted_names = compacted_names

    # Answers by reference.

    async def answer_references(self) -> RecallAnswer:
        """Return the messages that references name, in their order, as far as the budget allows."""
        references, missing = self._query.references[self._query.skip :], list[str]()
        left, done = list[MessageReference](), 0
        for number, reference in enumerate(references):
            rest, exists = await self._take_reference(reference)
            if not exists:
                missing.append(str(reference))
            if rest:
                left, done = [*rest, *references[number + 1 :]], number + 1
                break
        notes = self._reader.notes
        if missing and not self._packer.excerpts and not left and not notes:
            raise UnknownReferenceError(missing[0][:MAX_LISTED_NAME_CHARS])
        if (more_notes := len(notes) - MAX_LISTED_NAMES) > 0:
            notes = [*notes[:MAX_LISTED_NAMES], f"and {more_notes:,} more like this"]
        if missing:
            notes = [*notes, f"there is no message {_list_names(missing)} here"]
        more = len(left) - len(references) + done
        return answer_references(left, self._query, self._packer, notes, rest=left[:more], skip=done)

    async def _take_reference(self, reference: MessageReference) -> tuple[list[MessageReference], bool]:
        """Pack the messages of a reference; return what did not fit, and whether the reference exists."""
        if not reference.is_position:
            return await self._take_call(reference)
        exists = False
        for page in self._visible_pages(reference):
            read = await self._reader.read(page, with_tools=True)
            found = [one for one in read if one.body.part_range(reference.part)]
            # One that cannot be read exists too: a note says that its content is gone.
            exists = exists or bool(found) or len(read) < len(page)
            notes = [past_end_note(reference, one) for one in found]
            self._reader.notes += filter(None, notes)
            wanted = [(reference, one) for one, note in zip(found, notes, strict=True) if not note]
            if left := pack_references(wanted, self._packer):
                rest = MessageReference(page[-1] + 1, reference.last)
                return [*left, *([rest] if rest.first <= rest.last else [])], True
        return await self._take_call(reference) if reference.call_id and not exists else ([], exists)

    async def _take_call(self, reference: MessageReference) -> tuple[list[MessageReference], bool]:
        """Pack the result of a call, named by its id or by its artifact."""
        one = await self._finder.find_call(reference.call_id)
        if one is None:
            return [], False
        target = replace(_part_reference(one, reference.call_id), span=reference.span)
        return pack_references([(target, one)], self._packer), True

    def _visible_pages(self, reference: MessageReference) -> Iterator[list[int]]:
        """Yield the positions of a reference that this agent may see, one page at a time."""
        span = range(reference.first, min(reference.last + 1, self._context.length))
        visible = filter(self._context.is_recallable, span)
        while page := list(islice(visible, REFERENCE_PAGE_MESSAGES)):
            yield page

    # Answers by search.

    async def answer_search(self) -> RecallAnswer:
        """Return what a search finds, the best first, as far as the budget allows."""
        query, packer = self._query, self._packer
        hits = await self._finder.search(query)
        names_allowance = self._names_allowance(hits)
        packer.remaining_tokens -= names_allowance
        rest = hits.messages[query.skip :]
        first = await self._reader.with_tool_names(
            rest[: max(MIN_TOOL_LOOKUPS, query.max_tokens // MIN_TOKENS_PER_MESSAGE // 2)]
        )
        listed = await self._with_neighbors([*first, *rest[len(first) :]])
        done = await plan_in_thread(partial(pack_search, listed, query, packer))
        packed = {one.position for one in listed[:done]}
        packed_count = sum(1 for _ in takewhile(lambda one: one.position in packed, rest))
        more = _next_query(hits, query.shortened(), packed_count)
        more = more.with_doubled_budget() if more and not packer.excerpts else more
        own_count = sum(not excerpt.is_neighbor for excerpt in packer.excerpts)
        notes = list(self._reader.notes)
        if more and more.before == hits.stopped_at:
            notes.append(f"messages before #{hits.stopped_at} were not looked at yet")
        return RecallAnswer(
            excerpts=packer.excerpts_by_day(),
            found_count=max(hits.total, own_count),
            names=self._names(names_allowance + max(0, packer.remaining_tokens)) if names_allowance else "",
            notes=tuple(notes),
            next_query=more,
            query=query,
        )

    def _names_allowance(self, hits: MessageHits) -> int:
        """Return the token budget for names: 0 unless most hits are tool messages, and 0 for later pages."""
        first = hits.messages[:MAX_READ_MESSAGES]
        is_asked = bool(self._query.questions) and self._query.is_unseen_first and not self._query.skip
        if not is_asked or sum(map(is_tool_message, first)) * 2 < len(first):
            return 0
        return int(self._query.max_tokens * NAMES_SHARE)

    def _names(self, allowance: int) -> str:
        """Return names of compacted messages that match the query and are not in view."""
        if not self._compacted_names:
            return ""
        context = self._context
        newest = context.entries_between(_compacted_before(context), context.length)
        tail = (message_body(entry.message).text for entry in newest)
        summaries = (text for compaction in context.state.compactions for text in compaction.replacement)
        in_view = "\n".join([*tail, *summaries, *(excerpt.text for excerpt in self._packer.excerpts)])
        questions, counter = self._query.questions, self._packer.counter
        return relevant_names(questions, self._compacted_names, allowance, counter, exclude_text=in_view)

    async def _with_neighbors(self, found: list[FoundMessage]) -> list[FoundMessage]:
        count = self._query.neighbours
        if not count:
            return found
        listed: dict[int, FoundMessage] = {}  # what is near two results comes once, where it comes first
        for one in found[: self._query.max_tokens // MIN_TOKENS_PER_MESSAGE]:
            listed.setdefault(one.position, one)
            near = [*range(one.position - count, one.position), *range(one.position + 1, one.position + count + 1)]
            for other in await self._reader.read([place for place in near if place not in listed], with_tools=True):
                listed[other.position] = replace(other, is_neighbor=True)
        return [*listed.values()]


def _next_query(hits: MessageHits, query: RecallQuery, packed_count: int) -> RecallQuery | None:
    """Return the query for the next page, or None if there is none."""
    skip = query.skip + packed_count
    if skip < len(hits.messages):
        if hits.is_by_time and skip:
            left = max(0, query.last - skip)
            return replace(query, skip=0, before=hits.messages[skip - 1].position, last=left)
        return replace(query, skip=skip)
    return None if hits.stopped_at is None else replace(query, skip=0, before=hits.stopped_at)


def _list_names(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    first = " or ".join(name[:MAX_LISTED_NAME_CHARS] for name in names[:MAX_LISTED_NAMES])
    return first if len(names) <= MAX_LISTED_NAMES else f"{first}, nor {len(names) - MAX_LISTED_NAMES:,} others,"


def _part_reference(one: FoundMessage, call_id: str) -> MessageReference:
    """Return the reference to the part of a message that answers a call or makes it."""
    for number, part in enumerate(one.message.parts, 1):
        names = {getattr(part, "call_id", None), getattr(part, "id", None)}
        if call_id in names or (isinstance(part, ToolResult) and is_artifact_of(call_id, part)):
            return MessageReference(one.position, one.position, number if len(one.message.parts) > 1 else None)
    return MessageReference(one.position, one.position)


class _ReadingComparer:
    """Finds and compares readings of files for one agent."""

    def __init__(self, reader: MessageReader, finder: MessageFinder) -> None:
        self._reader = reader
        self._finder = finder

    async def compare(self, query: RecallQuery, counter: Counter) -> RecallAnswer:
        """Return the difference between the two readings that a query means."""
        before, after = await self._find_pair(query)
        for reading in (before, after):
            if line_count(reading.text) > MAX_DIFF_LINES:
                raise MalformedInputError(
                    "recall.diff", f"{reading.ref} is too long to compare; name lines, as #12:L1-L900"
                )
        lines, notes = diff_lines(before, after), tuple(self._reader.notes)
        if before.path == after.path and before.lines != after.lines:
            notes += (DIFFERENT_LINES_NOTE,)
        rest, allowance = lines[query.skip :], query.max_tokens
        while True:
            part = lines_within(rest, counter, allowance)
            diff = FileDiff(before, after, "\n".join(part), len(part), len(lines))
            more = replace(query, skip=query.skip + len(part)) if len(part) < len(rest) else None
            more = more.with_doubled_budget() if more and not part else more
            answer = RecallAnswer(found_count=COMPARED_READINGS, diff=diff, notes=notes, next_query=more, query=query)
            excess = counter.count(str(answer)) - query.max_tokens
            if excess <= 0 or not part:
                return answer
            allowance -= excess

    async def _find_pair(self, query: RecallQuery) -> tuple[FileReading, FileReading]:
        """Return the two readings that a query means, in its own order if it names both, otherwise the older first."""
        references = query.references if query.refs else []
        if len(references) == COMPARED_READINGS:
            return await self._reading_at(references[0]), await self._reading_at(references[1])
        if references:
            newer, others = await self._reading_at(references[0]), list[FileReading]()
            if not newer.path:
                raise MalformedInputError("recall.diff", f"{newer.ref} is no reading of a file; give two refs")
        else:
            found = await self._readings_before(query.file, query.before or None)
            if len(found) < COMPARED_READINGS:
                raise MalformedInputError("recall.diff", f"{query.file} was not read twice here")
            newer, *others = found
        older = await self._readings_before(newer.path, newer.position, newer.lines) or others
        if not older:
            raise MalformedInputError("recall.diff", f"{newer.path} was not read before {newer.ref}")
        return older[0], newer

    async def _reading_at(self, reference: MessageReference) -> FileReading:
        if reference.is_position:
            read = await self._reader.read([reference.first], with_tools=True)
            one = read[0] if read else None
        else:
            one = await self._finder.find_call(reference.call_id)
        if one is None:
            raise UnknownReferenceError(str(reference)[:60])
        whole = [
            reading
            for reading in self._readings_in(one)
            if reference.part is None or reading.ref.endswith(f".{reference.part}")
        ]
        if len(whole) == 1 and reference.span is None:
            return whole[0]
        excerpt = excerpt_at(replace(reference, first=one.position, last=one.position), one)
        path, lines = (whole[0].path, whole[0].lines) if len(whole) == 1 else ("", None)
        return FileReading(str(replace(reference, call_id="")), one.position, excerpt.text, one.time, path, lines)

    async def _readings_before(
        self, file: str, stop: int | None, lines: tuple[int, int] | None = None
    ) -> list[FileReading]:
        """Return the readings of a file before a position: those of the same lines first, then the newest first."""
        query = RecallQuery(file=file, before=stop or 0, max_tokens=READING_SEARCH_TOKENS)
        found = await self._reader.with_tool_names((await self._finder.search(query)).messages)
        readings = [reading for one in found for reading in self._readings_in(one)]
        return sorted(
            (one for one in readings if one.path == file or one.path.endswith(f"/{file}")),
            key=lambda one: (stop is not None and one.lines != lines, -one.position),
        )

    def _readings_in(self, one: FoundMessage) -> Iterator[FileReading]:
        calls = {call.id: call for call in self._reader.answered_calls(one)}
        for number, part in enumerate(one.message.parts, 1):
            if not isinstance(part, ToolResult) or part.call_id not in calls:
                continue
            call = calls[part.call_id]
            action = describe_call(call, argument_value(call.arguments), one.position)
            if action.kind == "file" and not action.is_write and call_outcome(action, part).is_ok:
                ref = f"#{one.position}.{number}" if len(one.message.parts) > 1 else f"#{one.position}"
                yield FileReading(ref, one.position, part.text, one.time, action.subject, action.lines)
