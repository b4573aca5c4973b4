"""Writes what each way of keeping a chat shows a model for each question, so that a real model can answer (M15).

    python -m benchmarks.memory.answers CHATS.jsonl … -o PROMPTS.jsonl [--half judging] [--summarizer URL#NAME]
        [--jobs 16]

The file has one object for each chat (`"kind": "ctx"`) and one for each question (`"kind": "q"`), in a fixed order, and
without a summarizer the same chats always give the same file. A machine with a GPU needs only the file: for each
question and each arm it puts the context before the question, lets a model answer in few words, and compares the answer
with `a` by token F1. The arms, all within 8,000 tokens except `full` and `oracle`:

- `default` and `preset NAME`: the request of the policy in 7,000 tokens, then its recall, one answer of 1,000; presets
  trim where they have no summarizer;
- with `--summarizer` also `default_summary` and `preset NAME_summary`, whose summaries a model writes;
- each of these with ` alone` after its name: the same request without the recall;
- `default_grown`: the default's request, then `recall_grown`, an answer that fills the room that the request leaves;
- `view_chrono`: the default's request, then `chrono`, the messages of its recall in order of time under full dates;
- `bm25`: `bm25`, messages of 1,000 tokens by BM25, then `tail7`, the newest messages in 7,000;
- `pinned`: `bm25_pinned`, then `pinned`, the user's messages and the newest others in 7,000;
- `tail`: the newest messages in 8,000; `full`: the whole chat; `oracle`: the messages that the answer needs, alone;
- `summary`: a model's summary of `dropped` before `tail6.5`, the newest messages in 6,500.

`evidence` names the arms that show everything that the answer needs. `--summarizer` is a model on any server of OpenAI
chat completions; each request waits for its summary. Each policy replays each chat in a process of its own, so a server
that writes several replies at once is well used. A row for each policy (`"kind": "summaries"`) says how many summaries
were written, rejected and corrected, how many of the names and numbers that were said are in view, how many in the
summaries nobody had said, and of how many answers all words are in view without a recall. The sums are printed at the
end.
"""

import argparse
import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from multiprocessing import Pool
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.memory.ask_model import words_of
from benchmarks.memory.bm25 import GrowingBm25
from benchmarks.memory.chats import Question, pinned_positions, questions, replay_chat
from benchmarks.memory.figures import half_of
from benchmarks.recall import RecordedClock, fitting_positions, newest_positions, read_records
from benchmarks.reporting import print_progress
from holdfast import Session
from holdfast.apps.lab.recordings import read_recording
from holdfast.core.history.events import CompactionCompleted
from holdfast.core.planning.policy import PRESETS
from holdfast.core.recall.answer import Excerpt
from holdfast.recall import RecallQuery

BUDGET, ANSWER_TOKENS, SUMMARY_TOKENS = 8_000, 1_000, 1_500
START_MS = 1_600_000_000_000
WORD = re.compile(r"\w+")
FACT = re.compile(r"(?<=[a-z,;] )[A-Z]\w+|\b\d+\b(?!\])(?<!#)")
"""A name within a sentence, or a number."""


class Job(NamedTuple):
    """A chat to be replayed under one policy, with a model that writes its summaries if there is one."""

    record: Mapping[str, Any]
    policy: str
    summarizer: str | None = None

    @property
    def arm(self) -> str:
        """The name of what the policy shows."""
        suffix = "_summary" if self.summarizer else ""
        return f"default{suffix}" if self.policy == "default" else f"preset {self.policy}{suffix}"


class Replay(NamedTuple):
    """What a policy shows at the end of a chat."""

    arm: str
    view: str
    answers: list[dict[str, str]]
    """For each question its `recall`; by rule under the default also `recall_grown` and `chrono`."""
    counts: dict[str, Any]


def jobs_of(record: Mapping[str, Any], summarizer: str | None = None) -> list[Job]:
    """Return the replays of a chat, those that wait for a model first."""
    writers = (summarizer, None) if summarizer else (None,)
    return [Job(record, policy, writer) for writer in writers for policy in PRESETS]


async def replay(job: Job) -> Replay:
    """Replay a chat and ask one recall for each of its questions."""
    record, clock = job.record, RecordedClock(START_MS)
    natives, answers = read_recording(record).messages, list[dict[str, str]]()
    opened = Session.open(str(record["id"]), model="gpt-5", policy=job.policy, clock=clock, summarizer=job.summarizer)
    async with opened as session:
        view = await replay_chat(session, natives, clock, BUDGET - ANSWER_TOKENS)
        changes = [event for event in await session.events() if isinstance(event, CompactionCompleted)]
        tool, growing = session.recall_tool(max_tokens=ANSWER_TOKENS), session.recall_tool()
        for question in questions(record):
            arguments = {"query": question.text}
            answers.append({"recall": await tool.call(arguments)})
            if job.arm == "default":
                found = await session.recall(RecallQuery.from_arguments(arguments, max_tokens=ANSWER_TOKENS))
                answers[-1] |= {
                    "recall_grown": await growing.call(arguments),
                    "chrono": in_order_of_time(found.excerpts),
                }
    return Replay(job.arm, view, answers, counts_of(job, view, changes))


