"""Prepares prompts: makes typed or pasted text valid, and small enough for the window.

A paste that would fill the window is not cut. It becomes an attachment of the conversation, which the model reads in
parts. The prompt then holds the beginning of the text and says how to read the rest.
"""

import re
from collections.abc import Container
from dataclasses import dataclass
from itertools import count

from holdfast.core.conversation.tokens import Counter

MAX_PROMPT_SHARE = 0.5
"""A prompt that takes a larger share of the budget becomes an attachment."""
ATTACHMENT_PREVIEW_CHARS = 400
MAX_CONTROL_SHARE = 0.1
"""Input with a larger share of control characters is not text."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class CleanPrompt:
    """A prompt that can be sent, or the reason why it cannot."""

    text: str
    problem: str = ""
    """The reason why it cannot be sent."""
    note: str = ""
    """What was changed."""


def clean_prompt(text: str) -> CleanPrompt:
    """Return typed text as text that can be sent, or the reason why it cannot."""
    stripped = text.strip()
    control = len(_CONTROL.findall(stripped))
    if control > max(8, MAX_CONTROL_SHARE * len(stripped)):
        return CleanPrompt("", problem="this is binary data, not text: save it as a file and ask about the file")
    clean = _SURROGATES.sub("\ufffd", _CONTROL.sub("", stripped))
    return CleanPrompt(clean, note="control characters were removed" if control else "")


def is_too_large(text: str, budget: int, counter: Counter) -> bool:
    """Return whether a prompt would leave too little room for the conversation."""
    # In every vocabulary, 16 characters take at least a token, so text that is clearly too long is not counted.
    limit = int(MAX_PROMPT_SHARE * budget)
    return len(text) > 16 * limit or (len(text) > limit and counter.count(text) > limit)


def new_attachment_name(taken: Container[str]) -> str:
    """Return the next name for a paste."""
    return next(name for number in count(1) if (name := f"paste-{number}.txt") not in taken)


def attachment_text(name: str, text: str) -> str:
    """Return the text that replaces an attachment in a prompt."""
    lines = len(text.splitlines())
    return (
        f"[attached: {name}, {lines:,} lines, {len(text):,} characters; it begins as below and is read with"
        f' read_file("{name}", start_line=…)]\n\n{text[:ATTACHMENT_PREVIEW_CHARS]}…'
    )
