"""Commands about compaction: /compact, /preview, /recompact, /restore and /receipts."""

from collections.abc import Awaitable

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands.registry import SlashCommandRegistry
from holdfast.apps.chat.events import CommandReply, describe_losses
from holdfast.core.history.events import CompactionCompleted
from holdfast.core.recall.references import is_reference_text, parse_references
from holdfast.errors import NoContextError, NothingToCompactError, SettingsError
from holdfast.session.compaction.compactor import COMPACTING_TEXT
from holdfast.text import pluralize

COMPACT_COMMANDS = SlashCommandRegistry()


@COMPACT_COMMANDS.register("[FOCUS]")
async def compact(chat: Chat, focus: str) -> None:
    """Replace older messages by a summary now.

    FOCUS says what matters most in it. /preview shows what it would do, /undo reverts it.
    """
    await _show_compaction(chat, chat.session.compact(focus=focus, budget=chat.budget))


@COMPACT_COMMANDS.register("[FOCUS]")
async def recompact(chat: Chat, focus: str) -> None:
    """Undo the last compaction, and make it again.

    The original messages are compacted again, with another FOCUS.
    """
    await _show_compaction(chat, chat.session.recompact(focus=focus, budget=chat.budget))


@COMPACT_COMMANDS.register("REF")
async def restore(chat: Chat, ref: str) -> None:
    """Put messages of the last compaction back, whole.

    REF is #12, or #12-#20. They follow its summary; /undo reverts that.
    """
    if not is_reference_text(ref):
        raise SettingsError("/restore", "takes references to messages, such as #12 or #12-#20")
    if not chat.status.compactions:
        raise SettingsError("/restore", "nothing is compacted now, so all messages are in the context")
    length = len(chat.session)
    named = (place for one in parse_references(ref) for place in range(one.first, min(one.last, length) + 1))
    places = list(dict.fromkeys(named))
    await chat.session.restore_messages(places)
    chat.notify(f"{pluralize(len(places), 'message')} restored; /undo reverts it")


@COMPACT_COMMANDS.register("[draft]", completes=lambda _: ("draft",))
async def preview(chat: Chat, what: str) -> None:
    """Show what a compaction would do now; change nothing.

    Also which facts would leave the view. The preview is made by rule and is free. With `draft`, a model writes the
    summary that would be used, which costs tokens.
    """
    if what not in {"", "draft"}:
        raise SettingsError("/preview", f"takes nothing or `draft`, not {what!r}")
    try:
        event = await chat.session.preview(draft=bool(what), budget=chat.budget)
    except NothingToCompactError as nothing:
        chat.notify(str(nothing))
        return
    if not event.success:
        chat.notify(f"nothing to compact: {event.error}")
        return
    quoted = "\n".join(f"> {line}" for line in "\n\n".join(event.replacement).splitlines())
    parts = (
        _describe_compaction(event, "would be "),
        f"The replacement would be:\n\n{quoted}",
        describe_losses(event.summary.put_back, event.summary.left_out),
    )
    chat.screen.show(CommandReply("\n\n".join(part for part in parts if part)))


@COMPACT_COMMANDS.register()
async def receipts(chat: Chat, _: str) -> None:
    """Show what every compaction did, and why.

    Also what it replaced, what it cost, and how to undo it.
    """
    found = await chat.session.receipts()
    if not found:
        chat.notify("nothing has been compacted yet")
    for number, receipt in enumerate(found, start=1):
        text = "  \n".join(str(receipt).replace("session.undo()", "/undo").splitlines())
        chat.screen.show(CommandReply(f"**{number}.** {text}"))


async def _show_compaction(chat: Chat, compaction: Awaitable[CompactionCompleted]) -> None:
    """Await a compaction and show its result; having nothing to compact is not an error."""
    chat.screen.show_busy(COMPACTING_TEXT)
    try:
        event = await compaction
    except NothingToCompactError as nothing:
        chat.notify(str(nothing))
        return
    except NoContextError:
        chat.notify("nothing to compact yet: no request was sent so far")
        return
    finally:
        chat.screen.show_busy("")
    chat.notify(_describe_compaction(event))
    if event.reason and not event.summary.by_model:
        chat.notify(f"this is {event.reason}", "warning")


def _describe_compaction(event: CompactionCompleted, verb: str = "") -> str:
    before, after = event.request_tokens
    freed = f"{before - after:,} freed" if after <= before else f"{after - before:,} more, as the summary is longer"
    into = f"replaced by {len(event.replacement):,}" if event.replacement else "dropped"
    return (
        f"{pluralize(event.span.message_count, 'message')} {verb}{into}: {before:,} → {after:,} tokens"
        f" ({freed}), by {event.summary.by_model or 'rule'}"
    )
