"""Asks a real model the questions of recorded chats, with what each way of keeping a chat shows it (M15).

    python -m benchmarks.memory.answers CHATS.jsonl … -o PROMPTS.jsonl --half judging
    python -m benchmarks.memory.ask_model PROMPTS.jsonl --model http://127.0.0.1:8000/v1#NAME [--json]
        [--arms default,default_summary,bm25] [--baseline default] [--answers ANSWERS.jsonl]

Any server that speaks OpenAI chat completions will do. Answers are compared with the expected ones by token F1; each
arm is also compared with the baseline (`bm25`) question by question, with the interval that holds 95 of 100 samples of
the questions. `--answers` keeps every answer with its score.
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
AT_ONCE = 8
"""How many questions wait for an answer at the same time."""
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
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
        case "default_summary":
            return f"{contexts['view_summary']}\n\n{row['recall_summary']}"
        case "default" | "default_grown" | "view_chrono":
            recalled = {"default": "recall", "default_grown": "recall_grown", "view_chrono": "chrono"}[arm]
            return f"{contexts['view']}\n\n{row[recalled]}"
        case "bm25":
            return f"{row['bm25']}\n\n{contexts['tail7']}"
        case "pinned":
            return f"{row['bm25_pinned']}\n\n{contexts['pinned']}"
        case _:
            return contexts[arm]


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


def paired_interval(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean difference of two arms, and the interval that holds 95 of 100 samples of the questions."""
    differences = [mine - theirs for mine, theirs in zip(one, other, strict=True)]
    source = random.Random(SEED)
    means = sorted(sum(source.choices(differences, k=len(differences))) / len(differences) for _ in range(SAMPLES))
    return sum(differences) / len(differences), means[SAMPLES // 40], means[-SAMPLES // 40]


async def ask(client: httpx.AsyncClient, model: str, prompt: str) -> str:
    """Return the answer of a model, without chance."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    body = {"model": model, "messages": messages, "max_tokens": MAX_ANSWER_TOKENS, "temperature": 0}
    response = await client.post("chat/completions", json=body)
    response.raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"] or "")


async def run_arm(
    client: httpx.AsyncClient, model: str, arm: str, rows: Sequence[Mapping[str, Any]], chats: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the answer to each question with its score."""
    free, done = asyncio.Semaphore(AT_ONCE), 0

    async def answered(row: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal done
        prompt = QUESTION.format(context=context_of(arm, chats[row["chat"]], row), question=row["q"])
        async with free:
            answer = await ask(client, model, prompt)
        done += 1
        print_progress(f"{arm} {done:,} of {len(rows):,}")
        known = {name: row.get(name) for name in ("chat", "half", "q", "a", "cat")}
        return {"arm": arm, **known, "answer": answer, "f1": token_f1(answer, str(row["a"]))}

    return await asyncio.gather(*map(answered, rows))


async def ask_all(prompts: str, model: str, arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return the answers of all arms, in the order of the questions; `prompts` is the text of the file."""
    endpoint = parse_endpoint(model)
    if endpoint is None:
        sys.exit(
            f"--model: {model!r} must be the address of a server and a model, such as http://127.0.0.1:8000/v1#NAME"
        )
    lines = [json.loads(line) for line in prompts.splitlines()]
    chats = {line["chat"]: line["ctx"] for line in lines if line["kind"] == "ctx"}
    rows = [line for line in lines if line["kind"] == "q"]
    headers = {"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    async with httpx.AsyncClient(base_url=f"{endpoint.url.rstrip('/')}/", headers=headers, timeout=600) as client:
        return [answer for arm in arms for answer in await run_arm(client, endpoint.name, arm, rows, chats)]


def figures_of(answers: Sequence[Mapping[str, Any]], baseline: str = BASELINE) -> dict[str, dict[str, float]]:
    """Return the figures of each arm, compared with the baseline question by question."""
    scores: dict[str, list[float]] = {}
    for answer in answers:
        scores.setdefault(answer["arm"], []).append(answer["f1"])
    figures: dict[str, dict[str, float]] = {}
    for arm, values in scores.items():
        figures[arm] = {"f1": sum(values) / len(values), "questions": len(values)}
        if baseline in scores and arm != baseline:
            names = ("over_baseline", "from", "to")
            figures[arm] |= dict(zip(names, paired_interval(values, scores[baseline]), strict=True))
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", required=True, metavar="URL#NAME", help="a server of OpenAI chat completions")
    parser.add_argument("--arms", default=",".join(ARMS), help="what to compare (default: %(default)s)")
    parser.add_argument("--baseline", default=BASELINE, help="the arm to compare with (default: %(default)s)")
    parser.add_argument("--answers", type=Path, help="write every answer with its score to this file")
    parser.add_argument("--json", action="store_true", help="print machine-readable output")
    options = parser.parse_args(arguments)
    arms = options.arms.split(",")
    if options.baseline not in arms:
        parser.error(f"--baseline {options.baseline} is not one of the arms {options.arms}; add it with --arms")
    answers = asyncio.run(ask_all(options.prompts.read_text(encoding="utf-8"), options.model, arms))
    if options.answers:
        options.answers.write_text("".join(json.dumps(answer) + "\n" for answer in answers), encoding="utf-8")
    figures = figures_of(answers, options.baseline)
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{'arm':26}{'F1':>7}{'over ' + options.baseline:>22}   95 of 100 samples")
    for arm, found in figures.items():
        interval = f"   {found['from']:+.3f} … {found['to']:+.3f}" if "from" in found else ""
        over = f"{found['over_baseline']:>+22.3f}{interval}" if interval else ""
        print(f"{arm:26}{found['f1']:>7.3f}{over}")


if __name__ == "__main__":
    main()
