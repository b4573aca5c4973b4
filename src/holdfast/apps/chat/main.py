"""Starts and ends a chat: chooses the screen and the conversation, and updates the context board on exit."""

import asyncio
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from holdfast import __version__
from holdfast.apps.chat.attachments import AttachedText, read_attachment
from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.dispatch import answer_lines, submit_line
from holdfast.apps.chat.events import NOTHING_RUNS, CommandReply, ConversationOpened, Screen, TurnOutcome
from holdfast.apps.chat.plain_screen import JsonScreen, PlainScreen, TypedLines
from holdfast.apps.settings.models import available_providers
from holdfast.apps.settings.settings import Settings
from holdfast.apps.threads import run_in_daemon_thread
from holdfast.core.planning.summary.board_prompt import CONSOLIDATION_AGENT
from holdfast.errors import HoldfastError, MissingExtraError, SettingsError, imports_of_extra
from holdfast.models.base import EMBEDDED_MODEL as EMBEDDED
from holdfast.models.base import is_embedded
from holdfast.models.embedded.weights import weights_file
from holdfast.models.local_servers import find_ollama_models
from holdfast.redaction import redact_text
from holdfast.stores.memory import MemoryStore
from holdfast.text import pluralize

if TYPE_CHECKING:
    from holdfast.apps.chat.terminal_screen import TerminalScreen

TOOL_DESCRIPTIONS = {"read": "read files", "edit": "change files", "run": "run commands"}
EMBEDDED_ABILITIES = "It has 135 million parameters: plain sentences, few true facts, no tools."
MIN_CONSOLIDATED_MESSAGES = 4
"""A shorter conversation is not consolidated."""
EXIT_SECONDS = 60
"""How long consolidation may delay the exit."""
CHAT_EXTRA = "chat"
"""The extra with the packages of this program."""


async def consolidate_on_exit(chat: Chat) -> None:
    """Consolidate the conversation into the board, if the settings allow that without asking."""
    session = chat.session
    agent = chat.rem_agent() if chat.settings.consolidate and len(session) >= MIN_CONSOLIDATED_MESSAGES else None
    if agent is None:
        return
    try:
        async with asyncio.timeout(EXIT_SECONDS):
            done = await agent.run(only=session.id)
            await agent.apply(done)
    except (HoldfastError, TimeoutError) as error:
        chat.notify(f"board: {str(error) or 'consolidation took too long and was stopped'}", "warning")
        return
    finally:
        await agent.close()
    if done.proposals:
        chat.notify(f"{CONSOLIDATION_AGENT}: {pluralize(len(done.proposals), 'change')} to the board; /board shows it")


