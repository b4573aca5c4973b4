"""All commands together, and how a line that begins with a slash is carried out."""

from holdfast.chat.chat import Chat
from holdfast.chat.commands import agents, context, memory, program, recalling, sessions
from holdfast.chat.commands.registry import Commands
from holdfast.chat.happenings import Notice, Table, Told, unforeseen
from holdfast.errors import HoldfastError

COMMANDS = Commands(context.GROUP, recalling.GROUP, sessions.GROUP, memory.GROUP, agents.GROUP, program.GROUP)


@COMMANDS.register("[COMMAND]", aliases=["?"], completes=lambda _: [command.name for command in COMMANDS])
async def help_(chat: Chat, name: str) -> None:
    """List the commands, or say all about one."""
    if name:
        command = COMMANDS.named(name.removeprefix("/"))
        chat.screen.show(Told(f"**/{command.name} {command.usage}**\n\n{command.help}"))
        return
    rows = [(f"/{command.name} {command.usage}".rstrip(), command.summary) for command in COMMANDS]
    chat.screen.show(Table(("COMMAND", "WHAT IT DOES"), rows))


async def carry_out(chat: Chat, line: str) -> bool:
    """Carry out a line that begins with a slash, and say whether that was done; what is wrong with it is shown."""
    name, _, arguments = line.strip().removeprefix("/").partition(" ")
    try:
        await COMMANDS.named(name.lower()).run(chat, arguments.strip())
        await chat.recount()
    except HoldfastError as error:
        chat.screen.show(Notice(str(error), "error"))
        return False
    except Exception as error:  # noqa: BLE001 - a command that has a fault must not end the conversation
        chat.screen.show(unforeseen(error))
        return False
    return True
