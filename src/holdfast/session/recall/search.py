"""Searches recorded messages: by words in the store's index, or one by one from the newest back.

The index returns only positions. The best of them are read, ranked by their content, and filtered by the rest of the
query: a literal text, a role, a tool, a file, a time. Queries that the index cannot answer (a part of a word, a time
alone) scan message by message, up to a limit; the answer then says how to continue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from holdfast.core.conversation.messages import Message
from holdfast.core.history.recall_marks import RecallMarks
from holdfast.core.recall.artifacts import ARTIFACT_PREFIX, is_artifact_of
from holdfast.core.recall.packing import FoundMessage
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
from holdfast.errors import MalformedInputError
from holdfast.session.log.index_text import PARTLY_INDEXED_MARK
from holdfast.session.log.timestamps import parse_time
from holdfast.session.recall.reader import MessageReader
from holdfast.stores.base import Store

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
NO_WORDS_PROBLEM = "has no words that could be looked for; give some, or a ref such as #12, or last"


@dataclass(slots=True)
class MessageHits:
    """The messages that a search found, the best first."""

    messages: list[FoundMessage] = field(default_factory=list[FoundMessage])
    total: int = 0
    """How many messages match as far as the search went, whether they were read or not."""
    is_by_time: bool = False
    """Whether the messages were scanned one by one, the newest first."""
    stopped_at: int | None = None
    """The position at which a scan stopped early."""


@dataclass(frozen=True, slots=True)
class _QuestionHits:
    """The positions that one question found, with their scores."""

    question: str
    scores: Mapping[int, float]
    spread_scores: Mapping[int, float]
    """The scores after each message has raised those of its neighbors."""


class MessageFinder:
    """Searches one session for one agent."""

    def __init__(
        self,
        store: Store,
        session: str,
        reader: MessageReader,
        recall_marks: RecallMarks,
        in_view: frozenset[int] = frozenset(),
    ) -> None:
        self._store = store
        self._recall_marks = recall_marks
        """Which messages are recall's own calls and answers."""
        self._session = session
        self._reader = reader
        self._context = reader.context
        self._in_view = in_view
        """The positions in view, which are ranked last."""

    async def search(self, query: RecallQuery) -> MessageHits:
        """Return messages that match a query, the best first; the newest first if it names only a time or a role."""
        span = await self._search_range(query)
        if not (query.questions or query.text or query.file or query.tool):
            return await self._scan(query, span, query.last or None)
        findings = await self._search_index(query, span)
        if not findings.messages and query.text:
            return await self._scan(query, span, None)
        return findings

    async def find_call(self, call_id: str) -> FoundMessage | None:
        """Return the newest message that answers a call, named by its id or artifact, or else that makes it."""
        made = None
        last = max(self._context.state.cleared_at, self._context.length - MAX_CALLS_SCANNED)
        for start in range(self._context.length, last, -SCAN_PAGE_MESSAGES):
            for one in await self._reader.read(range(start - 1, max(last - 1, start - 1 - SCAN_PAGE_MESSAGES), -1)):
                if call_id in one.message.outline.result_ids or _is_artifact(one, call_id):
                    return one
                if call_id in one.message.outline.call_ids:
                    made = made or one
        return made

    # Search by the index.

    async def _search_index(self, query: RecallQuery, span: range) -> MessageHits:
        asked = [part for question in query.questions for part in split_questions(question)]
        rankings = [await self._question_hits(question, span) for question in asked or self._fallback_questions(query)]
        share = max(MIN_READ_PER_QUESTION, self._read_limit(query) // max(1, len(rankings)))
        best = dict.fromkeys(position for one in rankings for position in self._best_positions(one, span, share))
        found = await self._reader.read(list(best))
        if query.tool or query.file:
            found = await self._reader.with_tool_names(found)
        read = {one.position: one for one in found if _matches_filters(one, query)}
        is_lent = bool(query.tool or query.file)
        scores = [_scores(one, read, uses_spread=is_lent) for one in rankings]
        orders = [rank_positions(_drop_low_scores(one, query.least_share)) for one in scores]
        order = orders[0] if len(orders) == 1 else rank_positions(fuse_rankings(orders))
        hits = {position for one in rankings for position in one.scores}
        await self._note_partly_indexed(span, read)
        is_filtered = bool(query.text or query.role or query.tool or query.file)
        return MessageHits(
            [read[position] for position in self._unseen_first(order)], len(read) if is_filtered else len(hits)
        )

    async def _note_partly_indexed(self, span: range, read: Mapping[int, FoundMessage]) -> None:
        """Add a note about messages that were not found and of which not all words are indexed."""
        long = await self._store.search(
            PARTLY_INDEXED_MARK, session=self._session, limit=INDEX_HITS, start=span.start, stop=span.stop
        )
        missed = sorted(hit.position for hit in long if hit.position not in read and self._is_findable(hit.position))
        if missed:
            names = ", ".join(f"#{position}" for position in missed[:MAX_LISTED_POSITIONS])
            more = f" and {len(missed) - MAX_LISTED_POSITIONS} more" if len(missed) > MAX_LISTED_POSITIONS else ""
            self._reader.notes.append(f"not all words of {names}{more} were searched: look there by a literal text")

    def _fallback_questions(self, query: RecallQuery) -> list[str]:
        """Return questions for a query that asks none: the words of its other fields."""
        words = " ".join(part for part in (query.text, query.file, query.tool) if part)
        return [words] if search_words(words) else []

    def _read_limit(self, query: RecallQuery) -> int:
        return max(MAX_READ_MESSAGES, query.skip + query.max_tokens // MIN_TOKENS_PER_MESSAGE)

    async def _question_hits(self, question: str, span: range) -> _QuestionHits:
        words = search_words(question)
        limit, visible = INDEX_HITS, dict[int, float]()
        while words and limit <= MAX_INDEX_HITS:
            hits = await self._store.search(words, session=self._session, limit=limit, start=span.start, stop=span.stop)
            visible = {hit.position: hit.score for hit in hits if self._is_findable(hit.position)}
            if len(hits) < limit or len(visible) >= INDEX_HITS // 2:
                break
            limit *= 4
        return _QuestionHits(question, visible, spread_scores(visible))

    def _best_positions(self, ranking: _QuestionHits, span: range, limit: int) -> list[int]:
        """Return the positions to read that this agent may see, those out of view first."""
        order = self._unseen_first(rank_positions(ranking.spread_scores))
        return list(islice((at for at in order if at in span and self._is_findable(at)), limit))

    def _is_findable(self, position: int) -> bool:
        """Return whether this agent may see a message and it holds more than recall's own calls and answers."""
        return self._context.is_recallable(position) and position not in self._recall_marks.recall_only

    def _unseen_first(self, order: Sequence[int]) -> list[int]:
        return sorted(order, key=self._in_view.__contains__)

    # Scan one by one.

    async def _scan(self, query: RecallQuery, span: range, limit: int | None) -> MessageHits:
        findings = MessageHits(is_by_time=True)
        enough = query.skip + self._read_limit(query) if limit is None else limit
        last = max(span.start, span.stop - MAX_SCANNED_MESSAGES)
        for start in range(span.stop, last, -SCAN_PAGE_MESSAGES):
            positions = range(start - 1, max(last - 1, start - 1 - SCAN_PAGE_MESSAGES), -1)
            page = await self._reader.read(list(filter(self._is_findable, positions)))
            if query.tool or query.file:
                page = await self._reader.with_tool_names(page)
            findings.messages += [one for one in page if _matches_filters(one, query)]
            if len(findings.messages) >= enough:
                break
        else:
            findings.stopped_at = last if last > span.start else None
        findings.messages = findings.messages[:enough]
        findings.total = len(findings.messages)
        return findings

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


def _scores(ranking: _QuestionHits, read: Mapping[int, FoundMessage], *, uses_spread: bool) -> dict[int, float]:
    """Return the scores of messages that were read.

    In plain conversation, neighbors and a speaker that the question names raise a score. A result seldom contains the
    words of its call, so with `uses_spread` calls raise the scores of their results too.
    """
    scores: dict[int, float] = {}
    pairs = name_number_pairs(ranking.question)
    for position, one in read.items():
        score = (ranking.scores if is_tool_message(one) and not uses_spread else ranking.spread_scores).get(
            position, 0.0
        )
        if score:
            if is_by_named_speaker(one.message.text, [ranking.question]):
                score *= SPEAKER_FACTOR
            scores[position] = score * (PAIR_FACTOR if pairs and contains_pair(one.body.text, pairs) else 1.0)
    return scores


def _drop_low_scores(scores: Mapping[int, float], least_share: float) -> Mapping[int, float]:
    """Return the scores without those far below the best."""
    least = least_share * max(scores.values(), default=0.0)
    return {position: score for position, score in scores.items() if score >= least}


def _is_artifact(one: FoundMessage, name: str) -> bool:
    return name.startswith(ARTIFACT_PREFIX) and any(is_artifact_of(name, result) for result in one.message.results)


def is_tool_message(one: FoundMessage) -> bool:
    """Return whether a message is a tool call or a result rather than plain conversation."""
    return bool(one.message.outline.call_ids or one.message.outline.result_ids)


def _matches_filters(one: FoundMessage, query: RecallQuery) -> bool:
    if query.role and not _is_from(one.message, query.role):
        return False
    if query.tool and query.tool.lower() not in one.tool.lower().split(", "):
        return False
    texts = [text for _, text in one.searchable_texts]
    if query.text and not any(query.text.lower() in text.lower() for text in texts):
        return False
    return not query.file or query.file in one.call_arguments or any(query.file in text for text in texts)


def _is_from(message: Message, role: str) -> bool:
    """Return whether a message has a role; some formats give tool results their own role."""
    if role == "tool":
        return message.role == "tool" or bool(message.outline.result_ids)
    return message.role == role and (role != "user" or message.speaker in {"user", "task"})


def check_query_words(query: RecallQuery) -> None:
    """Raise if a question has no words to search for."""
    for question in query.questions:
        if not search_words(question):
            raise MalformedInputError("recall.query", f"{question!r:.60} {NO_WORDS_PROBLEM}")
