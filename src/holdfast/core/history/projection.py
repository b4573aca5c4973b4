"""The messages in force for one agent, with token counts, extended as the conversation grows.

The cost of planning a request must not grow with the length of the conversation. A history therefore keeps a projection
from one request to the next and appends new messages to it. Only a change of context, such as a compaction, an undo or
a pin, rebuilds the projection. Both ways produce the same projection.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from holdfast.core.conversation.batching import Batching
from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.repair import is_valid_history
from holdfast.core.conversation.tokens import message_bytes
from holdfast.core.history.context import Context


class Projection:
    """Messages as they are sent, with cumulative token counts."""

    def __init__(self, context: Context, tokens_of: Callable[[Entry], int]) -> None:
        self.context = context
        self.entries: list[Entry] = []
        self.cumulative_tokens: list[int] = [0]
        """The tokens before each entry, and the total."""
        self.answered_tokens = 0
        """The tokens of all requests that were answered since the context last changed."""
        self.media_count = 0
        """The number of images, sounds and documents in the entries."""
        self.largest_bytes = 0
        """The size of the largest message, in bytes of text: no text in it is longer."""
        self.has_other_scopes = False
        """Whether the entries include messages of other scopes."""
        self.newest_prompt: int | None = None
        """The index of the user's last prompt."""
        self._tokens_of = tokens_of
        self._lineage = context.scopes.lineage(context.scope)
        self._validated: dict[Batching, tuple[int, set[str]]] = {}
        """For each batching: the index before which all entries are valid, and the call ids used there."""
        self._changed_at = context.state.changed_at
        for entry in context.visible_entries():
            self._append(entry)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int, /) -> Message:
        return self.entries[index].message

    @property
    def tokens(self) -> int:
        """The tokens of all entries."""
        return self.cumulative_tokens[-1]

    @property
    def first_uncompacted(self) -> int:
        """The index after the last replacement of compacted messages; recorded messages follow from there on."""
        compactions = self.context.state.compactions
        stop = compactions[-1].span.stop if compactions else 0
        start = len(self.entries)
        while start > 0 and (position := self.entries[start - 1].position) is not None and position >= stop:
            start -= 1
        return start

    def position_at(self, index: int) -> int:
        """Return the history position at which the entry at `index` begins; the end has a position too."""
        if index >= len(self.entries):
            return self.context.length
        position = self.entries[index].position
        compactions = self.context.state.compactions
        if position is not None:
            return next((one.span.stop for one in compactions if position in one.span.positions), position)
        made = sum(entry.position is None for entry in self.entries[:index])
        starts = [one.span.start for one in compactions for _ in (() if one.span.is_merged else one.replacement)]
        return starts[made] if made < len(starts) else self.context.length

    def tail_start(self, tokens: int) -> int:
        """Return the start of the longest tail that costs at most `tokens`."""
        start = len(self.entries)
        while start > 0 and self.cumulative_tokens[-1] - self.cumulative_tokens[start - 1] <= tokens:
            start -= 1
        return start

    def entry_tokens(self) -> list[int]:
        """Return the tokens of each entry."""
        return [after - before for before, after in pairwise(self.cumulative_tokens)]

    def is_valid(self, batching: Batching) -> bool:
        """Return whether every call has its result directly after it; entries known to be valid are skipped."""
        settled, seen = self._validated.get(batching, (0, set[str]()))
        newer = self.entries[settled:]
        if not is_valid_history(newer, batching):
            return False
        if not batching.pairs_by_name and any(call_id in seen for call_id in _call_ids(newer)):
            return False
        # In a valid history no call is open where an exchange begins, so earlier entries need no second check. A tool
        # that the provider runs can stay open longer: the check then begins with its use.
        uses = (index for index in range(settled, len(self.entries)) if self[index].outline.server_uses)
        cut = min(len(self.entries) - 1, next(uses, len(self.entries)))
        while cut > settled and not (self[cut].role == "assistant" and self[cut - 1].role != "assistant"):
            cut -= 1
        if cut > settled:
            seen.update(_call_ids(self.entries[settled:cut]))
            self._validated[batching] = cut, seen
        return True

    def extended_to(self, context: Context) -> "Projection | None":
        """Return this projection extended by newer messages, or None if it has to be rebuilt."""
        if context.version is not self.context.version or context.pins is not self.context.pins:
            return None
        if context.has_recall is not self.context.has_recall:
            return None
        compactions = context.state.compactions
        if compactions and compactions[-1].span.is_merged and not self._has_prompt_after(compactions[-1].span.stop):
            return None
        for position in range(self.context.length, context.length):
            if context.is_in_view(position):
                self._append(context.visible_entry(position))
        self.context = context
        return self

    def _has_prompt_after(self, stop: int) -> bool:
        prompt = self.newest_prompt
        return prompt is not None and (self.entries[prompt].position or 0) >= stop

    def _is_own(self, entry: Entry) -> bool:
        """Return whether a message belongs to this agent's lineage; a delegate's task is not a prompt of the user."""
        return entry.position is not None and self.context.message_scopes[entry.position] in self._lineage

    def _append(self, entry: Entry) -> None:
        message = entry.message
        if message.role == "assistant" and entry.position is not None and entry.position >= self._changed_at:
            self.answered_tokens += self.cumulative_tokens[-1]
        elif message.role == "user" and self._is_own(entry) and message.is_prompt:
            self.newest_prompt = len(self.entries)
        if entry.position is not None and self.context.message_scopes[entry.position] != self.context.scope:
            self.has_other_scopes = True
        self.media_count += message.media_count
        self.largest_bytes = max(self.largest_bytes, message_bytes(message))
        self.entries.append(entry)
        self.cumulative_tokens.append(self.cumulative_tokens[-1] + self._tokens_of(entry))


def _call_ids(entries: Iterable[Entry]) -> Iterator[str]:
    return (call_id for entry in entries for call_id in entry.message.outline.call_ids)
