"""Commands about the context: /context, /history, /clear, /undo, /redo, /pin and /unpin."""

from collections.abc import Iterable

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands.registry import SlashCommandRegistry, parse_whole_number
from holdfast.apps.chat.events import CommandReply, CommandTable
from holdfast.apps.settings.models import bare_model_name
from holdfast.core.conversation.tokens import format_token_count
from holdfast.core.history.events import (
    MAIN,
    CompactionCompleted,
    ContextCleared,
    OutputsOffloaded,
    Rewound,
    TurnsReducedToText,
)
from holdfast.core.planning.change_receipt import RESTORED_REASON, ChangeReceipt
from holdfast.core.planning.context_report import ContextReport, CostForecast
from holdfast.core.planning.situation import format_dollars
from holdfast.errors import NothingToCompactError, SettingsError
from holdfast.text import pluralize

CONTEXT_COMMANDS = SlashCommandRegistry()
MAX_COMPLETED_PROMPTS = 20
BAR_CHARS = 36
PART_MARKS = {
    "system": "S",
    "tools": "T",
    "pins": "P",
    "ledger": "L",
    "summary": "▒",
    "turns": "█",
    "free": "·",
    "reserved": "×",
}
"""The parts of the context, and how a bar shows them."""


def prompts_in_context(chat: Chat) -> list[int]:
    """Return the positions of the prompts that no clear or rewind has removed."""
    context = chat.session.history.context()
    return [position for position in chat.session.history.prompt_positions if context.is_recallable(position)]


@CONTEXT_COMMANDS.register()
async def undo(chat: Chat, _: str) -> None:
    """Undo the last change of context.

    That is a compaction, a clear or a rewind. If you have continued after a rewind or a /retry, the messages since then
    leave the context, so that it holds one course of the conversation.
    """
    session = chat.session
    change = await _last_change(chat)
    if change is None or not await session.undo():
        chat.notify("there is nothing to undo")
        return
    if isinstance(change.event, Rewound) and change.length < (length := len(session)):
        await session.rewind(to=change.length)
        newer = pluralize(length - change.length, "newer message")
        chat.notify(f"undone: {_describe_change(change)}; {newer} left the context; /undo reverts that")
        return
    chat.notify(f"undone: {_describe_change(change)}; /redo applies it again")


async def _last_change(chat: Chat) -> ChangeReceipt | None:
    """Return the receipt of the change that /undo would revert now."""
    return next((one for one in reversed(await chat.session.receipts()) if one.undo_steps == 1), None)


def _describe_change(change: ChangeReceipt) -> str:
    match change.event:
        case CompactionCompleted(reason=reason) if reason == RESTORED_REASON:
            return "the restoring of messages"
        case CompactionCompleted() as event:
            return f"the compaction of {pluralize(event.span.message_count, 'message')}"
        case Rewound(to=to):
            return f"the rewind to before message {to}"
        case ContextCleared():
            return "the clear"
        case OutputsOffloaded():
            return "the shortening of old tool outputs"
        case TurnsReducedToText():
            return "the reduction of old turns to their text"


@CONTEXT_COMMANDS.register()
async def redo(chat: Chat, _: str) -> None:
    """Apply the change again that /undo reverted."""
    if not await chat.session.redo() or (change := await _last_change(chat)) is None:
        chat.notify("there is nothing to redo")
        return
    chat.notify(f"applied again: {_describe_change(change)}")


@CONTEXT_COMMANDS.register()
async def clear(chat: Chat, _: str) -> None:
    """Empty the context; /undo restores it.

    Nothing is deleted.
    """
    if not await chat.session.visible_messages():
        chat.notify("the context is empty already")
        return
    await chat.session.clear()
    chat.notify("the context is empty; /undo restores it")


@CONTEXT_COMMANDS.register(is_immediate=True)
async def history(chat: Chat, _: str) -> None:
    """Show how long the conversation is: turns and messages."""
    visible = [entry.message for entry in await chat.session.visible_messages()]
    rule = chat.session.policy.compaction
    counts_requests = rule is not None and rule.counts_requests_as_turns
    turns = sum(
        message.role != "assistant" and not message.is_from_memory if counts_requests else message.is_prompt
        for message in visible
    )
    in_view = f"{pluralize(turns, 'turn')}, {pluralize(len(visible), 'message')}"
    chat.notify(f"{in_view}; {len(chat.session):,} are in the log")


@CONTEXT_COMMANDS.register("[clear]", aliases=["ctx"], completes=lambda _: ("clear",), is_immediate=True)
async def context(chat: Chat, what: str) -> None:
    """Show what fills the window, as a bar of its parts.

    Also what could be freed, when the next compaction is due, and what it will cost. With `clear`, empty the context,
    as /clear does.
    """
    if what == "clear":
        await clear(chat, "")
        return
    if what:
        raise SettingsError("/context", f"takes nothing or `clear`, not {what!r}")
    contents = await chat.context_report()
    chat.screen.show(CommandReply(f"`{_bar(contents)}`"))
    rows = list(_part_rows(contents))
    chat.screen.show(CommandTable(("", "PART", "TOKENS", "SHARE"), rows, title=bare_model_name(chat.model)))
    facts = _context_facts(chat, contents, await _describe_freeable(chat))
    chat.screen.show(CommandReply("\n".join(f"- {fact}" for fact in facts)))


