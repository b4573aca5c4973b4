"""Generates a coding session of any length, the same for the same seed on any machine.

Each turn has a prompt, a few tool steps, some of them parallel, and an answer. Outputs have from one line to a few
thousand characters, as in real agents.
"""

import random
from collections.abc import Iterator

from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)

SAMPLE_FILES = tuple(
    f"src/{area}/{name}.py" for area in ("billing", "auth", "search") for name in ("model", "views", "tasks")
)
SAMPLE_VERBS = ("fix", "explain", "speed up", "test", "rename", "document", "move", "review")
SAMPLE_PROSE = (
    "the request handler returns early when session token expired before retry so cache never warms and "
    "worker logs a timeout while invoice total stays stale until nightly job rewrites customer index"
)
OUTPUT_WORD_COUNTS = (20, 60, 150, 400, 900)


def generate_session(length: int, *, loop_steps: int = 0, seed: int = 1) -> list[JsonMessage]:
    """Return about `length` messages ending with a prompt, and `loop_steps` tool steps after it."""
    chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
    messages = [
        system_message("You are a careful engineer. Always run the tests before you answer. Never push to main.")
    ]
    turn = 0
    while len(messages) < length - 1:
        messages += _turn(chance, turn)
        turn += 1
    messages.append(
        user_message(f"And now {chance.choice(SAMPLE_VERBS)} {chance.choice(SAMPLE_FILES)}: {_prose(chance, 20)}")
    )
    for step in range(loop_steps):
        messages += _step(chance, f"loop{step}")
    return messages


def _turn(chance: random.Random, turn: int) -> Iterator[JsonMessage]:
    yield user_message(f"Please {chance.choice(SAMPLE_VERBS)} {chance.choice(SAMPLE_FILES)}. {_prose(chance, 25)}")
    for step in range(chance.randint(1, 5)):
        yield from _step(chance, f"t{turn}s{step}")
    yield assistant_message(f"Done with turn {turn}. {_prose(chance, 40)}")


def _step(chance: random.Random, name: str) -> Iterator[JsonMessage]:
    ids = [f"call_{name}_{number}" for number in range(chance.choice((1, 1, 1, 2)))]
    path, start = chance.choice(SAMPLE_FILES), chance.randint(1, 400)
    yield tool_call_message(*ids, arguments={"path": path, "start": start, "end": start + 80})
    for call_id in ids:
        yield tool_result_message(call_id, _output(chance, path))


def _output(chance: random.Random, path: str) -> str:
    if chance.random() < 0.1:  # noqa: PLR2004
        return f"Error: {path} line {chance.randint(1, 400)}: unexpected token"
    return f"# {path}\n" + _prose(chance, chance.choice(OUTPUT_WORD_COUNTS), "\n")


def _prose(chance: random.Random, words: int, separator: str = " ") -> str:
    picked = chance.choices(SAMPLE_PROSE.split(), k=words)
    return separator.join(" ".join(picked[start : start + 12]) for start in range(0, words, 12))
