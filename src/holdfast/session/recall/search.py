"""Reads and searches the recorded messages that an agent may see, without caching them in the history.

Each message that is read comes with its time and its tool name. A result does not name its tool, so the reader searches
earlier messages for the call. A note reports a message whose content is lost; the other messages are still read.

A search goes by words in the store's index, or one by one from the newest message back. The index returns only
positions. The best of them are read, ranked by their content, and filtered by the rest of the query: a literal text, a
role, a tool, a file, a time. Queries that the index cannot answer (a part of a word, a time alone) scan message by
message, up to a limit; the answer then says how to continue.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast
from unicodedata import normalize

from holdfast.core.conversation.messages import Message, ToolCall
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.history.scopes import label_trust
from holdfast.core.ledger.identifiers import argument_text
from holdfast.core.recall.artifacts import is_artifact_of
from holdfast.core.recall.passages import FoundMessage, readings_of
from holdfast.core.recall.query import RecallQuery
from holdfast.core.recall.ranking import (
    PAIR_FACTOR,
    SPEAKER_FACTOR,
    contains_pair,
    fuse_rankings,
    is_by_named_speaker,
    name_number_pairs,
    rank_positions,
    search_words,
    split_questions,
    spread_scores,
)
from holdfast.errors import MalformedInputError, MissingBlobError
from holdfast.session.heavy_work import plan_in_thread
from holdfast.session.log.event_log import SessionLog
from holdfast.session.log.index_text import PARTLY_INDEXED_MARK
from holdfast.session.log.records import inline_blob, message_in_record
from holdfast.session.log.timestamps import format_time_utc, parse_time
from holdfast.stores.base import SearchHit, StoredRecord
from holdfast.wire.formats import format_named

CALL_LOOKBACK_STEPS = (2, 6, 24)
"""How many messages before a result are searched for its call, in successive steps."""
INDEX_HITS, MAX_INDEX_HITS = 256, 4_096
"""How many index hits are requested; more if this agent may not see most of them."""
MAX_READ_MESSAGES, MIN_READ_PER_QUESTION = 64, 24
"""How many of the best hits are read for one question, and the minimum for each of several questions."""
SCAN_PAGE_MESSAGES, MAX_SCANNED_MESSAGES = 128, 4_096
"""How many messages are scanned one by one, per page and in all."""
MAX_CALLS_SCANNED = 32_768
"""How many messages are scanned for the id of a call, which is not indexed."""
MIN_TOKENS_PER_MESSAGE = 12
"""The smallest excerpt."""
MAX_LISTED_POSITIONS = 3
REPEATED_BEST = 20
"""How many of the best hits an answer begins with, also if they are in view; in a chat, about a thousand tokens."""


class MessageReader:
    """Reads messages for one agent, each message once."""

    def __init__(self, session_log: SessionLog, context: Context) -> None:
        self.log = session_log
        self.context = context
        self.notes: list[str] = []
        self._loaded: dict[int, FoundMessage | None] = {}

    async def read(self, positions: Sequence[int], *, with_tools: bool = False) -> list[FoundMessage]:
        """Return the messages at some positions that the agent may recall, in that order."""
        await self._load(positions)
        found = self._loaded_at(positions)
        return await self.with_tool_names(found) if with_tools else found

    async def with_tool_names(self, found: Sequence[FoundMessage]) -> list[FoundMessage]:
        """Return messages with the names and the arguments of their tool calls."""
        positions = [one.position for one in found]
        for before, after in zip((0, *CALL_LOOKBACK_STEPS), CALL_LOOKBACK_STEPS, strict=False):
            nameless = [one for one in self._loaded_at(positions) if one.message.outline.result_ids and not one.tool]
            if not nameless:
                break
            await self._load(near for one in nameless for near in range(one.position - after, one.position - before))
            for one in nameless:
                calls = self._loaded_calls(one, after)
                names = dict.fromkeys(call.name for call in calls)
                arguments = "\n".join(argument_text(call.arguments) for call in calls)
                self._loaded[one.position] = replace(one, tool=", ".join(names), call_arguments=arguments)
        return self._loaded_at(positions)

    async def recorded_time(self, position: int) -> int:
        """Return when a message was recorded."""
        records = await self.log.message_records([position])
        return records[0][1].time_ms if records else 0

    def answered_calls(self, one: FoundMessage) -> list[ToolCall]:
        """Return the calls whose results a message holds, after `with_tool_names`."""
        return self._loaded_calls(one, CALL_LOOKBACK_STEPS[-1])

    def _loaded_at(self, positions: Iterable[int]) -> list[FoundMessage]:
        return [one for position in positions if (one := self._loaded.get(position)) is not None]

    def _loaded_calls(self, one: FoundMessage, distance: int) -> list[ToolCall]:
        ids = set(one.message.outline.result_ids)
        before = self._loaded_at(range(max(0, one.position - distance), one.position))
        return [call for found in before for call in found.message.calls if call.id in ids]

    async def _load(self, positions: Iterable[int]) -> None:
        new = [
            position
            for position in dict.fromkeys(positions)
            if position >= 0 and position not in self._loaded and self.context.is_recallable(position)
        ]
        self._loaded |= dict.fromkeys(new)
        for position, stored in await self.log.message_records(new):
            try:
                message = await self._read_message(position, stored)
            except (MissingBlobError, MalformedInputError):
                self.notes.append(f"the content of #{position} is gone from the store or cannot be read")
                continue
            names = dict.fromkeys(call.name for call in message.calls)
            time = format_time_utc(stored.time_ms)
            self._loaded[position] = FoundMessage(position, message, stored.time_ms, time, ", ".join(names))

    async def _read_message(self, position: int, stored: StoredRecord) -> Message:
        self.log.require_content([position])
        entry = self.context.entries.get(position)
        if entry is not None:
            return entry.message
        name, native = message_in_record(await inline_blob(self.log.store, stored.record))
        message = self.log.history.recall_marks.mark(format_named(name).decode(native, position), position)
        data = cast("Mapping[str, object]", stored.record.get("data") or {})
        return label_trust(message, data.get("scope", log.MAIN), data.get("trust"))


class MessageHits(NamedTuple):
    """The messages that a search found, the best first."""

    messages: list[FoundMessage]
    total: int
    """How many messages match as far as the search went, whether they were read or not."""
    is_by_time: bool = False
    """Whether the messages were scanned one by one, the newest first."""
    stopped_at: int | None = None
    """The position at which a scan stopped early."""


class _QuestionHits(NamedTuple):
    """The positions that one question found, with their scores."""

    question: str
    scores: Mapping[int, float]
    spread_scores: Mapping[int, float]
    """The scores after each message has raised those of its neighbors."""


class MessageFinder:
    """Searches one session for one agent."""

    def __init__(self, reader: MessageReader, in_view: frozenset[int], role_factors: Mapping[str, float]) -> None:
        """`role_factors` are the weights of roles in plain conversation; other roles have the weight 1."""
        self._reader = reader
        self._role_factors = role_factors
        self._context = reader.context
        self._in_view = in_view
        """The positions in view, which are ranked last."""
        self._recall_only = reader.log.history.recall_marks.recall_only

    async def search(self, query: RecallQuery) -> MessageHits:
        """Return messages that match a query, the best first; the newest first if it names only a time or a role."""
        span = await self._search_range(query)
        if not (query.questions or query.text or query.file or query.tool):
            return await self._scan(query, span, query.last or None)
        hits = await self._search_index(query, span)
        return hits if hits.messages or not query.text else await self._scan(query, span, None)

    async def find_call(self, call_id: str) -> FoundMessage | None:
        """Return the newest message that answers a call, named by its id or artifact, or else that makes it."""
        found: FoundMessage | None = None
        last = max(self._context.state.cleared_at, self._context.length - MAX_CALLS_SCANNED)
        for page in _pages_back(self._context.length, last):
            read = await self._reader.read(page)
            if answer := next((one for one in read if _answers_call(one.message, call_id)), None):
                found = answer
                break
            found = found or next((one for one in read if call_id in one.message.outline.call_ids), None)
        return (await self._reader.with_tool_names([found]))[0] if found else None

    # Search by the index.

    async def _search_index(self, query: RecallQuery, span: range) -> MessageHits:
        asked = [part for question in query.questions for part in split_questions(question)]
        if not asked:
            words = " ".join(filter(None, (query.text, query.file, query.tool)))
            asked = [words] if search_words(words) else []
        rankings = [await self._question_hits(question, span) for question in asked]
        share = max(MIN_READ_PER_QUESTION, _read_limit(query) // max(1, len(rankings)))
        best = dict.fromkeys(position for one in rankings for position in self._best_positions(one, span, share))
        by_tool = bool(query.tool or query.file)
        found = await self._reader.read(list(best), with_tools=by_tool)

        def score() -> tuple[dict[int, FoundMessage], list[dict[int, float]]]:
            read = {one.position: one for one in found if _matches_filters(one, query)}
            return read, [
                self._scores(one, read, uses_spread=by_tool, least_share=query.least_share) for one in rankings
            ]

        read, scores = await plan_in_thread(score)  # the messages may be long
        orders = list(map(rank_positions, scores))
        order = rank_positions(fuse_rankings(orders))
        hits = {position for one in rankings for position in one.scores}
        await self._note_partly_indexed(span, read)
        total = len(read) if query.text or query.role or by_tool else len(hits)
        return MessageHits([read[position] for position in self._best_then_unseen(order, read)], total)

    def _scores(
        self, ranking: _QuestionHits, read: Mapping[int, FoundMessage], *, uses_spread: bool, least_share: float
    ) -> dict[int, float]:
        """Return the scores of messages that were read, without those far below the best.

        In plain conversation, neighbors, a speaker that the question names, and the role that says less raise a score.
        A result seldom contains the words of its call, so with `uses_spread` calls raise the scores of their results
        too.
        """
        scores: dict[int, float] = {}
        pairs = name_number_pairs(ranking.question)
        for position, one in read.items():
            is_talk = not is_tool_message(one)
            raw_scores = ranking.spread_scores if is_talk or uses_spread else ranking.scores
            if score := raw_scores.get(position):
                if is_by_named_speaker(one.message.text, [ranking.question]):
                    score *= SPEAKER_FACTOR
                if is_talk:
                    score *= self._role_factors.get(one.message.role, 1.0)
                scores[position] = score * (PAIR_FACTOR if pairs and contains_pair(one.body.text, pairs) else 1.0)
        least = least_share * max(scores.values(), default=0.0)
        return {position: score for position, score in scores.items() if score >= least}

    async def _note_partly_indexed(self, span: range, read: Mapping[int, FoundMessage]) -> None:
        """Add a note about messages that were not found and of which not all words are indexed."""
        long = await self._index_hits(PARTLY_INDEXED_MARK, span, INDEX_HITS)
        missed = sorted(hit.position for hit in long if hit.position not in read and self._is_findable(hit.position))
        if missed:
            names = ", ".join(f"#{position}" for position in missed[:MAX_LISTED_POSITIONS])
            more = f" and {len(missed) - MAX_LISTED_POSITIONS} more" if len(missed) > MAX_LISTED_POSITIONS else ""
            self._reader.notes.append(f"not all words of {names}{more} were searched: look there by a literal text")

    async def _index_hits(self, words: str, span: range, limit: int) -> Sequence[SearchHit]:
        store, session = self._reader.log.store, self._reader.log.session
        return await store.search(words, session=session, limit=limit, start=span.start, stop=span.stop)

    async def _question_hits(self, question: str, span: range) -> _QuestionHits:
        words = search_words(question)
        limit, visible = INDEX_HITS, dict[int, float]()
        while words and limit <= MAX_INDEX_HITS:
            hits = await self._index_hits(words, span, limit)
            visible = {hit.position: hit.score for hit in hits if self._is_findable(hit.position)}
            if len(hits) < limit or len(visible) >= INDEX_HITS // 2:
                break
            limit *= 4
        return _QuestionHits(question, visible, spread_scores(visible))

    def _best_positions(self, ranking: _QuestionHits, span: range, limit: int) -> list[int]:
        """Return the positions to read that this agent may see: the best, then those out of view."""
        order = [at for at in rank_positions(ranking.spread_scores) if at in span and self._is_findable(at)]
        return list(dict.fromkeys([*order[: limit // 2], *self._unseen_first(order)]))[:limit]

    def _is_findable(self, position: int) -> bool:
        """Return whether this agent may see a message and it holds more than recall's own calls and answers."""
        return self._context.is_recallable(position) and position not in self._recall_only

    def _best_then_unseen(self, order: Sequence[int], read: Mapping[int, FoundMessage]) -> list[int]:
        """Return positions with the best hits first, then those out of view.

        A reader finds an answer sooner in a few messages beside the question than far up in its context. Tool messages
        in view are not repeated: they are long, and an agent has just worked with them.
        """
        best = order[:REPEATED_BEST]
        first = [at for at in best if at not in self._in_view or not is_tool_message(read[at])]
        return list(dict.fromkeys([*first, *self._unseen_first(order)]))

    def _unseen_first(self, order: Sequence[int]) -> list[int]:
        return sorted(order, key=self._in_view.__contains__)

    # Scan one by one.

    async def _scan(self, query: RecallQuery, span: range, limit: int | None) -> MessageHits:
        enough = query.skip + _read_limit(query) if limit is None else limit
        last = max(span.start, span.stop - MAX_SCANNED_MESSAGES)
        found: list[FoundMessage] = []
        for positions in _pages_back(span.stop, last):
            findable = list(filter(self._is_findable, positions))
            page = await self._reader.read(findable, with_tools=bool(query.tool or query.file))
            found += [one for one in page if _matches_filters(one, query)]
            if len(found) >= enough:
                stopped_at = None
                break
        else:
            stopped_at = last if last > span.start else None
        return MessageHits(found[:enough], min(enough, len(found)), is_by_time=True, stopped_at=stopped_at)

    # Limit by time.

    async def _search_range(self, query: RecallQuery) -> range:
        """Return the positions to search: those after a clear, and between two times."""
        first, last = self._context.state.cleared_at, self._context.length
        if query.before:
            last = min(last, query.before)
        if query.last and (query.questions or query.text or query.file or query.tool):
            first = max(first, last - query.last)
        if query.since:
            first = await self._first_position_at(parse_time("recall.since", query.since), first, last)
        if query.until:
            last = await self._first_position_at(parse_time("recall.until", query.until, is_end=True), first, last)
        return range(first, max(first, last))

    async def _first_position_at(self, time_ms: int, first: int, last: int) -> int:
        """Return the first position that was recorded at a time or later; positions are in the order of time."""
        while first < last:
            middle = (first + last) // 2
            if await self._reader.recorded_time(middle) < time_ms:
                first = middle + 1
            else:
                last = middle
        return first


