"""Looks for messages of the past: by words in the store's index, or one by one from the newest back.

What an index finds is only where words stand. The best of it is read, put in order by what was read, and held against
everything else that was asked: a literal text, a role, a tool, a file, a time. What no index can find (a piece of a
word, a time alone) is looked for message by message, and only so far at once; the answer says how to go on.
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
"""How many places an index is asked for; more where most of them are not for this agent to see."""
MAX_READ_MESSAGES, MIN_READ_PER_QUESTION = 64, 24
"""How many of the best are read: of one question, and at least of each of several."""
SCAN_PAGE_MESSAGES, MAX_SCANNED_MESSAGES = 128, 4_096
"""How many messages are looked at one by one, at a time and in all."""
MAX_CALLS_SCANNED = 32_768
"""How far back the id of a call is looked for: no index has it."""
MIN_TOKENS_PER_MESSAGE = 12
"""No message is shown in less."""
MAX_LISTED_POSITIONS = 3
NO_WORDS_PROBLEM = "has no words that could be looked for; give some, or a ref such as #12, or last"


@dataclass(slots=True)
class MessageHits:
    """What was found, the best first."""

    messages: list[FoundMessage] = field(default_factory=list[FoundMessage])
    total: int = 0
    """How many there are, read or not, as far as they were looked for."""
    is_by_time: bool = False
    """Whether they were looked for one by one, the newest first."""
    stopped_at: int | None = None
    """Where a look from message to message has stopped before its end."""


@dataclass(frozen=True, slots=True)
class _QuestionHits:
    """The places that one question found, by how well they fit."""

    question: str
    scores: Mapping[int, float]
    spread_scores: Mapping[int, float]
    """With what neighbours lend each other."""


class MessageFinder:
    """Looks for one agent in one session."""

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
        """What stands in view anyway: it comes last."""

    async def search(self, query: RecallQuery) -> MessageHits:
        """Return what fits a question, the best first; where only a time or a role is asked for, the newest first."""
        span = await self._search_range(query)
        if not (query.questions or query.text or query.file or query.tool):
            return await self._scan(query, span, query.last or None)
        findings = await self._search_index(query, span)
        if not findings.messages and query.text:
            return await self._scan(query, span, None)
        return findings

    async def find_call(self, call_id: str) -> FoundMessage | None:
        """Return the newest message that answers a call, by its id or as an artifact, or makes it."""
        made = None
        last = max(self._context.state.cleared_at, self._context.length - MAX_CALLS_SCANNED)
        for start in range(self._context.length, last, -SCAN_PAGE_MESSAGES):
            for one in await self._reader.read(range(start - 1, max(last - 1, start - 1 - SCAN_PAGE_MESSAGES), -1)):
                if call_id in one.message.outline.result_ids or _is_artifact(one, call_id):
                    return one
                if call_id in one.message.outline.call_ids:
                    made = made or one
        return made

    # By the index.

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
        """Tell which messages are too long for all of their words to be in the index, and were not found."""
        long = await self._store.search(
            PARTLY_INDEXED_MARK, session=self._session, limit=INDEX_HITS, start=span.start, stop=span.stop
        )
        missed = sorted(hit.position for hit in long if hit.position not in read and self._is_findable(hit.position))
        if missed:
            names = ", ".join(f"#{position}" for position in missed[:MAX_LISTED_POSITIONS])
            more = f" and {len(missed) - MAX_LISTED_POSITIONS} more" if len(missed) > MAX_LISTED_POSITIONS else ""
            self._reader.notes.append(f"not all words of {names}{more} were searched: look there by a literal text")

    def _fallback_questions(self, query: RecallQuery) -> list[str]:
        """Return what is looked for where there is no question: the words of all else that has some."""
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
        """Return the places worth reading: what is not in view first, and nothing that is not for this agent to see."""
        order = self._unseen_first(rank_positions(ranking.spread_scores))
        return list(islice((place for place in order if place in span and self._is_findable(place)), limit))

    def _is_findable(self, position: int) -> bool:
        """Return whether a message is this agent's to see and nothing that recall itself has said."""
        return self._context.is_recallable(position) and not self._recall_marks.is_recall_only(position)

    def _unseen_first(self, order: Sequence[int]) -> list[int]:
        return sorted(order, key=self._in_view.__contains__)

    # One by one.

    async def _scan(self, query: RecallQuery, span: range, limit: int | None) -> MessageHits:
        findings = MessageHits(is_by_time=True)
        enough = query.skip + self._read_limit(query) if limit is None else limit
        last = max(span.start, span.stop - MAX_SCANNED_MESSAGES)
        for start in range(span.stop, last, -SCAN_PAGE_MESSAGES):
            places = range(start - 1, max(last - 1, start - 1 - SCAN_PAGE_MESSAGES), -1)
            page = await self._reader.read([place for place in places if self._is_findable(place)])
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

    # When.

    async def _search_range(self, query: RecallQuery) -> range:
        """Return the positions that are looked through: behind a clear, and between two times."""
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
        """Return the first position that was recorded at a time or later: a log is written in the order of time."""
        while first < last:
            middle = (first + last) // 2
            if await self._reader.recorded_time(middle) < time_ms:
                first = middle + 1
            else:
                last = middle
        return first


