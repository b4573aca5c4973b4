"""Commands about whole conversations.

/new, /sessions, /session, /title, /resume, /fork, /rewind, /retry, /export and /quit.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.apps.chat.chat import Chat, session_title
from holdfast.apps.chat.commands.context import prompts_in_context
from holdfast.apps.chat.commands.registry import SlashCommandRegistry, parse_whole_number
from holdfast.apps.chat.events import CommandReply, CommandTable, ConversationCompacted
from holdfast.apps.chat.plain_screen import preview_line
from holdfast.apps.settings.build import checkpoints_folder
from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.scopes import label_trust
from holdfast.errors import SettingsError, UnknownSessionError
from holdfast.session.compaction.checkpoints import NO_CHECKPOINTS, Checkpoints
from holdfast.session.log.event_log import now_ms
from holdfast.session.maintenance.transfer import export_records
from holdfast.stores.base import session_info
from holdfast.stores.files import write_private_lines
from holdfast.stores.jsonl import export_lines
from holdfast.text import pluralize
from holdfast.wire.formats import format_named

SESSION_COMMANDS = SlashCommandRegistry()
NO_MESSAGES = "there are no messages yet"
MAX_RESULT_CHARS = 600
MAX_LISTED_SESSIONS = 20
MAX_SNIPPET_CHARS = 60
EXPORT_SUFFIXES = frozenset({".md", ".markdown", ".txt", ".jsonl", ""})
AGE_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000))


@SESSION_COMMANDS.register()
async def new(chat: Chat, _: str) -> None:
    """Start a new conversation; the old one stays saved."""
    old = chat.session.id
    await chat.open_conversation()
    chat.notify(f"a new conversation; /resume {old} returns to the old one")


@SESSION_COMMANDS.register("[WORDS]", is_immediate=True)
async def sessions(chat: Chat, words: str) -> None:
    """List the saved conversations, or search them.

    The most recently changed come first; WORDS are of an id, a title or a text.
    """
    found = await chat.find_sessions(words, MAX_LISTED_SESSIONS)
    chat.listed_sessions = [info.id for info in found]
    if not found:
        chat.notify(f"no conversation is about {words!r:.60}" if words else "there are no saved conversations yet")
        return
    rows = [
        (
            "→" if info.id == chat.session.id else str(number),
            info.id,
            _render_age(info.updated_ms),
            info.name[:MAX_SNIPPET_CHARS],
        )
        for number, info in enumerate(found, start=1)
    ]
    chat.screen.show(CommandTable(("N", "ID", "AGE", "NAME"), rows))
    chat.notify("/resume N continues one of them")


@SESSION_COMMANDS.register("TITLE")
async def title(chat: Chat, text: str) -> None:
    """Give this conversation another title.

    By default it is the beginning of its first prompt.
    """
    new = session_title(text)
    if not new:
        raise SettingsError("/title", "takes the new title")
    if await session_info(chat.store, chat.session.id) is None:  # nothing is stored yet
        raise SettingsError("/title", f"{NO_MESSAGES}; send a prompt first")
    await chat.session.rename(new)
    chat.notify(f"this conversation is now called {new!r}")


@SESSION_COMMANDS.register("[N | ID | WORDS]", completes=lambda chat: chat.listed_sessions)
async def resume(chat: Chat, session: str) -> None:
    """Continue another conversation.

    It is named by its number in /sessions, its id, its title or its words; without an argument, it is the newest other
    one.
    """
    number = parse_whole_number(session)
    if number is not None and 1 <= number <= len(chat.listed_sessions):
        session = chat.listed_sessions[number - 1]
    if not session:
        others = [info.id for info in await chat.store.sessions(limit=2) if info.id != chat.session.id]
        if not others:
            chat.notify("there is no other conversation")
            return
        session = others[0]
    try:
        await chat.open_conversation(session)
    except UnknownSessionError:
        raise SettingsError("/resume", f"no conversation is about {session!r:.60}; /sessions lists them") from None
    asked, answer = await chat.last_exchange()
    last = f"; the last prompt was “{preview_line(asked, MAX_SNIPPET_CHARS)}”" if asked else ""
    chat.notify(f"{chat.session.id}: {pluralize(len(chat.session), 'message')}{last}")
    if answer:
        chat.screen.show(CommandReply(answer))


@SESSION_COMMANDS.register(
    "[N]",
    completes=lambda chat: [str(number) for number in prompts_in_context(chat)[-MAX_LISTED_SESSIONS:]],
)
async def rewind(chat: Chat, number: str) -> None:
    """Go back to before a prompt.

    N is its number. What followed leaves the context; /undo reverts that. Without N, list the prompts.
    """
    if not number:
        await _list_prompts(chat)
        return
    position = parse_whole_number(number)
    if position is None or position not in prompts_in_context(chat):
        raise SettingsError("/rewind", f"{number!r:.60} is not the number of a prompt; /rewind lists them")
    await chat.session.rewind(to=position)
    chat.notify(f"back before message {position}; /undo reverts it")


async def _list_prompts(chat: Chat) -> None:
    visible = await chat.session.visible_messages()
    prompts = [entry for entry in visible if entry.message.is_prompt and entry.position is not None]
    rows = [
        (str(entry.position), " ".join(entry.message.text.split())[:MAX_SNIPPET_CHARS])
        for entry in prompts[-MAX_LISTED_SESSIONS:]
    ]
    if rows:
        chat.screen.show(CommandTable(("MESSAGE", "PROMPT"), rows))
    else:
        chat.notify(NO_MESSAGES)


@SESSION_COMMANDS.register("[N]")
async def fork(chat: Chat, number: str) -> None:
    """Continue in a copy of this conversation.

    With N, the copy ends before message N. The original stays unchanged.
    """
    position = parse_whole_number(number)
    if number and (position is None or position > len(chat.session)):
        raise SettingsError("/fork", f"{number!r:.60} is not the number of a message; /rewind lists them")
    old = chat.session.id
    copy = await chat.session.fork(at=position)
    info = await session_info(chat.store, old)
    if info is not None and info.name:
        await copy.rename(info.name)
    await copy.close()
    if position is None:
        chat.copy_unsent(copy.id)
    await chat.open_conversation(copy.id)
    chat.notify(f"now in {copy.id}; /resume {old} returns to the original")


@SESSION_COMMANDS.register()
async def retry(chat: Chat, _: str) -> None:
    """Send the last prompt again.

    After a failure or an interrupt, the results of its tool calls are kept.
    """
    if chat.unrecorded_prompt is not None:
        await chat.take_turn(chat.unrecorded_prompt)
        return
    visible = await chat.session.visible_messages()
    if not visible:
        raise SettingsError("/retry", "there is no prompt to send again")
    last = visible[-1]
    if last.message.role == "assistant" and last.position is not None:
        # The turn has an answer, or the beginning of one, which the retry replaces.
        await chat.session.rewind(to=last.position)
    await chat.take_turn(None)


@SESSION_COMMANDS.register("[checkpoints]", completes=lambda _: ("checkpoints",))
async def session(chat: Chat, what: str) -> None:
    """Show this conversation, or its checkpoints.

    `checkpoints` lists the summaries that were written to files.
    """
    if what not in {"", "checkpoints"}:
        raise SettingsError("/session", f"takes nothing or `checkpoints`, not {what!r}")
    if not what:
        chat.notify(f"{chat.session.id}: {pluralize(len(chat.session), 'message')}, preset {chat.session.policy.name}")
        return
    folder = checkpoints_folder(chat.settings, chat.session.id)
    chat.screen.show(CommandReply(NO_CHECKPOINTS if folder is None else await Checkpoints(folder).describe()))


@SESSION_COMMANDS.register("[FILE]")
async def export(chat: Chat, file: str) -> None:
    """Write the conversation to a file, or show it.

    FILE.md is for people, FILE.jsonl for `holdfast import`.
    """
    path = _new_file(file) if file else None
    if path is not None and path.suffix.lower() == ".jsonl":
        await _export_log(chat, path)
        return
    text = render_transcript(await chat.session.events())
    if path is None:
        chat.screen.show(CommandReply(text))
        return
    write_private_lines(path, [text])
    chat.notify(f"wrote {path}")


async def _export_log(chat: Chat, path: Path) -> None:
    """Write the log with its title, as `holdfast export` does."""
    info, lost = await session_info(chat.store, chat.session.id), list[int]()
    records = [record async for record in export_records(chat.store, chat.session.id, lost)]
    write_private_lines(path, export_lines(chat.session.id, info.name if info is not None else "", records))
    chat.notify(f"wrote {path}")
    for position in lost:
        chat.notify(
            f"record {position}: the store has lost this message; the export has a notice in its place", "warning"
        )


def _new_file(file: str) -> Path:
    try:
        path = Path(file).expanduser()
        is_taken = path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise SettingsError(
            "/export", f"cannot write {file!r:.200}: {getattr(error, 'strerror', None) or error}"
        ) from error
    if path.suffix.lower() not in EXPORT_SUFFIXES:
        problem = f"writes FILE.md, FILE.txt or FILE.jsonl, not {path.suffix!r:.60}"
        raise SettingsError("/export", problem)
    if is_taken:
        raise SettingsError("/export", f"{path} already exists; choose another name")
    return path


@SESSION_COMMANDS.register(aliases=["exit", "q"])
async def quit_(chat: Chat, _: str) -> None:
    """Exit; the conversation stays saved."""
    chat.is_over = True


def render_transcript(events: Iterable[log.Event]) -> str:
    """Return all messages as text, with the context changes between them."""
    return "\n\n".join(line for event in events for line in _render_event(event)) or NO_MESSAGES


def _render_event(event: log.Event) -> Iterator[str]:
    match event:
        case log.MessageAppended():
            message = label_trust(format_named(event.format).decode(event.native, 0), event.scope, event.trust)
            yield from [f"*attached: {event.name}*"] if event.name else []
            yield from _render_message(message)
        case log.CompactionCompleted(success=True):
            yield f"---\n\n*{ConversationCompacted.from_event(event)}*"
        case log.ContextCleared():
            yield "---\n\n*Context cleared*"
        case log.Rewound(to=to):
            yield f"---\n\n*Rewound to before message {to}*"
        case log.ChangeUndone():
            yield "---\n\n*The last change of context was undone*"
        case log.ChangeRedone():
            yield "---\n\n*The change that was undone last was applied again*"
        case log.TurnInterrupted():
            yield "*Interrupted*"
        case _:
            return


def _render_message(message: Message) -> Iterator[str]:
    if message.text.strip():
        yield f"**{message.speaker}**\n\n{message.text}"
    for call in message.calls:
        yield f"*{call.name}* `{call.arguments}`"
    for result in message.results:
        text = result.text
        cut = f"\n… {len(text) - MAX_RESULT_CHARS:,} more characters" if len(text) > MAX_RESULT_CHARS else ""
        yield "\n".join(f"    {line}" for line in (text[:MAX_RESULT_CHARS] + cut).splitlines())


def _render_age(updated_ms: int) -> str:
    """Return the age of a conversation in its largest unit."""
    age = max(0, now_ms() - updated_ms)
    return next((f"{age // size:,} {unit}" for unit, size in AGE_UNITS_MS if age >= size), "now")
