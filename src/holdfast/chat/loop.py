"""The loop of a conversation in a terminal: what is typed, in order, until the person leaves.

The line stays open while a turn runs: what is said meanwhile waits its turn.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from prompt_toolkit.patch_stdout import patch_stdout

from holdfast.chat.chat import Chat
from holdfast.chat.happenings import Notice, unforeseen
from holdfast.chat.taking import take
from holdfast.chat.terminal import Terminal
from holdfast.errors import HoldfastError

Greeting: TypeAlias = Callable[[], Awaitable[None]]


async def converse(chat: Chat, terminal: Terminal, prompt: str | None, greeting: Greeting) -> None:
    """Talk until the person leaves; `prompt` is what was said on the command line.

    The line is there first; the greeting, and what takes long to load, come when it is.
    """
    talk = _Talk(chat, terminal, greeting)
    if prompt:
        talk.add(prompt)
    with patch_stdout(raw=True):
        warming = asyncio.create_task(_warmed_up(chat, terminal))
        try:
            await talk.run()
        finally:
            warming.cancel()
            with suppress(asyncio.CancelledError):
                await warming


async def _warmed_up(chat: Chat, terminal: Terminal) -> None:
    """Load what an answer needs, once there is a line to type on."""
    await terminal.line.is_drawn.wait()
    await chat.warm_up()


class _Talk:
    """What was typed and what is being done about it."""

    def __init__(self, chat: Chat, terminal: Terminal, greeting: Greeting) -> None:
        self._chat = chat
        self._greeting = greeting
        self._terminal = terminal
        self._waiting: deque[str] = deque()
        self._more = asyncio.Event()
        self._is_working = False
        terminal.attach(chat)
        terminal.stop = self._stop

    def add(self, line: str) -> None:
        """Take something that was typed."""
        self._waiting.append(line)
        self._told()
        self._more.set()

    async def run(self) -> None:
        """Read and answer until the person leaves."""
        worker = asyncio.create_task(self._work())
        try:
            while not self._chat.is_over and (line := await self._terminal.line.read()) is not None:
                self.add(line)
        finally:
            self._chat.is_over = True
            self._more.set()
            # A turn ends by itself when it is stopped; anything else that is being done is given up.
            if not self._chat.interrupt():
                worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker
            for line in self._waiting:
                self._terminal.show(Notice(f"not sent, but in the history of what you typed: {line:.80}", "warning"))

    async def _work(self) -> None:
        """Greet, and take what was typed, one after the other."""
        await self._terminal.line.is_drawn.wait()
        await self._carefully(self._greeting())
        while not self._chat.is_over:
            await self._more.wait()
            while self._waiting and not self._chat.is_over:
                line = self._waiting.popleft()
                self._is_working = True
                self._told()
                self._terminal.said(line)
                try:
                    await self._carefully(take(self._chat, line))
                finally:
                    self._is_working = False
            self._more.clear()
        self._terminal.line.leave()

    async def _carefully(self, doing: Awaitable[object]) -> None:
        """Wait for something, and tell what is wrong with it, whatever that is: what is typed next is answered."""
        try:
            await doing
        except HoldfastError as error:
            self._terminal.show(Notice(str(error), "error"))
        except Exception as error:  # noqa: BLE001 - as above
            self._terminal.show(unforeseen(error))

    def _told(self) -> None:
        self._terminal.queued = len(self._waiting) if self._is_working else max(0, len(self._waiting) - 1)

    def _stop(self) -> bool:
        """Stop the turn, or the compaction; what waits behind it is said next."""
        if self._chat.interrupt():
            return True
        if self._chat.status.is_compacting:
            asyncio.get_running_loop().create_task(self._cancel())
            return True
        return False

    async def _cancel(self) -> None:
        is_asked_for = self._is_working  # then the command says what became of it
        if await self._chat.session.cancel_compaction() and not is_asked_for:
            self._terminal.show(Notice("compaction cancelled", "warning"))
