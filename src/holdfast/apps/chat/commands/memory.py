"""Commands about memory across conversations: daily notes, the context board, and consolidation."""

from collections.abc import Iterable
from dataclasses import replace

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands.registry import SlashCommandRegistry
from holdfast.apps.chat.events import ChatNotice, CommandReply, CommandTable
from holdfast.apps.settings.build import board_from, memory_from
from holdfast.core.memory.notes import DailySection, parse_sections
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import SettingsError
from holdfast.session.log.timestamps import local_day
from holdfast.session.memory.board_file import ContextBoard
from holdfast.session.memory.consolidation import describe_no_proposals, proposal_rows
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.memory.search_tool import memory_excerpt, section_source
from holdfast.text import pluralize

MEMORY_COMMANDS = SlashCommandRegistry()
SEARCH_ARGUMENT = "search"
MAX_LISTED_DAYS, MAX_FOUND_NOTES = 20, 5
MAX_NOTE_EXCERPT_TOKENS = 400
"""How many tokens of a found note are displayed."""


@MEMORY_COMMANDS.register("[search WORDS | DAY]", completes=lambda _: (SEARCH_ARGUMENT,))
async def memory(chat: Chat, what: str) -> None:
    """List the days with notes of earlier conversations; search them, or show a DAY (YYYY-MM-DD).

    Notes outlast /clear and /new. What stands in "quotation marks" is looked for as it is written.
    """
    daily = _memory_of(chat)
    first, _, words = what.partition(" ")
    if first == SEARCH_ARGUMENT:
        if not words.strip():
            raise SettingsError("/memory search", "needs words to look for")
        await _search(chat, daily, words)
    elif what:
        sections = parse_sections(await daily.read_day(what), what)
        chat.screen.show(
            CommandReply(_render_sections(sections))
            if sections
            else ChatNotice(await _describe_nothing(daily, f"noted on {what}"))
        )
    elif days := await daily.days():
        chat.screen.show(
            CommandTable(("DAY", "FILE"), [(day, str(daily.folder / f"{day}.md")) for day in days[:MAX_LISTED_DAYS]])
        )
    else:
        chat.screen.show(ChatNotice(await _describe_nothing(daily, "")))


async def _search(chat: Chat, daily: DailyMemory, words: str) -> None:
    found = await daily.search(words, limit=MAX_FOUND_NOTES)
    counter = counter_for(None)
    shown = [
        replace(one, text=memory_excerpt(one.text, words, MAX_NOTE_EXCERPT_TOKENS, counter)) for one in found.sections
    ]
    chat.screen.show(
        CommandReply(_render_sections(shown)) if shown else ChatNotice(await _describe_nothing(daily, "found"))
    )
    if (more := found.total - len(shown)) > 0:
        chat.screen.show(ChatNotice(f"{more:,} more hold some of these words; /memory DAY shows a whole day"))
    for problem in found.problems:
        chat.screen.show(ChatNotice(problem, "warning"))


def _render_sections(sections: Iterable[DailySection]) -> str:
    return "\n\n".join(f"**{section_source(section)}**\n\n{section.text}" for section in sections)


async def _describe_nothing(daily: DailyMemory, what: str) -> str:
    """Return the notice for an empty result; it differs if there are no notes at all."""
    return f"nothing was {what}" if await daily.days() else f"nothing was noted yet; notes go to {daily.folder}"


def _memory_of(chat: Chat) -> DailyMemory:
    daily = memory_from(chat.settings)
    if daily is None:
        raise SettingsError("memory", "is off; /config memory FOLDER names a folder for it")
    return daily


@MEMORY_COMMANDS.register("[add TEXT | prune ID]", completes=lambda _: ("add", "prune"))
async def board(chat: Chat, what: str) -> None:
    """Show the context board of this repository and branch, put TEXT on it, or take an entry off it.

    New conversations find it in their inbox, as reference; the file may be edited by hand.
    """
    where = _board_of(chat)
    verb, _, rest = what.partition(" ")
    if verb == "add" and rest.strip():
        entry = await where.add(rest, day=local_day(chat.session.clock()))
        chat.screen.show(ChatNotice(f"[{entry.id}] {entry.text}"))
    elif verb == "prune" and rest.strip():
        entry = await where.remove(rest)
        chat.screen.show(ChatNotice(f"taken off: {entry.text}"))
    elif what:
        raise SettingsError("/board", "takes nothing, `add TEXT` or `prune ID`")
    else:
        await _show_board(chat, where)


async def _show_board(chat: Chat, where: ContextBoard) -> None:
    shown = await where.read()
    rows = [
        (entry.id, entry.text, entry.added_on or "by hand", f"{entry.offered_count:,}", ", ".join(entry.sources))
        for entry in shown.notes
    ]
    if rows:
        chat.screen.show(CommandTable(("ID", "ENTRY", "ADDED", "USED", "FROM"), rows, title=str(where.repository)))
    else:
        chat.screen.show(ChatNotice(f"the board of {where.repository} is empty; /board add TEXT puts something on it"))
    for line in shown.unreadable_lines:
        chat.screen.show(ChatNotice(f"{where.path}: {line}: is no entry; it is kept as it is", "warning"))


def _board_of(chat: Chat) -> ContextBoard:
    found = board_from(chat.settings)
    if found is None:
        raise SettingsError("boards", "are off; /config boards FOLDER names a folder for them")
    return found


@MEMORY_COMMANDS.register("run [now]", completes=lambda _: ("run", "run now"))
async def subconscious(chat: Chat, what: str) -> None:
    """With `run`, let rem-agent read finished conversations and propose changes of the context board.

    You see what it proposes before it counts. No conversation is changed by it. A conversation that was changed less
    than ten minutes ago may go on and is left alone; with `run now` such ones are read as well, and this one too.
    """
    if what not in {"run", "run now"}:
        raise SettingsError("/subconscious", "takes `run` or `run now`")
    is_all = what == "run now"
    agent = chat.rem_agent()
    if agent is None:
        raise SettingsError("boards", "are off; /config boards FOLDER names a folder for them")
    chat.screen.show_busy("Reading finished conversations")
    try:
        done = await agent.run(exclude="" if is_all else chat.session.id, include_active=is_all)
    finally:
        chat.screen.show_busy("")
        await agent.close()
    for note in done.notes:
        chat.screen.show(ChatNotice(note, "warning"))
    if not done.proposals:
        await agent.record_progress(done)
        chat.screen.show(ChatNotice(describe_no_proposals(done, "/subconscious run now reads such ones")))
        return
    chat.screen.show(
        CommandTable(("", "ENTRY", "FROM"), [*proposal_rows(done.proposals)], title=str(agent.board.repository))
    )
    if await chat.screen.ask_consent(f"Make {pluralize(len(done.proposals), 'change')} of the board?") == "no":
        chat.screen.show(ChatNotice("the board stays as it is"))
        return
    await agent.apply(done)
    chat.screen.show(ChatNotice("done; /board shows it"))
