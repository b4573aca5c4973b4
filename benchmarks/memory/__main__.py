"""Measures what a model can still reach of a long conversation, on one half for tuning and another for judging.

    python -m benchmarks.memory --agents FILE.jsonl … --assistants FILE.jsonl … --chats FILE.jsonl … [--half judging]
        [--generated 8 --seed 4711] [--costs] [--summarizer URL#NAME] [--json [FILE]] [--cache FOLDER] [--only TEXT]

`--agents` are recorded tool sessions, `--assistants` chats with an assistant and `--chats` other long chats, both with
`probes`. Conversations are split into halves by a fixed hash, those about one repository together. Numbers are chosen
on the tuning half, and the judging half tells whether they generalize. Every figure is pooled over the conversations of
a half; the interval is from 1,000 samples of as many conversations. `--generated` adds so many generated conversations,
drawn from `--seed`, a number that nobody tuned on. `--costs` adds the cost at 100,000 tokens under
all price lists, and the requests that another tokenizer finds too large. `--summarizer` adds the same sessions with
summaries that a model on any server of OpenAI chat completions writes. `--cache` keeps the figures of each
conversation until the code changes.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from multiprocessing import Pool
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.memory.agents import HIT_AIM, measure_agent, measure_baselines, measure_cost, measure_summarized
from benchmarks.memory.chats import measure_chat
from benchmarks.memory.figures import Figures, PooledFigure, half_of, pool
from benchmarks.memory.generated import measure_generated
from benchmarks.recall import COUNTER, read_records
from benchmarks.reporting import print_progress
from holdfast.core.planning.situation import PROVIDER_PRICES

LONG_CHAT_TOKENS = 300_000
"""An assistant chat with more tokens is measured with a recall of 4,000 tokens."""
GENERATED_KINDS = ("fact", "update", "contradiction", "rule", "plan", "near name", "language", "output")
SOURCES = (Path("src"), Path("benchmarks"))
BASELINES_GROUP = "baselines"
BASELINE_SOURCES = (Path("src/holdfast/apps/lab"), Path("benchmarks/memory"))


class Row(NamedTuple):
    """One row of the table: a figure of a group, with those of the baselines beside it, and the aim."""

    label: str
    group: str
    figure: str
    baselines: tuple[str, ...] = ()
    aim: str = ""
    has_least: bool = False


OWN = [
    row
    for budget, aim in (("8,000", "≥ .50"), ("16,000", ""), ("32,000", ""), ("50,000", "≥ .90"))
    for row in (
        Row(f"needed after an agent's own compaction, in view at {budget}", "agents", f"own {budget} view",
            (f"own {budget} summary",), aim),
        Row("    with one recall", "agents", f"own {budget} recall", (), "≥ .97" if budget == "50,000" else ""),
        Row("    tokens of our view / of its summary", "agents", f"own {budget} view_tokens",
            (f"own {budget} summary_tokens",)),
    )
]  # fmt: skip
PINNED, NEWEST = "pinned + BM25 ", "newest + BM25 "
ROWS = [
    Row("agents, 50k: identifiers last seen > 20 messages ago, in view", "agents", "far",
        ("threshold far", "pinned far"), "≥ .98", has_least=True),
    Row("    with one recall by the last text", "agents", "far_recall", ("pinned far_recall",), "≥ .985"),
    Row("    with one recall by their pieces", "agents", "far_asked"),
    Row("    in commands, searches, arguments", "agents", "used"),
    Row("    in text written into files", "agents", "written"),
    Row("    first far use, in view", "agents", "first", ("threshold first", "pinned first"), "≥ .97"),
    Row("    first far use, with one recall", "agents", "first_recall", ("pinned first_recall",), "≥ .975"),
    Row("    user's messages of ≤ 80 tokens, in view", "agents", "short", (), "≥ .95", has_least=True),
    Row("    user's rules in view", "agents", "rules"),
    Row("    always/never orders in view", "agents", "orders"),
    Row("    cost / threshold compaction", "agents", "cost", (), "≤ .84"),
    Row("    hit share", "agents", "hits"),
    Row("    fill of the view", "agents", "fill"),
    Row("    over budget", "agents", "over", (), "0"),
    *OWN,
    Row("agents, 50k, a model's summaries: far identifiers in view", "summarized", "far", has_least=True),
    Row("    with one recall by the last text", "summarized", "far_recall"),
    Row("    first far use, in view", "summarized", "first"),
    Row("    user's messages of ≤ 80 tokens, in view", "summarized", "short", has_least=True),
    Row("    cost / threshold compaction, summaries apart", "summarized", "cost"),
    Row("    over budget", "summarized", "over", (), "0"),
    Row("    compactions that failed, of all", "summarized", "rejected"),
    Row("    compactions by the model, of those that succeeded", "summarized", "by model"),
    Row("    identifiers of the summaries that nobody had said", "summarized", "invented", (), "0"),
    Row("    facts put back into a summary", "summarized", "put back"),
    Row("long chats, 8k: all evidence", "chats", "questions", (NEWEST + "questions", PINNED + "questions"), "≥ .88"),
    Row("    questions that need several turns", "chats", "several", (NEWEST + "several", PINNED + "several"), "≥ .57"),
    Row("    in view alone", "chats", "view questions"),
    Row("    fill of the view", "chats", "fill"),
    Row("    with an answer that grows into free room", "chats", "grown questions", (), "≥ .88"),
    Row("    the same, questions that need several turns", "chats", "grown several", (), "≥ .57"),
    Row("    view and grown answer, share of the budget", "chats", "grown tokens", (), "≤ 1"),
    Row("    view and grown answer over the budget", "chats", "grown over", (), "0"),
    Row("assistant chats of 100k, 16k: all evidence whole", "assistants 16k", "questions",
        (NEWEST + "questions", PINNED + "questions"), "≥ .82"),
    Row("    located", "assistants 16k", "questions located"),
    Row("    questions that need several turns", "assistants 16k", "several", (NEWEST + "several", PINNED + "several")),
    Row("    with an answer that grows into free room", "assistants 16k", "grown questions"),
    Row("    in view alone", "assistants 16k", "view questions"),
    Row("    user's messages of ≤ 80 tokens, in view", "assistants 16k", "short", (), "≥ .95"),
    Row("    fill of the view", "assistants 16k", "fill"),
    Row("    summaries and orderings", "assistants 16k", "overviews"),
    Row("assistant chats of 100k, 8k: all evidence whole", "assistants 8k", "questions",
        (NEWEST + "questions", PINNED + "questions")),
    Row("    always/never orders in view", "assistants 8k", "orders", (), "≥ .95"),
    Row("assistant chats of 500k, 16k, recall of 4,000: whole", "assistants 500k", "questions",
        (NEWEST + "questions", PINNED + "questions"), "≥ .55"),
    Row("    located", "assistants 500k", "questions located"),
    Row("    always/never orders in view", "assistants 500k", "orders", (), "≥ .95"),
    Row("    user's messages of ≤ 80 tokens, in view", "assistants 500k", "short"),
    Row("    fill of the view", "assistants 500k", "fill"),
    Row("generated, 8k: answers in view or one recall", "generated", "generated", ("generated in view",)),
    *(Row(f"    {kind}", "generated", kind, (f"{kind} in view",)) for kind in GENERATED_KINDS),
    *(Row(f"agents, 100k: cost / threshold compaction, {name}", "costs", f"cost {name}", (), "≤ .90")
      for name in PROVIDER_PRICES),
    Row("    hit share", "costs", "hits", ("threshold hits",), "≥ .98"),
    Row("    tokens of a request", "costs", "request tokens"),
    Row("    tokens of it that the conversation added", "costs", "new per request"),
    Row("    hit share of full requests with nothing sent twice", "costs", "most hits"),
    Row("    not hit: messages that are new", "costs", "new"),
    Row("    not hit: requests with a changed prefix", "costs", "rewritten"),
    *(Row(f"    least cost of a hit share of {HIT_AIM}, {name}", "costs", f"least {name}")
      for name in PROVIDER_PRICES),
    Row("    invalid", "costs", "invalid", (), "0"),
    Row("    growth of cost", "costs", "growth", (), "≤ 1.2"),
    Row("    over budget by tekken at 50k", "costs", "over by tekken, 50,000", (), "0"),
    Row("    over budget by tekken at 100k", "costs", "over by tekken, 100,000", (), "0"),
]  # fmt: skip


class Job(NamedTuple):
    """One measurement of one conversation."""

    record: Mapping[str, Any]
    group: str
    cache: Path | None = None
    summarizer: str | None = None


class Result(NamedTuple):
    """The figures of one measurement."""

    group: str
    half: str
    name: str
    figures: Figures


def jobs_of(options: argparse.Namespace) -> list[Job]:
    groups = (
        "agents",
        BASELINES_GROUP,
        *(("costs",) if options.costs else ()),
        *(("summarized",) if options.summarizer else ()),
    )
    jobs = [Job(record, group) for record in read_records(options.agents) for group in groups]
    for record in read_records(options.assistants):
        tokens = sum(COUNTER.count(str(message["content"])) for message in record["messages"])
        groups = ("assistants 500k",) if tokens > LONG_CHAT_TOKENS else ("assistants 16k", "assistants 8k")
        jobs += [Job(record, group) for group in groups]
    jobs += [Job(record, "chats") for record in read_records(options.chats)]
    seeds = range(options.seed, options.seed + options.generated)
    jobs += [Job({"id": f"generated-{seed}", "seed": seed}, "generated") for seed in seeds]
    return [
        job._replace(cache=options.cache and options.cache / code_version(job.group), summarizer=options.summarizer)
        for job in jobs
        if options.half in {None, half_of(job.record)} and options.only in f"{job.group} {job.record['id']}"
    ]


@cache
def code_version(group: str) -> str:
    """Return a hash of the code behind the figures of a group, so that figures of other code are not reused."""
    folders = BASELINE_SOURCES if group == BASELINES_GROUP else SOURCES
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def run_job(job: Job) -> Result:
    name = f"{job.group}-{job.record['id']}.json".replace(" ", "-")
    if job.cache and (job.cache / name).exists():
        figures: Figures = json.loads((job.cache / name).read_text())
    else:
        figures = asyncio.run(_measure(job))
        if job.cache:
            job.cache.mkdir(parents=True, exist_ok=True)
            (job.cache / name).write_text(json.dumps(figures))
    print_progress(f"{job.group}: {job.record['id']}")
    return Result(job.group, half_of(job.record), str(job.record["id"]), figures)


async def _measure(job: Job) -> Figures:
    if job.group == "agents":
        return await measure_agent(job.record)
    if job.group == BASELINES_GROUP:
        return await measure_baselines(job.record)
    if job.group == "costs":
        return await measure_cost(job.record)
    if job.summarizer and job.group == "summarized":
        return await measure_summarized(job.record, job.summarizer)
    if job.group == "generated":
        return await measure_generated(job.record["seed"])
    budget, answer = {"assistants 16k": (16_000, 1_000), "assistants 500k": (16_000, 4_000)}.get(
        job.group, (8_000, 1_000)
    )
    with tempfile.TemporaryDirectory() as folder:
        return await measure_chat(job.record, Path(folder), budget, answer)


def with_baselines(results: Sequence[Result]) -> list[Result]:
    """Return the results with the baselines of each session beside its own figures."""
    baselines = {one.name: one.figures for one in results if one.group == BASELINES_GROUP}
    merged: list[Result] = []
    for one in results:
        if one.group in {"agents", "summarized"} and (base := baselines.get(one.name)):
            cost = one.figures["own cost"][0], base["threshold cost"][0]
            merged.append(one._replace(figures={**one.figures, **base, "cost": cost}))
        elif one.group != BASELINES_GROUP:
            merged.append(one)
    return sorted(merged, key=lambda one: one[:3])


def print_table(results: Sequence[Result], halves: Sequence[str]) -> dict[str, Any]:
    """Print the table and return its figures."""
    columns = "".join(f"{half:>26}{'baselines':>16}" for half in halves)
    print(f"{'':66}{columns}   aim")
    saved: dict[str, Any] = {}
    group = ""
    for row in ROWS:
        group = group if row.label.startswith(" ") else row.label
        cells, is_known = "", False
        for half in halves:
            found = [one.figures for one in results if one.group == row.group and one.half == half]
            ours = pool(found, row.figure)
            others = [pool(found, name) for name in row.baselines]
            is_known = is_known or ours is not None
            least = f" min {ours.least:.2f}" if ours and row.has_least else ""
            cells += f"{_text(ours) + least:>26}{' '.join(_short(one) for one in others):>16}"
            if ours:
                key = f"{group} / {row.label.strip()}" if row.label.startswith(" ") else row.label
                named = dict(zip(row.baselines, others, strict=True))
                saved.setdefault(key, {})[half] = {
                    **_as_json(ours),
                    "baselines": {name: _as_json(one) for name, one in named.items() if one},
                }
        if is_known:
            print(f"{row.label:66}{cells}   {row.aim}")
    return saved


def _as_json(figure: PooledFigure) -> dict[str, float]:
    return {"share": figure.share, "low": figure.low, "high": figure.high, "least": figure.least, "of": figure.total}


def _text(figure: PooledFigure | None) -> str:
    return f"{figure}" if figure else "–"


def _short(figure: PooledFigure | None) -> str:
    return f"{figure.share:.3f}" if figure else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", type=Path, default=[])
    parser.add_argument("--assistants", nargs="+", type=Path, default=[])
    parser.add_argument("--chats", nargs="+", type=Path, default=[])
    parser.add_argument("--generated", type=int, default=0, help="how many generated conversations")
    parser.add_argument("--seed", type=int, default=0, help="the first seed of the generated conversations")
    parser.add_argument("--half", choices=("tuning", "judging"), help="only one half")
    parser.add_argument("--only", default="", help="only measurements whose group and conversation contain this text")
    parser.add_argument("--costs", action="store_true", help="also the cost at 100,000 tokens, which takes longer")
    parser.add_argument("--summarizer", metavar="URL#NAME", help="a model that writes summaries of the agents' work")
    parser.add_argument("--jobs", type=int, help="how many conversations to measure at once; one for each core")
    parser.add_argument("--cache", type=Path, help="a folder for the figures of each conversation")
    parser.add_argument("--json", nargs="?", type=Path, const=Path("/dev/stdout"), help="write the figures as JSON")
    options = parser.parse_args()
    with Pool(options.jobs) as workers:
        results = with_baselines(list(workers.imap_unordered(run_job, jobs_of(options), chunksize=1)))
    halves = [half for half in ("tuning", "judging") if any(half == one.half for one in results)]
    table = print_table(results, halves)
    if options.json:
        conversations = [one._asdict() for one in results]
        options.json.write_text(json.dumps({"table": table, "conversations": conversations}, indent=1))


if __name__ == "__main__":
    main()
