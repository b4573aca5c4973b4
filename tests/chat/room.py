"""A chat without a terminal: what it shows is remembered, what it asks is answered from a list."""

from collections.abc import Mapping
from pathlib import Path

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.dispatch import run_slash_command
from holdfast.apps.chat.events import ChatEvent, ChatNotice, CommandReply, CommandTable, Consent
from holdfast.apps.settings.sources import load_settings
from holdfast.stores.memory import MemoryStore


class Room:
    """A screen that remembers."""

    def __init__(self, *answers: Consent) -> None:
        self.happened: list[ChatEvent] = []
        self.asked: list[str] = []
        self.was_busy: list[str] = []
        self.answers = list(answers)

    def show(self, event: ChatEvent) -> None:
        self.happened.append(event)

    def show_busy(self, what: str) -> None:
        self.was_busy.append(what)

    async def ask_consent(self, question: str, *, has_always: bool = False) -> Consent:
        del has_always
        self.asked.append(question)
        return self.answers.pop(0)

    async def edit_text(self, question: str, text: str) -> str | None:
        self.asked.append(question)
        return text if self.answers.pop(0) == "yes" else None

    def since(self, start: int) -> str:
        """What a person would have read since then."""
        return "\n".join(_read(happening) for happening in self.happened[start:])


def _read(happening: ChatEvent) -> str:
    match happening:
        case ChatNotice(text) | CommandReply(text):
            return text
        case CommandTable():
            return "\n".join(" | ".join(row) for row in [happening.columns, *happening.rows])
        case _:
            return str(happening)


async def entered(
    home: Path, *answers: Consent, flags: Mapping[str, str] | None = None, store: MemoryStore | None = None
) -> tuple[Chat, Room]:
    """Return a chat in a new conversation, at somebody's whose home is empty."""
    room = Room(*answers)
    environ = {"HOLDFAST_HOME": str(home)}
    settings = load_settings(flags={"model": "gpt-5", **(flags or {})}, cwd=home, environ=environ)
    chat = Chat(settings, room, folder=home, store=store or MemoryStore())
    await chat.open_conversation()
    return chat, room


async def told(chat: Chat, room: Room, line: str) -> str:
    """Give a command and return what it answers."""
    start = len(room.happened)
    await run_slash_command(chat, line)
    return room.since(start)


async def said(chat: Chat, turns: int, words: int = 40) -> None:
    """Let a conversation have been."""
    for number in range(turns):
        prompt = {"kind": "request", "parts": [user_part(f"question {number} " + "why " * words)]}
        reply = {"kind": "response", "parts": [{"part_kind": "text", "content": f"answer {number} " + "so " * words}]}
        await chat.session.record([prompt, reply], format="pydantic-ai")


def user_part(text: str) -> dict[str, object]:
    return {"part_kind": "user-prompt", "content": text}
