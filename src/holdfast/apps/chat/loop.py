"""The loop of a conversation in a terminal: runs the submitted lines in order until the user leaves.

The input line stays open while a turn runs; lines that are submitted meanwhile are queued.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from prompt_toolkit.patch_stdout import patch_stdout

from holdfast.apps.chat.attachments import AttachedImage, clipboard_image, pasted_image_path
from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands.config import list_endpoint_models
from holdfast.apps.chat.dispatch import is_immediate, submit_line
from holdfast.apps.chat.events import NOTHING_RUNS, unexpected_error_notice
from holdfast.apps.chat.terminal_screen import TerminalScreen
from holdfast.errors import HoldfastError

Greeting: TypeAlias = Callable[[], Awaitable[None]]


async def run_chat_loop(chat: Chat, terminal: TerminalScreen, prompt: str | None, greeting: Greeting) -> None:
    """Run until the user leaves; `prompt` comes from the command line.

    The loop draws the input line first. Then it shows the greeting and loads the slow libraries.
    """
    chat_loop = _ChatLoop(chat, terminal, greeting)
    if prompt:
        chat_loop.enqueue(prompt)
    with patch_stdout(raw=True):
        warming = asyncio.create_task(_warm_up(chat, terminal))
        try:
            await chat_loop.run()
        finally:
            warming.cancel()
            with suppress(asyncio.CancelledError):
                await warming


async def _warm_up(chat: Chat, terminal: TerminalScreen) -> None:
    """Load the libraries for an answer once the input line is drawn, and find out which models there are."""
    await terminal.input_line.is_drawn.wait()
    await chat.warm_up()
    terminal.input_line.refresh()  # the status says how large the first request is
    await list_endpoint_models(chat)  # for the completion of /model


class _ChatLoop:
    """The queue of submitted lines, and the worker that runs them."""

    def __init__(self, chat: Chat, terminal: TerminalScreen, greeting: Greeting) -> None:
        self._chat = chat
        self._greeting = greeting
        self._terminal = terminal
        self._queue: deque[str] = deque()
        self._beside: set[asyncio.Task[None]] = set()
        """Commands that run beside an answer."""
        self._has_input = asyncio.Event()
        self._is_busy = False
        terminal.chat = chat
        terminal.input_line.interrupt = self._interrupt
        terminal.input_line.idle_interrupt = lambda: chat.notify(NOTHING_RUNS)
        terminal.input_line.attach_clipboard = lambda: self._run_beside(self._attach_clipboard())
        terminal.input_line.image_word = self._image_word

    def enqueue(self, line: str) -> None:
        """Queue a line; a command that only looks runs at once."""
        if self._is_busy and is_immediate(line):
            self._terminal.show_prompt(line)
            self._run_beside(submit_line(self._chat, line))
            return
        self._queue.append(line)
        self._update_queue_length()
        self._has_input.set()

    def _run_beside(self, action: Awaitable[object]) -> None:
        beside = asyncio.create_task(self._show_errors(action))
        self._beside.add(beside)
        beside.add_done_callback(self._beside.discard)

    async def _attach_clipboard(self) -> None:
        data = await asyncio.to_thread(clipboard_image)
        if data is None:
            self._chat.notify("the clipboard holds no image, or no program here can read it; /attach FILE takes a file")
            return
        image = AttachedImage(f"clipboard-{len(self._chat.attached) + 1}.png", data, "image/png")
        self._chat.attached.append(image)
        self._chat.notify(f"attached to the next prompt: {image.name}, {len(data):,} bytes")

    def _image_word(self, pasted: str) -> str | None:
        path = pasted_image_path(pasted, self._chat.file_tools.root)
        return None if path is None else f'@"{path}" ' if " " in path else f"@{path} "

    async def run(self) -> None:
        """Read and answer until the user leaves."""
        worker = asyncio.create_task(self._run_queue())
        try:
            while not self._chat.is_over and (line := await self._terminal.input_line.read()) is not None:
                self.enqueue(line)
        finally:
            self._chat.is_over = True
            self._has_input.set()
            # An interrupted turn ends by itself; any other action is cancelled.
            if not self._chat.interrupt():
                worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker
            for line in (*self._chat.unrecorded_texts, *self._queue):
                is_stored = self._terminal.input_line.history.is_stored(line)
                where = "but saved in the input history" if is_stored else "and the input history does not keep it"
                self._chat.notify(f"not sent, {where}: {line:.80}", "warning")

    async def _run_queue(self) -> None:
        """Show the greeting, then run the queued lines one after the other."""
        await self._terminal.input_line.is_drawn.wait()
        await self._show_errors(self._greeting())
        while not self._chat.is_over:
            await self._has_input.wait()
            while self._queue and not self._chat.is_over:
                line = self._queue.popleft()
                self._is_busy = True
                self._update_queue_length()
                self._terminal.show_prompt(line)
                try:
                    await self._show_errors(submit_line(self._chat, line))
                finally:
                    self._is_busy = False
            self._has_input.clear()
        self._terminal.input_line.close()

    async def _show_errors(self, action: Awaitable[object]) -> None:
        """Await an action and show any error, so that the loop continues with the next line."""
        try:
            await action
        except HoldfastError as error:
            self._chat.notify(str(error), "error")
        except Exception as error:  # noqa: BLE001 - a provider's library may raise anything
            self._terminal.show(unexpected_error_notice(error))

    def _update_queue_length(self) -> None:
        self._terminal.queued_lines = len(self._queue) if self._is_busy else max(0, len(self._queue) - 1)

    def _interrupt(self) -> bool:
        """Stop the turn or the compaction; the queue continues."""
        if self._chat.interrupt():
            return True
        if self._chat.status.is_compacting:
            self._run_beside(self._cancel_compaction())
            return True
        return False

    async def _cancel_compaction(self) -> None:
        is_command = self._is_busy  # a command shows the result itself
        if await self._chat.session.cancel_compaction() and not is_command:
            self._chat.notify("compaction cancelled", "warning")
