"""What a reader of a long chat can still reach: all messages that a question needs, in view or by one recall.

A message counts as *whole* if its text is verbatim in the request or in the answer of the recall. It counts as
*located* if it is whole, or if the answer has a passage of it with the rare words that the answer to the question
needs.
"""

import asyncio
import re
from collections import Counter as Tally
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.memory.bm25 import GrowingBm25
from benchmarks.memory.figures import Figures, add_pair
from benchmarks.recall import (
    COUNTER,
    RecordedClock,
    fitting_positions,
    message_token_count,
    newest_positions,
)
from holdfast import Session
from holdfast.apps.lab.identifiers import extract_orders
from holdfast.apps.lab.metrics.retention import SHORT_PROMPT_TOKENS
from holdfast.apps.lab.recordings import read_recording
from holdfast.core.history.events import CompactionCompleted, CompactionStarted, Event, SummaryWritten
from holdfast.stores.search_terms import index_words
from holdfast.testing.chat import JsonMessage

PINNED_SHARE = 0.75
RARE_SHARE = 0.02
"""A word is rare if at most this share of the messages has it."""
MIN_RARE_MESSAGES = 3
NUMBERED_CATEGORIES = frozenset({1, 2, 3, 4})
"""The categories of LoCoMo with an answer; 1 are the questions that need several turns."""
OVERVIEWS = frozenset({"summarization", "event_ordering"})
"""Questions over a whole chat, reported apart."""
_EXCERPT = re.compile(r"(?m)^#(\d+)\S* (?:user|assistant)\b.*:$")


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a chat, with the indices of the messages that its answer needs."""

    text: str
    answer: str
    evidence: tuple[int, ...]
    category: int | str
    """As the recording names it."""
    group: str
    """`questions`, `several` for those that need several turns too, or `overviews`."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a way of keeping a chat shows: a text, and the positions of whole messages."""

    text: str = ""
    whole: frozenset[int] = frozenset()
    passages: Mapping[int, str] | None = None

    def holds(self, index: int, text: str) -> bool:
        """Return whether a message is whole."""
        return index in self.whole or bool(self.text and text in self.text)


def questions(record: Mapping[str, Any]) -> list[Question]:
    """Return the questions whose evidence is complete."""
    places = {message.get("x_id"): index for index, message in enumerate(record["messages"])}
    found: list[Question] = []
    for probe in record["probes"]:
        category, names = probe["category"], probe["evidence"]
        evidence = tuple(places[name] for name in names if name in places)
        if not evidence or len(evidence) != len(names):
            continue
        if isinstance(category, int):
            if category not in NUMBERED_CATEGORIES:
                continue
            group = "several" if category == 1 else "questions"
        elif category in OVERVIEWS:
            group = "overviews"
        else:
            group = "several" if len(evidence) > 1 else "questions"
        found.append(Question(probe["question"], str(probe.get("answer") or ""), evidence, category, group))
    return found


async def measure_chat(record: Mapping[str, Any], folder: Path, budget: int, answer_tokens: int) -> Figures:
    """Return the figures of one chat; the request and the answer of the recall share the budget.

    Where an answer may grow, nothing of the budget is set aside for it: it has what the request leaves.
    """
    natives, figures = read_recording(record).messages, Figures()
    texts = [str(native["content"]) for native in natives]
    rare = _RareWords(texts)
    async with (
        _replayed_session(record, folder, budget - answer_tokens) as (session, view),
        _replayed_session(record, folder, budget) as (growing_session, growing_view),
    ):
        tool, growing = session.recall_tool(max_tokens=answer_tokens), growing_session.recall_tool()
        baselines = _Baselines(natives, texts, budget, answer_tokens)
        for question in questions(record):
            answer, grown = await tool.call({"query": question.text}), await growing.call({"query": question.text})
            grown_tokens = COUNTER.count(growing_view) + COUNTER.count(grown)
            add_pair(figures, "grown tokens", grown_tokens, budget)
            add_pair(figures, "grown over", grown_tokens > budget)
            shown = {
                "": Shown(f"{view}\n{answer}", passages=_passages(answer)),
                "view ": Shown(view),
                "grown ": Shown(f"{growing_view}\n{grown}"),
                **baselines.shown(question.text),
            }
            for way, what in shown.items():
                _add_question(figures, way, question, what, rare)
    add_pair(figures, "fill", COUNTER.count(view), budget - answer_tokens)
    for text in (text for text, native in zip(texts, natives, strict=True) if native["role"] == "user"):
        if COUNTER.count(text) <= SHORT_PROMPT_TOKENS:
            add_pair(figures, "short", text in view)
        for order in extract_orders(text):
            add_pair(figures, "orders", order in view)
    return figures


