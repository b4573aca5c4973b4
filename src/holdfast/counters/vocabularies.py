"""Count tokens with the vocabulary of a model's family, loaded at the first count.

If the family's own vocabulary is bundled, counts are exact. Claude's is not public: o200k times a measured factor
replaces it, and counts are marked as estimates. Unknown models use o200k with every digit as a token, because many
vocabularies have no longer numbers: there, a log full of times and hashes has 1.4 times as many tokens. Nor do they
have tokens for whole progress bars, rules and emoji: a package installer's bars have three times as many.

If the tokenizer cannot be loaded, a formula estimates: a weighted sum of words, groups of three digits, runs of
punctuation, line breaks, changes of case, and characters by script. Its weights were fitted against o200k on prose,
code, logs, JSON, base64 and ten languages; `tests/counters/test_counters.py` limits the error of each kind. The worst
estimate is about a seventh too low, so a budget that relies on an estimate leaves that much free.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.conversation.tokens import Counter, Provenance, utf8_length
from holdfast.text import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from splintr import AnyTokenizer

CHUNK_CHARS = 1_000_000
"""Longer texts are counted in pieces, so that only the ids of one piece are in memory."""
CACHED_TEXT_CHARS, CACHED_TEXT_COUNT = 48, 4_096
"""Short texts such as tool names repeat: the counts of this many are cached."""
RECENT_TEXT_CHARS, RECENT_TEXT_COUNT = 16_384, 64
"""The text of a compaction is counted two or three times within its request, so the last counts are kept."""
SPECIAL_OPENING = "<|"
"""How the special tokens of most vocabularies begin."""
BOUND_MARKS = 4
"""At most as many tokens of a text are not part of it, such as the mark of its beginning."""
CLAUDE_TOKEN_FACTOR = 1.2
"""Tokens of Claude 4.5 per token of o200k, measured on the usage reported for recorded sessions."""


class ModelFamily(NamedTuple):
    """How the tokens of a family of models are counted."""

    names: tuple[str, ...]
    """How the name of a model, or a word in it, begins; the first family that matches is used."""
    vocabulary: str
    factor: float = 1.0
    has_own_vocabulary: bool = True
    splits_digits: bool = False
    """Whether each digit counts as a token, and bars, rules and emoji as several, whatever the vocabulary says."""

    @property
    def provenance(self) -> Provenance:
        """How exact the counts of this family are."""
        return "counted" if self.has_own_vocabulary else "estimated"


MODEL_FAMILIES = (
    ModelFamily(("claude",), "o200k_base", CLAUDE_TOKEN_FACTOR, has_own_vocabulary=False),
    ModelFamily(("distill-llama",), "llama3"),
    ModelFamily(("distill-qwen",), "qwen3"),
    ModelFamily(("gpt-oss",), "gpt_oss"),
    ModelFamily(("gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "chatgpt-4o", "codex", "o1", "o3", "o4"), "o200k_base"),
    ModelFamily(("gpt-4", "gpt-3.5"), "cl100k_base"),
    ModelFamily(("kimi-k2", "moonshot"), "kimi_k2"),
    ModelFamily(("deepseek",), "deepseek_v3"),
    ModelFamily(("qwen", "qwq"), "qwen3"),
    ModelFamily(("gemma",), "gemma3"),
    # Gemini is believed to use Gemma's vocabulary, but that is not documented: an estimate.
    ModelFamily(("gemini",), "gemma3", has_own_vocabulary=False),
    ModelFamily(("llama-4", "llama4"), "llama3", has_own_vocabulary=False),
    ModelFamily(("llama-2", "llama2", "codellama", "vicuna"), "llama2"),
    ModelFamily(("llama",), "llama3"),
    ModelFamily(("mistral", "mixtral", "codestral", "devstral", "ministral", "magistral", "pixtral"), "mistral_v3"),
    ModelFamily(("glm",), "glm4"),
    ModelFamily(("phi-4", "phi4"), "phi4"),
    ModelFamily(("olmo",), "olmo2"),
)
UNKNOWN_FAMILY = ModelFamily((), "o200k_base", has_own_vocabulary=False, splits_digits=True)
_DIGIT_MARKS = bytes(ord("d" if byte in b"0123456789" else " ") for byte in range(256))
"""Translates a text into one that shows only where its digits are."""
DRAWN_TOKENS = {"━": 2, "═": 2, "█": 1}
"""Further tokens of a character: o200k has one token for a long run of it, other vocabularies one or two for each."""
EMOJI_BYTES, FURTHER_EMOJI_TOKENS = b"\xf0\x9f", 2
"""How an emoji begins in UTF-8, and how many more tokens than in o200k it has elsewhere."""


class VocabularyCounter:
    """Counts with a bundled vocabulary."""

    def __init__(self, family: ModelFamily) -> None:
        import splintr  # noqa: PLC0415 - raises an error without a tokenizer; its vocabulary is loaded later

        del splintr
        self._vocabulary = family.vocabulary
        self._count_short = lru_cache(CACHED_TEXT_COUNT)(self._count)
        self._recent: OrderedDict[int, int] = OrderedDict()
        """The last counts of longer texts, by their hashes: a text that was scrubbed must not stay in memory."""
        self._factor = family.factor
        self._splits_digits = family.splits_digits
        self.provenance: Provenance = family.provenance
        self.name = family.vocabulary + (f" × {family.factor}" if family.factor != 1 else "")
        # Counts are cached by this name, so two ways to count with one vocabulary must not share it.
        self.name += " by digits and symbols" if family.splits_digits else ""
        self.bound = TokenBound(self.name, family)

    @cached_property
    def _encoders(self) -> "tuple[Callable[[str], list[int]], Callable[[str], bytes] | None]":
        """Two encoders: one returns the tokens of a text as numbers, the other four bytes for each, in half the time.

        To the second one, a special token that is spelled out in a text is one token. It is None if a text may hold
        one anywhere.
        """
        loaded = tokenizer(self._vocabulary)
        has_usual = all(special.startswith(SPECIAL_OPENING) for special in loaded.special_tokens())
        return loaded.encode_ordinary, loaded.encode_flat if has_usual else None

    @cached_property
    def _size(self) -> "Callable[[str], int]":
        """Counts the tokens of a text of moderate length."""
        encode, flat = self._encoders
        if flat is None:
            return lambda text: len(encode(text))
        return lambda text: len(encode(text)) if SPECIAL_OPENING in text else len(flat(text)) // 4

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        if len(text) <= CACHED_TEXT_CHARS:
            return self._count_short(text)
        if len(text) > RECENT_TEXT_CHARS:
            return self._count(text)
        key = hash(text)  # the text itself must not stay in memory
        known = self._recent.get(key)
        if known is None:
            known = self._recent[key] = self._count(text)
            if len(self._recent) > RECENT_TEXT_COUNT:
                self._recent.popitem(last=False)
        return known

    def count_texts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text. The counts of longer texts are not kept."""
        short, longer, (_, flat) = self._count_short, self._count, self._encoders
        is_exact = flat is not None and self._factor == 1 and not self._splits_digits
        if flat is not None and is_exact and _are_ordinary(texts):
            return [len(ids) // 4 for ids in map(flat, texts)]
        return [longer(text) if len(text) > CACHED_TEXT_CHARS else short(text) for text in texts]

    def _count(self, text: str) -> int:
        if not text.isascii():
            # The tokenizer reads UTF-8, which a text keeps for as long as it exists. So it gets a copy, which does not.
            text = f"{text} "[:-1]
        if len(text) <= CHUNK_CHARS:
            tokens = self._size(text)
        else:
            starts = range(0, len(text), CHUNK_CHARS)
            tokens = sum(self._size(text[start : start + CHUNK_CHARS]) for start in starts)
        if self._splits_digits:
            tokens += _further_digits(text) + (0 if text.isascii() else _further_symbols(text))
        return tokens if self._factor == 1 else -int(-tokens * self._factor // 1)


def _are_ordinary(texts: Sequence[str]) -> bool:
    """Return whether texts are neither short nor very long, ASCII, and without a special token spelled out in them."""
    sizes = set(map(len, texts))
    return (
        min(sizes, default=0) > CACHED_TEXT_CHARS
        and max(sizes) <= RECENT_TEXT_CHARS
        and all(map(str.isascii, texts))
        and SPECIAL_OPENING not in "\n".join(texts)
    )


def _further_digits(text: str) -> int:
    """Return how many digits of a text are not the first of their token; o200k has a token for up to three digits."""
    marks = text.encode().translate(_DIGIT_MARKS)
    return 2 * marks.count(b"ddd") + marks.replace(b"ddd", b" ").count(b"dd")


def _further_symbols(text: str) -> int:
    """Return how many more tokens than in o200k the bars, rules and emoji of a text have in other vocabularies."""
    drawn = sum(tokens * text.count(one) for one, tokens in DRAWN_TOKENS.items())
    return drawn + FURTHER_EMOJI_TOKENS * text.encode().count(EMOJI_BYTES)


class TokenBound:
    """Counts at least as many tokens as a vocabulary, without loading it.

    What fits by this count fits by any other, so a list far below its budget needs no tokenizer. A token is at least a
    byte. Vocabularies add a few marks to a text, and some rewrite letters into forms of up to three times the length.
    """

    def __init__(self, name: str, family: ModelFamily) -> None:
        self.name = name
        self.provenance: Provenance = family.provenance
        self._factor = family.factor * (2 if family.splits_digits else 1)

    def count(self, text: str) -> int:
        """Return a number of tokens that the text does not exceed."""
        tokens = BOUND_MARKS + (len(text) if text.isascii() else 3 * utf8_length(text))
        return -int(-tokens * self._factor // 1)


@cache
def tokenizer(vocabulary: str) -> "AnyTokenizer":
    """Return a bundled tokenizer; loading one takes some tens of milliseconds."""
    from splintr import Tokenizer  # noqa: PLC0415 - a model's vocabulary is not loaded at import

    return Tokenizer.from_pretrained(vocabulary)


def model_family(model: str | None) -> ModelFamily:
    """Return the family of a model; the provider in its name does not matter."""
    name = (model or "").lower().replace("_", "-")
    # Both `provider:model` and `model:tag` are common: either half may name the family.
    name = name.rsplit("/", 1)[-1].rsplit(":", 1)[-1] if "/" in name else name.replace(":", "-")
    return next(
        (
            family
            for family in MODEL_FAMILIES
            if any(f"-{start}" in f"-{name}" or f".{start}" in name for start in family.names)
        ),
        UNKNOWN_FAMILY,
    )


@cache
def counter_for(model: str | None) -> Counter:
    """Return the best available counter for a model; models of one family share it, and so the counts of messages."""
    return _family_counter(model_family(model))


def load_vocabulary(model: str | None) -> None:
    """Load what counts for a model: a quarter of a second in which nothing else runs in the process."""
    # The tokenizer builds its tables with the first word that is not one token.
    counter_for(model).count("zqxjkvbn")


def bound_of(counter: Counter) -> Counter | None:
    """Return a counter that needs no vocabulary and counts at least as many tokens; None if there is none."""
    return counter.bound if isinstance(counter, VocabularyCounter) else None


@cache
def _family_counter(family: ModelFamily) -> Counter:
    try:
        return VocabularyCounter(family)
    except (ImportError, ValueError, OSError):
        return EstimatingCounter()


_WORD = lazy_pattern(r"[A-Za-z]+")
_DIGITS = lazy_pattern(r"[0-9]{1,3}")
_PUNCTUATION = lazy_pattern(r"[!-/:-@\[-`{-~]+")
_BREAK = lazy_pattern(r"\n\s*")
_SPACES = lazy_pattern(r"  +")
_CASE_CHANGE = lazy_pattern(r"[a-z](?=[A-Z])")
_ALPHABETIC = lazy_pattern(r"[\u0080-\u07ff]+")
"""Latin with accents, Greek, Cyrillic, Hebrew, Arabic: about a token for a few letters."""
_CJK = lazy_pattern(r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]")
_ASTRAL = lazy_pattern(r"[\U00010000-\U0010ffff]")
_OTHER = lazy_pattern(r"[^\x00-\u07ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00010000-\U0010ffff]")


class EstimatingCounter:
    """Estimates by a formula."""

    name = "estimate"
    provenance: Provenance = "estimated"

    def count(self, text: str) -> int:
        """Return the approximate number of tokens of a text."""
        punctuation = _PUNCTUATION.findall(text)
        total = (
            0.98 * len(_WORD.findall(text))
            + 1.27 * len(_DIGITS.findall(text))
            + 0.78 * len(punctuation)
            + 0.10 * (sum(map(len, punctuation)) - len(punctuation))
            + 1.39 * len(_BREAK.findall(text))
            + 0.41 * len(_SPACES.findall(text))
            + 1.83 * len(_CASE_CHANGE.findall(text))
        )
        if not text.isascii():
            alphabetic = _ALPHABETIC.findall(text)
            total += (
                0.49 * len(alphabetic)
                + 0.22 * sum(map(len, alphabetic))
                + 0.69 * len(_CJK.findall(text))
                + 2.60 * len(_ASTRAL.findall(text))
                + 0.60 * len(_OTHER.findall(text))
            )
        return -int(-total // 1)
