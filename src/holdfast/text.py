"""Counts as text for people, in the singular or the plural."""


def pluralize(count: int, what: str) -> str:
    """Return a count with its noun, such as `1 message` or `1,024 messages`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
