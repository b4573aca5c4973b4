"""The events of a conversation. Every screen, for a terminal, a pipe or a program, receives the same events."""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from holdfast.core.history.events import CompactionCompleted
from holdfast.redaction import redact_text

NoticeLevel: TypeAlias = Literal["info", "warning", "error"]
TurnOutcome: TypeAlias = Literal["done", "cut", "interrupted", "failed"]
"""How a turn ended; `cut` means that the answer is not whole."""
Consent: TypeAlias = Literal["yes", "always", "no"]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The model calls a tool."""

    id: str
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """A tool has returned."""

    id: str
    tool: str
    result: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ChangeProposed:
    """The model wants to change a file; the question whether it may follows."""

    path: str
    diff: str
    """The lines that differ, and some around them, each with a sign."""


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over; has its usage as the provider reports it."""

    outcome: TurnOutcome
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    finish_reason: str = ""
    """Why the model stopped, as its provider says: `stop`, `length`, `content_filter`; empty if that is unknown."""
    session: str = ""
    text: str = ""
    """The whole answer, without the output of tools."""
    cost: float | None = None
    """In dollars; None if the prices of the model are unknown."""


@dataclass(frozen=True, slots=True)
class ConversationOpened:
    """A conversation is open; a program can continue it by its id."""

    session: str
    model: str
    budget: int
    """The largest request in tokens."""
    messages: int


NOTHING_RUNS = "nothing runs; Ctrl-D leaves"
COMPACTED_TITLE = "Conversation Compacted"


@dataclass(frozen=True, slots=True)
class ConversationCompacted:
    """A compaction took effect; `str()` of it is its line in a transcript."""

    tokens_before: int
    tokens_after: int
    """Tokens of the whole request, as the meter counts them."""
    messages: int
    """How many messages were replaced."""
    by_model: str | None = None
    """The model that wrote the summary; None for a digest made by rule."""

    @classmethod
    def from_event(cls, event: CompactionCompleted) -> "ConversationCompacted":
        """Return the chat event for an event of the log."""
        before, after = event.request_tokens
        return cls(before, after, event.span.message_count, event.summary.by_model)

    def __str__(self) -> str:
        return f"{COMPACTED_TITLE}: {self.tokens_before:,} → {self.tokens_after:,} tokens"


@dataclass(frozen=True, slots=True)
class ChatNotice:
    """A notice for the user."""

    text: str
    level: NoticeLevel = "info"


def unexpected_error_notice(error: Exception) -> ChatNotice:
    """Return the notice for an unexpected error."""
    what = redact_text(" ".join(f"{type(error).__name__}: {error}".split()))
    return ChatNotice(f"that failed ({what:.200}), which is a bug in Holdfast; the conversation continues", "error")


@dataclass(frozen=True, slots=True)
class CommandReply:
    """The output of a command, in Markdown."""

    text: str


@dataclass(frozen=True, slots=True)
class CommandTable:
    """The output of a command, as a table."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    title: str = ""


ChatEvent: TypeAlias = (
    TextDelta
    | ThinkingDelta
    | ToolCallStarted
    | ToolCallFinished
    | ChangeProposed
    | TurnEnded
    | ConversationOpened
    | ConversationCompacted
    | ChatNotice
    | CommandReply
    | CommandTable
)


class LostOutputError(OSError):
    """Raised by a screen that cannot write its output, such as to a full disk. It ends the program."""


class Screen(Protocol):
    """Shows a conversation and asks the user questions."""

    def show(self, event: ChatEvent) -> None:
        """Show an event."""
        ...

    def show_busy(self, what: str) -> None:
        """Show what the program is waiting for; an empty text when that is over."""
        ...

    def ask_consent(self, question: str, *, has_always: bool = False) -> Awaitable[Consent]:
        """Ask the user whether to allow an action: once, always, or not."""
        ...

    def edit_text(self, question: str, text: str) -> Awaitable[str | None]:
        """Let the user edit a text and return it; None if the user rejects it."""
        ...


MAX_LISTED_FACTS = 10
"""How many facts of each kind a text for people lists; programs receive all of them."""


def describe_losses(put_back: Sequence[str], left_out: Sequence[str]) -> str:
    """Describe the facts that a summary lost: those that were added again, and those that need a recall."""
    return "\n\n".join(
        f"{heading}:\n{_fact_list(facts)}"
        for heading, facts in (
            ("Lost by the summary, and restored", put_back),
            ("No longer in view; /show displays each", left_out),
        )
        if facts
    )


def _fact_list(facts: Sequence[str]) -> str:
    more = [f"- and {len(facts) - MAX_LISTED_FACTS:,} more"] if len(facts) > MAX_LISTED_FACTS else []
    return "\n".join([*(f"- {fact}" for fact in facts[:MAX_LISTED_FACTS]), *more])