STANDARD_INPUT = "-"
EXIT_CODES: dict[TurnOutcome, int] = {"done": 0, "cut": 1, "failed": 1, "interrupted": 130}
RESUMING_RESTORE = "recent_text"
"""A policy that restores in this way continues the newest conversation by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """The options of the command line."""

    prompt: str | None = None
    is_once: bool = False
    """Answer once and exit."""
    is_json: bool = False
    session: str | None = None
    """The conversation to continue, by the beginning of its id."""
    is_resumed: bool = False
    """Continue the newest conversation."""
    attached: tuple[str, ...] = ()
    """The files to attach to the first prompt; `-` is standard input."""


async def run_chat(settings: Settings, options: ChatOptions) -> int:
    """Run a chat, and return the exit code."""
    if find_spec("pydantic_ai") is None:  # said before a model is downloaded and started
        raise MissingExtraError("holdfast chat", CHAT_EXTRA, "No module named 'pydantic_ai'")
    # The screen shows these warnings; on standard error they would garble it.
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    if not options.is_once and not options.is_json and has_terminal():
        return await _run_in_terminal(settings, options)
    lines = TypedLines()
    is_typed = sys.stdin.isatty() and not options.is_once and not options.is_json
    screen = JsonScreen() if options.is_json else PlainScreen(lines if is_typed else None)
    async with _open_chat(settings, screen, options) as chat:
        task = cast("asyncio.Task[object]", asyncio.current_task())

        def end() -> None:
            chat.is_over = True
            task.cancel()

        try:
            with end_on_signals(end) as signals:
                try:
                    if is_typed:
                        return await _answer_typed_lines(chat, lines, options.prompt)
                    chat.failure_hint = _describe_resuming
                    return EXIT_CODES[await _answer_input(chat, lines, options)]
                except asyncio.CancelledError:
                    if not signals:
                        raise
                    task.uncancel()
                    _notify_saved(chat)
                    return EXIT_CODES["interrupted"]
        finally:
            await consolidate_on_exit(chat)


async def _answer_typed_lines(chat: Chat, lines: TypedLines, prompt: str | None) -> int:
    """Talk to a user at a terminal that cannot move its cursor; Ctrl-C stops the answer, and not the program."""
    await _notify_greeting(chat)
    with suppress(NotImplementedError):  # not on every platform
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGINT, lambda: chat.interrupt() or chat.notify(NOTHING_RUNS)
        )
    await answer_lines(chat, lines, prompt, ends_if_interrupted=False)
    _notify_saved(chat)
    return 0


def _notify_saved(chat: Chat) -> None:
    if hint := _describe_resuming(chat):
        chat.notify(f"saved{hint}")


def _describe_resuming(chat: Chat) -> str:
    """Return how to continue the conversation in another run; empty if nothing of it is stored."""
    if not len(chat.session) or isinstance(chat.store, MemoryStore):
        return ""
    resumed = f"{program_name()} chat --resume {shlex.quote(chat.session.id)}"
    return f"; continue with: {resumed}{chat.settings.store_option()}"


def program_name() -> str:
    """Return the command that starts this program: its name if the shell finds it, else its path."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m holdfast"
    found = shutil.which(started.name)
    is_on_path = found is not None and Path(found).resolve() == started.resolve()
    return started.name if is_on_path else shlex.quote(str(started))


async def _answer_input(chat: Chat, lines: TypedLines, options: ChatOptions) -> TurnOutcome:
    if not options.is_once:
        return await answer_lines(chat, lines, options.prompt)
    has_piped = not sys.stdin.isatty() and STANDARD_INPUT not in options.attached
    piped = await run_in_daemon_thread(sys.stdin.read) if has_piped else ""
    prompt = "\n\n".join(text for text in (options.prompt or "", piped.strip()) if text)
    if not prompt:
        raise SettingsError("prompt", 'is empty; give one: echo "question" | holdfast chat -p')
    return await submit_line(chat, prompt)


async def _run_in_terminal(settings: Settings, options: ChatOptions) -> int:
    with imports_of_extra(CHAT_EXTRA, "holdfast chat in a terminal"):
        from holdfast.apps.chat.loop import run_chat_loop  # noqa: PLC0415 - takes 0.1 s, only for terminals
        from holdfast.apps.chat.terminal_screen import TerminalScreen  # noqa: PLC0415 - as above

    has_color = settings.colour == "always" or (settings.colour == "auto" and not os.environ.get("NO_COLOR"))
    background = terminal_background(settings.theme, os.environ)
    terminal = TerminalScreen(settings.paths.prompt_history, has_color=has_color, background=background)
    async with _open_chat(settings, terminal, options) as chat:
        with end_on_signals(terminal.input_line.close) as signals:
            await run_chat_loop(chat, terminal, options.prompt, greeting=lambda: _show_greeting(chat, terminal))
        if signals:
            await consolidate_on_exit(chat)
        _notify_saved(chat)
    return 0


def describe_models(chat: Chat) -> str:
    """Return what the embedded model can do, and which other models there are; empty if the user chose a model."""
    if not is_embedded(chat.model):
        return ""
    ours = f"{EMBEDDED_ABILITIES}\n" if chat.model == EMBEDDED else ""
    if providers := available_providers(os.environ):
        others = f"There are keys for {', '.join(providers)}: /model {providers[0]}: and Tab lists models"
    elif chat.local_models:
        others = f"Ollama runs on this machine: /model {chat.local_models[0]} switches"
    else:
        others = "Others: set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, or run Ollama"
    return f"{ours}{others}."


