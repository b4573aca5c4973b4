"""Commands about what outlasts a conversation: daily memory, the context board, and what is put on it."""

from collections.abc import Iterable
from dataclasses import replace

from holdfast.app.build import board_from, memory_from
from holdfast.chat.chat import Chat
from holdfast.chat.commands.registry import Commands
from holdfast.chat.happenings import Notice, Table, Told
from holdfast.core.history.lasting.notes import Section, sections_of
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import SettingsError
from holdfast.plural import many
from holdfast.session.memory.board import ContextBoard
from holdfast.session.memory.consolidation import told, told_of_nothing
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.memory.looking import excerpt, source_of
from holdfast.session.moments import day_of

GROUP = Commands()
SEARCH = "search"
LISTED, FOUND = 20, 5
EXCERPT_TOKENS = 400
"""What is shown of a note that was found."""


@GROUP.register("[search WORDS | DAY]", completes=lambda _: (SEARCH,))
async def memory(chat: Chat, what: str) -> None:
    """List the days with notes of earlier conversations; search them, or show a DAY (YYYY-MM-DD).

    Notes outlast /clear and /new. What stands in "quotation marks" is looked for as it is written.
    """
    daily = _daily(chat)
    first, _, words = what.partition(" ")
    if first == SEARCH:
        if not words.strip():
            raise SettingsError("/memory search", "needs words to look for")
        await _search(chat, daily, words)
    elif what:
        sections = sections_of(await daily.day(what), what)
        chat.screen.show(Told(_told(sections)) if sections else Notice(await _nothing(daily, f"noted on {what}")))
    elif days := await daily.days():
        chat.screen.show(Table(("DAY", "FILE"), [(day, str(daily.folder / f"{day}.md")) for day in days[:LISTED]]))
    else:
        chat.screen.show(Notice(await _nothing(daily, "")))


async def _search(chat: Chat, daily: DailyMemory, words: str) -> None:
    found = await daily.search(words, limit=FOUND)
    counter = counter_for(None)
    shown = [replace(one, text=excerpt(one.text, words, EXCERPT_TOKENS, counter)) for one in found.sections]
    chat.screen.show(Told(_told(shown)) if shown else Notice(await _nothing(daily, "found")))
    if (more := found.total - len(shown)) > 0:
        chat.screen.show(Notice(f"{more:,} more hold some of these words; /memory DAY shows a whole day"))
    for problem in found.problems:
        chat.screen.show(Notice(problem, "warning"))


def _told(sections: Iterable[Section]) -> str:
    """Return sections as a person reads them: where each is from, and what it says."""
    return "\n\n".join(f"**{source_of(section)}**\n\n{section.text}" for section in sections)


async def _nothing(daily: DailyMemory, what: str) -> str:
    """Return that there is nothing of something; where nothing was ever noted, that first."""
    return f"nothing was {what}" if await daily.days() else f"nothing was noted yet; notes go to {daily.folder}"


def _daily(chat: Chat) -> DailyMemory:
    daily = memory_from(chat.settings)
    if daily is None:
        raise SettingsError("memory", "is off; /config memory FOLDER names a folder for it")
    return daily


@GROUP.register("[add TEXT | prune ID]", completes=lambda _: ("add", "prune"))
async def board(chat: Chat, what: str) -> None:
    """Show the context board of this repository and branch, put TEXT on it, or take an entry off it.

    New conversations find it in their inbox, as reference; the file may be edited by hand.
    """
    where = _board(chat)
    verb, _, rest = what.partition(" ")
    if verb == "add" and rest.strip():
        entry = await where.add(rest, day=day_of(chat.session.clock()))
        chat.screen.show(Notice(f"[{entry.id}] {entry.text}"))
    elif verb == "prune" and rest.strip():
        entry = await where.prune(rest)
        chat.screen.show(Notice(f"taken off: {entry.text}"))
    elif what:
        raise SettingsError("/board", "takes nothing, `add TEXT` or `prune ID`")
    else:
        await _show_board(chat, where)


async def _show_board(chat: Chat, where: ContextBoard) -> None:
    shown = await where.read()
    rows = [
        (entry.id, entry.text, entry.added or "by hand", f"{entry.used:,}", ", ".join(entry.sources))
        for entry in shown.entries
    ]
    if rows:
        chat.screen.show(Table(("ID", "ENTRY", "ADDED", "USED", "FROM"), rows, title=str(where.repository)))
    else:
        chat.screen.show(Notice(f"the board of {where.repository} is empty; /board add TEXT puts something on it"))
    for line in shown.damage:
        chat.screen.show(Notice(f"{where.path}: {line}: is no entry; it is kept as it is", "warning"))


def _board(chat: Chat) -> ContextBoard:
    found = board_from(chat.settings)
    if found is None:
        raise SettingsError("boards", "are off; /config boards FOLDER names a folder for them")
    return found


@GROUP.register("run [now]", completes=lambda _: ("run", "run now"))
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
    chat.screen.busy("Reading finished conversations")
    try:
        done = await agent.run(besides="" if is_all else chat.session.id, is_all=is_all)
    finally:
        chat.screen.busy("")
        await agent.close()
    for note in done.notes:
        chat.screen.show(Notice(note, "warning"))
    if not done.proposals:
        await agent.remember(done)
        chat.screen.show(Notice(told_of_nothing(done, "/subconscious run now reads such ones")))
        return
    chat.screen.show(Table(("", "ENTRY", "FROM"), [*told(done.proposals)], title=str(agent.board.repository)))
    if await chat.screen.consent(f"Make {many(len(done.proposals), 'change')} of the board?") == "no":
        chat.screen.show(Notice("the board stays as it is"))
        return
    await agent.apply(done)
    chat.screen.show(Notice("done; /board shows it"))
