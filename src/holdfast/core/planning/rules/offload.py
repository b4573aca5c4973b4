"""Shows large, settled tool outputs as a preview, all at once, when that frees enough.

It breaks the prefix like a fold and keeps the conversation itself whole, so it is worth it only where a few
outputs hold most of the tokens.
"""

from dataclasses import dataclass, field

from holdfast.core.conversation.cuts import next_cut, unit_around
from holdfast.core.conversation.messages import Text
from holdfast.core.planning.settings import check_settings, share, whole
from holdfast.core.planning.steps import NOTHING, OffloadOutputs, Outlook, Proposal

CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Shares are of the room that system text and tools leave to the messages."""

    at_share: float = field(default=0.8, metadata=share())
    """How full it has to be."""
    max_left_share: float = field(default=0.2, metadata=share())
    """What may be left afterwards; where more would be, a fold is the better break."""
    tail_share: float = field(default=0.05, metadata=share())
    """Outputs among the newest messages stay whole: the model is usually still reading them."""
    max_chars: int = field(default=2_000, metadata=whole(64, 10**9))
    """What is shown of an output."""

    def __post_init__(self) -> None:
        check_settings(self, "offload")

    def propose(self, outlook: Outlook) -> Proposal:
        """Return the pass over everything before the tail, if it frees enough."""
        shown, room = outlook.shown, outlook.situation.room
        if outlook.token_fill < self.at_share or not len(shown):
            return NOTHING
        last = unit_around(shown, len(shown) - 1)[0]
        cut = min(next_cut(shown, max(shown.first_free, shown.start_within(int(self.tail_share * room)))), last)
        gain = sum(self._gain(outlook, index) for index in range(cut))
        if gain < self.max_left_share * room or shown.tokens - gain > self.max_left_share * room:
            return NOTHING
        step = OffloadOutputs(line=shown.position(cut), max_chars=self.max_chars)
        before = shown.context.standing.offloaded
        if before is not None and step.line <= before.line:
            return NOTHING
        why = f"tool outputs before #{step.line} hold about {gain:,} tokens: they are shown as previews from now on"
        return Proposal(now=(step,), reasons=(why,))

    def _gain(self, outlook: Outlook, index: int) -> int:
        entry = outlook.shown.entries[index]
        if entry.position is None or entry.position in outlook.history.facts.pins:
            return 0
        spares = outlook.shown.context.has_recall
        results = (result for result in entry.message.results if not (spares and result.is_recalled))
        texts = (part.text for result in results for part in result.content if isinstance(part, Text))
        return sum(max(0, len(text) - self.max_chars) for text in texts) // CHARS_PER_TOKEN