def _scores(ranking: _QuestionHits, read: Mapping[int, FoundMessage], *, uses_spread: bool) -> dict[int, float]:
    """Return what was read with its scores: in talk neighbours help each other, and so does being by who is named.

    A result seldom has the words of its call: where calls are what is looked for, `is_lent`, they help it too.
    """
    scores: dict[int, float] = {}
    pairs = name_number_pairs(ranking.question)
    for position, one in read.items():
        score = (ranking.scores if is_tool_message(one) and not uses_spread else ranking.spread_scores).get(
            position, 0.0
        )
        if score:
            by_whom = SPEAKER_FACTOR if is_by_named_speaker(one.message.text, [ranking.question]) else 1.0
            scores[position] = score * by_whom * (PAIR_FACTOR if pairs and contains_pair(one.body.text, pairs) else 1.0)
    return scores


def _drop_low_scores(scores: Mapping[int, float], least_share: float) -> Mapping[int, float]:
    """Return scores without those that are far below the best."""
    least = least_share * max(scores.values(), default=0.0)
    return {position: score for position, score in scores.items() if score >= least}


def _is_artifact(one: FoundMessage, name: str) -> bool:
    return name.startswith(ARTIFACT_PREFIX) and any(is_artifact_of(name, result) for result in one.message.results)


def is_tool_message(one: FoundMessage) -> bool:
    """Return whether a message is a call or a result rather than talk."""
    return bool(one.message.outline.call_ids or one.message.outline.result_ids)


def _matches_filters(one: FoundMessage, query: RecallQuery) -> bool:
    """Return whether a message is what was asked for."""
    if query.role and not _is_from(one.message, query.role):
        return False
    if query.tool and query.tool.lower() not in one.tool.lower().split(", "):
        return False
    texts = [text for _, text in one.searchable_texts]
    if query.text and not any(query.text.lower() in text.lower() for text in texts):
        return False
    return not query.file or query.file in one.call_arguments or any(query.file in text for text in texts)


def _is_from(message: Message, role: str) -> bool:
    """Return whether a message is by somebody; formats file what a tool returned under their own roles."""
    if role == "tool":
        return message.role == "tool" or bool(message.outline.result_ids)
    return message.role == role and (role != "user" or message.speaker in {"user", "task"})


def check_query_words(query: RecallQuery) -> None:
    """Raise where a question has nothing to look for."""
    for question in query.questions:
        if not search_words(question):
            raise MalformedInputError("recall.query", f"{question!r:.60} {NO_WORDS_PROBLEM}")
