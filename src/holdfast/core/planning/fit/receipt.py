"""What was done to a conversation before it was sent, and why."""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.core.conversation.pairing import Repair
from holdfast.core.conversation.spans import PositionRanges, format_positions, position_count, position_ranges
from holdfast.core.conversation.tokens import TokenCount
from holdfast.core.planning.situation import Budget


@dataclass(frozen=True, slots=True)
class Receipt:
    """The account of one request. Positions are indices into the list that was given."""

    budget: Budget
    tokens_before: TokenCount
    """The whole list; estimated from its size where it was too long to be counted."""
    tokens: TokenCount
    messages_before: int
    messages: int
    kept: tuple[int, ...] = ()
    """Positions that go out as they came in."""
    clipped: tuple[int, ...] = ()
    """Positions whose tool output (or, as the last resort, call arguments) was shortened."""
    elided: tuple[int, ...] = ()
    """Positions whose images, sounds or documents were replaced by a word."""
    compacted: PositionRanges = ()
    """Positions that are now part of the digest."""
    dropped: PositionRanges = ()
    """Positions that left without a digest, because not even that had room."""
    repairs: tuple[Repair, ...] = ()
    conflicts: tuple[str, ...] = ()
    """What was folded says two things that cannot both be: a person has to decide."""
    reasons: tuple[str, ...] = ()

    @property
    def is_unchanged(self) -> bool:
        """Whether everything goes out as it came in."""
        return len(self.kept) == self.messages_before == self.messages

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{'':10}{'messages':>10}{'tokens':>12}"
        yield f"{'before':10}{self.messages_before:>10,}{_format_count(self.tokens_before):>12}"
        yield f"{'sent':10}{self.messages:>10,}{self.tokens.total:>12,}  ({self.tokens.provenance})"
        budget = self.budget
        yield f"{'budget':10}{_number_or_dash(budget.messages):>10}{budget.tokens:>12,}  ({budget.source})"
        for name in ("kept", "clipped", "elided"):
            positions: tuple[int, ...] = getattr(self, name)
            yield from _receipt_row(name, position_ranges(sorted(positions)))
        yield from _receipt_row("folded", self.compacted)
        yield from _receipt_row("pruned", self.dropped)
        if self.repairs:
            yield f"{'mended':10}{len(self.repairs):>10,}"
        for repair in self.repairs:
            where = "" if repair.position is None else f"#{repair.position}: "
            yield f"{'':12}{where}{repair.description}"
        for conflict in self.conflicts:
            yield f"conflict  {conflict}"
        for reason in self.reasons:
            yield f"because {reason}"


def _receipt_row(name: str, positions: PositionRanges) -> Iterator[str]:
    if positions:
        yield f"{name:10}{position_count(positions):>10,}  {format_positions(positions)}"


def _format_count(count: TokenCount) -> str:
    return f"{count.total:,}" if count.provenance != "estimated" else f"≈{count.total:,}"


def _number_or_dash(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
