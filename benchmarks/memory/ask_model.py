"""Asks a real model the questions of recorded chats, with what each way of keeping a chat shows it (M15).

    python -m benchmarks.memory.answers CHATS.jsonl … -o PROMPTS.jsonl --half judging
    python -m benchmarks.memory.ask_model PROMPTS.jsonl --model http://127.0.0.1:8000/v1#NAME [--json]
        [--arms default,default_summary,bm25] [--baseline default] [--at-once 48] [--answers ANSWERS.jsonl]

Any server that speaks OpenAI chat completions will do. Answers are compared with the expected ones by token F1; each
arm is also compared with the baseline (`bm25`) question by question, with the interval that holds 95 of 100 samples of
as many conversations. So is the share of the questions for which an arm shows everything that the answer needs.
`--answers` keeps every answer with its score.
"""

import argparse
import asyncio
import json
import random
import re
import string
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.reporting import print_progress
from holdfast.models.open import parse_endpoint

ARMS = ("oracle", "default", "default_grown", "view_chrono", "bm25", "pinned", "tail", "full", "closed")
BASELINE = "bm25"
SYSTEM = "You answer questions about a conversation, briefly and exactly."
QUESTION = (
    "{context}\n\nAnswer the question from the conversation above in as few words as possible: a name, a date, a list "
    "or a short phrase.\nQuestion: {question}\nShort answer:"
)
MAX_ANSWER_TOKENS, SAMPLES, SEED = 40, 4_000, 1
ALONE = " alone"
"""Ends the name of an arm that shows the request of a policy without its recall."""
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
UNJUDGED = frozenset({"closed", "default_grown", "view_chrono"})
"""Arms of which the file does not say whether they show the evidence."""
_ISO_DATE = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_FILLERS = frozenset({"a", "an", "the", "and"})


def context_of(arm: str, contexts: Mapping[str, str], row: Mapping[str, Any]) -> str:
    """Return what a model sees before a question."""
    match arm:
        case "oracle":
            return str(row["oracle"])
        case "closed":
            return ""
        case "default_grown" | "view_chrono":
            recalled = {"default_grown": "recall_grown", "view_chrono": "chrono"}[arm]
            return f"{contexts['default']}\n\n{row[recalled]}"
        case "bm25":
            return f"{row['bm25']}\n\n{contexts['tail7']}"
        case "pinned":
            return f"{row['bm25_pinned']}\n\n{contexts['pinned']}"
        case _ if arm in row["recalls"]:
            return f"{contexts[arm]}\n\n{row['recalls'][arm]}"
        case _:
            return contexts[arm.removesuffix(ALONE)]


def words_of(text: str) -> list[str]:
    """Return the words that count, with dates as they are spoken."""
    spoken = _ISO_DATE.sub(lambda found: _spoken_date(*map(int, found.groups())), text)
    return [word for word in spoken.lower().translate(_PUNCTUATION).split() if word not in _FILLERS]


def _spoken_date(year: int, month: int, day: int) -> str:
    return f"{day} {MONTHS[month - 1]} {year}" if 1 <= month <= len(MONTHS) else f"{year}-{month}-{day}"


def token_f1(answer: str, expected: str) -> float:
    """Return how much two answers share: the harmonic mean of both shares of common words."""
    given, wanted = words_of(answer.partition("\n")[0]), words_of(expected)
    common = (Counter(given) & Counter(wanted)).total()
    return 2 * common / (len(given) + len(wanted)) if common else 0.0


