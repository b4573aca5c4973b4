"""Runs a typed line: as a command if it begins with a slash and a name, else as a prompt. Has /help."""

import re

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands import agents, compact, config, context, memory, recall, sessions, work
from holdfast.apps.chat.commands.registry import SlashCommandRegistry
from holdfast.apps.chat.events import CommandReply, CommandTable, TurnOutcome, unexpected_error_notice
from holdfast.apps.chat.plain_screen import TypedLines
from holdfast.errors import HoldfastError

SLASH_COMMANDS = SlashCommandRegistry(
    agents.AGENT_COMMANDS,
    compact.COMPACT_COMMANDS,
    config.CONFIG_COMMANDS,
    context.CONTEXT_COMMANDS,
    memory.MEMORY_COMMANDS,
    recall.RECALL_COMMANDS,
    sessions.SESSION_COMMANDS,
    work.WORK_COMMANDS,
)
LEAVING_WORDS = frozenset({"exit", "quit"})


@SLASH_COMMANDS.register(
    "[COMMAND]",
    aliases=["?"],
    completes=lambda _: [command.name for command in SLASH_COMMANDS],
    is_immediate=True,
)
async def help_(chat: Chat, name: str) -> None:
    """List the commands, or explain one."""
    if name:
        command = SLASH_COMMANDS.find(name.removeprefix("/"))
        usage = f"/{command.name} {command.usage}".rstrip()
        also = f" (also {', '.join(f'/{alias}' for alias in command.aliases)})" if command.aliases else ""
        chat.screen.show(CommandReply(f"**{usage}**{also}\n\n{command.help}"))
        return
    rows = [(f"/{command.name}", command.summary) for command in SLASH_COMMANDS]
    chat.screen.show(CommandTable(("COMMAND", "WHAT IT DOES"), rows))
    chat.notify("/help COMMAND explains one; a prompt may name files as @FILE; Tab completes")


async def run_slash_command(chat: Chat, line: str) -> bool:
    """Run a line that begins with a slash, show any error, and return whether the command succeeded."""
    name, arguments = _name_and_arguments(line)
    try:
        await SLASH_COMMANDS.find(name.lower())(chat, arguments)
        chat.announce_compactions()
        await chat.refresh_token_count()
    except HoldfastError as error:
        chat.notify(str(error), "error")
        return False
    except Exception as error:  # noqa: BLE001 - a bug in a command must not end the conversation
        chat.screen.show(unexpected_error_notice(error))
        return False
    return True


async def submit_line(chat: Chat, line: str) -> TurnOutcome:
    """Run one line: a command if its first word is a slash and a name, else a prompt; `exit` and `quit` leave."""
    if line.strip().lower() in LEAVING_WORDS:
        chat.is_over = True
        return "done"
    if is_command(line):
        return "done" if await run_slash_command(chat, line) else "failed"
    return await chat.take_turn(line)


def is_command(line: str) -> bool:
    """Return whether a line is a command; a line that begins with a path is not."""
    first = line.split(maxsplit=1)[0] if line.strip() else ""
    return first.startswith("/") and "/" not in first[1:]


def is_immediate(line: str) -> bool:
    """Return whether a line is a command that need not wait for the running answer."""
    if not is_command(line):
        return False
    name, arguments = _name_and_arguments(line)
    try:
        command = SLASH_COMMANDS.find(name.lower())
    except HoldfastError:
        return False
    return command.is_immediate and arguments != "clear"


def _name_and_arguments(line: str) -> tuple[str, str]:
    """Return the name of a command and its arguments, which may begin on the next line."""
    name, *arguments = re.split(r"\s+", line.strip().removeprefix("/"), maxsplit=1)
    return name, "".join(arguments)


async def answer_lines(
    chat: Chat, lines: TypedLines, prompt: str | None = None, *, ends_if_interrupted: bool = True
) -> TurnOutcome:
    """Answer a prompt, if there is one, and standard input line by line; return how the last turn ended."""
    outcome: TurnOutcome = await submit_line(chat, prompt) if prompt else "done"
    while (line := await lines.read()) is not None:
        if line.strip():
            outcome = await submit_line(chat, line)
        if chat.is_over or (outcome == "interrupted" and ends_if_interrupted):
            break
    return outcome
