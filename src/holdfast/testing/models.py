"""Summarizers for tests: one follows a script, the other fails on purpose.

Both reply at once, or after a delay on the clock that the test passes in.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
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
from holdfast.models.base import ModelReply, SummaryPrompt
from holdfast.models.retry import Sleep

ScriptLine: TypeAlias = str | ModelReply | Exception | Callable[[SummaryPrompt], str]
"""A line of a script: a text, a whole reply, an error to raise, or a function of the prompt."""
FailureKind: TypeAlias = Literal[
    "slow", "empty", "garbage", "truncated", "inflated", "refusing", "hanging", "flaky",
    "stubborn", "unauthorized", "unreachable", "busy", "overflow",
]  # fmt: skip
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)

GARBAGE = "\x00\ufffd{]]> the the the the \u202e\u200b <|im_end|> %s %s ```\n" * 40
SAMPLE_SUMMARY = "The request was understood, the work was done, and nothing is left open."
MINUTE_SECONDS = 60.0
BILLED_CHARS_PER_TOKEN = 4


class ScriptedModel:
    """Replies line by line, and records its prompts."""

    def __init__(
        self,
        lines: Iterable[ScriptLine],
        *,
        name: str = "scripted",
        window: int | None = None,
        seconds: float = 0.0,
        sleep: Sleep = asyncio.sleep,
        prefix_formats: Iterable[str] = (),
    ) -> None:
        """`lines` may be endless; each reply takes `seconds` on the clock of `sleep`.

        `prefix_formats` are the formats of requests that it can continue.
        """
        self.name = name
        self.window = window
        self.prefix_formats = frozenset(prefix_formats)
        self._lines = iter(lines)
        self._seconds = seconds
        self._sleep = sleep
        self.prompts: list[SummaryPrompt] = []

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Return the next line of the script."""
        self.prompts.append(prompt)
        if self._seconds:
            await self._sleep(self._seconds)
        line = next(self._lines, None)
        if line is None:
            raise ModelRefusedError(
                self.name, f"the script has no line for prompt {len(self.prompts)}", remedy="add lines"
            )
        if isinstance(line, Exception):
            raise line
        if isinstance(line, ModelReply):
            return line
        return scripted_reply(prompt, line if isinstance(line, str) else line(prompt), self.name)


class FailingModel:
    """Fails in the same way every time; the flaky kind fails every other time. Records its prompts."""

    def __init__(
        self,
        failure: FailureKind,
        *,
        text: str = SAMPLE_SUMMARY,
        window: int | None = None,
        seconds: float = MINUTE_SECONDS,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`text` is the reply of a working model; `seconds` is how long the slow and the stubborn kind take."""
        self.failure: FailureKind = failure
        self.name = f"failing:{failure}"
        self.window = window
        self._text = text
        self._seconds = seconds
        self._sleep = sleep
        self.prompts: list[SummaryPrompt] = []

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Fail."""
        self.prompts.append(prompt)
        if error := self._error(prompt):
            raise error
        if self.failure == "slow":
            await self._sleep(self._seconds)
        elif self.failure == "hanging":
            await asyncio.get_running_loop().create_future()
        elif self.failure == "stubborn":
            await self._ignore_cancellation()
        reply = scripted_reply(prompt, self._reply_text(prompt), self.name)
        return replace(reply, is_cut_off=self.failure == "truncated")

    async def _ignore_cancellation(self) -> None:
        """Sleep for the whole time, even if the call is cancelled."""
        work = asyncio.ensure_future(self._sleep(self._seconds))
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(work)

    def _reply_text(self, prompt: SummaryPrompt) -> str:
        texts = {
            "empty": "",
            "garbage": GARBAGE,
            "truncated": self._text[: len(self._text) // 2],
            "inflated": f"{self._text}\n{prompt.text}\n" * 3,
        }
        return texts.get(self.failure, self._text)

    def _error(self, prompt: SummaryPrompt) -> HoldfastError | None:
        name = self.name
        if self.failure == "flaky":
            turn = len(self.prompts) % 4
            cut = ModelUnreachableError(name, "the connection was cut")
            return {1: cut, 3: ModelBusyError(name, "overloaded", retry_after=2.0)}.get(turn)
        limit = self.window or 1_024
        size = len(prompt.text) // BILLED_CHARS_PER_TOKEN
        errors: dict[FailureKind, HoldfastError] = {
            "refusing": ModelRefusedError(name, "I cannot help with that"),
            "unauthorized": ModelAccessError(name, "401 invalid key"),
            "unreachable": ModelUnreachableError(name, "connection refused"),
            "busy": ModelBusyError(name, "429 too many requests", retry_after=5.0),
            "overflow": ModelOverflowError(name, f"{size} tokens > {limit} maximum", limit=limit, size=size),
        }
        return errors.get(self.failure)


def scripted_reply(prompt: SummaryPrompt, text: str, model: str) -> ModelReply:
    """Return a reply with a plausible usage: one token for four characters."""
    size = len(prompt.system) + len(prompt.text)
    usage = Usage(input_tokens=size // BILLED_CHARS_PER_TOKEN, output_tokens=len(text) // BILLED_CHARS_PER_TOKEN)
    return ModelReply(text=text, model=model, usage=usage)