def paired_interval(chats: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return the mean of the differences of each conversation's questions, and where 95 of 100 samples of them are."""
    sums, source = [(sum(chat), len(chat)) for chat in chats], random.Random(SEED)

    def mean(sampled: Sequence[tuple[float, int]]) -> float:
        return sum(total for total, _ in sampled) / sum(count for _, count in sampled)

    means = sorted(mean(source.choices(sums, k=len(sums))) for _ in range(SAMPLES))
    return mean(sums), means[SAMPLES // 40], means[-SAMPLES // 40]


async def ask(client: httpx.AsyncClient, model: str, prompt: str) -> str:
    """Return the answer of a model, without chance."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    body = {"model": model, "messages": messages, "max_tokens": MAX_ANSWER_TOKENS, "temperature": 0}
    response = await client.post("chat/completions", json=body)
    response.raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"] or "")


async def ask_all(prompts: str, model: str, arms: Sequence[str], at_once: int = 8) -> list[dict[str, Any]]:
    """Return the answers of all arms, in the order of the questions; `prompts` is the text of the file."""
    endpoint = parse_endpoint(model)
    if endpoint is None:
        sys.exit(
            f"--model: {model!r} must be the address of a server and a model, such as http://127.0.0.1:8000/v1#NAME"
        )
    lines = [json.loads(line) for line in prompts.splitlines()]
    chats = {line["chat"]: line["ctx"] for line in lines if line["kind"] == "ctx"}
    rows = [line for line in lines if line["kind"] == "q"]
    free, done = asyncio.Semaphore(at_once), 0

    async def answered(arm: str, row: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal done
        async with free:
            prompt = QUESTION.format(context=context_of(arm, chats[row["chat"]], row), question=row["q"])
            answer = await ask(client, endpoint.name, prompt)
        done += 1
        if done % 100 == 0:
            print_progress(f"{done:,} of {len(rows) * len(arms):,}")
        known = {name: row.get(name) for name in ("chat", "half", "q", "a", "cat")}
        evidence = {"evidence": arm in row["evidence"]} if arm not in UNJUDGED else {}
        return {"arm": arm, **known, "answer": answer, "f1": token_f1(answer, str(row["a"])), **evidence}

    headers = {"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(
        base_url=f"{endpoint.url.rstrip('/')}/", headers=headers, timeout=600, limits=limits
    ) as client:
        return await asyncio.gather(*(answered(arm, row) for arm in arms for row in rows))


def figures_of(answers: Sequence[Mapping[str, Any]], baseline: str = BASELINE) -> dict[str, dict[str, float]]:
    """Return the figures of each arm, compared with the baseline question by question."""
    figures: dict[str, dict[str, float]] = {}
    for arm in dict.fromkeys(answer["arm"] for answer in answers):
        figures[arm] = {"questions": sum(answer["arm"] == arm for answer in answers)}
        for name in ("f1", "evidence"):
            ours, theirs = _scores(answers, arm, name), _scores(answers, baseline, name)
            if ours:
                values = [value for chat in ours.values() for value in chat]
                figures[arm][name] = sum(values) / len(values)
            if ours and theirs and arm != baseline:
                differences = [
                    [mine - their for mine, their in zip(ours[chat], theirs[chat], strict=True)] for chat in ours
                ]
                names = (f"{name}_over_baseline", f"{name}_from", f"{name}_to")
                figures[arm] |= dict(zip(names, paired_interval(differences), strict=True))
    return figures


def _scores(answers: Sequence[Mapping[str, Any]], arm: str, name: str) -> dict[str, list[float]]:
    """Return one score of an arm for each question, by conversation."""
    scores: dict[str, list[float]] = {}
    for answer in answers:
        if answer["arm"] == arm and name in answer:
            scores.setdefault(answer["chat"], []).append(float(answer[name]))
    return scores


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", required=True, metavar="URL#NAME", help="a server of OpenAI chat completions")
    parser.add_argument("--arms", default=",".join(ARMS), help="what to compare (default: %(default)s)")
    parser.add_argument("--baseline", default=BASELINE, help="the arm to compare with (default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=8, help="how many questions wait for an answer at the same time")
    parser.add_argument("--answers", type=Path, help="write every answer with its score to this file")
    parser.add_argument("--json", action="store_true", help="print machine-readable output")
    options = parser.parse_args(arguments)
    arms = options.arms.split(",")
    if options.baseline not in arms:
        parser.error(f"--baseline {options.baseline} is not one of the arms {options.arms}; add it with --arms")
    answers = asyncio.run(ask_all(options.prompts.read_text(encoding="utf-8"), options.model, arms, options.at_once))
    if options.answers:
        options.answers.write_text("".join(json.dumps(answer) + "\n" for answer in answers), encoding="utf-8")
    figures = figures_of(answers, options.baseline)
    if options.json:
        print(json.dumps(figures))
        return
    over = f"over {options.baseline}"
    print(f"{'arm':34}{'evidence':>9}{over:>26}{'F1':>9}{over:>26}")
    for arm, found in figures.items():
        print(f"{arm:34}{_columns(found, 'evidence')}{_columns(found, 'f1')}")


def _columns(found: Mapping[str, float], name: str) -> str:
    value = f"{found[name]:.3f}" if name in found else "–"
    over = (
        f"{found[f'{name}_over_baseline']:+.3f} ({found[f'{name}_from']:+.3f} … {found[f'{name}_to']:+.3f})"
        if f"{name}_from" in found
        else ""
    )
    return f"{value:>9}{over:>26}"


if __name__ == "__main__":
    main()
