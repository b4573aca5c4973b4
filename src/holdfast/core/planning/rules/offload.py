"""Shows large, settled tool outputs as a preview, all at once, when that frees enough.

It breaks the prefix like a fold and keeps the conversation itself whole, so it is worth it only where a few
outputs hold most of the tokens.
"""

from dataclasses import dataclass, field

from holdfast.core.conversation.cuts import next_cut, uncuttable_span
from holdfast.core.conversation.messages import Text
from holdfast.core.planning.settings import check_bounds, integer_bounds, share_bounds
from holdfast.core.planning.steps import NO_PROPOSAL, OffloadOutputs, PlanInput, StepProposal

OFFLOAD_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Shares are of the room that system text and tools leave to the messages."""

    at_share: float = field(default=0.8, metadata=share_bounds())
    """How full it has to be."""
    max_left_share: float = field(default=0.2, metadata=share_bounds())
    """What may be left afterwards; where more would be, a fold is the better break."""
    tail_share: float = field(default=0.05, metadata=share_bounds())
    """Outputs among the newest messages stay whole: the model is usually still reading them."""
    max_chars: int = field(default=2_000, metadata=integer_bounds(64, 10**9))
    """What is shown of an output."""

    def __post_init__(self) -> None:
        check_bounds(self, "offload")

    def propose(self, plan_input: PlanInput) -> StepProposal:
        """Return the pass over everything before the tail, if it frees enough."""
        shown, room = plan_input.projection, plan_input.situation.message_budget
        if plan_input.token_fill < self.at_share or not len(shown):
            return NO_PROPOSAL
        last = uncuttable_span(shown, len(shown) - 1)[0]
        cut = min(next_cut(shown, max(shown.first_uncompacted, shown.tail_start(int(self.tail_share * room)))), last)
        gain = sum(self._freed_tokens(plan_input, index) for index in range(cut))
        if gain < self.max_left_share * room or shown.tokens - gain > self.max_left_share * room:
            return NO_PROPOSAL
        step = OffloadOutputs(before=shown.position_at(cut), max_chars=self.max_chars)
        before = shown.context.state.offloaded
        if before is not None and step.before <= before.line:
            return NO_PROPOSAL
        why = f"tool outputs before #{step.before} hold about {gain:,} tokens: they are shown as previews from now on"
        return StepProposal(now=(step,), reasons=(why,))

    def _freed_tokens(self, plan_input: PlanInput, index: int) -> int:
        entry = plan_input.projection.entries[index]
        if entry.position is None or entry.position in plan_input.history.session_state.pins:
            return 0
        spares = plan_input.projection.context.has_recall
        results = (result for result in entry.message.results if not (spares and result.is_recall_answer))
        texts = (part.text for result in results for part in result.content if isinstance(part, Text))
        return sum(max(0, len(text) - self.max_chars) for text in texts) // OFFLOAD_CHARS_PER_TOKEN
