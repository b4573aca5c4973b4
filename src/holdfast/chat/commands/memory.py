"""Commands about what outlasts a conversation: daily memory."""

from holdfast.app.build import memory_from
from holdfast.chat.chat import Chat
from holdfast.chat.commands.registry import Commands
from holdfast.chat.happenings import Notice, Table, Told
from holdfast.errors import SettingsError
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.memory.looking import MemoryTool

GROUP = Commands()
SEARCH = "search"
LISTED = 20


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
        chat.screen.show(Told(await MemoryTool(daily, max_tokens=2_000).call({"query": words})))
    elif what:
        text = await daily.day(what)
        chat.screen.show(Told(text.strip()) if text.strip() else Notice(f"nothing was noted on {what}"))
    elif days := await daily.days():
        chat.screen.show(Table(("DAY", "FILE"), [(day, str(daily.folder / f"{day}.md")) for day in days[:LISTED]]))
    else:
        chat.screen.show(Notice(f"nothing was noted yet; notes go to {daily.folder}"))


def _daily(chat: Chat) -> DailyMemory:
    daily = memory_from(chat.settings)
    if daily is None:
        raise SettingsError("memory", "is off; /config memory FOLDER names a folder for it")
    return daily
