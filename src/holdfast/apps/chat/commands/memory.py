"""Commands about memory across conversations: /memory (daily notes), /board, and /subconscious (consolidation)."""

from collections.abc import Iterable
from dataclasses import replace

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands.registry import SlashCommandRegistry
from holdfast.apps.chat.events import CommandReply, CommandTable
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
BOARDS_ARE_OFF = "are off; choose a folder for them: /config boards FOLDER"


@MEMORY_COMMANDS.register("[search WORDS | DAY]", completes=lambda _: (SEARCH_ARGUMENT,))
async def memory(chat: Chat, what: str) -> None:
    """List or search the notes of earlier conversations.

    `search WORDS` searches them, DAY (YYYY-MM-DD) shows one day. /clear and /new keep the notes. Text in "quotation
    marks" must occur exactly as written.
    """
    daily = memory_from(chat.settings)
    if daily is None:
        raise SettingsError("memory", "is off; choose a folder for it: /config memory FOLDER")
    first, _, words = what.partition(" ")
    if first == SEARCH_ARGUMENT:
        if not words.strip():
            raise SettingsError("/memory search", "needs a text to search for")
        await _search(chat, daily, words)
    elif what:
        sections = parse_sections(await daily.read_day(what), what)
        await _show_sections(chat, daily, sections, f"there are no notes for {what}")
    elif days := await daily.days():
        rows = [(day, str(daily.folder / f"{day}.md")) for day in days[:MAX_LISTED_DAYS]]
        chat.screen.show(CommandTable(("DAY", "FILE"), rows))
    else:
        await _show_sections(chat, daily, [], "")


async def _search(chat: Chat, daily: DailyMemory, words: str) -> None:
    found = await daily.search(words, limit=MAX_FOUND_NOTES)
    counter = counter_for(None)
    excerpts = [
        replace(one, text=memory_excerpt(one.text, words, MAX_NOTE_EXCERPT_TOKENS, counter)) for one in found.sections
    ]
    await _show_sections(chat, daily, excerpts, "nothing was found")
    if (more := found.total - len(excerpts)) > 0:
        chat.notify(f"{more:,} more contain some of these words; /memory DAY shows a whole day")
    for problem in found.problems:
        chat.notify(problem, "warning")


async def _show_sections(chat: Chat, daily: DailyMemory, sections: Iterable[DailySection], if_none: str) -> None:
    """Show notes; if there are none, say so, and where notes are written if there are none at all."""
    if text := "\n\n".join(f"**{section_source(section)}**\n\n{section.text}" for section in sections):
        chat.screen.show(CommandReply(text))
    else:
        has_notes = bool(await daily.days())
        chat.notify(if_none if has_notes else f"there are no notes yet; notes are written to {daily.folder}")


@MEMORY_COMMANDS.register("[add TEXT | prune ID]", completes=lambda _: ("add", "prune"))
async def board(chat: Chat, what: str) -> None:
    """Show or change the notes for the next conversations here.

    They are the context board of this repository and branch: `add TEXT` adds an entry, `prune ID` removes one. Every
    new conversation gets the board as reference. You may edit its file.
    """
    where = board_from(chat.settings)
    if where is None:
        raise SettingsError("boards", BOARDS_ARE_OFF)
    verb, _, rest = what.partition(" ")
    if verb == "add" and rest.strip():
        entry = await where.add(rest, day=local_day(chat.session.clock()))
        chat.notify(f"[{entry.id}] {entry.text}")
    elif verb == "prune" and rest.strip():
        entry = await where.remove(rest)
        chat.notify(f"removed: {entry.text}")
    elif what:
        raise SettingsError("/board", "takes nothing, `add TEXT` or `prune ID`")
    else:
        await _show_board(chat, where)


async def _show_board(chat: Chat, where: ContextBoard) -> None:
    content = await where.read()
    rows = [
        (entry.id, entry.text, entry.added_on or "by hand", f"{entry.offered_count:,}", ", ".join(entry.sources))
        for entry in content.notes
    ]
    if rows:
        chat.screen.show(CommandTable(("ID", "ENTRY", "ADDED", "USED", "FROM"), rows, title=str(where.repository)))
    else:
        chat.notify(f"the board of {where.repository} is empty; /board add TEXT adds an entry")
    for line in content.unreadable_lines:
        chat.notify(f"{where.path}: {line}: is not an entry; it stays unchanged", "warning")


@MEMORY_COMMANDS.register("run [now]", completes=lambda _: ("run", "run now"))
async def subconscious(chat: Chat, what: str) -> None:
    """Let rem-agent propose changes to the board.

    With `run` it reads finished conversations. You see the proposals before they take effect. No conversation changes.
    `run` skips conversations that changed less than ten minutes ago, because they may continue; `run now` reads those
    too, and this one.
    """
    if what not in {"run", "run now"}:
        raise SettingsError("/subconscious", "takes `run` or `run now`")
    is_all = what == "run now"
    agent = chat.rem_agent()
    if agent is None:
        raise SettingsError("boards", BOARDS_ARE_OFF)
    chat.screen.show_busy("Reading finished conversations")
    try:
        done = await agent.run(exclude="" if is_all else chat.session.id, include_active=is_all)
    finally:
        chat.screen.show_busy("")
        await agent.close()
    for note in done.notes:
        chat.notify(note, "warning")
    if not done.proposals:
        await agent.record_progress(done)
        chat.notify(describe_no_proposals(done, "/subconscious run now includes them"))
        return
    rows = [*proposal_rows(done.proposals)]
    chat.screen.show(CommandTable(("", "ENTRY", "FROM"), rows, title=str(agent.board.repository)))
    if await chat.screen.ask_consent(f"Make {pluralize(len(done.proposals), 'change')} to the board?") == "no":
        chat.notify("the board is unchanged")
        return
    await agent.apply(done)
    chat.notify("done; /board shows it")
