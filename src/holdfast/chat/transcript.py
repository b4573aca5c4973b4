"""A conversation as Markdown for people, with what became of its context between the words."""

from collections.abc import Iterable, Iterator

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.scope import label_trust
from holdfast.wire.formats import format_named

COMPACTED_TITLE = "Conversation Compacted"
MAX_RESULT_CHARS = 600


def render_transcript(events: Iterable[log.Event]) -> str:
    """Return everything that was said, and what happened to the context."""
    return "\n\n".join(line for event in events for line in _render_event(event)) or "nothing was said yet"


def _render_event(event: log.Event) -> Iterator[str]:
    match event:
        case log.MessageAppended():
            message = format_named(event.format).decode(event.native, 0)
            yield from _render_message(label_trust(message, event.scope, event.trust))
        case log.CompactionCompleted(success=True):
            before, after = event.pre_compaction_tokens or 0, event.post_compaction_tokens or 0
            yield f"---\n\n*{COMPACTED_TITLE}: {before:,} → {after:,} tokens*"
        case log.ContextCleared():
            yield "---\n\n*Context cleared*"
        case log.Rewound(to=to):
            yield f"---\n\n*Rewound to before message {to}*"
        case log.ChangeUndone():
            yield "---\n\n*The last change of context was undone*"
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
