"""Measures what a model can reach of a long conversation, in view or by one recall, and how fast a search is.

    python -m benchmarks.recall [--chats FILE.jsonl …] [--work FILE.jsonl …] [--long FILE.jsonl … --messages 100000]
        [--json FILE]

`--chats` are conversations with `probes`: questions, each with the ids (`x_id`) of the turns that answer it. A
question counts if all of these are verbatim in the request or in one answer of the recall tool. The request and the
answer share 8,000 tokens, 1,000 of them for the answer. The default policy is compared with the newest messages alone,
and with plain BM25 instead of the tool.

`--work` are recorded tool sessions: of the identifiers in the arguments of a call that were last seen more than 20
messages before, the share in the request at 50,000 tokens, or in one recall whose query is the last text of the
conversation.

The conversations of the files after `--long`, repeated in random order, make one session of `--messages` messages in
SQLite. It times searches and whole recalls, and compares them with FTS5's own ranking of every message that contains
one of the words.
"""

import argparse
import asyncio
import json
import math
import random
import re
import sqlite3
import tempfile
import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.reporting import print_progress, save_figures, verdict
from holdfast import PendingToolCallsError, Session, counter_for
from holdfast.apps.lab.identifiers import extract_identifiers
from holdfast.apps.lab.recordings import read_recording
from holdfast.apps.lab.replay import DEFAULT_STATIC_TOKENS
from holdfast.core.conversation.messages import Message
from holdfast.core.ledger.identifiers import argument_text
from holdfast.core.recall.ranking import search_words
from holdfast.session.recall.search import INDEX_HITS
from holdfast.stores.search_terms import index_words
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.wire.formats import format_named

FAR_MESSAGES = 20
BUDGET, ANSWER_TOKENS, WORK_BUDGET = 8_000, 1_000, 50_000
MULTI_HOP = 1
CATEGORIES = (1, 2, 3, 4)
"""Of LoCoMo; the fifth has no answer."""
K1, B = 1.2, 0.75
TARGETS = {"all": 0.85, "multi-hop": 0.50, "far": 0.98, "search ms": 20.0}
COUNTER = counter_for("gpt-5")
CHAT_FORMAT = format_named("openai-chat")


