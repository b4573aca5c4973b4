"""The beginning of a chat: where it is shown, which conversation it goes on with, and how it ends."""

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

from holdfast.app.build import policy_from
from holdfast.app.settings import Settings
from holdfast.chat.chat import Chat
from holdfast.chat.happenings import Notice, Outcome, Screen, Told
from holdfast.chat.parting import left_behind
from holdfast.chat.plain import JsonScreen, PlainScreen
from holdfast.chat.taking import answer_lines, take
from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from holdfast.chat.terminal import Terminal

EXIT_CODES: dict[Outcome, int] = {"done": 0, "failed": 1, "interrupted": 130}
RESUMES = "recent_text"
"""How a policy restores that goes on with the newest conversation by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the command line asks for."""

    prompt: str | None = None
    is_once: bool = False
    """Answer once and leave."""
    is_json: bool = False
    session: str | None = None
    """The conversation to go on with, by the beginning of its id."""
    is_resumed: bool = False
    """Go on with the newest one."""


async def start(settings: Settings, wish: Wish) -> int:
    """Run a chat, and return the exit code."""
    if not wish.is_once and not wish.is_json and has_terminal():
        return await _in_terminal(settings, wish)
    screen = JsonScreen() if wish.is_json else PlainScreen()
    async with _begun(settings, screen, wish) as chat:
        chat.hint = f"; go on with: holdfast chat --resume {chat.session.id}"
        try:
            with ended_by_signals(_cancel_of_this_task()):
                return EXIT_CODES[await _answered(chat, wish)]
        finally:
            await left_behind(chat)


async def _answered(chat: Chat, wish: Wish) -> Outcome:
    if not wish.is_once:
        return await answer_lines(chat, wish.prompt)
    given = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    prompt = "\n\n".join(text for text in (wish.prompt or "", given) if text)
    if not prompt:
        raise SettingsError("prompt", 'is empty; give one: echo "question" | holdfast chat -p')
    return await take(chat, prompt)


async def _in_terminal(settings: Settings, wish: Wish) -> int:
    from holdfast.chat.loop import converse  # noqa: PLC0415 - a tenth of a second, for people only
    from holdfast.chat.terminal import Terminal  # noqa: PLC0415 - as above

    terminal = Terminal(settings.places.prompts, has_colour=has_colour(settings))
    async with _begun(settings, terminal, wish) as chat:
        with ended_by_signals(terminal.line.leave) as told:
            await converse(chat, terminal, wish.prompt, greeting=lambda: _greet(chat, terminal))
        if told:
            await left_behind(chat)
        if len(chat.session):
            terminal.show(Notice(f"kept; go on with: holdfast chat --resume {chat.session.id}"))
    return 0


async def _greet(chat: Chat, terminal: "Terminal") -> None:
    """Say who answers, and what was said last."""
    terminal.show(Notice(welcome(chat)))
    if len(chat.session):
        asked, answer = await chat.recap()
        terminal.said(asked)
        terminal.show(Told(answer))


def _cancel_of_this_task() -> Callable[[], object]:
    task = asyncio.current_task()
    return task.cancel if task is not None else lambda: None


@contextmanager
def ended_by_signals(end: Callable[[], object]) -> Generator[list[int]]:
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
async def _begun(settings: Settings, screen: Screen, wish: Wish) -> AsyncGenerator[Chat]:
    """Yield a chat in the conversation that was wished for."""
    chat = Chat(settings, screen, folder=Path.cwd())
    try:
        if wish.session or wish.is_resumed:
            await chat.begin(wish.session, is_newest=wish.is_resumed)
        else:
            is_newest = policy_from(settings).restore == RESUMES and not wish.is_once
            await chat.begin(is_newest=is_newest and bool(await chat.store.sessions(limit=1)))
        for told in (*map(str, settings.problems), *settings.notes):
            screen.show(Notice(told, "warning"))
        yield chat
    finally:
        await chat.close()


def welcome(chat: Chat) -> str:
    """Return the first line: who answers, in which conversation, and where to find help."""
    many = len(chat.session)
    where = f"{chat.session.id}, {many:,} messages so far" if many else "a new conversation"
    return f"holdfast {version('holdfast')} · {chat.status.model} · {where}\n/help lists the commands, Ctrl-D leaves"


def has_terminal() -> bool:
    """Return whether a person sits at both ends, with a terminal that can move its cursor."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", ""}


def has_colour(settings: Settings) -> bool:
    """Return whether to use colours."""
    return settings.colour == "always" or (settings.colour == "auto" and not os.environ.get("NO_COLOR"))
