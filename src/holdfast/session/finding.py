"""Looks for messages of the past: by words in the store's index, or one by one from the newest back.

What an index finds is only where words stand. The best of it is read, put in order by what was read, and held against
everything else that was asked: a literal text, a role, a tool, a file, a time. What no index can find (a piece of a
word, a time alone) is looked for message by message, and only so far at once; the answer says how to go on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from holdfast.core.conversation.messages import Message
from holdfast.core.history.answers import Answers
from holdfast.core.history.artifacts import PREFIX, is_named
from holdfast.core.history.recall.asking import Recall
from holdfast.core.history.recall.packing import Found
from holdfast.core.history.recall.ranking import (
    PAIR_FACTOR,
    SPEAKER_FACTOR,
    fused,
    has_pair,
    in_order,
    is_by_whom,
    pairs_of,
    questions_of,
    spread,
    telling_words,
)
from holdfast.errors import MalformedInputError
from holdfast.session.indexing import IN_PART
from holdfast.session.moments import time_asked
from holdfast.session.rereading import Rereader
from holdfast.stores.base import Store

HITS, MAX_HITS = 256, 4_096
"""How many places an index is asked for; more where most of them are not for this agent to see."""
READ, LEAST_READ = 64, 24
"""How many of the best are read: of one question, and at least of each of several."""
PAGE, MAX_SCANNED = 128, 4_096
"""How many messages are looked at one by one, at a time and in all."""
MAX_CALLS_SCANNED = 32_768
"""How far back the id of a call is looked for: no index has it."""
TOKENS_PER_MESSAGE = 12
"""No message is shown in less."""
MAX_TOLD = 3
NO_WORDS = "has no words that could be looked for; give some, or a ref such as #12, or last"


@dataclass(slots=True)
class Findings:
    """What was found, the best first."""

    found: list[Found] = field(default_factory=list[Found])
    count: int = 0
    """How many there are, read or not, as far as they were looked for."""
    is_by_time: bool = False
    """Whether they were looked for one by one, the newest first."""
    stopped_at: int | None = None
    """Where a look from message to message has stopped before its end."""


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The places that one question found, by how well they fit."""

    question: str
    own: Mapping[int, float]
    lent: Mapping[int, float]
    """With what neighbours lend each other."""


