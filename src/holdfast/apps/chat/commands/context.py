"""Commands about the context: compact, undo, pin, and show what fills the window."""

from collections.abc import Awaitable, Iterable

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands.registry import SlashCommandRegistry, parse_whole_number
from holdfast.apps.chat.events import ChatNotice, CommandReply, CommandTable, describe_losses
from holdfast.core.conversation.tokens import format_token_count
from holdfast.core.history.events import MAIN, CompactionCompleted
from holdfast.core.planning.context_report import ContextReport, CostForecast
from holdfast.core.planning.situation import format_dollars
from holdfast.core.recall.references import is_reference_text, parse_references
from holdfast.errors import NothingToCompactError, SettingsError
from holdfast.session.compaction.compactor import COMPACTING_TEXT
from holdfast.text import pluralize

CONTEXT_COMMANDS = SlashCommandRegistry()


@CONTEXT_COMMANDS.register("[FOCUS]")
async def compact(chat: Chat, focus: str) -> None:
    """Replace older messages by a summary, now; FOCUS is what it is to be about above all."""
    await _show_compaction(chat, chat.session.compact(focus=focus, budget=chat.budget))


@CONTEXT_COMMANDS.register("[FOCUS]")
async def recompact(chat: Chat, focus: str) -> None:
    """Take the last compaction back and make it anew from the original, with another FOCUS."""
    await _show_compaction(chat, chat.session.recompact(focus=focus, budget=chat.budget))


@CONTEXT_COMMANDS.register("REF")
async def restore(chat: Chat, ref: str) -> None:
    """Show messages of the last compaction again, whole, behind its summary: #12, or #12-#20."""
    if not is_reference_text(ref):
        raise SettingsError("/restore", "takes references to messages, such as #12 or #12-#20")
    length = len(chat.session)
    places = [place for one in parse_references(ref) for place in range(one.first, min(one.last, length) + 1)]
    await chat.session.restore_messages(places)
    chat.screen.show(ChatNotice(f"{pluralize(len(places), 'message')} brought back; /undo takes that back"))


@CONTEXT_COMMANDS.register("[draft]", completes=lambda _: ("draft",))
async def preview(chat: Chat, what: str) -> None:
    """Show what a compaction would do now and which facts it would lose sight of, and do nothing.

    By rule, which is free; with `draft`, the model writes the summary that would count, which is not.
    """
    if what not in {"", "draft"}:
        raise SettingsError("/preview", f"takes nothing or `draft`, not {what!r}")
    event = await chat.session.preview(draft=bool(what), budget=chat.budget)
    if not event.success:
        chat.screen.show(ChatNotice(f"nothing to compact: {event.error}"))
        return
    quoted = "\n".join(f"> {line}" for line in "\n\n".join(event.replacement).splitlines())
    parts = (
        _describe_compaction(event, "would be "),
        f"In their place would stand:\n\n{quoted}",
        describe_losses(event.summary.put_back, event.summary.left_out),
    )
    chat.screen.show(CommandReply("\n\n".join(part for part in parts if part)))


@CONTEXT_COMMANDS.register()
async def undo(chat: Chat, _: str) -> None:
    """Take back the last change of context: a compaction, a clear, a rewind."""
    done = await chat.session.undo()
    chat.screen.show(ChatNotice("undone; /redo brings it back" if done else "there is nothing to undo"))


@CONTEXT_COMMANDS.register()
async def redo(chat: Chat, _: str) -> None:
    """Let a change of context that was taken back stand again."""
    done = await chat.session.redo()
    chat.screen.show(ChatNotice("done again" if done else "there is nothing to redo"))


@CONTEXT_COMMANDS.register()
async def clear(chat: Chat, _: str) -> None:
    """Let the conversation begin anew; nothing is deleted, and /undo brings it back."""
    await chat.session.clear()
    chat.screen.show(ChatNotice("the context is empty; /undo brings it back"))


@CONTEXT_COMMANDS.register()
async def history(chat: Chat, _: str) -> None:
    """Show how long the conversation is: turns and messages."""
    shown = [entry.message for entry in await chat.session.visible_messages()]
    rule = chat.session.policy.compaction
    counts_requests = rule is not None and rule.counts_requests_as_turns
    turns = sum(message.role != "assistant" if counts_requests else message.is_prompt for message in shown)
    chat.screen.show(
        ChatNotice(
            f"{pluralize(turns, 'turn')}, {pluralize(len(shown), 'message')}; {len(chat.session):,} are in the log"
        )
    )


@CONTEXT_COMMANDS.register("[clear]", aliases=["ctx"], completes=lambda _: ("clear",))
async def context(chat: Chat, what: str) -> None:
    """Show where the window went: each part, what could be freed, when the next fold is due, and what it will cost.

    With `clear`, empty the context, as /clear does.
    """
    if what == "clear":
        await clear(chat, "")
        return
    if what:
        raise SettingsError("/context", f"takes nothing or `clear`, not {what!r}")
    contents = await chat.session.context_breakdown(budget=chat.budget)
    chat.screen.show(CommandTable(("PART", "TOKENS", "SHARE"), list(_part_rows(contents)), title=f"{chat.model}"))
    chat.screen.show(
        CommandReply("\n".join(f"- {line}" for line in _context_facts(chat, contents, await _describe_freeable(chat))))
    )


@CONTEXT_COMMANDS.register(
    "[N]", completes=lambda chat: [str(number) for number in chat.session.history.prompt_positions[-20:]]
)
async def pin(chat: Chat, number: str) -> None:
    """Keep message N whole, whatever is folded; without N, the newest prompt. /unpin lets it go."""
    position = _parse_position(chat, number, "/pin")
    await chat.session.pin(position)
    chat.screen.show(ChatNotice(f"message {position} stays whole"))