def read_records(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        yield from (json.loads(line) for line in path.read_text().splitlines() if line.strip())


def message_token_count(native: Mapping[str, object]) -> int:
    return COUNTER.count(str(native.get("content") or "")) + 4


# Questions over a long chat.


@dataclass(slots=True)
class RecordedClock:
    """The time of a recorded chat: that in the heading of each of its parts, and one minute for each message."""

    now: int = 1_700_000_000_000

    def advance_to(self, text: str) -> None:
        """Advance to the time of a message."""
        if found := re.match(r"\[Session \d+, ([^\]]+)\]", text):
            told = datetime.strptime(found[1], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
            self.now = max(self.now + 60_000, int(told.timestamp() * 1000))
        else:
            self.now += 60_000

    def __call__(self) -> int:
        """Return the time in milliseconds."""
        return self.now


@dataclass(slots=True)
class QuestionScore:
    """The results of one method on the questions."""

    hits: list[bool] = field(default_factory=list[bool])
    multi_hop_hits: list[bool] = field(default_factory=list[bool])

    def add(self, *, is_hit: bool, category: int) -> None:
        """Add the result of one question."""
        self.hits.append(is_hit)
        if category == MULTI_HOP:
            self.multi_hop_hits.append(is_hit)

    def figures(self) -> dict[str, float]:
        """Return the shares."""
        return {
            "all": sum(self.hits) / max(1, len(self.hits)),
            "multi-hop": sum(self.multi_hop_hits) / max(1, len(self.multi_hop_hits)),
            "questions": len(self.hits),
        }


async def measure_chats(paths: Sequence[Path], folder: Path) -> dict[str, dict[str, float]]:
    ways = {name: QuestionScore() for name in ("tail", "tail + BM25", "default", "default + recall")}
    for record in read_records(paths):
        await measure_chat(record, folder, ways)
        print_progress(f"{record['id']}: {ways['default + recall'].figures()}")
    return {name: asked.figures() for name, asked in ways.items()}


async def measure_chat(record: Mapping[str, Any], folder: Path, ways: Mapping[str, QuestionScore]) -> None:
    natives = read_recording(record).messages
    texts = [str(native["content"]) for native in natives]
    clock = RecordedClock(1_600_000_000_000)
    url = f"sqlite:///{folder}/{record['id']}.db"
    async with Session.open(record["id"], store=url, model="gpt-5", clock=clock) as session:
        for native, text in zip(natives, texts, strict=True):
            if native["role"] == "assistant" and len(session):
                await session.prepare(BUDGET - ANSWER_TOKENS, has_recall=True)
            clock.advance_to(text)
            await session.record([native])
        await session.record([{"role": "user", "content": "?"}])
        request = await session.prepare(BUDGET - ANSWER_TOKENS, has_recall=True)
        view = "\n".join(str(native["content"]) for native in request.messages)
        tool = session.recall_tool(max_tokens=ANSWER_TOKENS)
        ranked = plain_bm25(texts)
        for question, category, evidence in probes(record):
            wanted = [texts[index] for index in evidence]
            answer = await tool.call({"query": question})
            tail, short = newest_positions(natives, BUDGET), newest_positions(natives, BUDGET - ANSWER_TOKENS)
            found = fitting_positions(ranked(question), natives, short, ANSWER_TOKENS)
            for name, is_hit in (
                ("tail", set(evidence) <= tail),
                ("tail + BM25", set(evidence) <= short | found),
                ("default", all(text in view for text in wanted)),
                ("default + recall", all(text in view or text in answer for text in wanted)),
            ):
                ways[name].add(is_hit=is_hit, category=category)


def probes(record: Mapping[str, Any]) -> Iterator[tuple[str, int, list[int]]]:
    places = {message.get("x_id"): index for index, message in enumerate(record["messages"])}
    for probe in record["probes"]:
        evidence = [places[name] for name in probe["evidence"] if name in places]
        if probe["category"] in CATEGORIES and evidence and len(evidence) == len(probe["evidence"]):
            yield probe["question"], probe["category"], evidence


def newest_positions(natives: Sequence[Mapping[str, object]], allowance: int) -> set[int]:
    start = len(natives)
    while start and (allowance := allowance - message_token_count(natives[start - 1])) >= 0:
        start -= 1
    return set(range(start, len(natives)))


def fitting_positions(
    order: Sequence[int], natives: Sequence[Mapping[str, object]], seen: set[int], allowance: int
) -> set[int]:
    chosen: set[int] = set()
    for index in order:
        cost = message_token_count(natives[index])
        if index not in seen and cost <= allowance:
            allowance -= cost
            chosen.add(index)
    return chosen


def plain_bm25(texts: Sequence[str]) -> Callable[[str], list[int]]:
    """Return a function that ranks texts for a question: BM25 over unchanged words."""
    counts = [Tally(index_words(text)) for text in texts]
    usual = sum(count.total() for count in counts) / max(1, len(counts))
    held = Tally(word for count in counts for word in count)

    def score(index: int, words: set[str]) -> float:
        count = counts[index]
        length = K1 * (1 - B + B * count.total() / usual)
        return sum(
            math.log(1 + (len(texts) - held[word] + 0.5) / (held[word] + 0.5))
            * count[word]
            * (K1 + 1)
            / (count[word] + length)
            for word in words
            if count[word]
        )

    def ranked(question: str) -> list[int]:
        words = set(index_words(question))
        scores = [score(index, words) for index in range(len(texts))]
        return sorted((index for index in range(len(texts)) if scores[index]), key=lambda index: -scores[index])

    return ranked


# Identifiers that are needed again.


@dataclass(slots=True)
class DemandTally:
    """Far demands, those in view, and those after one recall."""

    far: int = 0
    in_view: int = 0
    reached: int = 0
    first: int = 0
    first_in_view: int = 0
    first_reached: int = 0
    seen: set[str] = field(default_factory=set[str])

    def figures(self) -> dict[str, float]:
        """Return the shares."""
        return {
            "demands": self.far,
            "in view": self.in_view / max(1, self.far),
            "with recall": self.reached / max(1, self.far),
            "first in view": self.first_in_view / max(1, self.first),
            "first with recall": self.first_reached / max(1, self.first),
        }


async def measure_work(paths: Sequence[Path], folder: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    total = DemandTally()
    for record in read_records(paths):
        tally = await measure_session(record, folder)
        found[str(record["id"])] = tally.figures()
        for name in ("far", "in_view", "reached", "first", "first_in_view", "first_reached"):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
        print_progress(f"{record['id']}: {tally.figures()}")
    return {**found, "all": total.figures()}


async def measure_session(record: Mapping[str, Any], folder: Path) -> DemandTally:
    tally, last_seen, last_text = DemandTally(), dict[str, int](), ""
    async with Session.open(record["id"], store=f"sqlite:///{folder}/{record['id']}.db", model="gpt-5") as session:
        tool = session.recall_tool(max_tokens=ANSWER_TOKENS)
        for index, native in enumerate(read_recording(record).messages):
            message = CHAT_FORMAT.decode(native, index)
            if message.calls and index:
                names = {name for call in message.calls for name in extract_identifiers(argument_text(call.arguments))}
                far = {name for name in names if index - last_seen.get(name, index) > FAR_MESSAGES}
                view = await view_text(session)
                lost = {name for name in far if name not in view}
                answer = await tool.call({"query": last_text}) if lost and last_text else ""
                count_demands(tally, far, lost, answer)
            await session.record([native])
            last_seen |= dict.fromkeys(extract_identifiers(message_text(message)), index)
            if message.text.strip():
                last_text = message.text
    return tally


def count_demands(tally: DemandTally, far: set[str], lost: set[str], answer: str) -> None:
    for name in far:
        tally.far += 1
        tally.in_view += name not in lost
        tally.reached += name not in lost or name in answer
        if name not in tally.seen:
            tally.seen.add(name)
            tally.first += 1
            tally.first_in_view += name not in lost
            tally.first_reached += name not in lost or name in answer


async def view_text(session: Session) -> str:
    try:
        request = await session.prepare(WORK_BUDGET - DEFAULT_STATIC_TOKENS, has_recall=True)
    except PendingToolCallsError:
        await session.interrupt()
        request = await session.prepare(WORK_BUDGET - DEFAULT_STATIC_TOKENS, has_recall=True)
    return "\n".join(message_text(CHAT_FORMAT.decode(native, index)) for index, native in enumerate(request.messages))


def message_text(message: Message) -> str:
    pieces = [message.text, *(result.text for result in message.results)]
    return "\n".join([*pieces, *(argument_text(call.arguments) for call in message.calls)])


# How fast a search is.


async def measure_speed(paths: Sequence[Path], messages: int, folder: Path) -> dict[str, float]:
    talks = [read_recording(record).messages for record in read_records(paths)]
    natives = [native for talk in talks for native in talk]
    questions = [probe["question"] for record in read_records(paths) for probe in record.get("probes", ())][:100]
    asked = [str(native["content"]) for native in natives if native["role"] == "user" and native.get("content")]
    chance = random.Random(1)
    questions += [text for text in chance.sample(asked, min(len(asked), 100)) if index_words(text)]
    store = SqliteStore(folder / "long.db")
    async with Session.open("long", store=store, model="gpt-5") as session:
        while len(session) < messages:
            await session.record(chance.choice(talks)[: messages - len(session)])
        print_progress(f"{len(session):,} messages are recorded")
        tool = session.recall_tool(max_tokens=ANSWER_TOKENS)
        ours = [await best_of_three_ms(partial(tool.call, {"query": question})) for question in questions]
        search = partial(store.search, session="long", limit=INDEX_HITS)
        alone = [await best_of_three_ms(partial(search, search_words(question))) for question in questions]
        busy = [
            await best_of_three_ms(partial(search, search_words(question)), time.process_time) for question in questions
        ]
    await store.close()
    plain = [time_fts5(folder / "long.db", question) for question in questions[:40]]
    return {
        "messages": messages,
        "questions": len(questions),
        "search median ms": median(alone),
        "search p95 ms": sorted(alone)[int(len(alone) * 0.95)],
        "search median processor ms": median(busy),
        "search p95 processor ms": sorted(busy)[int(len(busy) * 0.95)],
        "recall median ms": median(ours),
        "recall p95 ms": sorted(ours)[int(len(ours) * 0.95)],
        "bm25() median ms": median(plain),
        "bm25() p95 ms": sorted(plain)[int(len(plain) * 0.95)],
    }


async def best_of_three_ms(
    ask: Callable[[], Awaitable[object]], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the best of three times in milliseconds, because other load only adds to them."""
    best = math.inf
    for _ in range(3):
        start = clock()
        await ask()
        best = min(best, clock() - start)
    return best * 1000


def time_fts5(path: Path, question: str) -> float:
    wanted = " OR ".join(f'"{word}"' for word in dict.fromkeys(index_words(question)))
    query = "SELECT rowid, bm25(words) AS score FROM words WHERE words MATCH ? ORDER BY score LIMIT 20"
    connection = sqlite3.connect(path)
    start = time.perf_counter()
    connection.execute(query, (wanted,)).fetchall()
    taken = time.perf_counter() - start
    connection.close()
    return taken * 1000


# What is printed.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", nargs="+", type=Path, default=[])
    parser.add_argument("--work", nargs="+", type=Path, default=[])
    parser.add_argument("--long", nargs="+", type=Path, default=[])
    parser.add_argument("--messages", type=int, default=100_000, help="the number of messages of the long session")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.chats:
            figures["chats"] = asyncio.run(measure_chats(options.chats, folder))
            print_chats(figures["chats"])
        if options.work:
            figures["work"] = asyncio.run(measure_work(options.work, folder))
            print_work(figures["work"])
        if options.long:
            figures["speed"] = asyncio.run(measure_speed(options.long, options.messages, folder))
            print_speed(figures["speed"])
    save_figures(figures, options.json)


def print_chats(figures: Mapping[str, Mapping[str, float]]) -> None:
    head = f"questions with all evidence, {BUDGET:,} tokens"
    print(f"{head:44}{'all':>8}{'multi-hop':>11}")
    for name, row in figures.items():
        print(f"{name:44}{row['all']:>8.3f}{row['multi-hop']:>11.3f}")
    ours = figures["default + recall"]
    is_met = ours["all"] >= TARGETS["all"] and ours["multi-hop"] >= TARGETS["multi-hop"]
    print(f"aim .85 and .50: {verdict(is_met=is_met)} ({ours['questions']:.0f} questions)\n")


def print_work(figures: Mapping[str, Mapping[str, float]]) -> None:
    head = f"far demands, {WORK_BUDGET:,} tokens"
    print(f"{head:30}{'demands':>8}{'in view':>9}{'with recall':>13}{'first use':>18}")
    for name, row in figures.items():
        first = f"{row['first in view']:.3f} → {row['first with recall']:.3f}"
        print(f"{name:30}{row['demands']:>8.0f}{row['in view']:>9.3f}{row['with recall']:>13.3f}{first:>18}")
    print(f"aim .98: {verdict(is_met=figures['all']['with recall'] >= TARGETS['far'])}\n")


def print_speed(figures: Mapping[str, float]) -> None:
    for name, value in figures.items():
        print(f"{name:30}{value:>12,.1f}")
    is_met = figures["search p95 ms"] < TARGETS["search ms"]
    print(f"aim {TARGETS['search ms']:.0f} ms at the 95th percentile: {verdict(is_met=is_met)}")


if __name__ == "__main__":
    main()
