"""Small texts for people: counts in the singular or the plural, the first line of a longer text, plain letters."""

import unicodedata

_ACCENTS = dict.fromkeys(range(0x300, 0x370))


def pluralize(count: int, what: str) -> str:
    """Return a count with its noun, such as `1 message` or `1,024 messages`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def clip_to_line(text: str, max_chars: int = 160) -> str:
    """Return the beginning of a text as one line."""
    line = " ".join(text[: 4 * max_chars].split())
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def plain_letters(text: str) -> str:
    """Return a text without accents and without other forms of the same characters, such as full-width ones."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKD", text).translate(_ACCENTS))
