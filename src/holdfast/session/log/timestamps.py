"""Converts the times of a log from and to text.

Models read UTC; notes and boards use the local days of this machine. A time outside the range of `datetime` is clamped.
"""

from datetime import UTC, datetime

from holdfast.errors import MalformedInputError

MAX_TIME_MS = 253_402_300_799_000
"""The end of the year 9999, the last that `datetime` supports."""


def format_time_utc(time_ms: int) -> str:
    """Return a time as text in UTC."""
    return f"{utc_time(time_ms):%Y-%m-%d %H:%M}"


def parse_time(where: str, text: str, *, is_end: bool = False) -> int:
    """Return the time of an ISO date or time in milliseconds; with `is_end`, the first moment after it."""
    text_time = text.strip()
    try:
        moment = datetime.fromisoformat(text_time)
    except ValueError:
        raise MalformedInputError(
            where, f"{text!r:.60} is no time; give one such as 2026-01-31 or 2026-01-31T10:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    is_day = len(text_time) <= len("2026-01-31")
    return int(moment.timestamp() * 1000) + (86_400_000 if is_end and is_day else int(is_end))


def local_time(time_ms: int) -> datetime:
    """Return a time in the time zone of this machine; in UTC if the year 10000 has begun here."""
    moment = utc_time(time_ms)
    try:
        return moment.astimezone()
    except OverflowError:
        return moment


def local_day(time_ms: int) -> str:
    """Return the local day of a time."""
    return f"{local_time(time_ms):%Y-%m-%d}"


def utc_time(time_ms: int) -> datetime:
    """Return a time in UTC."""
    return datetime.fromtimestamp(min(max(0, time_ms), MAX_TIME_MS) / 1000, UTC)
