"""How much code one request passes through: a reader has to follow it, so it must not grow unnoticed."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeVar

import holdfast
from holdfast import Session
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, user_message

T = TypeVar("T")
PACKAGE = Path(holdfast.__file__).parent

MAX_IDLE_FILES, MAX_IDLE_FUNCTIONS = 24, 120
"""What a request passes through that needs no change."""
MAX_COMPACTION_FILES = 48
"""What a request passes through that is compacted by a digest."""


async def traced(work: Callable[[], Awaitable[T]]) -> tuple[T, dict[str, list[str]]]:
    """Return the result of some work, and the functions of the package that it runs, by file.

    A comprehension or a generator expression is part of the function in which it is written. The comparison and the
    hash that `dataclass` gives a class are nothing that a reader follows, whichever library writes them.
    """
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    sys.setprofile(note)
    try:
        result = await work()
    finally:
        sys.setprofile(None)
    functions: dict[str, list[str]] = {}
    for code in sorted(seen, key=lambda one: (one.co_filename, one.co_firstlineno)):
        path = Path(code.co_filename)
        if path == PACKAGE / "dataclass.py":
            continue
        if path.is_relative_to(PACKAGE) and not code.co_name.endswith(("comp>", "genexpr>")):
            functions.setdefault(str(path.relative_to(PACKAGE)), []).append(code.co_qualname)
    return result, functions


def listed(functions: dict[str, list[str]]) -> str:
    """Return the files and functions, a file a line."""
    return "\n".join(f"{path}: {', '.join(names)}" for path, names in functions.items())


async def test_a_request_that_needs_no_change_passes_through_few_files_and_functions() -> None:
    session = await Session.open("idle", store=MemoryStore(), model="gpt-5")
    await session.record([user_message("hello"), assistant_message("hello"), user_message("what is 2 + 2?")])
    await session.prepare(20_000, system="Be brief.")
    await session.record([assistant_message("4"), user_message("and 3 + 3?")])

    request, functions = await traced(lambda: session.prepare(20_000, system="Be brief."))

    assert request.receipt.is_unchanged
    assert len(functions) <= MAX_IDLE_FILES, listed(functions)
    assert sum(map(len, functions.values())) <= MAX_IDLE_FUNCTIONS, listed(functions)


async def test_a_request_that_is_compacted_by_rule_passes_through_few_files() -> None:
    session = await Session.open("long", store=MemoryStore(), model="gpt-5")
    for number in range(20):
        await session.record([user_message(f"question {number}: " + "why " * 60), assistant_message("so " * 120)])
    await session.record([user_message("hello")])
    await session.prepare(60_000, system="Be brief.")
    await session.record([assistant_message("hello"), user_message("go on")])

    request, functions = await traced(lambda: session.prepare(2_000, system="Be brief."))

    assert request.receipt.compacted
    assert len(functions) <= MAX_COMPACTION_FILES, listed(functions)
