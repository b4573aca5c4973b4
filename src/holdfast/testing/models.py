"""Models that do as a test says: one reads from a script, the other fails on purpose.

Both write what any writer writes, at once or after a while on the clock they are given.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Literal, TypeAlias, get_args

from holdfast.core.history.events import Usage
from holdfast.errors import (
    HoldfastError,
    ModelAccessError,
    ModelBusyError,
    ModelOverflowError,
    ModelRefusedError,
    ModelUnreachableError,
)
from holdfast.models.base import Answer, Ask
from holdfast.models.patience import Sleep

Line: TypeAlias = str | Answer | Exception | Callable[[Ask], str]
"""A line of a script: a text, a whole answer, an error to raise, or a function of what is asked."""
Failure: TypeAlias = Literal[
    "slow", "empty", "garbage", "truncated", "inflated", "refusing", "hanging", "flaky",
    "stubborn", "unauthorised", "unreachable", "busy", "overflow",
]  # fmt: skip
FAILURES: tuple[Failure, ...] = get_args(Failure)

GARBAGE = "\x00\ufffd{]]> the the the the \u202e\u200b <|im_end|> %s %s ```\n" * 40
SUMMARY = "The request was understood, the work was done, and nothing is left open."
MINUTE = 60.0
CHARS_PER_TOKEN = 4


class ScriptedModel:
    """Answers line by line, and remembers what it was asked."""

    def __init__(
        self,
        lines: Iterable[Line],
        *,
        name: str = "scripted",
        window: int | None = None,
        seconds: float = 0.0,
        sleep: Sleep = asyncio.sleep,
        prefix_formats: Iterable[str] = (),
    ) -> None:
        """`lines` may be endless; each answer takes `seconds` on the clock that `sleep` belongs to.

        `prefix_formats` are those in which it can be asked behind a conversation.
        """
        self.prefix_formats = frozenset(prefix_formats)
        self._lines = iter(lines)
        self._name = name
        self._window = window
        self._seconds = seconds
        self._sleep = sleep
        self.asks: list[Ask] = []

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    @property
    def window(self) -> int | None:
        """The largest input in tokens."""
        return self._window

    async def write(self, ask: Ask) -> Answer:
        """Return the next line of the script."""
        self.asks.append(ask)
        if self._seconds:
            await self._sleep(self._seconds)
        line = next(self._lines, None)
        if line is None:
            raise ModelRefusedError(self.name, f"the script ended before ask {len(self.asks)}", remedy="write more")
        if isinstance(line, Exception):
            raise line
        if isinstance(line, Answer):
            return line
        return answer_of(ask, line if isinstance(line, str) else line(ask), self.name)


class FailingModel:
    """Fails in one way, every time; the flaky one only every other time. Remembers what it was asked."""

    def __init__(
        self,
        failure: Failure,
        *,
        text: str = SUMMARY,
        window: int | None = None,
        seconds: float = MINUTE,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`text` is what a sound model would have written; `seconds` is how long the slow and the stubborn one take."""
        self.failure: Failure = failure
        self._text = text
        self._window = window
        self._seconds = seconds
        self._sleep = sleep
        self.asks: list[Ask] = []

    @property
    def name(self) -> str:
        """What it is called."""
        return f"failing:{self.failure}"

    @property
    def window(self) -> int | None:
        """The largest input in tokens."""
        return self._window

    async def write(self, ask: Ask) -> Answer:
        """Fail."""
        self.asks.append(ask)
        if error := self._error(ask):
            raise error
        if self.failure == "slow":
            await self._sleep(self._seconds)
        elif self.failure == "hanging":
            await asyncio.get_running_loop().create_future()
        elif self.failure == "stubborn":
            await self._unmoved()
        answer = answer_of(ask, self._written(ask), self.name)
        return Answer(text=answer.text, model=answer.model, usage=answer.usage, is_cut_off=self.failure == "truncated")

    async def _unmoved(self) -> None:
        """Take the whole time, whoever says stop."""
        work = asyncio.ensure_future(self._sleep(self._seconds))
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(work)

    def _written(self, ask: Ask) -> str:
        texts = {
            "empty": "",
            "garbage": GARBAGE,
            "truncated": self._text[: len(self._text) // 2],
            "inflated": f"{self._text}\n{ask.text}\n" * 3,
        }
        return texts.get(self.failure, self._text)

    def _error(self, ask: Ask) -> HoldfastError | None:
        name = self.name
        if self.failure == "flaky":
            turn = len(self.asks) % 4
            cut = ModelUnreachableError(name, "the connection was cut")
            return {1: cut, 3: ModelBusyError(name, "overloaded", retry_after=2.0)}.get(turn)
        limit = self._window or 1_024
        size = len(ask.text) // CHARS_PER_TOKEN
        errors: dict[Failure, HoldfastError] = {
            "refusing": ModelRefusedError(name, "I cannot help with that"),
            "unauthorised": ModelAccessError(name, "401 invalid key"),
            "unreachable": ModelUnreachableError(name, "connection refused"),
            "busy": ModelBusyError(name, "429 too many requests", retry_after=5.0),
            "overflow": ModelOverflowError(name, f"{size} tokens > {limit} maximum", limit=limit, size=size),
        }
        return errors.get(self.failure)


def answer_of(ask: Ask, text: str, model: str) -> Answer:
    """Return an answer with a plausible bill: a token for four characters."""
    asked = len(ask.system) + len(ask.text)
    usage = Usage(input_tokens=asked // CHARS_PER_TOKEN, output_tokens=len(text) // CHARS_PER_TOKEN)
    return Answer(text=text, model=model, usage=usage)
