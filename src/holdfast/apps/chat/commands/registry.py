"""Slash commands: functions whose docstring is their help, found by name, alias or unique beginning."""

import difflib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import TypeAlias

from holdfast.apps.chat.chat import Chat
from holdfast.errors import SettingsError

MAX_ARGUMENT_DIGITS = 18
"""No valid number has more digits."""
CommandAction: TypeAlias = Callable[[Chat, str], Awaitable[None]]
ArgumentCompletions: TypeAlias = Callable[[Chat], Sequence[str]]


def parse_whole_number(text: str) -> int | None:
    """Return a typed number; None if it is not one, or too large."""
    return int(text) if text.isdecimal() and len(text) <= MAX_ARGUMENT_DIGITS else None


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command."""

    name: str
    run: CommandAction
    usage: str
    """The arguments, as the help displays them after the name."""
    aliases: tuple[str, ...] = ()
    completes: ArgumentCompletions | None = None
    """Completions for its argument."""
    is_immediate: bool = False
    """Whether it runs beside an answer, because it only looks, or waits for nothing that the answer changes."""

    async def __call__(self, chat: Chat, arguments: str) -> None:
        """Run the command; refuse arguments that it would ignore."""
        if arguments and not self.usage:
            raise SettingsError(f"/{self.name}", f"takes no arguments, and was not run with {arguments!r:.60}")
        await self.run(chat, arguments)

    @property
    def help(self) -> str:
        """The whole help text."""
        return cleandoc(self.run.__doc__ or "")

    @property
    def summary(self) -> str:
        """The first line of the help."""
        return self.help.split("\n", 1)[0]


class SlashCommandRegistry:
    """All commands of a program."""

    def __init__(self, *groups: "SlashCommandRegistry") -> None:
        self._commands = {command.name: command for group in groups for command in group}

    def register(
        self,
        usage: str = "",
        *,
        aliases: Sequence[str] = (),
        completes: ArgumentCompletions | None = None,
        is_immediate: bool = False,
    ) -> Callable[[CommandAction], CommandAction]:
        """Register a function as a command with the name of the function, without a trailing underscore."""

        def registered(run: CommandAction) -> CommandAction:
            name = str(getattr(run, "__name__", "")).rstrip("_")
            self._commands[name] = SlashCommand(name, run, usage, tuple(aliases), completes, is_immediate)
            return run

        return registered

    def __iter__(self) -> Iterator[SlashCommand]:
        return iter(sorted(self._commands.values(), key=lambda command: command.name))

    def find(self, name: str) -> SlashCommand:
        """Return a command by its name, an alias, or a unique beginning."""
        for command in self:
            if name == command.name or name in command.aliases:
                return command
        begun = [command for command in self if name and command.name.startswith(name)]
        if len(begun) == 1:
            return begun[0]
        names = [known for command in self for known in (command.name, *command.aliases)]
        near = [command.name for command in begun] or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(f'/{one}' for one in near)}?" if near else "/help lists all"
        raise SettingsError(f"/{name}", f"is not a command; {hint}")