class Finder:
    """Looks for one agent in one session."""

    def __init__(
        self, store: Store, session: str, reader: Rereader, own: Answers, in_view: frozenset[int] = frozenset()
    ) -> None:
        self._store = store
        self._own = own
        """Which messages are recall's own calls and answers."""
        self._session = session
        self._reader = reader
        self._context = reader.context
        self._in_view = in_view
        """What stands in view anyway: it comes last."""

    async def search(self, asking: Recall) -> Findings:
        """Return what fits a question, the best first; where only a time or a role is asked for, the newest first."""
        span = await self._span(asking)
        if not (asking.questions or asking.text or asking.file or asking.tool):
            return await self._scan(asking, span, asking.last or None)
        findings = await self._indexed(asking, span)
        if not findings.found and asking.text:
            return await self._scan(asking, span, None)
        return findings

    async def call(self, call_id: str) -> Found | None:
        """Return the newest message that answers a call, by its id or as an artifact, or makes it."""
        made = None
        last = max(self._context.standing.cleared_at, self._context.length - MAX_CALLS_SCANNED)
        for start in range(self._context.length, last, -PAGE):
            for one in await self._reader.read(range(start - 1, max(last - 1, start - 1 - PAGE), -1)):
                if call_id in one.message.outline.result_ids or _is_artifact(one, call_id):
                    return one
                if call_id in one.message.outline.call_ids:
                    made = made or one
        return made

    # By the index.

    async def _indexed(self, asking: Recall, span: range) -> Findings:
        asked = [part for question in asking.questions for part in questions_of(question)]
        rankings = [await self._ranking(question, span) for question in asked or self._instead(asking)]
        share = max(LEAST_READ, self._wanted(asking) // max(1, len(rankings)))
        best = dict.fromkeys(position for one in rankings for position in self._best(one, span, share))
        found = await self._reader.read(list(best))
        if asking.tool or asking.file:
            found = await self._reader.named(found)
        read = {one.position: one for one in found if _is_asked(one, asking)}
        is_lent = bool(asking.tool or asking.file)
        scores = [_scores(one, read, is_lent=is_lent) for one in rankings]
        orders = [in_order(_near_the_best(one, asking.least_share)) for one in scores]
        order = orders[0] if len(orders) == 1 else in_order(fused(orders))
        hits = {position for one in rankings for position in one.own}
        await self._note_parts(span, read)
        is_filtered = bool(asking.text or asking.role or asking.tool or asking.file)
        return Findings(
            [read[position] for position in self._unseen_first(order)], len(read) if is_filtered else len(hits)
        )

    async def _note_parts(self, span: range, read: Mapping[int, Found]) -> None:
        """Tell which messages are too long for all of their words to be in the index, and were not found."""
        long = await self._store.search(IN_PART, session=self._session, limit=HITS, start=span.start, stop=span.stop)
        missed = sorted(hit.position for hit in long if hit.position not in read and self._may_be_found(hit.position))
        if missed:
            names = ", ".join(f"#{position}" for position in missed[:MAX_TOLD])
            more = f" and {len(missed) - MAX_TOLD} more" if len(missed) > MAX_TOLD else ""
            self._reader.notes.append(f"not all words of {names}{more} were searched: look there by a literal text")

    def _instead(self, asking: Recall) -> list[str]:
        """Return what is looked for where there is no question: the words of all else that has some."""
        words = " ".join(part for part in (asking.text, asking.file, asking.tool) if part)
        return [words] if telling_words(words) else []

    def _wanted(self, asking: Recall) -> int:
        return max(READ, asking.skip + asking.max_tokens // TOKENS_PER_MESSAGE)

    async def _ranking(self, question: str, span: range) -> _Ranking:
        words = telling_words(question)
        limit, visible = HITS, dict[int, float]()
        while words and limit <= MAX_HITS:
            hits = await self._store.search(words, session=self._session, limit=limit, start=span.start, stop=span.stop)
            visible = {hit.position: hit.score for hit in hits if self._may_be_found(hit.position)}
            if len(hits) < limit or len(visible) >= HITS // 2:
                break
            limit *= 4
        return _Ranking(question, visible, spread(visible))

    def _best(self, ranking: _Ranking, span: range, most: int) -> list[int]:
        """Return the places worth reading: what is not in view first, and nothing that is not for this agent to see."""
        order = self._unseen_first(in_order(ranking.lent))
        return list(islice((place for place in order if place in span and self._may_be_found(place)), most))

    def _may_be_found(self, position: int) -> bool:
        """Return whether a message is this agent's to see and nothing that recall itself has said."""
        return self._context.recalls(position) and not self._own.are_recalls(position)

    def _unseen_first(self, order: Sequence[int]) -> list[int]:
        return sorted(order, key=self._in_view.__contains__)

    # One by one.

    async def _scan(self, asking: Recall, span: range, most: int | None) -> Findings:
        findings = Findings(is_by_time=True)
        enough = asking.skip + self._wanted(asking) if most is None else most
        last = max(span.start, span.stop - MAX_SCANNED)
        for start in range(span.stop, last, -PAGE):
            places = range(start - 1, max(last - 1, start - 1 - PAGE), -1)
            page = await self._reader.read([place for place in places if self._may_be_found(place)])
            if asking.tool or asking.file:
                page = await self._reader.named(page)
            findings.found += [one for one in page if _is_asked(one, asking)]
            if len(findings.found) >= enough:
                break
        else:
            findings.stopped_at = last if last > span.start else None
        findings.found = findings.found[:enough]
        findings.count = len(findings.found)
        return findings

    # When.

    async def _span(self, asking: Recall) -> range:
        """Return the positions that are looked through: behind a clear, and between two times."""
        first, last = self._context.standing.cleared_at, self._context.length
        if asking.before:
            last = min(last, asking.before)
        if asking.last and (asking.questions or asking.text or asking.file or asking.tool):
            first = max(first, last - asking.last)
        if asking.since:
            first = await self._first_at(time_asked("recall.since", asking.since), first, last)
        if asking.until:
            last = await self._first_at(time_asked("recall.until", asking.until, is_end=True), first, last)
        return range(first, max(first, last))

    async def _first_at(self, time_ms: int, first: int, last: int) -> int:
        """Return the first position that was recorded at a time or later: a log is written in the order of time."""
        while first < last:
            middle = (first + last) // 2
            if await self._reader.time_of(middle) < time_ms:
                first = middle + 1
            else:
                last = middle
        return first


def _scores(ranking: _Ranking, read: Mapping[int, Found], *, is_lent: bool) -> dict[int, float]:
    """Return what was read with its scores: in talk neighbours help each other, and so does being by who is named.

    A result seldom has the words of its call: where calls are what is looked for, `is_lent`, they help it too.
    """
    scores: dict[int, float] = {}
    pairs = pairs_of(ranking.question)
    for position, one in read.items():
        score = (ranking.own if is_work(one) and not is_lent else ranking.lent).get(position, 0.0)
        if score:
            by_whom = SPEAKER_FACTOR if is_by_whom(one.message.text, [ranking.question]) else 1.0
            scores[position] = score * by_whom * (PAIR_FACTOR if pairs and has_pair(one.body.text, pairs) else 1.0)
    return scores


def _near_the_best(scores: Mapping[int, float], least_share: float) -> Mapping[int, float]:
    """Return scores without those that are far below the best."""
    least = least_share * max(scores.values(), default=0.0)
    return {position: score for position, score in scores.items() if score >= least}


def _is_artifact(one: Found, name: str) -> bool:
    return name.startswith(PREFIX) and any(is_named(name, result) for result in one.message.results)


def is_work(one: Found) -> bool:
    """Return whether a message is a call or a result rather than talk."""
    return bool(one.message.outline.call_ids or one.message.outline.result_ids)


def _is_asked(one: Found, asking: Recall) -> bool:
    """Return whether a message is what was asked for."""
    if asking.role and not _is_by(one.message, asking.role):
        return False
    if asking.tool and asking.tool.lower() not in one.tool.lower().split(", "):
        return False
    texts = [text for _, text in one.pieces]
    if asking.text and not any(asking.text.lower() in text.lower() for text in texts):
        return False
    return not asking.file or asking.file in one.about or any(asking.file in text for text in texts)


def _is_by(message: Message, role: str) -> bool:
    """Return whether a message is by somebody; formats file what a tool returned under their own roles."""
    if role == "tool":
        return message.role == "tool" or bool(message.outline.result_ids)
    return message.role == role and (role != "user" or message.speaker in {"user", "task"})


def check_words(asking: Recall) -> None:
    """Raise where a question has nothing to look for."""
    for question in asking.questions:
        if not telling_words(question):
            raise MalformedInputError("recall.query", f"{question!r:.60} {NO_WORDS}")
