"""A chat without a terminal: its screen records events and answers questions from a list."""

from collections.abc import Mapping
from pathlib import Path

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.dispatch import run_slash_command
from holdfast.apps.chat.events import ChatEvent, ChatNotice, CommandReply, CommandTable, Consent
from holdfast.apps.settings.sources import load_settings
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore


class RecordingScreen:
    """A screen that records its events."""

    def __init__(self, *answers: Consent) -> None:
        self.events: list[ChatEvent] = []
        self.asked: list[str] = []
        self.always_offered: list[bool] = []
        """For each question about a permission, whether it may be given for all that follow."""
        self.busy_texts: list[str] = []
        self.answers = list(answers)

    def show(self, event: ChatEvent) -> None:
        self.events.append(event)

    def show_busy(self, what: str) -> None:
        self.busy_texts.append(what)

    async def ask_consent(self, question: str, *, has_always: bool = False) -> Consent:
        self.asked.append(question)
        self.always_offered.append(has_always)
        return self.answers.pop(0)

    async def edit_text(self, question: str, text: str) -> str | None:
        self.asked.append(question)
        return text if self.answers.pop(0) == "yes" else None

    def since(self, start: int) -> str:
        """Return what a user has read since an event."""
        return "\n".join(_read(event) for event in self.events[start:])


def _read(event: ChatEvent) -> str:
    match event:
        case ChatNotice(text) | CommandReply(text):
            return text
        case CommandTable():
            return "\n".join(" | ".join(row) for row in [event.columns, *event.rows])
        case _:
            return str(event)


async def open_chat(
    home: Path, *answers: Consent, flags: Mapping[str, str] | None = None, store: Store | None = None
) -> tuple[Chat, RecordingScreen]:
    """Return a chat in a new conversation, with an empty home."""
    screen = RecordingScreen(*answers)
    environ = {"HOLDFAST_HOME": str(home)}
    settings = load_settings(flags={"model": "gpt-5", **(flags or {})}, cwd=home, environ=environ)
    chat = Chat(settings, screen, folder=home, store=store or MemoryStore())
    await chat.open_conversation()
    return chat, screen


async def reply_to(chat: Chat, screen: RecordingScreen, line: str) -> str:
    """Run a slash command and return its output."""
    start = len(screen.events)
    await run_slash_command(chat, line)
    return screen.since(start)


async def add_turns(chat: Chat, turns: int, words: int = 40) -> None:
    """Record some turns."""
    for number in range(turns):
        prompt = {"kind": "request", "parts": [user_part(f"question {number} " + "why " * words)]}
        reply = {"kind": "response", "parts": [{"part_kind": "text", "content": f"answer {number} " + "so " * words}]}
        await chat.session.record([prompt, reply], format="pydantic-ai")


def user_part(text: str) -> dict[str, object]:
    return {"part_kind": "user-prompt", "content": text}
