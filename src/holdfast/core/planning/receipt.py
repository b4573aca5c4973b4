"""The view that is sent, and the receipt that says what was changed for it and why."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.pairing import Repair
from holdfast.core.conversation.spans import PositionRanges, format_positions, position_count, position_ranges
from holdfast.core.conversation.tokens import REPLY_OVERHEAD, TokenCount, message_tokens
from holdfast.core.history.events import RequestTruncated
from holdfast.core.planning.situation import Budget, Situation
from holdfast.dataclass import dataclass
from holdfast.text import pluralize


@dataclass(slots=True)
class View:
    """The messages that the model will see, each with its position in the history. Nobody changes one."""

    entries: list[Entry]
    tokens: int
    """The tokens of the messages, as our counter counts them."""
    tokens_before: int = 0
    """The tokens of all messages, unshortened."""
    messages_before: int = 0
    """How many messages these are; a summary counts as one."""
    has_media: bool = False
    """Whether there may be images, sounds or documents, whose tokens are estimates."""
    system_tokens: int | None = None
    """The tokens of the system messages among them; None if they have to be counted."""
    is_before_counted: bool = True
    """Whether `tokens_before` was counted; otherwise it is extrapolated from the size of the messages."""
    compacted: PositionRanges = ()
    """Positions that a digest made for this view replaces."""
    dropped: PositionRanges = ()
    """Positions that nothing replaces, because there was no room for a digest."""
    truncated: RequestTruncated | None = None
    """The event of a truncator that removed messages from this request."""
    repairs: tuple[Repair, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why the view does not contain all messages unchanged."""
    is_emergency: bool = False
    """Whether only the newest turns are sent, shortened, because the provider refused more."""
    is_fitted: bool = False
    """Whether the fitter had to change anything."""
    without_thinking: tuple[int, ...] = ()
    """Positions of messages that are sent without their thinking, because what came before it has changed."""

    def changed(
        self, entries: list[Entry], tokens: int, repairs: Sequence[Repair], reasons: Sequence[str] = ()
    ) -> "View":
        """Return the view with the entries that fit and that the provider accepts, and why they differ."""
        reasons = [*self.reasons, *reasons]
        if repairs:
            reasons.append(f"{pluralize(len(repairs), 'place')} repaired so that the provider accepts the request")
        return replace(
            self,
            entries=entries,
            tokens=tokens,
            system_tokens=None,
            repairs=tuple(repairs),
            reasons=tuple(reasons),
            is_fitted=True,
        )

    def after_steps(self, before: "View") -> "View":
        """Return the view with the size of the one before the steps of a plan."""
        return replace(
            self,
            tokens_before=before.tokens_before,
            messages_before=before.messages_before,
            is_before_counted=before.is_before_counted,
        )

    def drop_thinking(self, indices: Sequence[int], cost: Callable[[Message], tuple[int, int]]) -> "View":
        """Return the view without the thinking of the entries at `indices`."""
        if not indices:
            return self
        entries, tokens = list(self.entries), self.tokens
        for index in indices:
            whole = entries[index].message
            entries[index] = entries[index].with_message(whole.without_thinking())
            tokens += sum(cost(entries[index].message)) - sum(cost(whole))
        positions = tuple(position for index in indices if (position := entries[index].position) is not None)
        return replace(
            self,
            entries=entries,
            tokens=tokens,
            without_thinking=positions,
            reasons=(*self.reasons, thinking_dropped_reason(len(indices))),
        )

    def token_count(
        self, situation: Situation, tokens_of: Callable[[Message], tuple[int, int]] | None = None
    ) -> TokenCount:
        """Return the tokens as the provider would count them: system text, tools and conversation separately.

        `tokens_of` returns the text and media tokens of a message, for a caller that caches them.
        """
        price: Callable[[Message], tuple[int, int]] = tokens_of or (lambda one: message_tokens(one, situation.counter))
        systems = self.system_tokens
        if systems is None:
            systems = sum([sum(price(entry.message)) for entry in self.entries if entry.message.role == "system"])
        media = sum([price(entry.message)[1] for entry in self.entries]) if self.has_media else 0
        return situation.billed_count(
            system=situation.system_tokens + systems,
            conversation=self.tokens - systems - media + REPLY_OVERHEAD,
            media=media,
        )