def _pages_back(stop: int, last: int) -> Iterator[range]:
    """Yield the positions before `stop`, down to `last`, page by page from the newest back."""
    for start in range(stop, last, -SCAN_PAGE_MESSAGES):
        yield range(start - 1, max(last, start - SCAN_PAGE_MESSAGES) - 1, -1)


def _read_limit(query: RecallQuery) -> int:
    return max(MAX_READ_MESSAGES, query.skip + query.max_tokens // MIN_TOKENS_PER_MESSAGE)


def _answers_call(message: Message, call_id: str) -> bool:
    return call_id in message.outline.result_ids or any(is_artifact_of(call_id, result) for result in message.results)


def is_tool_message(one: FoundMessage) -> bool:
    """Return whether a message is a tool call or a result rather than plain conversation."""
    return bool(one.message.outline.call_ids or one.message.outline.result_ids)


def _matches_filters(one: FoundMessage, query: RecallQuery) -> bool:
    if query.role and not _is_from(one.message, query.role):
        return False
    if query.tool and query.tool.lower() not in one.tool.lower().split(", "):
        return False
    if not query.text and not query.file:
        return True
    # A letter and its accent may be one character or two.
    texts = [
        reading.text if reading.text.isascii() else normalize("NFC", reading.text)
        for _, text in one.searchable_texts
        for reading in readings_of(text)
    ]
    literal, file = normalize("NFC", query.text).lower(), normalize("NFC", query.file)
    if literal and not any(literal in text.lower() for text in texts):
        return False
    return not file or file in normalize("NFC", one.call_arguments) or any(file in text for text in texts)


def _is_from(message: Message, role: str) -> bool:
    """Return whether a message has a role; some formats give tool results their own role."""
    if role == "tool":
        return message.role == "tool" or bool(message.outline.result_ids)
    return message.role == role and (role != "user" or message.speaker in {"user", "task"})


def check_query_words(query: RecallQuery) -> None:
    """Raise if a question has no words to search for."""
    for question in query.questions:
        if not search_words(question):
            problem = "has no words that could be looked for; give some, or a ref such as #12, or last"
            raise MalformedInputError("recall.query", f"{question!r:.60} {problem}")
