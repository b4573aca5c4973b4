"""What a conversation costs in tokens, and how we know.

A count without its origin is a trap: meters, triggers and bills then disagree. So every total says
whether the provider reported it, whether it was calibrated by earlier reports, counted with the
model's own vocabulary, or estimated. Vocabularies are loaded elsewhere; here are the protocol they
follow, the arithmetic, and the correction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from holdfast.core.conversation.batching import is_by_name
from holdfast.core.conversation.messages import Media, Message, Opaque, Part, Text, Thinking, ToolCall
from holdfast.errors import SettingsError

Provenance: TypeAlias = Literal["reported", "calibrated", "counted", "estimated"]

MESSAGE_OVERHEAD = 4
"""Role and delimiters of one message: OpenAI's own formula has 3 and a role token."""
CALL_OVERHEAD = 8
"""Delimiters of one call or result; slightly above what bills show."""
CHARS_PER_ID_TOKEN = 2
"""Call ids are random letters: two of them make a token, a little more than it really is."""
REPLY_OVERHEAD = 3
"""Every request ends with the opening of the answer."""


@runtime_checkable
class Counter(Protocol):
    """Counts the tokens of a text."""

    @property
    def name(self) -> str:
        """Which vocabulary or formula this is."""
        ...

    @property
    def provenance(self) -> Provenance:
        """`counted` for the model's own vocabulary, `estimated` for anything else."""
        ...

    def count(self, text: str) -> int:
        """Return the number of tokens of a text that holds no lone surrogates."""
        ...


@dataclass(frozen=True, slots=True)
class TokenCount:
    """A number of input tokens, where it came from, and what it is made of."""

    total: int
    provenance: Provenance
    system: int = 0
    tools: int = 0
    conversation: int = 0
    media: int = 0
    counter: str = ""
    counted: int = 0
    """The total as our counter counted it, before any calibration: what a calibration learns from."""

    def as_reported(self, input_tokens: int) -> "TokenCount":
        """Return the count with the provider's own total; the parts stay as we counted them."""
        return replace(self, total=input_tokens, provenance="reported")

    def __str__(self) -> str:
        return f"{self.total:,} tokens ({self.provenance})"


@dataclass(frozen=True, slots=True)
class Calibration:
    """How a provider's own counts relate to ours, learned from the usage it reports.

    The factor moves in steps, so that plans do not wobble with every answer, and after the first reports
    by a little at a time, so that one that is far off does not undo what many have taught.
    """

    factor: float = 1.0
    samples: int = 0

    STEP: ClassVar[float] = 0.05
    STRIDE: ClassVar[float] = 0.1
    """The most that one report moves the factor once it has settled."""
    SETTLED: ClassVar[int] = 3
    MOST: ClassVar[float] = 4
    """Reports further off than this, either way, are somebody's mistake."""

    def __post_init__(self) -> None:
        if not (isinstance(self.factor, int | float) and 1 / self.MOST <= self.factor <= self.MOST):
            raise SettingsError("calibration.factor", f"must lie between 0.25 and 4, not {self.factor!r}")

    def learn(self, *, counted: int, reported: int) -> "Calibration":
        """Return the calibration after one more report; reports that make no sense are ignored.

        `counted` is `request.tokens.counted`, `reported` the input tokens the provider billed for it.
        """
        if counted <= 0 or reported <= 0 or not 1 / self.MOST <= reported / counted <= self.MOST:
            return self
        observed = reported / counted
        if self.samples and abs(observed - self.factor) < self.STEP:
            return replace(self, samples=self.samples + 1)
        if self.samples >= self.SETTLED:
            observed = min(max(observed, self.factor - self.STRIDE), self.factor + self.STRIDE)
        # Rounded up: an under-count costs a refused request, an over-count a little room.
        stepped = min(self.MOST, -(-round(observed, 6) // self.STEP) * self.STEP)
        return Calibration(round(stepped, 2), self.samples + 1)


def message_tokens(message: Message, counter: Counter) -> tuple[int, int]:
    """Return what a message costs: its words, and its media."""
    words, media = MESSAGE_OVERHEAD + (counter.count(message.extras) if message.extras else 0), 0
    for part in message.parts:
        if isinstance(part, Media):
            media += part.tokens
        else:
            part_words, part_media = _part_tokens(part, counter)
            words += part_words
            media += part_media
    return words, media


def _part_tokens(part: Part, counter: Counter) -> tuple[int, int]:
    if isinstance(part, Text):
        return counter.count(part.text), 0
    if isinstance(part, Opaque):
        return counter.count(part.text) if part.tokens is None else part.tokens, 0
    if isinstance(part, Thinking):
        # The signature travels too, and is billed as part of the reasoning it proves.
        return counter.count(part.text) + (len(part.signature) // 4 if part.signature else 0), 0
    if isinstance(part, ToolCall):
        return _id_tokens(part.id) + counter.count(part.name) + counter.count(part.arguments), 0
    if isinstance(part, Media):
        return 0, part.tokens
    inner = [_part_tokens(content, counter) for content in part.content]
    # Some formats write the pieces of a result as one text: a line break stands between them then.
    seams = max(0, len(inner) - 1)
    words = _id_tokens(part.call_id) + seams + sum(words for words, _ in inner)
    words += part.answers.answer_tokens if part.answers else 0
    return words, sum(media for _, media in inner)


def _id_tokens(call_id: str) -> int:
    # An id that was made of a name, because there was none, is never sent.
    return CALL_OVERHEAD + (0 if is_by_name(call_id) else -(-len(call_id) // CHARS_PER_ID_TOKEN))


def total_tokens(messages: Sequence[Message], counter: Counter) -> int:
    """Return what a list of messages costs as a request."""
    return REPLY_OVERHEAD + sum(sum(message_tokens(message, counter)) for message in messages)