@CONTEXT_COMMANDS.register(
    "N", completes=lambda chat: [str(pinned) for pinned in sorted(chat.session.history.session_state.pins)]
)
async def unpin(chat: Chat, number: str) -> None:
    """Let a pinned message go when it has to."""
    position = _parse_position(chat, number, "/unpin")
    if position not in chat.session.history.session_state.pins:
        raise SettingsError("/unpin", f"message {position} is not pinned")
    await chat.session.unpin(position)
    chat.screen.show(ChatNotice(f"message {position} is not pinned any more"))


@CONTEXT_COMMANDS.register()
async def receipts(chat: Chat, _: str) -> None:
    """Show what every compaction did: what was folded, what it cost, why, and how to undo it."""
    found = await chat.session.receipts()
    if not found:
        chat.screen.show(ChatNotice("nothing was compacted yet"))
    for number, receipt in enumerate(found, start=1):
        text = "  \n".join(str(receipt).replace("session.undo()", "/undo").splitlines())
        chat.screen.show(CommandReply(f"**{number}.** {text}"))


async def _show_compaction(chat: Chat, compaction: Awaitable[CompactionCompleted]) -> None:
    """Await a compaction and show its result; having nothing to compact is not an error."""
    chat.screen.show_busy(COMPACTING_TEXT)
    try:
        text = _describe_compaction(await compaction)
    except NothingToCompactError as nothing:
        text = str(nothing)
    finally:
        chat.screen.show_busy("")
    chat.screen.show(ChatNotice(text))


def _describe_compaction(event: CompactionCompleted, verb: str = "") -> str:
    before, after = event.pre_compaction_tokens or 0, event.post_compaction_tokens or 0
    into = f"folded into {len(event.replacement):,}" if event.replacement else "left out"
    return (
        f"{pluralize(event.span.message_count, 'message')} {verb}{into}: {before:,} → {after:,} tokens of messages"
        f" ({before - after:,} freed), by {event.summary.by_model or 'rule'}"
    )


async def _describe_freeable(chat: Chat) -> str:
    """Describe what a compaction would free now."""
    nothing = "nothing to compact yet"
    try:
        event = await chat.session.preview(budget=chat.budget)
    except NothingToCompactError:
        return nothing
    freed = event.tokens_removed if event.success else 0
    return f"a compaction would free {freed:,}" if freed > 0 else nothing


def _part_rows(contents: ContextReport) -> Iterable[tuple[str, ...]]:
    parts = ("system", "tools", "pins", "ledger", "summary", "turns")
    rows = [(name, getattr(contents, name)) for name in parts]
    for name, tokens in [*((name, tokens) for name, tokens in rows if tokens), ("free", contents.free)]:
        yield name, f"{tokens:,}", f"{tokens / contents.budget:.0%}"


def _describe_turns_left(turns: int | None) -> str:
    """Describe when the next compaction is due."""
    if not turns:
        return "" if turns is None else ", likely within the next turn"
    return f", in about {pluralize(turns, 'turn')} at this pace"


def _context_facts(chat: Chat, contents: ContextReport, could_free: str) -> Iterable[str]:
    roles = ", ".join(f"{count:,} {role}" for role, count in sorted(contents.roles.items()))
    by_whom = f" ({roles})" if roles else ""
    yield f"{pluralize(contents.messages, 'message')}{by_whom}, {contents.characters:,} characters"
    yield f"{format_token_count(contents.total, contents.error)} of {contents.budget:,} tokens; {could_free}"
    if contents.threshold is not None:
        threshold = contents.threshold
        turns_left = _describe_turns_left(contents.turns_left)
        yield f"next fold at {threshold.limit:,} {threshold.unit}; there are {threshold.current:,}{turns_left}"
    if contents.forecast is not None:
        yield _describe_cost(contents.forecast)
    if contents.loop_reason:
        yield contents.loop_reason
    if count := len(chat.session.history.version.state_of(MAIN).compactions):
        they = "it" if count == 1 else "they"
        yield f"{pluralize(count, 'fold')} in place; /receipts shows what {they} did"
    if chat.status.cost is not None:
        yield f"${chat.status.cost:.4f} since the program began"


def _describe_cost(forecast: CostForecast) -> str:
    """Describe the cost of the next compaction in tokens, and in dollars if the prices are known."""
    parts: list[str] = []
    if forecast.written_tokens:
        cached = " from the cache" if forecast.is_cached else ""
        summary = (
            f"a summary of {forecast.read_tokens:,} tokens read{cached} and up to {forecast.written_tokens:,} written"
        )
        parts.append(summary + _render_dollars(forecast.summary_dollars))
    parts.append(f"up to {forecast.tokens_after:,} tokens sent as new" + _render_dollars(forecast.rewrite_dollars))
    total = "" if forecast.dollars is None else f" up to {format_dollars(forecast.dollars)}"
    return f"it will cost{total}: {', '.join(parts)}"


def _render_dollars(dollars: float | None) -> str:
    return "" if dollars is None else f" ({format_dollars(dollars)})"


def _parse_position(chat: Chat, number: str, command: str) -> int:
    """Return the position of a message by its number; without one, that of the newest prompt."""
    prompts = chat.session.history.prompt_positions
    if not number and prompts:
        return prompts[-1]
    position = parse_whole_number(number)
    if position is None or position >= len(chat.session):
        raise SettingsError(command, "takes the number of a message; /rewind lists them")
    return position
