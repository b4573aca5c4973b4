"""Asking for a summary behind the conversation's own last request, so that the provider's prompt cache pays.

Possible where the conversation's own model writes, the writer speaks its format, nothing of the context has changed
since, no secret stands in what was sent, and the question still fits. What of the span the request does not show, or
not whole, goes with the question: all of a span reaches a summariser, whichever way it is asked.
"""

from dataclasses import dataclass

from holdfast.core.conversation.json_values import written
from holdfast.core.conversation.tokens import Counter
from holdfast.core.conversation.view import Entry
from holdfast.core.planning.summary.behind import asked_behind
from holdfast.core.planning.summary.material import MIN_PIECE_TOKENS, Hide, pieces, positions
from holdfast.models.base import Ask, Prefix, Writer, reuses_prefix

POSITIONS_TOKENS = 1_500
"""What an index of positions may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The last request of an agent, as it went out."""

    prefix: Prefix
    model: str | None
    """Who was asked."""
    tokens: int
    """What it costs, as the provider counts."""
    window: int
    """The model's, or what the policy takes for that of a model nobody knows."""
    whole: frozenset[int]
    """The positions of the messages that it shows as they were said."""
    changes: int
    """How often the context had changed by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked behind it."""

    entries: tuple[Entry, ...]
    """The messages to summarise."""
    previous: str
    plan: str
    todos: str
    skills: tuple[str, ...]
    focus: str
    max_words: int
    max_output: int
    counter: Counter
    max_bytes: int
    hide: Hide
    tell: Hide
    """Hides as well, and counts what it takes out of what is shown."""

    def behind(self, sent: Sent, writer: Writer, window: int) -> Ask | None:
        """Return the ask that a writer can be given behind a request, or None where it has to be given the data."""
        is_own = writer.name == sent.model and reuses_prefix(writer, sent.prefix.format)
        if not self.entries or not is_own or self._has_secret(sent.prefix):
            return None
        room = window - sent.tokens - self.max_output
        missing = self._missing(sent, room)
        if missing is None:
            return None
        asked = asked_behind(
            range(self.entries[0].position or 0, (self.entries[-1].position or 0) + 1),
            positions(self._whole(sent), self.counter, POSITIONS_TOKENS, self.tell),
            missing=missing,
            previous=self.previous,
            plan=self.plan,
            todos=self.todos,
            skills=self.skills,
            focus=self.focus,
            max_words=self.max_words,
        )
        if self.counter.count(asked.system) + self.counter.count(asked.text) > room:
            return None
        return Ask(system=asked.system, text=asked.text, max_output_tokens=self.max_output, prefix=sent.prefix)

    def _whole(self, sent: Sent) -> list[Entry]:
        return [entry for entry in self.entries if entry.position in sent.whole]

    def _missing(self, sent: Sent, room: int) -> str | None:
        """Return what the request does not show whole, as data; None where it is too much for one question."""
        missing = [entry for entry in self.entries if entry.position not in sent.whole]
        if not missing:
            return ""
        if room < MIN_PIECE_TOKENS or len(missing) == len(self.entries):
            return None
        parts = pieces(missing, self.counter, room, self.max_bytes, self.tell)
        return "".join(parts) if len(parts) <= 1 else None

    def _has_secret(self, prefix: Prefix) -> bool:
        text = written([prefix.system, prefix.tools, list(prefix.messages)])
        return self.hide(text) != text
