"""Writes what each way of keeping a chat shows a model for each question, so that a real model can answer (M15).

    python -m benchmarks.memory.answers CHATS.jsonl … -o PROMPTS.jsonl [--half judging] [--summarizer URL#NAME]

The file has one object for each chat (`"kind": "ctx"`) and one for each question (`"kind": "q"`), in a fixed order, and
the same chats always give the same file. A machine with a GPU needs only the file: for each question and each arm it
puts the context before the question, lets a model answer in few words, and compares the answer with `a` by token F1.
The arms and their contexts, all within 8,000 tokens except `full` and `oracle`:

- `default`: `view`, the request of the default policy in 7,000 tokens, then `recall`, one answer of 1,000;
- `default_grown`: `view`, then `recall_grown`, an answer that fills the room that the view leaves;
- `view_chrono`: `view`, then `chrono`, the messages of `recall` in order of time under full dates;
- `bm25`: `bm25`, messages of 1,000 tokens by BM25, then `tail7`, the newest messages in 7,000;
- `pinned`: `bm25_pinned`, then `pinned`, the user's messages and the newest others in 7,000;
- `tail`: the newest messages in 8,000; `full`: the whole chat; `oracle`: the messages that the answer needs, alone;
- `summary`: a model's summary of `dropped` before `tail6.5`, the newest messages in 6,500;
- `preset NAME`: the request of another preset in 8,000 tokens, which trims where it has no summarizer;
- with `--summarizer` also `default_summary`: `view_summary`, then `recall_summary`; and `preset NAME_summary`.

`hit` says whether view and recall hold all that the answer needs. `--summarizer` is a model on any server of OpenAI
chat completions. It writes the summaries of the arms that end with `_summary`, and each request waits for them. A row
for each arm (`"kind": "summaries"`) says how many summaries were written, rejected and corrected, how many of the names
and numbers that were said are in view, how many in the summaries nobody had said, and of how many answers all words are
in view without a recall. The sums are printed at the end.
"""

import argparse
import asyncio
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.memory.ask_model import words_of
from benchmarks.memory.bm25 import GrowingBm25
from benchmarks.memory.chats import pinned_positions, questions, replay_chat
from benchmarks.memory.figures import half_of
from benchmarks.recall import RecordedClock, fitting_positions, newest_positions, read_records
from benchmarks.reporting import print_progress
from holdfast import Session
from holdfast.apps.lab.recordings import read_recording
from holdfast.core.history.events import CompactionCompleted
from holdfast.core.planning.policy import PRESETS
from holdfast.core.recall.answer import Excerpt
from holdfast.recall import RecallQuery
from holdfast.testing.chat import JsonMessage

BUDGET, ANSWER_TOKENS, SUMMARY_TOKENS = 8_000, 1_000, 1_500
START_MS = 1_600_000_000_000
WORD = re.compile(r"\w+")
FACT = re.compile(r"(?<=[a-z,;] )[A-Z]\w+|\b\d+\b(?!\])(?<!#)")
"""A name within a sentence, or a number."""


