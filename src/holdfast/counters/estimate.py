"""Token counts without a vocabulary.

A weighted sum of what tokenizers split at: words, groups of three digits, runs of punctuation, line
breaks, changes of case, and characters by script. The weights were fitted against o200k on prose,
code, logs, JSON, base64 and ten languages; `tests/counters/test_counters.py` holds how far off each
kind may be. The worst is about a seventh too low, so whoever relies on an estimate leaves that much room.
"""

import re

from holdfast.core.conversation.tokens import Provenance

_WORD = re.compile(r"[A-Za-z]+")
_DIGITS = re.compile(r"[0-9]{1,3}")
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]+")
_BREAK = re.compile(r"\n\s*")
_SPACES = re.compile(r"  +")
_CASE_CHANGE = re.compile(r"[a-z](?=[A-Z])")
_ALPHABETIC = re.compile(r"[\u0080-\u07ff]+")
"""Latin with accents, Greek, Cyrillic, Hebrew, Arabic: about a token for a few letters."""
_CJK = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]")
_ASTRAL = re.compile(r"[\U00010000-\U0010ffff]")
_OTHER = re.compile(r"[^\x00-\u07ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00010000-\U0010ffff]")


class EstimatingCounter:
    """Counts by a formula."""

    name = "estimate"
    provenance: Provenance = "estimated"

    def count(self, text: str) -> int:
        """Return about how many tokens a text has."""
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
