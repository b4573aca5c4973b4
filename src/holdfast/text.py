"""Numbers with the word for what they count."""


def pluralize(count: int, what: str) -> str:
    """Return how many there are of something, such as `1 message` or `1,024 messages`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