def replay_in_process(job: Job) -> Replay:
    """Replay a chat in a process of its own."""
    done = asyncio.run(replay(job))
    print_progress(f"{job.record['id']}: {job.arm}")
    return done


def counts_of(job: Job, view: str, changes: Sequence[CompactionCompleted]) -> dict[str, Any]:
    """Return what a policy and its summarizer did to a chat."""
    texts = [str(native["content"]) for native in read_recording(job.record).messages]
    said = set(WORD.findall("\n".join(texts)))
    names = {name for text in texts for name in FACT.findall(text)}
    written = [event.summary for event in changes if event.success and event.summary.by_model is not None]
    facts = [fact for summary in written for fact in FACT.findall(summary.text)]
    seen, seen_words = set(words_of(view)), set(WORD.findall(view))
    asked = questions(job.record)
    return {
        "kind": "summaries",
        "chat": job.record["id"],
        "arm": job.arm,
        "written": len(written),
        "by_rule": sum(event.success for event in changes) - len(written),
        "rejected": [event.error for event in changes if not event.success],
        "put_back": sum(len(summary.put_back) for summary in written),
        "names": len(names),
        "names_in_view": len(names & seen_words),
        "facts": len(facts),
        "invented": sorted({fact for fact in facts if fact not in said}),
        "answers_in_view": sum(seen.issuperset(words_of(question.answer)) for question in asked),
        "questions": len(asked),
    }


def rows_of(record: Mapping[str, Any], replays: Sequence[Replay]) -> list[dict[str, Any]]:
    """Return the rows of one chat: its contexts, its questions, and what summarizers did to it."""
    natives = read_recording(record).messages
    texts = [str(native["content"]) for native in natives]
    tail, tail7 = newest_positions(natives, BUDGET), newest_positions(natives, BUDGET - ANSWER_TOKENS)
    tail_beside = newest_positions(natives, BUDGET - SUMMARY_TOKENS)
    pinned = pinned_positions(natives, BUDGET - ANSWER_TOKENS)
    index = GrowingBm25()
    for text in texts:
        index.add(text)

    def joined(positions: set[int] | Sequence[int]) -> str:
        return "\n".join(texts[position] for position in sorted(positions))

    contexts = {
        "full": "\n".join(texts),
        "tail": joined(tail),
        "tail7": joined(tail7),
        "tail6.5": joined(tail_beside),
        "dropped": joined(set(range(len(texts))) - tail_beside),
        "pinned": joined(pinned),
        **{replay.arm: replay.view for replay in replays},
    }
    rows: list[dict[str, Any]] = []
    for number, question in enumerate(questions(record)):
        order = index.ranked(question.text)
        found, found_beside_pinned = (
            fitting_positions(order, natives, kept, ANSWER_TOKENS) for kept in (tail7, pinned)
        )
        positions = {"tail": tail, "bm25": tail7 | found, "pinned": pinned | found_beside_pinned}
        shown = {arm: joined(whole) for arm, whole in positions.items()}
        shown |= dict.fromkeys(("full", "oracle"), contexts["full"])
        for one in replays:
            shown[f"{one.arm} alone"] = one.view
            shown[one.arm] = f"{one.view}\n{one.answers[number]['recall']}"
        rows.append(
            {
                "kind": "q",
                "chat": record["id"],
                "half": half_of(record),
                "q": question.text,
                "a": question.answer,
                "cat": question.category,
                "recalls": {one.arm: one.answers[number]["recall"] for one in replays},
                **{name: text for one in replays for name, text in one.answers[number].items() if name != "recall"},
                "bm25": joined(found),
                "bm25_pinned": joined(found_beside_pinned),
                "oracle": joined(question.evidence),
                "evidence": [arm for arm, text in shown.items() if _has_evidence(text, question, texts)],
            }
        )
    counts = [replay.counts for replay in replays] if any(one.arm.endswith("_summary") for one in replays) else []
    return [{"kind": "ctx", "chat": record["id"], "ctx": contexts}, *rows, *counts]


def _has_evidence(shown: str, question: Question, texts: Sequence[str]) -> bool:
    return all(texts[position] in shown for position in question.evidence)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chats", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--half", choices=("tuning", "judging"), help="only one half")
    parser.add_argument("--summarizer", metavar="URL#NAME", help="a model that writes summaries")
    parser.add_argument("--jobs", type=int, help="how many replays run at once; one for each core")
    options = parser.parse_args()
    records = [record for record in read_records(options.chats) if options.half in {None, half_of(record)}]
    per_chat = [jobs_of(record, options.summarizer) for record in records]
    with Pool(options.jobs) as workers:
        done = workers.imap(replay_in_process, [job for jobs in per_chat for job in jobs], chunksize=1)
        chats = [rows_of(record, [next(done) for _ in jobs]) for record, jobs in zip(records, per_chat, strict=True)]
    with options.output.open("w", encoding="utf-8") as output:
        output.writelines(json.dumps(row) + "\n" for rows in chats for row in rows)
    if options.summarizer:
        print_counts([row for rows in chats for row in rows if row["kind"] == "summaries"])


if __name__ == "__main__":
    main()
