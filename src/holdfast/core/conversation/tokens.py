"""The size of a conversation in tokens and in bytes, and the provenance of each count.

A count without its provenance misleads: displays, thresholds and bills then disagree. Every total therefore
states whether the provider reported it, earlier reports calibrated it, the model's own vocabulary counted it,
or it is estimated. Other modules load vocabularies; this module defines their protocol, the arithmetic, and the
calibration. Sizes in bytes need no tokenizer and are sufficient to place cuts.
"""

from collections.abc import Callable, Sequence
from dataclasses import field, fields, replace
from typing import ClassVar, Literal, Protocol, TypeAlias, cast, runtime_checkable

from holdfast.core.conversation.batching import is_id_from_name
from holdfast.core.conversation.messages import (
    TEXT_OUTLINE,
    Media,
    Message,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from holdfast.core.schema import is_number, short_repr
from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError

Provenance: TypeAlias = Literal["reported", "calibrated", "counted", "estimated"]

MESSAGE_OVERHEAD = 4
"""Role and delimiters of one message: OpenAI's formula is 3 tokens and a role token."""
CALL_OVERHEAD = 8
"""Delimiters of one call or result; slightly more than providers bill."""
CHARS_PER_ID_TOKEN = 2
"""Call ids are random letters; two letters per token slightly overestimates their cost."""
REPLY_OVERHEAD = 3
"""The opening of the answer, which ends every request."""
ERROR_COUNTED = 0.06
"""The relative error of a count with the model's own vocabulary.

Ids and message frames are counted by formula; for recorded sessions the provider billed this much less.
"""
ERROR_ESTIMATED = 0.15
"""The relative error for the worst text with another model's vocabulary; the counter tests enforce it."""


@runtime_checkable
class Counter(Protocol):
    """Counts the tokens of a text."""

    @property
    def name(self) -> str:
        """The name of the vocabulary or formula."""
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
    """A number of input tokens with its provenance and its components."""

    total: int
    provenance: Provenance
    system: int = 0
    tools: int = 0
    conversation: int = 0
    media: int = 0
    counter: str = ""
    counted: int = 0
    """The total of our counter before calibration; a calibration learns from it."""
    error: float | None = field(default=None, compare=False)
    """The possible error as a share of the total, measured from earlier reports if there are any; None if unknown."""

    @property
    def display(self) -> str:
        """The total formatted for display, with its possible error."""
        return format_token_count(self.total, self.error)

    def as_reported(self, input_tokens: int) -> "TokenCount":
        """Return the count with the provider's own total; the parts stay as we counted them."""
        return replace(self, total=input_tokens, provenance="reported", error=0.0)

    def __str__(self) -> str:
        return f"{self.total:,} tokens ({self.provenance})"


class DeferredTokenCount(TokenCount):
    """A count that is made when a part of it is first read; otherwise it is a `TokenCount` like any other."""

    __slots__ = ("_count",)

    def __init__(self, count: Callable[[], TokenCount]) -> None:
        object.__setattr__(self, "_count", count)

    @property
    def __class__(self) -> type[TokenCount]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The class by which counts are compared and copied."""
        return TokenCount

    def __reduce__(self) -> tuple[type[TokenCount], tuple[object, ...]]:
        """Return what is pickled: the count, made now."""
        return TokenCount, tuple(getattr(self, item.name) for item in fields(TokenCount))

    def __getattr__(self, name: str) -> object:
        """Fill the fields, all of which are missing until now."""
        count = self._count()
        for item in fields(TokenCount):
            object.__setattr__(self, item.name, getattr(count, item.name))
        return object.__getattribute__(self, name)


FOREIGN_FACTORS = (0.75, 2.0)
"""The bounds of a calibration factor if the vocabulary is not the model's own.

A vocabulary of 32,000 tokens needs up to twice as many tokens as ours for code and other scripts. No model in use needs
less than three quarters of what we count: ours are among the largest vocabularies. A lower report has left tokens out.
"""
OWN_FACTORS = (0.95, 1.1)
"""The bounds if the vocabulary is the model's own.

The text is then counted exactly. Only frames, ids and tool definitions, a few percent of a request, are counted by
formula.
"""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How a provider's own counts relate to ours, learned from the usage it reports.

    The factor changes in steps, so that plans do not change with every answer. After the first reports each
    change is small, so that one outlier does not outweigh many earlier reports. Reports can be false, so the factor is
    bounded; how far a report is off shows in the error.
    """

    factor: float = 1.0
    samples: int = 0
    spread: float | None = field(default=None, compare=False)
    """The relative error of the calibrated counts; the influence of older reports decays."""

    STEP: ClassVar[float] = 0.05
    MAX_STEP: ClassVar[float] = 0.1
    """The maximum change of the factor by one report after `SETTLED_SAMPLES` reports."""
    SETTLED_SAMPLES: ClassVar[int] = 3
    MAX_RATIO: ClassVar[float] = 4
    """Reports that differ by more than this factor, either way, are ignored."""
    SPREAD_DECAY: ClassVar[float] = 0.9
    """The factor by which an earlier deviation decays with each report."""

    def __post_init__(self) -> None:
        low, high = FOREIGN_FACTORS
        if not (isinstance(self.factor, int | float) and low <= self.factor <= high):
            raise SettingsError("calibration.factor", f"must lie between {low} and {high}, not {self.factor!r}")

    @property
    def error(self) -> float:
        """The possible relative error of the next count; at least `STEP` until the factor has settled."""
        spread = self.STEP if self.spread is None else self.spread
        return spread if self.samples >= self.SETTLED_SAMPLES else max(spread, self.STEP)

    def learn(self, *, counted: int, reported: int, provenance: Provenance = "estimated") -> "Calibration":
        """Return the calibration after one more report; ignore implausible reports.

        `counted` is `request.tokens.counted`; `reported` is the number of input tokens that the provider billed,
        including cached ones. `provenance` is that of the counter: `counted` has narrower bounds.
        """
        for name, value in (("counted", counted), ("reported", reported)):
            if not is_number(value):
                raise SettingsError(f"calibration.{name}", f"must be a number of tokens, not {short_repr(value)}")
        if counted <= 0 or reported <= 0 or not 1 / self.MAX_RATIO <= reported / counted <= self.MAX_RATIO:
            return self
        observed = reported / counted
        if self.samples and abs(observed - self.factor) < self.STEP:
            return self._with_factor(self.factor, observed)
        towards = observed
        if self.samples >= self.SETTLED_SAMPLES:
            towards = min(max(observed, self.factor - self.MAX_STEP), self.factor + self.MAX_STEP)
        # Round up: an undercount causes a rejected request, an overcount wastes a little of the window.
        stepped = -(-round(towards, 6) // self.STEP) * self.STEP
        low, high = calibration_bounds(provenance)
        return self._with_factor(round(min(max(stepped, low), high), 2), observed)

    def _with_factor(self, factor: float, observed: float) -> "Calibration":
        """Return the calibration with a new factor and the updated spread of the previous one."""
        deviation = abs(observed / (self.factor if self.samples else factor) - 1)
        return Calibration(factor, self.samples + 1, round(max(deviation, self.SPREAD_DECAY * (self.spread or 0.0)), 4))


def calibration_bounds(provenance: Provenance) -> tuple[float, float]:
    """Return the least and the largest calibration factor for a counter of a provenance."""
    return OWN_FACTORS if provenance == "counted" else FOREIGN_FACTORS


def format_token_count(total: int, error: float | None) -> str:
    """Return a number of tokens with its possible error in whole percent, rounded up."""
    if error is None:
        return f"about {total:,}"
    return f"{total:,} ± {-int(-round(error * 100, 6) // 1)} %" if error else f"{total:,}"


MAX_SHARED_COUNTS = 8_192
_SHARED_COUNTS: dict[tuple[int, ...], tuple[object, ...]] = {}
"""The first so many counts, by their numbers, each with the counter that counted last."""


_set_counts: Callable[[Message, tuple[object, ...]], None] = Message.__dict__["counts"].__set__
"""Fills the field of a frozen message, in half the time of `object.__setattr__`."""


def message_tokens(message: Message, counter: Counter) -> tuple[int, int]:
    """Return the tokens of a message: those of its text, and those of its media. A message is counted once."""
    counts = message.counts
    if counts and counts[0] is counter:  # as nearly always: messages are counted by one counter
        return counts[1:3]  # pyright: ignore[reportReturnType]
    for at in range(3, len(counts), 3):
        if counts[at] is counter:
            return cast("tuple[int, int]", counts[at + 1 : at + 3])
    words, media = MESSAGE_OVERHEAD + (counter.count(message.extra_fields_json) if message.extra_fields_json else 0), 0
    for part in message.parts:
        if isinstance(part, Text):
            words += text_tokens(part, counter)
        else:
            part_words, part_media = _part_tokens(part, counter)
            words += part_words
            media += part_media
    _set_counts(message, counts + _counted(counter, words, media))
    return words, media


def tokens_of_messages(messages: Sequence[Message], counter: Counter) -> tuple[list[int], list[int]]:
    """Return the tokens of each message: those of its text, and those of its media.

    It is `message_tokens` for many, in half the time: new messages of one text are counted in one call of
    `count_texts`, if the counter has that.
    """
    found = [one.counts for one in messages]
    if not all(found):
        count_texts: Callable[[list[str]], list[int]] | None = getattr(counter, "count_texts", None)
        plain = [
            one for one in messages if one.outline is TEXT_OUTLINE and not one.counts and not one.extra_fields_json
        ]
        if plain and count_texts is not None:
            texts: list[str] = [getattr(one.parts[0], "text", "") for one in plain]
            counts = count_texts(texts)
            shared = {tokens: _counted(counter, MESSAGE_OVERHEAD + tokens, 0) for tokens in set(counts)}
            for message, tokens in zip(plain, counts, strict=True):
                _set_counts(message, shared[tokens])
            if len(plain) == len(found):
                return [MESSAGE_OVERHEAD + tokens for tokens in counts], [0] * len(found)
            found = [one.counts for one in messages]
    if any([not counts or counts[0] is not counter for counts in found]):  # noqa: C419 - a list takes half the time
        found = [(counter, *message_tokens(one, counter)) for one in messages]
    words, media = [counts[1] for counts in found], [counts[2] for counts in found]
    return words, media  # pyright: ignore[reportReturnType]


def text_tokens(part: Text, counter: Counter) -> int:
    """Return the tokens of a text. Shortened and repaired messages share their texts, so it is counted once."""
    counts = part.counts
    for at in range(0, len(counts), 2):
        if counts[at] is counter:
            return cast("int", counts[at + 1])
    tokens = counter.count(part.text)
    object.__setattr__(part, "counts", counts + _counted(counter, tokens))
    return tokens


def _counted(counter: Counter, *tokens: int) -> tuple[object, ...]:
    """Return a counter and what it has counted. Thousands of messages have the same count, and share it in memory."""
    known = _SHARED_COUNTS.get(tokens)
    if known is not None and known[0] is counter:
        return known
    made = (counter, *tokens)
    if known is not None or len(_SHARED_COUNTS) < MAX_SHARED_COUNTS:
        _SHARED_COUNTS[tokens] = made
    return made


def _part_tokens(part: Part, counter: Counter) -> tuple[int, int]:
    if isinstance(part, Text):
        return text_tokens(part, counter), 0
    if isinstance(part, Opaque):
        return (counter.count(part.text) if part.tokens is None else part.tokens) + part.encoded_tokens, 0
    if isinstance(part, Thinking):
        # The signature is sent too, and is billed as part of its reasoning.
        return counter.count(part.text) + (len(part.signature) // 4 if part.signature else 0), 0
    if isinstance(part, ToolCall):
        return _id_tokens(part.id) + counter.count(part.name) + counter.count(part.arguments), 0
    if isinstance(part, Media):
        return 0, part.tokens
    inner = [_part_tokens(content, counter) for content in part.content]
    # Some formats join the parts of a result into one text, with line breaks between them.
    seams = max(0, len(inner) - 1)
    words = _id_tokens(part.call_id) + seams + sum(words for words, _ in inner)
    words += part.answered_call.result_overhead_tokens if part.answered_call else 0
    return words, sum(media for _, media in inner)


def _id_tokens(call_id: str) -> int:
    # An id that `id_from_name` made is never sent.
    return CALL_OVERHEAD + (0 if is_id_from_name(call_id) else -(-len(call_id) // CHARS_PER_ID_TOKEN))


def request_tokens(messages: Sequence[Message], counter: Counter) -> int:
    """Return the tokens of a request with these messages."""
    return REPLY_OVERHEAD + sum(sum(message_tokens(message, counter)) for message in messages)


MESSAGE_OVERHEAD_BYTES = 16
"""Bytes of a message in addition to its text."""
BYTES_PER_MEDIA_TOKEN = 3


def utf8_length(text: str) -> int:
    """Return the size of a text in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def message_bytes(message: Message) -> int:
    """Return the size of a decoded message in bytes of text."""
    parts = message.parts
    if len(parts) == 1 and isinstance(only := parts[0], Text) and only.text.isascii():
        return len(only.text)  # as most are
    return sum(map(_part_bytes, parts))


def _part_bytes(part: Part) -> int:
    if isinstance(part, Text):
        text = part.text
        return len(text) if text.isascii() else utf8_length(text)
    if isinstance(part, Media | Opaque) and part.tokens is not None:
        return part.tokens * BYTES_PER_MEDIA_TOKEN
    if isinstance(part, ToolResult):
        return sum(map(_part_bytes, part.content))
    if isinstance(part, Opaque):
        return utf8_length(part.text) + part.encoded_tokens * BYTES_PER_MEDIA_TOKEN
    return utf8_length(getattr(part, "arguments", "") or getattr(part, "text", ""))
