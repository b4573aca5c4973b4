"""The beginning of a chat: where it is shown, which conversation it goes on with, and how it ends.

What a conversation leaves for the next when it ends with nobody there to be asked.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.dispatch import answer_stdin, submit_line
from holdfast.apps.chat.events import ChatNotice, CommandReply, Screen, TurnOutcome
from holdfast.apps.chat.plain_screen import JsonScreen, PlainScreen
from holdfast.apps.settings.settings import Settings
from holdfast.core.planning.summary.board_prompt import CONSOLIDATION_AGENT
from holdfast.errors import HoldfastError, SettingsError
from holdfast.text import pluralize

if TYPE_CHECKING:
    from holdfast.apps.chat.terminal_screen import TerminalScreen

MIN_CONSOLIDATED_MESSAGES = 4
"""A shorter conversation leaves nothing."""
EXIT_SECONDS = 60
"""How long a program that ends takes for it."""


async def consolidate_on_exit(chat: Chat) -> None:
    """Put what a conversation leaves on the board, where the settings allow that without anybody's word."""
    session = chat.session
    agent = chat.rem_agent() if chat.settings.consolidate and len(session) >= MIN_CONSOLIDATED_MESSAGES else None
    if agent is None:
        return
    try:
        async with asyncio.timeout(EXIT_SECONDS):
            done = await agent.run(only=session.id)
            await agent.apply(done)
    except (HoldfastError, TimeoutError) as error:
        chat.screen.show(ChatNotice(f"board: {str(error) or 'there was no time left'}", "warning"))
        return
    finally:
        await agent.close()
    if done.proposals:
        changes = pluralize(len(done.proposals), "change")
        chat.screen.show(ChatNotice(f"{CONSOLIDATION_AGENT}: {changes} of the board; /board shows it"))


EXIT_CODES: dict[TurnOutcome, int] = {"done": 0, "failed": 1, "interrupted": 130}
RESUMING_RESTORE = "recent_text"
"""How a policy restores that goes on with the newest conversation by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What the command line asks for."""

    prompt: str | None = None
    is_once: bool = False
    """Answer once and leave."""
    is_json: bool = False
    session: str | None = None
    """The conversation to go on with, by the beginning of its id."""
    is_resumed: bool = False
    """Go on with the newest one."""


async def run_chat(settings: Settings, options: ChatOptions) -> int:
    """Run a chat, and return the exit code."""
    if not options.is_once and not options.is_json and has_terminal():
        return await _run_in_terminal(settings, options)
    screen = JsonScreen() if options.is_json else PlainScreen()
    async with _open_chat(settings, screen, options) as chat:
        chat.failure_hint = f"; go on with: holdfast chat --resume {chat.session.id}"
        try:
            with end_on_signals(_current_task_cancel()):
                return EXIT_CODES[await _answer_input(chat, options)]
        finally:
            await consolidate_on_exit(chat)


async def _answer_input(chat: Chat, options: ChatOptions) -> TurnOutcome:
    if not options.is_once:
        return await answer_stdin(chat, options.prompt)
    given = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    prompt = "\n\n".join(text for text in (options.prompt or "", given) if text)
    if not prompt:
        raise SettingsError("prompt", 'is empty; give one: echo "question" | holdfast chat -p')
    return await submit_line(chat, prompt)


async def _run_in_terminal(settings: Settings, options: ChatOptions) -> int:
    from holdfast.apps.chat.loop import run_chat_loop  # noqa: PLC0415 - a tenth of a second, for people only
    from holdfast.apps.chat.terminal_screen import TerminalScreen  # noqa: PLC0415 - as above

    terminal = TerminalScreen(settings.paths.prompt_history, has_color=has_color(settings))
    async with _open_chat(settings, terminal, options) as chat:
        with end_on_signals(terminal.input_line.close) as told:
            await run_chat_loop(chat, terminal, options.prompt, greeting=lambda: _show_greeting(chat, terminal))
        if told:
            await consolidate_on_exit(chat)
        if len(chat.session):
            terminal.show(ChatNotice(f"kept; go on with: holdfast chat --resume {chat.session.id}"))
    return 0


async def _show_greeting(chat: Chat, terminal: "TerminalScreen") -> None:
    """Say who answers, and what was said last."""
    terminal.show(ChatNotice(welcome_text(chat)))
    if len(chat.session):
        asked, answer = await chat.last_exchange()
        terminal.show_prompt(asked)
        terminal.show(CommandReply(answer))


def _current_task_cancel() -> Callable[[], object]:
    task = asyncio.current_task()
    return task.cancel if task is not None else lambda: None


@contextmanager
def end_on_signals(end: Callable[[], object]) -> Generator[list[int]]:
    """Let a program that is told to end, or whose terminal goes away, end as if the person had left.

    Yields what it was told, as it comes.
    """
    told: list[int] = []

    def heard(number: int) -> None:
        told.append(number)
        end()

    loop = asyncio.get_running_loop()
    numbers = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]
    for number in numbers:
        loop.add_signal_handler(number, heard, number)
    try:
        yield told
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _open_chat(settings: Settings, screen: Screen, options: ChatOptions) -> AsyncGenerator[Chat]:
    """Yield a chat in the conversation that was wished for."""
    chat = Chat(settings, screen, folder=Path.cwd())
    try:
        if options.session or options.is_resumed:
            await chat.open_conversation(options.session, is_newest=options.is_resumed)
        else:
            is_newest = settings.effective_policy.restore == RESUMING_RESTORE and not options.is_once
            await chat.open_conversation(is_newest=is_newest and bool(await chat.store.sessions(limit=1)))
        for told in (*map(str, settings.problems), *settings.notes):
            screen.show(ChatNotice(told, "warning"))
        yield chat
    finally:
        await chat.close()


def welcome_text(chat: Chat) -> str:
    """Return the first line: who answers, in which conversation, and where to find help."""
    many = len(chat.session)
    where = f"{chat.session.id}, {many:,} messages so far" if many else "a new conversation"
    return f"holdfast {version('holdfast')} · {chat.status.model} · {where}\n/help lists the commands, Ctrl-D leaves"


def has_terminal() -> bool:
    """Return whether a person sits at both ends, with a terminal that can move its cursor."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", ""}


def has_color(settings: Settings) -> bool:
    """Return whether to use colours."""
    return settings.colour == "always" or (settings.colour == "auto" and not os.environ.get("NO_COLOR"))