async def write_chat(record: Mapping[str, Any], folder: Path, *, summarizer: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of one chat: its contexts, then its questions."""
    natives = read_recording(record).messages
    texts = [str(native["content"]) for native in natives]
    tail, tail7 = newest_positions(natives, BUDGET), newest_positions(natives, BUDGET - ANSWER_TOKENS)
    tail_beside = newest_positions(natives, BUDGET - SUMMARY_TOKENS)
    pinned = pinned_positions(natives, BUDGET - ANSWER_TOKENS)
    index = GrowingBm25()
    for text in texts:
        index.add(text)
    rows: list[dict[str, Any]] = []

    def joined(positions: set[int] | Sequence[int]) -> str:
        return "\n".join(texts[position] for position in sorted(positions))

    clock = RecordedClock(START_MS)
    url = f"sqlite:///{folder}/{record['id']}.db"
    async with Session.open(str(record["id"]), store=url, model="gpt-5", clock=clock) as session:
        view = await replay_chat(session, natives, clock, BUDGET - ANSWER_TOKENS)
        tool, growing = session.recall_tool(max_tokens=ANSWER_TOKENS), session.recall_tool()
        for question in questions(record):
            order, arguments = index.ranked(question.text), {"query": question.text}
            recall = await tool.call(arguments)
            found = await session.recall(RecallQuery.from_arguments(arguments, max_tokens=ANSWER_TOKENS))
            wanted = [texts[position] for position in question.evidence]
            rows.append(
                {
                    "kind": "q",
                    "chat": record["id"],
                    "half": half_of(record),
                    "q": question.text,
                    "a": question.answer,
                    "cat": question.category,
                    "recall": recall,
                    "recall_grown": await growing.call(arguments),
                    "chrono": in_order_of_time(found.excerpts),
                    "bm25": joined(fitting_positions(order, natives, tail7, ANSWER_TOKENS)),
                    "bm25_pinned": joined(fitting_positions(order, natives, pinned, ANSWER_TOKENS)),
                    "oracle": joined(question.evidence),
                    "hit": all(text in view or text in recall for text in wanted),
                }
            )
    contexts = {
        "full": "\n".join(texts),
        "tail": joined(tail),
        "tail7": joined(tail7),
        "tail6.5": joined(tail_beside),
        "dropped": joined(set(range(len(texts))) - tail_beside),
        "pinned": joined(pinned),
        "view": view,
    }
    writers = (None, summarizer) if summarizer else (None,)
    replays = [PolicyReplay(record, natives, name, writer) for writer in writers for name in PRESETS]
    await asyncio.gather(*(replay.run(rows) for replay in replays))
    contexts |= {replay.context: replay.view for replay in replays}
    counts = [replay.counts(rows) for replay in replays] if summarizer else []
    return [{"kind": "ctx", "chat": record["id"], "ctx": contexts}, *rows, *counts]


class PolicyReplay:
    """A chat under one policy, with a model that writes its summaries if there is one."""

    def __init__(
        self, record: Mapping[str, Any], natives: Sequence[JsonMessage], policy: str, summarizer: str | None
    ) -> None:
        suffix = "_summary" if summarizer else ""
        self.arm = f"default{suffix}" if policy == "default" else f"preset {policy}{suffix}"
        self.context = f"view{suffix}" if policy == "default" else self.arm
        """The name of what the arm shows without a recall."""
        self.view = ""
        self._record, self._natives, self._policy, self._summarizer = record, natives, policy, summarizer
        self._changes: list[CompactionCompleted] = []

    async def run(self, rows: Sequence[dict[str, Any]]) -> None:
        """Set `view` to the request at the end of the chat; with a summarizer and the default, also add each recall."""
        clock, room = RecordedClock(START_MS), BUDGET - ANSWER_TOKENS if self._policy == "default" else BUDGET
        opened = Session.open(
            str(self._record["id"]), model="gpt-5", policy=self._policy, clock=clock, summarizer=self._summarizer
        )
        async with opened as session:
            self.view = await replay_chat(session, self._natives, clock, room)
            self._changes = [event for event in await session.events() if isinstance(event, CompactionCompleted)]
            if self._policy == "default" and self._summarizer:
                tool = session.recall_tool(max_tokens=ANSWER_TOKENS)
                for row in rows:
                    row["recall_summary"] = await tool.call({"query": row["q"]})

    def counts(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what the policy and its summarizer did to the chat."""
        texts = [str(native["content"]) for native in self._natives]
        said = set(WORD.findall("\n".join(texts)))
        names = {name for text in texts for name in FACT.findall(text)}
        written = [event.summary for event in self._changes if event.success and event.summary.by_model is not None]
        facts = [fact for summary in written for fact in FACT.findall(summary.text)]
        seen, seen_words = set(words_of(self.view)), set(WORD.findall(self.view))
        return {
            "kind": "summaries",
            "chat": self._record["id"],
            "arm": self.arm,
            "written": len(written),
            "by_rule": sum(event.success for event in self._changes) - len(written),
            "rejected": [event.error for event in self._changes if not event.success],
            "put_back": sum(len(summary.put_back) for summary in written),
            "names": len(names),
            "names_in_view": len(names & seen_words),
            "facts": len(facts),
            "invented": sorted({fact for fact in facts if fact not in said}),
            "answers_in_view": sum(seen.issuperset(words_of(str(row["a"]))) for row in rows),
            "questions": len(rows),
        }


def print_counts(counts: Sequence[Mapping[str, Any]]) -> None:
    """Print what each policy and its summarizer did, over all chats, and why summaries were rejected."""
    columns = ("written", "by_rule", "rejected", "put_back", "facts", "invented")
    print(f"{'arm':28}{''.join(f'{name:>10}' for name in columns)}{'names':>8}{'answers':>9}   in view")
    for arm in dict.fromkeys(count["arm"] for count in counts):
        rows = [count for count in counts if count["arm"] == arm]
        sums = [sum(v if isinstance(v := row[name], int) else len(v) for row in rows) for name in columns]
        names = sum(row["names_in_view"] for row in rows) / max(1, sum(row["names"] for row in rows))
        answers = sum(row["answers_in_view"] for row in rows) / max(1, sum(row["questions"] for row in rows))
        print(f"{arm:28}{''.join(f'{found:>10,}' for found in sums)}{names:>8.3f}{answers:>9.3f}")
        for reason, times in Counter(reason for row in rows for reason in row["rejected"]).most_common():
            print(f"    {times:,} × {reason}")


def in_order_of_time(excerpts: Sequence[Excerpt]) -> str:
    """Return excerpts from the oldest to the newest, each day under its full date."""
    return "\n".join(_dated_lines(sorted(excerpts, key=lambda one: (one.time_ms, one.position))))


def _dated_lines(excerpts: Sequence[Excerpt]) -> Iterator[str]:
    day = ""
    for excerpt in excerpts:
        told = datetime.fromtimestamp(excerpt.time_ms / 1000, UTC)
        if (today := f"{told.day} {told:%B %Y}") != day:
            day = today
            yield f"{day}:"
        yield excerpt.text


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chats", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--half", choices=("tuning", "judging"), help="only one half")
    parser.add_argument("--summarizer", metavar="URL#NAME", help="a model that writes summaries")
    options = parser.parse_args()
    counts: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, options.output.open("w", encoding="utf-8") as output:
        for record in read_records(options.chats):
            if options.half in {None, half_of(record)}:
                rows = await write_chat(record, Path(folder), summarizer=options.summarizer)
                output.writelines(json.dumps(row) + "\n" for row in rows)
                counts += [row for row in rows if row["kind"] == "summaries"]
                print_progress(str(record["id"]))
    if counts:
        print_counts(counts)


if __name__ == "__main__":
    asyncio.run(main())