@asynccontextmanager
async def _replayed_session(record: Mapping[str, Any], folder: Path, room: int) -> AsyncGenerator[tuple[Session, str]]:
    """Open a session, replay a chat in it, and yield it with the text of its last request."""
    clock = RecordedClock(1_600_000_000_000)
    url = f"sqlite:///{folder}/{record['id']}-{room}.db"
    async with Session.open(record["id"], store=url, model="gpt-5", clock=clock) as session:
        yield session, await replay_chat(session, read_recording(record).messages, clock, room)


async def replay_chat(session: Session, natives: Sequence[JsonMessage], clock: RecordedClock, room: int) -> str:
    """Record a chat, prepare each request of it, and return the text of the one after its end.

    A summary that a request has started ends before the next message.
    """
    no_summary_runs = idle_summarizer(session)
    for native in natives:
        if native["role"] == "assistant" and len(session):
            await session.prepare(room, has_recall=True)
            await no_summary_runs.wait()
        clock.advance_to(str(native["content"]))
        await session.record([native])
    await session.record([{"role": "user", "content": "?"}])
    request = await session.prepare(room, has_recall=True)
    return "\n".join(str(native["content"]) for native in request.messages[:-1])


def idle_summarizer(session: Session) -> asyncio.Event:
    """Return an event that is set as long as no summary of the session is being written."""
    no_summary_runs = asyncio.Event()
    no_summary_runs.set()

    def note(event: Event) -> None:
        if isinstance(event, CompactionStarted):
            no_summary_runs.clear()
        else:
            no_summary_runs.set()

    session.on(note, CompactionStarted.KIND, SummaryWritten.KIND, CompactionCompleted.KIND)
    return no_summary_runs


def _add_question(figures: Figures, way: str, question: Question, shown: Shown, rare: "_RareWords") -> None:
    whole = [shown.holds(index, rare.texts[index]) for index in question.evidence]
    located = [
        is_whole or rare.has_needed((shown.passages or {}).get(index, ""), index, question.answer)
        for is_whole, index in zip(whole, question.evidence, strict=True)
    ]
    names = ["questions", "several"] if question.group == "several" else [question.group]
    for name in names:
        add_pair(figures, f"{way}{name}", all(whole))
        if not way:
            add_pair(figures, f"{name} located", all(located))


class _Baselines:
    """What simple ways of keeping a chat show."""

    def __init__(self, natives: Sequence[JsonMessage], texts: Sequence[str], budget: int, answer_tokens: int) -> None:
        self._natives = natives
        self._answer_tokens = answer_tokens
        self._newest = newest_positions(natives, budget - answer_tokens)
        self._pinned = pinned_positions(natives, budget - answer_tokens)
        self._index = GrowingBm25()
        for text in texts:
            self._index.add(text)

    def shown(self, question: str) -> dict[str, Shown]:
        """Return what each baseline shows for a question."""
        order = self._index.ranked(question)

        def with_found(kept: set[int]) -> Shown:
            return Shown(whole=frozenset(kept | fitting_positions(order, self._natives, kept, self._answer_tokens)))

        return {"newest + BM25 ": with_found(self._newest), "pinned + BM25 ": with_found(self._pinned)}


def pinned_positions(natives: Sequence[JsonMessage], room: int) -> set[int]:
    """Return the user's turns, the shortest first, in three quarters of the room, and the newest other messages."""
    pinned_room, kept = int(room * PINNED_SHARE), set[int]()
    costs = [message_token_count(native) for native in natives]
    for index in sorted(range(len(natives)), key=lambda index: costs[index]):
        if natives[index]["role"] == "user" and costs[index] <= pinned_room:
            pinned_room, room = pinned_room - costs[index], room - costs[index]
            kept.add(index)
    for index in range(len(natives) - 1, -1, -1):
        if (room := room - (0 if index in kept else costs[index])) < 0:
            break
        kept.add(index)
    return kept


class _RareWords:
    """The words of a chat that few of its messages have."""

    def __init__(self, texts: Sequence[str]) -> None:
        held = Tally(word for text in texts for word in set(index_words(text)))
        most = max(MIN_RARE_MESSAGES, int(RARE_SHARE * len(texts)))
        self.texts = texts
        self._words = {word for word, count in held.items() if count <= most}

    def has_needed(self, passage: str, index: int, answer: str) -> bool:
        """Return whether a passage of a message has all rare words that the answer shares with the message."""
        needed = set(index_words(answer)) & set(index_words(self.texts[index])) & self._words
        return bool(passage and needed) and needed <= set(index_words(passage))


def _passages(answer: str) -> dict[int, str]:
    """Return the texts of an answer of recall, by the position of their message."""
    headings = list(_EXCERPT.finditer(answer))
    stops = [heading.start() for heading in headings[1:]] + [len(answer)]
    found: dict[int, str] = {}
    for heading, stop in zip(headings, stops, strict=True):
        position = int(heading[1])
        found[position] = f"{found.get(position, '')}\n{answer[heading.end() : stop]}"
    return found
