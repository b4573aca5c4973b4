"""The messages in force for one agent, with token counts, extended as the conversation grows.

The cost of planning a request must not grow with the length of the conversation. A history therefore keeps a projection
from one request to the next and appends new messages to it. Only a change of context, such as a compaction, an undo or
a pin, rebuilds the projection. Both ways produce the same projection.
"""

from bisect import bisect_left
from itertools import pairwise

from holdfast.core.conversation.batching import Batching
from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.repair import CountedRepair, GrowingRepair
from holdfast.core.conversation.tokens import Counter, message_bytes, message_tokens
from holdfast.core.history.context import Context


class Projection:
    """Messages as they are sent, with cumulative token counts."""

    def __init__(self, context: Context, counter: Counter) -> None:
        self.context = context
        self.counter = counter
        self.entries: list[Entry] = []
        self.cumulative_tokens: list[int] = [0]
        """The tokens before each entry, and the total."""
        self.tokens = 0
        """The tokens of all entries."""
        self.text_bytes = 0
        """The size of all entries, in bytes of text: a token may have hundreds of them, as in a line of dots."""
        self.answered_tokens = 0
        """The tokens of all requests that were answered since the context last changed."""
        self.media_count = 0
        """The number of images, sounds and documents in the entries."""
        self.system_tokens = 0
        """The tokens of the system messages."""
        self.largest_bytes = 0
        """The size of the largest message, in bytes of text: no text in it is longer."""
        self.has_other_scopes = False
        """Whether the entries include messages of other scopes."""
        self.newest_prompt: int | None = None
        """The index of the user's last prompt."""
        self._lineage = context.scopes.lineage(context.scope)
        self._repairs: dict[int, GrowingRepair] = {}
        """By the identity of the batching, which each of them holds."""
        self._changed_at = context.state.changed_at
        for entry in context.visible_entries():
            self._append(entry)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int, /) -> Message:
        return self.entries[index].message

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
        # No message has fewer than 0 tokens, so the sums ascend. Every recorded message asks for a tail.
        return min(bisect_left(self.cumulative_tokens, self.tokens - tokens), len(self.entries))

    def entry_tokens(self) -> list[int]:
        """Return the tokens of each entry."""
        return [after - before for before, after in pairwise(self.cumulative_tokens)]

    def repaired(self, batching: Batching, *, is_interrupted: bool) -> CountedRepair:
        """Return the entries as a provider accepts them; what was repaired before is not repaired again."""
        repair = self._repairs.get(id(batching))
        if repair is None:
            repair = self._repairs[id(batching)] = GrowingRepair(batching, self.counter)
        return repair.extend(self.entries, self.tokens, is_interrupted=is_interrupted)

    def extended_to(self, context: Context) -> "Projection | None":
        """Return this projection extended by newer messages, or None if it has to be rebuilt."""
        before = self.context
        if context.version is not before.version or context.pins is not before.pins:
            return None
        if (context.recall_marks is None) is not (before.recall_marks is None):
            return None
        scopes, scope, state = context.message_scopes, context.scope, context.state
        if state.compactions:
            span = state.compactions[-1].span
            if span.is_merged and not self._has_prompt_after(span.stop):
                return None
        # Mostly a view contains each message of its scope that no compaction replaces, as it was recorded.
        is_plain = not (context.attachments or context.version.hidden or state.left_out or state.offloaded)
        for position in range(before.length, context.length):
            if is_plain and scopes[position] == scope:
                self._append(context.entries[position])
            elif context.is_in_view(position):
                self._append(context.visible_entry(position))
        self.context = context
        return self

    def _has_prompt_after(self, stop: int) -> bool:
        prompt = self.newest_prompt
        return prompt is not None and (self.entries[prompt].position or 0) >= stop

    def _append(self, entry: Entry) -> None:
        message, position = entry
        scope = None if position is None else self.context.message_scopes[position]
        if message.outline.is_fixed:
            # The provider ignores everything before it.
            self.cumulative_tokens = [0] * len(self.cumulative_tokens)
            self.tokens = self.system_tokens = 0
        role, before = message.role, self.tokens
        if role == "assistant" and position is not None and position >= self._changed_at:
            self.answered_tokens += before
        elif role == "user" and scope in self._lineage and message.is_prompt:
            # A delegate's task is not a prompt of the user.
            self.newest_prompt = len(self.entries)
        if scope is not None and scope != self.context.scope:
            self.has_other_scopes = True
        self.media_count += message.media_count
        size = message_bytes(message)
        self.text_bytes += size
        self.largest_bytes = max(self.largest_bytes, size)
        words, media = message_tokens(message, self.counter)
        if role == "system":
            self.system_tokens += words + media
        self.entries.append(entry)
        self.tokens = before + words + media
        self.cumulative_tokens.append(self.tokens)