def describe_tools(chat: Chat) -> str:
    """Return what the model may do in the folder; empty if it has no tools."""
    tools = () if is_embedded(chat.model) else chat.settings.tools
    may = [text for name, text in TOOL_DESCRIPTIONS.items() if name in tools]
    asks = ", and asks before it changes anything" if {"edit", "run"} & {*tools} else ""
    return f"It may {', '.join(may)} here{asks}." if may else ""


async def _notify_greeting(chat: Chat) -> None:
    """Tell the model and the conversation, what else there is, and where to find help: three lines of 80 columns."""
    count = len(chat.session)
    where = [f"{chat.session.id}, {pluralize(count, 'message')} so far"] if count else []
    chat.local_models = await asyncio.to_thread(find_ollama_models)
    lines = [
        " · ".join([f"holdfast {__version__}", chat.status.model, *where, "/help lists the commands, Ctrl-D leaves"]),
        *([] if count else [describe_models(chat)]),
        describe_tools(chat),
    ]
    chat.notify("\n".join(line for line in lines if line))
    if is_embedded(chat.model):
        try:
            weights_file(chat.model)
        except SettingsError as error:
            chat.notify(str(error), "error")


async def _show_greeting(chat: Chat, terminal: "TerminalScreen") -> None:
    """Show the greeting and the last exchange of the conversation."""
    await _notify_greeting(chat)
    if len(chat.session):
        asked, answer = await chat.last_exchange()
        terminal.show_prompt(asked)
        if answer:
            terminal.show(CommandReply(answer))
        else:
            chat.notify("this prompt has no answer; /retry sends it again")


@contextmanager
def end_on_signals(end: Callable[[], object]) -> Generator[list[int]]:
    """Call `end` when the program receives a signal to terminate or its terminal is closed.

    Yield the list of received signals.
    """
    received: list[int] = []

    def receive(number: int) -> None:
        received.append(number)
        end()

    loop = asyncio.get_running_loop()
    numbers = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]
    with suppress(NotImplementedError):  # not on every platform
        for number in numbers:
            loop.add_signal_handler(number, receive, number)
    try:
        yield received
    finally:
        with suppress(NotImplementedError):
            for number in numbers:
                loop.remove_signal_handler(number)


@asynccontextmanager
async def _open_chat(settings: Settings, screen: Screen, options: ChatOptions) -> AsyncGenerator[Chat]:
    """Yield a chat in the conversation that the options name."""
    settings.paths.check_cwd()
    chat = Chat(settings, screen, folder=Path.cwd())
    if isinstance(screen, JsonScreen):
        chat.session_callback = screen.show_session_event
    try:
        if options.session or options.is_resumed:
            await chat.open_conversation(options.session, is_newest=options.is_resumed)
        else:
            is_newest = settings.effective_policy.restore == RESUMING_RESTORE and not options.is_once
            await chat.open_conversation(is_newest=is_newest and bool(await chat.store.sessions(limit=1)))
        for problem in (*map(str, settings.problems), *settings.notes):
            chat.notify(problem, "warning")
        for file in options.attached:
            chat.attached.append(
                AttachedText("stdin.txt", await run_in_daemon_thread(sys.stdin.read))
                if file == STANDARD_INPUT
                else await run_in_daemon_thread(partial(read_attachment, file, chat.file_tools.root))
            )
        model = redact_text(chat.model)  # its address may hold a password
        screen.show(ConversationOpened(chat.session.id, model, chat.status.budget, len(chat.session)))
        yield chat
    finally:
        await chat.close()


def terminal_background(theme: str, environ: Mapping[str, str]) -> str:
    """Return whether the terminal is dark or light: as the settings say, else as far as the terminal says."""
    if theme != "auto":
        return theme
    # Some terminals set COLORFGBG to the numbers of their two colors; 7 and 9 to 15 are light.
    number = environ.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if number in {"7", *map(str, range(9, 16))} else "dark"


def has_terminal() -> bool:
    """Return whether input and output are a terminal that can move its cursor."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", ""}
