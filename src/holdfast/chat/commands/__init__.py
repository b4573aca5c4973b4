"""The slash commands of the chat."""

from holdfast.chat.commands import context, program, sessions
from holdfast.chat.commands.registry import COMMANDS, carry_out

__all__ = ["COMMANDS", "carry_out", "context", "program", "sessions"]
