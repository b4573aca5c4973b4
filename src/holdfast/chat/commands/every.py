"""All commands together, and how a line that begins with a slash is carried out."""

from holdfast.chat.chat import Chat
from holdfast.chat.commands import agents, context, memory, program, recalling, sessions
from holdfast.chat.commands.registry import SlashCommandRegistry
from holdfast.chat.happenings import ChatNotice, CommandReply, CommandTable, unexpected_error_notice
from holdfast.errors import HoldfastError

SLASH_COMMANDS = SlashCommandRegistry(
    context.CONTEXT_COMMANDS,
    recalling.RECALL_COMMANDS,
    sessions.SESSION_COMMANDS,
    memory.MEMORY_COMMANDS,
    agents.AGENT_COMMANDS,
    program.PROGRAM_COMMANDS,
)


@SLASH_COMMANDS.register("[COMMAND]", aliases=["?"], completes=lambda _: [command.name for command in SLASH_COMMANDS])
async def help_(chat: Chat, name: str) -> None:
    """List the commands, or say all about one."""
    if name:
        command = SLASH_COMMANDS.find(name.removeprefix("/"))
        chat.screen.show(CommandReply(f"**/{command.name} {command.usage}**\n\n{command.help}"))
        return
    rows = [(f"/{command.name} {command.usage}".rstrip(), command.summary) for command in SLASH_COMMANDS]
    chat.screen.show(CommandTable(("COMMAND", "WHAT IT DOES"), rows))


async def run_slash_command(chat: Chat, line: str) -> bool:
    """Carry out a line that begins with a slash, and say whether that was done; what is wrong with it is shown."""
    name, _, arguments = line.strip().removeprefix("/").partition(" ")
    try:
        await SLASH_COMMANDS.find(name.lower()).run(chat, arguments.strip())
        await chat.refresh_token_count()
    except HoldfastError as error:
        chat.screen.show(ChatNotice(str(error), "error"))
        return False
    except Exception as error:  # noqa: BLE001 - a command that has a fault must not end the conversation
        chat.screen.show(unexpected_error_notice(error))
        return False
    return True