def thinking_dropped_reason(count: int) -> str:
    """Return why messages are sent without their thinking."""
    return (
        f"the thinking of {pluralize(count, 'message')} was removed: the model accepts thinking only after exactly "
        f"what it followed, and that has changed"
    )


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was done for one request. Positions are those of the session, or indices into the input of `govern`."""

    budget: Budget
    tokens_before: TokenCount
    """The tokens of all messages; estimated from their size if there are too many to count."""
    tokens: TokenCount
    messages_before: int
    messages: int
    kept: tuple[int, ...] = ()
    """Positions of messages that are sent unchanged."""
    clipped: tuple[int, ...] = ()
    """Positions whose tool output (or, as the last resort, call arguments) was shortened."""
    elided: tuple[int, ...] = ()
    """Positions whose images, sounds or documents were replaced by a notice."""
    compacted: PositionRanges = ()
    """Positions that a summary or a digest replaces."""
    dropped: PositionRanges = ()
    """Positions that nothing replaces, because there was no room for a digest."""
    without_thinking: tuple[int, ...] = ()
    """Positions whose thinking was removed, because what came before it has changed."""
    repairs: tuple[Repair, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Contradictions among the compacted messages, for a person to resolve."""
    reasons: tuple[str, ...] = ()
    limit: int = 0
    """The size of a full request: the budget less the margin for errors of the count, or the policy's own limit."""

    @property
    def is_unchanged(self) -> bool:
        """Whether all messages are sent unchanged.

        A span that was compacted into nothing is not among the messages before, nor among those that are sent.
        """
        return len(self.kept) == self.messages_before == self.messages and not self.compacted

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{'':10}{'messages':>10}{'tokens':>12}"
        before = f"{'≈' if self.tokens_before.provenance == 'estimated' else ''}{self.tokens_before.total:,}"
        yield f"{'before':10}{self.messages_before:>10,}{before:>12}"
        yield f"{'sent':10}{self.messages:>10,}{self.tokens.total:>12,}  ({self.tokens.provenance})"
        budget = self.budget
        most = "–" if budget.messages is None else f"{budget.messages:,}"
        yield f"{'budget':10}{most:>10}{budget.tokens:>12,}  ({budget.source})"
        if self.limit and self.limit != budget.tokens:
            yield f"{'limit':20}{self.limit:>12,}"
        for name in ("kept", "clipped", "elided", "compacted", "dropped"):
            found = getattr(self, name)
            ranges: PositionRanges = found if name in {"compacted", "dropped"} else position_ranges(sorted(found))
            if ranges:
                yield f"{name:10}{position_count(ranges):>10,}  {format_positions(ranges)}"
        if self.repairs:
            yield f"{'repaired':10}{len(self.repairs):>10,}"
        for repair in self.repairs:
            where = "" if repair.position is None else f"#{repair.position}: "
            yield f"{'':12}{where}{repair.description}"
        for conflict in self.conflicts:
            yield f"conflict  {conflict}"
        for reason in self.reasons:
            yield f"because   {reason}"


def receipt_of(
    view: View,
    situation: Situation,
    tokens: TokenCount,
    *,
    kept: Iterable[int],
    clipped: Iterable[int],
    elided: Iterable[int],
    compacted: PositionRanges,
    repairs: Iterable[Repair],
    conflicts: tuple[str, ...] = (),
    reasons: tuple[str, ...],
) -> Receipt:
    """Return the receipt of a view; the caller passes its `token_count`, and the outcome of each position."""
    is_whole = view.tokens == view.tokens_before and view.is_before_counted
    tokens_before = tokens
    if not is_whole or view.has_media or view.system_tokens != 0:  # else `token_count` has counted the same
        tokens_before = situation.billed_count(
            system=situation.system_tokens,
            conversation=view.tokens_before + REPLY_OVERHEAD,
            is_counted=view.is_before_counted,
        )
    return Receipt(
        budget=situation.budget,
        tokens_before=tokens_before,
        tokens=tokens,
        messages_before=view.messages_before,
        messages=len(view.entries),
        kept=tuple(kept),
        clipped=tuple(clipped),
        elided=tuple(elided),
        compacted=compacted,
        dropped=view.dropped,
        without_thinking=view.without_thinking,
        repairs=tuple(repairs),
        conflicts=conflicts,
        reasons=reasons,
        limit=situation.billed_limit,
    )
