"""Asking for a summary behind the conversation's own last request, so that the provider's prompt cache pays.

Possible where the conversation's own model writes, the writer speaks its format, nothing of the context has changed
since, no secret stands in what was sent, and the question still fits. What of the span the request does not show, or
not whole, goes with the question: all of a span reaches a summariser, whichever way it is asked.
"""

from dataclasses import dataclass

from holdfast.core.conversation.json_values import dump_json
from holdfast.core.conversation.tokens import Counter
from holdfast.core.conversation.view import Entry
from holdfast.core.planning.summary.behind import prefix_prompt
from holdfast.core.planning.summary.material import MIN_CHUNK_TOKENS, RedactText, position_index, split_into_chunks
from holdfast.models.base import CachedPrefix, Summarizer, SummaryPrompt, supports_prefix

MAX_POSITIONS_TOKENS = 1_500
"""What an index of positions may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """The last request of an agent, as it went out."""

    prefix: CachedPrefix
    model: str | None
    """Who was asked."""
    tokens: int
    """What it costs, as the provider counts."""
    window: int
    """The model's, or what the policy takes for that of a model nobody knows."""
    whole_positions: frozenset[int]
    """The positions of the messages that it shows as they were said."""
    change_count: int
    """How often the context had changed by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixQuestion:
    """What is asked behind it."""

    entries: tuple[Entry, ...]
    """The messages to summarise."""
    previous: str
    plan: str
    todos: str
    skills: tuple[str, ...]
    focus: str
    max_words: int
    max_output_tokens: int
    counter: Counter
    max_bytes: int
    redact: RedactText
    redact_and_count: RedactText
    """Hides as well, and counts what it takes out of what is shown."""

    def prompt_after(self, last_request: SentRequest, summarizer: Summarizer, window: int) -> SummaryPrompt | None:
        """Return the ask that a writer can be given behind a request, or None where it has to be given the data."""
        is_own = summarizer.name == last_request.model and supports_prefix(summarizer, last_request.prefix.format)
        if not self.entries or not is_own or self._has_secret(last_request.prefix):
            return None
        room = window - last_request.tokens - self.max_output_tokens
        missing = self._missing_text(last_request, room)
        if missing is None:
            return None
        asked = prefix_prompt(
            range(self.entries[0].position or 0, (self.entries[-1].position or 0) + 1),
            position_index(
                self._whole_entries(last_request), self.counter, MAX_POSITIONS_TOKENS, self.redact_and_count
            ),
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
        return SummaryPrompt(
            system=asked.system, text=asked.text, max_output_tokens=self.max_output_tokens, prefix=last_request.prefix
        )

    def _whole_entries(self, last_request: SentRequest) -> list[Entry]:
        return [entry for entry in self.entries if entry.position in last_request.whole_positions]

    def _missing_text(self, last_request: SentRequest, room: int) -> str | None:
        """Return what the request does not show whole, as data; None where it is too much for one question."""
        missing = [entry for entry in self.entries if entry.position not in last_request.whole_positions]
        if not missing:
            return ""
        if room < MIN_CHUNK_TOKENS or len(missing) == len(self.entries):
            return None
        parts = split_into_chunks(missing, self.counter, room, self.max_bytes, self.redact_and_count)
        return "".join(parts) if len(parts) <= 1 else None

    def _has_secret(self, prefix: CachedPrefix) -> bool:
        text = dump_json([prefix.system, prefix.tools, list(prefix.messages)])
        return self.redact(text) != text
