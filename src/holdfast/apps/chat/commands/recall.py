"""/recall searches the messages of a conversation, in view or not; /show displays what a reference stands for."""

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands.registry import SlashCommandRegistry
from holdfast.apps.chat.events import CommandReply
from holdfast.core.history.events import MAIN
from holdfast.core.recall.answer import Excerpt, RecallAnswer
from holdfast.core.recall.query import RecallQuery
from holdfast.core.recall.references import is_reference_text
from holdfast.errors import SettingsError
from holdfast.text import pluralize

RECALL_COMMANDS = SlashCommandRegistry()
MAX_RECALL_SEARCH_TOKENS, MAX_RECALL_REFERENCE_TOKENS = 2_000, 20_000
"""How many tokens of a search result, and of a reference, are displayed at once."""
MIN_MATCH_SHARE = 0.35
"""Weaker matches are omitted, because they would hide the better ones."""


@RECALL_COMMANDS.register("QUERY", is_immediate=True)
async def recall(chat: Chat, query: str) -> None:
    """Search all messages of this conversation.

    They are found whether they are compacted or not. QUERY is words, or references such as #12-#20.
    """
    if not query:
        raise SettingsError("/recall", "takes words to search for, or references such as #12-#20")
    if is_reference_text(query):
        await show(chat, query)
        return
    found = await chat.session.recall(
        RecallQuery(query=query, max_tokens=MAX_RECALL_SEARCH_TOKENS, least_share=MIN_MATCH_SHARE)
    )
    if not found.excerpts and found.notes:
        # Not every word of a very long text is in the index.
        found = await chat.session.recall(RecallQuery(text=query, max_tokens=MAX_RECALL_SEARCH_TOKENS))
    if not found.excerpts:
        is_cleared = chat.session.history.version.state_of(MAIN).cleared_at > 0
        since = " since the clear; /memory search finds notes of earlier messages" if is_cleared else ""
        chat.notify(f"nothing was found{since}")
        return
    _show_excerpts(chat, found)
    hidden = found.found_count - len(found.excerpts)
    others = f"{hidden:,} more contain some of these words; " if hidden > 0 else ""
    chat.notify(f"{others}/show #N shows a whole message")


@RECALL_COMMANDS.register("[diff] REF", completes=lambda _: ("diff ",), is_immediate=True)
async def show(chat: Chat, ref: str) -> None:
    """Show the original text of a reference.

    REF is #12, #12-#20, #12.2 (a part) or #12:L40-L80 (lines). With `diff`, show what changed between two readings of a
    file: `diff #12 #40`, `diff #40` for that reading and the one before it, or `diff src/a.py` for its two newest
    readings.
    """
    first, _, rest = ref.partition(" ")
    if not ref:
        raise SettingsError("/show", "takes a reference, such as #12 or #12-#20")
    if first == "diff":
        await _show_difference(chat, rest.strip())
        return
    found = await chat.session.recall(RecallQuery(refs=ref, max_tokens=MAX_RECALL_REFERENCE_TOKENS))
    _show_excerpts(chat, found)
    if found.next_query:
        chat.notify(f"there is more: /show {found.next_query.refs}")


async def _show_difference(chat: Chat, what: str) -> None:
    """Show the difference between two readings of a file, named by references or by its path."""
    if not what:
        raise SettingsError("/show diff", "takes two references such as #12 #40, or one, or a file")
    refs, file = (what, "") if is_reference_text(what) else ("", what)
    found = await chat.session.recall(
        RecallQuery(refs=refs, file=file, diff=True, max_tokens=MAX_RECALL_REFERENCE_TOKENS)
    )
    if found.diff:
        heading = found.diff.heading.removeprefix("[Recall: ").removesuffix("]")
        body = f"\n\n{_fence(found.diff.text, 'diff')}" if found.diff.text else ""
        chat.screen.show(CommandReply(f"**{heading}**{body}"))
    _show_excerpts(chat, found)
    if found.next_query and found.diff:
        left = found.diff.total_lines - found.diff.shown_lines
        omitted = f"{pluralize(left, 'more line')} {'is' if left == 1 else 'are'} not shown"
        chat.notify(f"{omitted}; compare parts with /show diff #12:L1-L90 #40:L1-L90")


def _show_excerpts(chat: Chat, found: RecallAnswer) -> None:
    for excerpt in found.excerpts:
        chat.screen.show(CommandReply(f"**{_heading(excerpt)}**\n\n{_fence(excerpt.text)}"))
    for note in found.notes:
        chat.notify(note, "warning")


def _heading(excerpt: Excerpt) -> str:
    pieces = [excerpt.ref, excerpt.speaker_label, excerpt.tool, excerpt.time]
    if excerpt.lines:
        pieces.append(f"lines {excerpt.lines}")
    if not excerpt.is_whole:
        pieces.append(f"characters {excerpt.start}-{excerpt.stop} of {excerpt.total}")
    return " · ".join(piece for piece in pieces if piece)


def _fence(text: str, language: str = "text") -> str:
    """Return a text in a code fence that nothing in the text closes."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