@CONTEXT_COMMANDS.register(
    "[N]", completes=lambda chat: [str(number) for number in prompts_in_context(chat)[-MAX_COMPLETED_PROMPTS:]]
)
async def pin(chat: Chat, number: str) -> None:
    """Keep a message whole in every compaction.

    N is its number, which /rewind lists; without N, it is the newest prompt. /unpin ends that.
    """
    position = _parse_position(chat, number, "/pin")
    await chat.session.pin(position)
    chat.notify(f"message {position} stays whole")


@CONTEXT_COMMANDS.register(
    "N", completes=lambda chat: [str(pinned) for pinned in sorted(chat.session.history.session_state.pins)]
)
async def unpin(chat: Chat, number: str) -> None:
    """Let compactions replace a pinned message again."""
    position = _parse_position(chat, number, "/unpin")
    if position not in chat.session.history.session_state.pins:
        raise SettingsError("/unpin", f"message {position} is not pinned")
    await chat.session.unpin(position)
    chat.notify(f"message {position} is no longer pinned")


async def _describe_freeable(chat: Chat) -> str:
    """Describe what a compaction would free now."""
    try:
        event = await chat.session.preview(budget=chat.budget)
        freed = event.tokens_removed if event.success else 0
    except NothingToCompactError:
        freed = 0
    return f"a compaction would free {freed:,}" if freed > 0 else "nothing to compact yet"


def _part_rows(contents: ContextReport) -> Iterable[tuple[str, ...]]:
    for name, mark in PART_MARKS.items():
        tokens: int = getattr(contents, name) if name != "reserved" else _unused_reserve(contents)
        if tokens or name == "free":
            yield mark, name, f"{tokens:,}", f"{tokens / contents.capacity:.0%}"


def _unused_reserve(contents: ContextReport) -> int:
    """Return what is reserved, less what the context takes of it until the next request is shortened."""
    return max(0, contents.capacity - max(contents.budget, contents.total))


def _bar(contents: ContextReport) -> str:
    """Return the context as a bar of its parts; each part that is not empty has at least one mark."""
    used: dict[str, int] = {name: getattr(contents, name) for name in PART_MARKS if name not in {"free", "reserved"}}
    whole = max(contents.capacity, contents.total, 1)
    marks = "".join(PART_MARKS[name] * max(1, round(BAR_CHARS * size / whole)) for name, size in used.items() if size)
    reserved = PART_MARKS["reserved"] * round(BAR_CHARS * _unused_reserve(contents) / whole)
    free = PART_MARKS["free"] * (BAR_CHARS - len(marks) - len(reserved))
    return (marks + free + reserved)[:BAR_CHARS]


def _describe_turns_left(turns: int | None) -> str:
    """Describe when the next compaction is due."""
    if not turns:
        return "" if turns is None else ", likely within the next turn"
    return f", in about {pluralize(turns, 'turn')} at this pace"


def _context_facts(chat: Chat, contents: ContextReport, could_free: str) -> Iterable[str]:
    roles = ", ".join(f"{count:,} {role}" for role, count in sorted(contents.roles.items()))
    by_role = f" ({roles})" if roles else ""
    yield f"{pluralize(contents.messages, 'message')}{by_role}, {contents.characters:,} characters"
    yield f"{format_token_count(contents.total, contents.error)} of {contents.capacity:,} tokens; {could_free}"
    if contents.reserved:
        yield f"a request holds up to {contents.budget:,}: {contents.reserved:,} stay free, because counts may be wrong"
    if (threshold := contents.threshold) is not None:
        due = _describe_turns_left(contents.turns_left)
        yield f"next compaction at {threshold.limit:,} {threshold.unit}; there are {threshold.current:,}{due}"
    if contents.forecast is not None:
        yield _describe_cost(contents.forecast)
    if contents.loop_reason:
        yield contents.loop_reason
    if count := len(chat.session.history.version.state_of(MAIN).compactions):
        they = "it" if count == 1 else "they"
        yield f"{pluralize(count, 'compaction')} in effect; /receipts shows what {they} did"
    if chat.status.cost is not None:
        yield f"${chat.status.cost:.4f} since the program started"


def _describe_cost(forecast: CostForecast) -> str:
    """Describe the cost of the next compaction in tokens, and in dollars if the prices are known."""
    parts: list[str] = []
    if forecast.written_tokens:
        cached = " from the cache" if forecast.is_cached else ""
        read = f"{forecast.read_tokens:,} tokens read{cached} and up to {forecast.written_tokens:,} written"
        parts.append(f"{read} for the summary" + _render_dollars(forecast.summary_dollars))
    parts.append(f"up to {forecast.tokens_after:,} tokens sent as new" + _render_dollars(forecast.rewrite_dollars))
    total = "" if forecast.dollars is None else f" up to {format_dollars(forecast.dollars)}"
    return f"it will cost{total}: {', '.join(parts)}"


def _render_dollars(dollars: float | None) -> str:
    return "" if dollars is None else f" ({format_dollars(dollars)})"


def _parse_position(chat: Chat, number: str, command: str) -> int:
    """Return the position of a message by its number; without one, that of the newest prompt."""
    if not number and (prompts := prompts_in_context(chat)):
        return prompts[-1]
    position = parse_whole_number(number)
    if position is None or position >= len(chat.session):
        raise SettingsError(command, "takes the number of a message; /rewind lists them")
    return position
